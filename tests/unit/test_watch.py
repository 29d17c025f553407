"""From reports to the end of a hung attempt: readings and words become tracks, and a hang is said with rank and reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from world import World

from coordinator.assignment import Work, plan
from coordinator.attempt import AttemptState, Seat, Snapshot, StageRecord, Watched
from coordinator.core.protocol import (
    EVIDENCE,
    GpuTelemetry,
    ProgressRecord,
    RankTelemetry,
    Stage,
    TaskReport,
    Telemetry,
)
from coordinator.core.views import Deadlines, Submission
from coordinator.lifecycle import advance
from coordinator.stages.progress import judge_hang, judge_progress
from coordinator.watch import Heard, Watch, is_training

QUIET_S = 40.0
SUBMISSION = Submission(config="base_model: m\ndatasets: [{path: d, type: alpaca}]\noutput_dir: ./o\n")


def attempt(gpus: int = 0, warned: tuple[str, ...] = ()) -> AttemptState:
    return AttemptState(
        id="job-1",
        job_id="job",
        number=1,
        created_at=0.0,
        gpus_per_node=gpus,
        warned=warned,
        seats=tuple(Seat(replica_id=f"r-{rank}", rank=rank, hostname=f"host-{rank}") for rank in range(2)),
        stages=(StageRecord(stage=Stage.TRAIN, state="running", started_at=0.0),),
    )


def reading(
    at: float, *cpu_s: float, first_rank: int | None = 0, sockets: dict[str, int] | None = None
) -> Heard:
    ranks = tuple(
        RankTelemetry(
            rank=None if first_rank is None else first_rank + number,
            cpu_s=used_s,
            io_bytes=0,
            network_bytes_in=0,
            network_bytes_out=0,
            sockets=sockets or {},
            line_age_s=100.0,
        )
        for number, used_s in enumerate(cpu_s)
    )
    gpus = tuple(GpuTelemetry(index=number, utilization=0.0) for number in range(len(cpu_s)))
    return Heard(Telemetry(at=at, ranks=ranks, gpus=gpus), running=True)


def watched(watch: Watch, which: AttemptState, until_s: int, words: Sequence[ProgressRecord] = ()) -> Watched:
    """Both replicas report for so long, rank 0 without having done anything."""
    found = None
    for second in range(until_s):
        heard = {
            "r-0": reading(float(second // 2), 7.0, sockets={"CLOSE_WAIT": 6}),
            "r-1": reading(float(second // 2), 9.0, first_rank=1),
        }
        for record in words if second == 0 else ():
            watch.hear(which.id, record, 5000.0)
        found = watch.look(which, heard, 5000.0 + second)
    assert found is not None
    return found


def test_a_hang_ends_the_attempt_and_names_rank_host_and_reason() -> None:
    words = [
        ProgressRecord(type="phase", at=1.0, rank=0, phase="data"),
        ProgressRecord(type="phase", at=1.0, rank=1, phase="load"),
    ]
    verdict = judge_progress(attempt(), watched(Watch(), attempt(), 60, words), 100.0, QUIET_S)
    assert verdict.state == "pending"
    assert verdict.updates["hung_at"] == 100.0
    found = verdict.updates["hung"]
    assert (found.code, found.severity, found.replica) == ("RUN030", "error", "r-0")
    assert "Rank 0 (in data): does nothing" in found.message
    assert "6 connections closed by the other side" in found.message
    assert found.evidence["behind"] == [0]
    ranks = found.evidence["ranks"]
    assert isinstance(ranks, dict)
    assert ranks["1"]["host"] == "host-1"  # type: ignore[index, call-overload]


def test_nothing_is_judged_before_a_window_was_seen_nor_of_words_from_before() -> None:
    assert judge_progress(attempt(), watched(Watch(), attempt(), 38), 100.0, QUIET_S).state == "pending"
    watch = Watch()
    old = [ProgressRecord(type="log", at=1.0, rank=rank, step=7) for rank in range(2)]
    assert judge_progress(attempt(), watched(watch, attempt(), 38, old), 100.0, QUIET_S).state == "pending"
    watch.forget(attempt().id)
    assert judge_progress(attempt(), watched(watch, attempt(), 38), 100.0, QUIET_S).state == "pending"


def test_a_reading_that_comes_twice_is_one_sample() -> None:
    found = watched(Watch(), attempt(), 60)
    assert [len(track.samples) for track in found.tracks] == [28, 28]


def test_a_launcher_speaks_for_all_ranks_of_its_replica_until_they_are_there() -> None:
    watch, which = Watch(), attempt(gpus=2)
    found = watch.look(which, {"r-1": reading(1.0, 5.0, first_rank=None)}, 100.0)
    assert [len(track.samples) for track in found.tracks] == [0, 0, 1, 1]
    found = watch.look(which, {"r-1": reading(2.0, 5.0, 6.0, first_rank=2)}, 102.0)
    assert [track.samples[-1].cpu_s for track in found.tracks[2:]] == [5.0, 6.0]
    assert found.tracks[3].samples[-1].gpu_percent == 0.0


def test_a_replica_whose_training_has_ended_is_not_waited_for() -> None:
    watch = Watch()
    heard = {"r-0": Heard(None, running=False), "r-1": reading(1.0, 5.0, first_rank=1)}
    assert [track.ended for track in watch.look(attempt(), heard, 100.0).tracks] == [True, False]


def test_what_is_slow_or_stands_still_is_said_once() -> None:
    watch, which = Watch(), attempt()
    found = None
    for second in range(400):
        step = min(second, 100)
        for rank in range(2):
            if not second:
                watch.hear(which.id, ProgressRecord(type="phase", at=0.0, rank=rank, phase="train"), 5000.0)
            if second <= 100:
                said = ProgressRecord(type="log", at=float(second), rank=rank, step=step)
                watch.hear(which.id, said, 5000.0 + second)
        busy = reading(float(second), float(second), first_rank=0)
        idle = reading(float(second), 9.0, first_rank=1)
        found = watch.look(which, {"r-0": busy, "r-1": idle}, 5000.0 + second)
    assert found is not None
    first = judge_progress(which, found, 100.0, QUIET_S)
    assert [(one.code, one.severity, one.replica) for one in first.findings] == [("RUN031", "warning", "r-0")]
    assert first.updates == {"warned": ("RUN031",)}
    assert judge_progress(attempt(warned=("RUN031",)), found, 100.0, QUIET_S).findings == ()


def test_a_hung_attempt_is_ended_everywhere_and_tried_again() -> None:
    world = World("one", "two")
    world.submit(attempts_allowed=2)
    world.step()
    for stage in (Stage.MATCH, Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE):
        world.pass_stage(stage)
    running = world.attempt()
    assert is_training(running)
    tracks = watched(Watch(), attempt(), 60)
    assert not world.step().findings
    hung = advance(
        Snapshot(
            world.now_at,
            (world.jobs["job00001"],),
            (running,),
            world.replicas,
            world.starts,
            {running.id: tracks},
        )
    )
    (gathering,) = hung.attempts
    assert gathering.state == "active"
    world.attempts[running.id] = gathering
    seat = gathering.seats[0]
    asked = plan(world.jobs["job00001"], Work(SUBMISSION, None), gathering, seat)
    assert [member.rank for member in asked.evidence] == [0, 1]
    assert world.step(5.0).attempts == ()
    for rank in (0, 1):
        gathered = TaskReport(task_id=EVIDENCE, stage=Stage.TRAIN, state="succeeded")
        before = world.replicas[gathering.seats[rank].replica_id]
        world.observe(before.replica_id, tasks={**before.tasks, EVIDENCE: gathered})
    ended = world.step(0.1)
    assert [found.code for _, _, found in ended.findings] == ["RUN030"]
    assert [(one.state, one.retryable) for one in ended.attempts] == [("ending", True)]


def test_evidence_is_not_waited_for_for_ever() -> None:
    found = judge_progress(attempt(), watched(Watch(), attempt(), 60), 100.0, QUIET_S).updates
    hung = attempt().model_copy(update=dict(found))
    assert judge_hang(hung, [], 100.0).state == "failed"  # nobody is there to gather any
    world = World("one", "two")
    members = list(world.replicas.values())
    assert judge_hang(hung, members, 105.0).state == "pending"
    assert judge_hang(hung, members, 111.0).state == "failed"


def test_a_job_may_have_its_own_measure_or_none() -> None:
    world = World("one", "two")
    world.submit(attempts_allowed=2)
    world.step()
    for stage in (Stage.MATCH, Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE):
        world.pass_stage(stage)
    running = world.attempt()
    tracks = watched(Watch(), attempt(), 60)
    off = Deadlines(train_quiet_s=0)
    silent = advance(
        Snapshot(
            world.now_at,
            (replace(world.jobs["job00001"], deadlines=off),),
            (running,),
            world.replicas,
            world.starts,
            {running.id: tracks},
        )
    )
    assert silent.attempts == ()


def test_after_its_last_step_a_training_is_not_expected_to_make_another() -> None:
    watch = Watch()
    watch.hear("job-1", ProgressRecord(type="phase", at=1.0, rank=0, phase="train"), 90.0)
    watch.hear("job-1", ProgressRecord(type="end", at=9.0, rank=0, step=5), 99.0)
    found = watch.look(attempt(), {}, 100.0)
    assert (found.tracks[0].phase, found.tracks[0].step) == ("save", 5)


def test_of_many_steps_between_two_looks_the_last_counts_and_a_change_of_phase_is_never_passed_over() -> None:
    watch = Watch()
    for step in range(50):
        assert not watch.hear(
            "job-1", ProgressRecord(type="log", at=step / 10, rank=0, step=step), 90.0 + step / 10
        )
    found = watch.look(attempt(), {}, 95.0)
    assert (found.tracks[0].step, found.tracks[0].word_s) == (49, 94.9)
    watch.hear("job-1", ProgressRecord(type="log", at=10.0, rank=0, step=60), 100.0)
    watch.hear("job-1", ProgressRecord(type="phase", at=11.0, rank=0, phase="evaluate"), 101.0)
    watch.hear("job-1", ProgressRecord(type="phase", at=31.0, rank=0, phase="train"), 121.0)
    watch.hear("job-1", ProgressRecord(type="log", at=32.0, rank=0, step=61), 122.0)
    evaluated = watch.look(attempt(), {}, 123.0).tracks[0]
    assert (evaluated.phase, evaluated.step, evaluated.gap_s) == ("train", 61, 0.0)
    assert [round(pace, 3) for _, pace in evaluated.paces] == [0.464]  # of before; the evaluation is no step


def test_what_decides_something_at_once_is_told_apart_and_kept_until_the_attempt_has_ended() -> None:
    watch = Watch()
    start = ProgressRecord(type="start", at=1.0, rank=1, world_size=2)
    spoiled = ProgressRecord(type="log", at=2.0, rank=1, step=3, losses_not_finite=1)
    assert watch.hear("job-1", start, 1.0) and watch.hear("job-1", spoiled, 2.0)
    assert (watch.starts("job-1"), watch.spoiled("job-1")) == ((start,), (spoiled,))
    watch.forget("job-1")
    assert (watch.starts("job-1"), watch.spoiled("job-1")) == ((), ())
