"""Which checkpoint a further attempt goes on from: the newest that is whole everywhere, and no other one gets in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World, stage_of

from agent import checkpoints
from coordinator.assignment import Work, plan
from coordinator.core.checkpoints import STATE_FILE, HeldCheckpoint, held, is_mark, mark, step_of
from coordinator.core.protocol import RunResult, Stage
from coordinator.core.views import Submission
from coordinator.core.yaml import load
from coordinator.render import Site, Topology, render

SUBMISSION = Submission(
    config="base_model: m\ndatasets: [{path: d, type: alpaca}]\noutput_dir: ./out/\n", nodes=2
)


def names(*ranks: int, world: int = 2, state: bool = True) -> list[str]:
    return ["optimizer.pt", *([STATE_FILE] if state else []), *(mark(rank, world) for rank in ranks)]


def test_only_a_checkpoint_with_the_trainers_state_and_a_mark_counts() -> None:
    listing = {
        "checkpoint-10": names(0),
        "checkpoint-20": names(0, 1),
        "checkpoint-30": names(0, state=False),
        "checkpoint-40": names(),
        "checkpoint-50-backup": names(0),
        "before-attempt-1-checkpoint-60": names(0),
    }
    assert [(one.step, one.ranks) for one in held(listing)] == [(20, (0, 1)), (10, (0,))]


FOLDERS = st.from_regex(r"checkpoint-[0-9]{1,17}", fullmatch=True) | st.text(max_size=30)
FILES = (
    st.just(STATE_FILE)
    | st.from_regex(r"rankcall-saved\.[0-9]{1,10}-of-[0-9]{1,10}", fullmatch=True)
    | st.text()
)


@given(st.dictionaries(FOLDERS, st.lists(FILES, max_size=6), max_size=5))
def test_whatever_lies_there_a_listing_is_read(listing: dict[str, list[str]]) -> None:
    for one in held(listing):
        assert step_of(one.name) == one.step and one.ranks and STATE_FILE in listing[one.name]


# --- on the disk of one replica


def write(output: Path, step: int, *files: str, job: str = "j-1") -> Path:
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in files:
        folder.joinpath(name).write_text(job if is_mark(name) else name)
    return folder


def test_what_a_rank_has_written_is_marked_and_listed(tmp_path: Path) -> None:
    folder = write(tmp_path, 30, STATE_FILE)
    job = checkpoints.job_of("/state/jobs/j-1/attempt-2")
    checkpoints.saved(folder, 1, 2, job)
    checkpoints.saved(tmp_path / "checkpoint-99", 1, 2, job)
    assert held(checkpoints.listing(tmp_path, "j-1")) == (
        HeldCheckpoint(step=30, name="checkpoint-30", world_size=2, ranks=(1,)),
    )
    assert checkpoints.listing(tmp_path / "nowhere", "j-1") == {}


def test_a_checkpoint_of_another_job_in_the_same_folder_is_not_gone_on_from(tmp_path: Path) -> None:
    write(tmp_path, 500, STATE_FILE, mark(0, 1), job="j-of-last-week")
    write(tmp_path, 20, STATE_FILE, mark(0, 1), job="j-1")
    write(tmp_path, 30, STATE_FILE, mark(0, 1)).joinpath(mark(0, 1)).write_bytes(b"\xff")
    assert [one.step for one in held(checkpoints.listing(tmp_path, "j-1"))] == [20]


def test_a_training_that_goes_on_takes_later_checkpoints_out_of_the_way_and_keeps_the_newest_whole(
    tmp_path: Path,
) -> None:
    for step in (10, 20, 30, 40):
        write(tmp_path, step, mark(0, 2), *([STATE_FILE] if step != 40 else []))
    checkpoints.begin(tmp_path, 20, 0, 2)
    assert [one.step for one in held(checkpoints.listing(tmp_path, "j-1"))] == [20, 10]
    checkpoints.put_aside(tmp_path, 20, "attempt-2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-20"]


def test_a_whole_checkpoint_is_not_thrown_away_when_the_training_starts_anew(tmp_path: Path) -> None:
    for step in (10, 20):
        write(tmp_path, step, mark(0, 2), STATE_FILE)
    checkpoints.put_aside(tmp_path, 0, "attempt-2")
    assert [path.name for path in tmp_path.iterdir()] == ["before-attempt-2-checkpoint-20"]


@pytest.mark.parametrize(
    ("output", "world", "local", "fsdp", "saves"),
    [
        ("out", 2, 1, False, True),
        ("out", 16, 8, False, True),
        ("out", 8, 8, False, False),
        ("out", 2, 1, True, False),
        ("/somewhere/shared", 2, 1, False, False),
    ],
)
def test_each_replica_saves_where_disks_are_apart(
    output: str,
    world: int,
    local: int,
    fsdp: bool,
    saves: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(local)}
    assert checkpoints.each_replica_saves(Path(output), environment, fsdp=fsdp) is saves
    assert not checkpoints.each_replica_saves(Path(output), {}, fsdp=fsdp)


# --- the decision


def second_attempt(*of_ranks: list[HeldCheckpoint]) -> World:
    """A job whose first attempt failed in training; every rank of the second reports what it holds."""
    world = World("a", "b")
    world.submit(attempts_allowed=2)
    world.step()
    for stage in (Stage.MATCH, Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE):
        world.pass_stage(stage)
    world.report(
        Stage.TRAIN, 1, RunResult(exit_code=1, signal=None, tail=("KeyError: 'text'",)), state="failed"
    )
    world.step(1.0)
    world.let_go()
    world.step(1.0)
    world.step(5.0)
    for stage in (Stage.MATCH, Stage.TCP, Stage.COLLECTIVE):
        world.pass_stage(stage)
    assert stage_of(world) == (Stage.PREPARE, "running") and world.attempt().number == 2
    for rank, found in enumerate(of_ranks):
        output = {"digest": "abc", "rows": 40, "checkpoints": [one.model_dump(mode="json") for one in found]}
        world.report(Stage.PREPARE, rank, RunResult(exit_code=0, output=output))
    world.step(1.0)
    return world


def whole(step: int, *ranks: int, world: int = 2) -> HeldCheckpoint:
    return HeldCheckpoint(step=step, name=f"checkpoint-{step}", world_size=world, ranks=ranks)


def rendered(world: World) -> dict[str, object]:
    attempt = world.attempt()
    made = [plan(world.jobs["job00001"], Work(SUBMISSION, None), attempt, seat) for seat in attempt.seats]
    texts = {next(file.content for file in one.files if file.path == "axolotl.yaml") for one in made}
    (text,) = texts  # the same for all ranks
    return dict(load(text, "axolotl.yaml"))


def test_the_next_attempt_goes_on_from_the_newest_that_is_whole_on_every_replica() -> None:
    world = second_attempt([whole(30, 0), whole(20, 0)], [whole(20, 1), whole(10, 1)])
    assert stage_of(world) == (Stage.TRAIN, "running")
    assert rendered(world)["resume_from_checkpoint"] == "./out/checkpoint-20"
    assert "checkpoint-30 is not whole everywhere" in world.findings[-1].message
    assert world.findings[-1].code == "RUN038"


def test_without_one_that_is_whole_everywhere_it_starts_anew_and_says_who_has_what() -> None:
    world = second_attempt([whole(30, 0)], [])
    assert "resume_from_checkpoint" not in rendered(world)
    assert world.findings[-1].code == "RUN036" and "rank 1 (b): none" in world.findings[-1].message


def test_where_nothing_was_saved_nothing_is_said() -> None:
    world = second_attempt([], [])
    assert not {one.code for one in world.findings} & {"RUN036", "RUN038"}


def test_shards_of_another_rank_or_of_another_world_are_no_checkpoint() -> None:
    world = second_attempt([whole(30, 0), whole(20, 0, world=4)], [whole(30, 0), whole(20, 1, world=4)])
    assert world.attempt().resume is None


def test_a_disk_that_all_share_shows_the_marks_of_all_to_all() -> None:
    world = second_attempt([whole(30, 0, 1)], [whole(30, 0, 1)])
    assert world.attempt().resume == "checkpoint-30"


def test_what_a_replica_says_of_checkpoints_may_be_nonsense() -> None:
    world = second_attempt([whole(30, 0)], [whole(30, 1)])
    attempt = world.attempt()
    from coordinator.stages.resume import choose

    assert choose(attempt, [{"checkpoints": "x"}, {"checkpoints": [{"step": -1}]}]).checkpoint is None


TOPOLOGY = Topology(2, 0, "10.0.0.1", 29500)


def test_a_user_who_lets_axolotl_choose_is_obeyed_once_and_after_that_all_ranks_take_the_same() -> None:
    submission = SUBMISSION.model_copy(
        update={"config": SUBMISSION.config + "auto_resume_from_checkpoints: true\nsave_total_limit: 1\n"}
    )
    first, second, third = (
        load(
            next(
                f.content
                for f in render(submission, TOPOLOGY, Site(0), *how).files
                if f.path == "axolotl.yaml"
            ),
            "",
        )
        for how in ((1,), (2,), (3, "checkpoint-8"))
    )
    assert first["auto_resume_from_checkpoints"] is True and first["save_total_limit"] == 2
    assert second["auto_resume_from_checkpoints"] is False and "resume_from_checkpoint" not in second
    assert third["resume_from_checkpoint"] == "./out/checkpoint-8"


def test_deepspeeds_note_of_its_latest_states_is_written_where_it_wrote_none(tmp_path: Path) -> None:
    folder = write(tmp_path, 30, STATE_FILE)
    checkpoints.name_latest(folder)
    assert not (folder / "latest").exists()
    (folder / "global_step30").mkdir()
    checkpoints.name_latest(folder)
    assert (folder / "latest").read_text() == "global_step30"
