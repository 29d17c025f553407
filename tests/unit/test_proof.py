"""What is known of a hang afterwards: the links are tested again among the same replicas, and a verdict says what that shows."""

from __future__ import annotations

from collections.abc import Callable

from world import World, stage_of

from coordinator.core.catalogue import finding
from coordinator.core.protocol import (
    CollectiveResult,
    Finding,
    LinkResult,
    ProgressRecord,
    RunResult,
    Stage,
    TaskReport,
    TcpResult,
)
from coordinator.stages.gather import CHECK_WAIT_S, REPLACE_AFTER_S
from coordinator.views_of import foremost


def hung_at(step: int, behind: int = 1) -> Finding:
    ranks = {str(rank): {"phase": "train", "step": step} for rank in range(2)}
    return finding("RUN030", "Nobody works any more.", evidence={"behind": [behind], "ranks": ranks})


def collective(world: World, works: Callable[[frozenset[int]], bool] = lambda _: True) -> int:
    """Answer every round of the collective until it is over; how many there were."""
    rounds = 0
    while stage_of(world) == (Stage.COLLECTIVE, "running"):
        attempt, rounds = world.attempt(), rounds + 1
        rank_of = {seat.replica_id: seat.rank for seat in attempt.seats}
        running = attempt.rounds[-1]
        for group in running.groups:
            ok = works(frozenset(rank_of[replica_id] for replica_id in group))
            result = CollectiveResult(ok=ok, values_ok=ok, backend="gloo", error="" if ok else "timeout")
            for replica_id in group:
                tasks = dict(world.replicas[replica_id].tasks)
                tasks[running.task_id] = TaskReport(
                    task_id=running.task_id, stage=Stage.COLLECTIVE, state="succeeded", result=result
                )
                world.observe(replica_id, tasks=tasks)
        world.step(1.0)
    return rounds


def hang(world: World, found: Finding) -> None:
    """The running attempt trains and hangs; all processes of it are gone."""
    for stage in (Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE):
        if stage is Stage.COLLECTIVE:
            collective(world)
        else:
            world.pass_stage(stage)
    assert stage_of(world) == (Stage.TRAIN, "running")
    for rank in range(2):
        world.report(Stage.TRAIN, rank, None, state="running")
    seen = world.attempt().model_copy(update={"hung": found, "hung_at": world.now_at})
    world.attempts[seen.id] = seen
    world.step(11.0)
    world.let_go()
    world.step(0.5)


def after_a_hang(allowed: int, step: int = 12) -> World:
    """A job of two (and a spare) whose first attempt hung; the next one stands before its handshake."""
    world = World("a", "b")
    world.submit(attempts_allowed=allowed)
    world.step()
    world.step()
    hang(world, hung_at(step))
    world.step(3.0)
    world.step()
    return world


def codes(world: World) -> list[str]:
    return [one.code for one in world.findings if one.code.startswith("RUN03")]


def test_after_a_hang_three_passes_among_the_same_replicas_make_it_transient_and_training_goes_on() -> None:
    world = after_a_hang(2)
    assert world.attempt().number == 2 and stage_of(world)[0] is Stage.TCP
    world.pass_stage(Stage.TCP)
    assert collective(world) == 3
    assert stage_of(world) == (Stage.PREPARE, "running")
    assert codes(world) == ["RUN030", "RUN033"] and world.attempt().proof == "transient"
    assert "the collective 3 times" in world.findings[-1].message
    assert len({one.task_id for one in world.attempt().rounds}) == 3


def test_a_link_that_fails_again_ends_the_job_with_the_link_named_and_no_further_attempt() -> None:
    world = after_a_hang(5)
    world.pass_stage(Stage.TCP)
    collective(world, lambda group: len(group) < 2)
    world.let_go()
    world.step(1.0)
    world.step(30.0)
    job = world.jobs["job00001"]
    assert (job.state, job.attempts) == ("failed", 2)
    assert codes(world) == ["RUN030", "RUN034"] and world.findings[-1].evidence["verdict"] == "reproducible"
    assert "the link between rank 0 (a) and rank 1 (b) fails" in job.verdict


def test_tcp_that_fails_again_is_reproducible_too() -> None:
    world = after_a_hang(5)
    for seat in world.attempt().seats:
        (other,) = (o for o in world.attempt().seats if o is not seat)
        link = LinkResult(replica_id=other.replica_id, address=other.address, ok=False, fault="timed_out")
        world.report(Stage.TCP, seat.rank, TcpResult(links=(link,), rendezvous_port=29500))
    world.step(1.0)
    world.let_go()
    world.step(1.0)
    assert world.jobs["job00001"].state == "failed"
    assert codes(world)[-1] == "RUN034" and "tcp fails again" in world.findings[-1].message


def test_a_job_without_another_attempt_still_learns_what_its_hang_was() -> None:
    world = after_a_hang(1)
    assert world.attempt().number == 2 and not world.attempt().trains
    world.pass_stage(Stage.TCP)
    assert collective(world) == 3
    world.let_go()
    world.step(1.0)
    job = world.jobs["job00001"]
    assert job.state == "failed" and job.stage is Stage.TRAIN
    assert job.verdict.startswith("Failed in train: Nobody works any more.") and "transient" in job.verdict
    world.step(60.0)
    assert len(world.attempts) == 2


def test_what_cannot_be_tested_among_the_same_replicas_stays_unknown() -> None:
    world = World("a", "b")
    world.submit(attempts_allowed=1)
    world.step()
    world.step()
    hang(world, hung_at(3))
    world.observe("r-00000b", silent_s=60.0)
    world.step(3.0)
    assert "to test the links once more" in world.jobs["job00001"].verdict
    world.step(CHECK_WAIT_S + 1.0)
    assert world.jobs["job00001"].state == "failed" and len(world.attempts) == 1
    assert codes(world) == ["RUN030", "RUN035"]


def test_a_collective_that_fails_once_more_and_passes_then_proves_nothing() -> None:
    world = after_a_hang(2)
    world.pass_stage(Stage.TCP)
    seen: list[frozenset[int]] = []

    def works(group: frozenset[int]) -> bool:
        seen.append(group)
        return len(seen) != 2

    collective(world, works)
    assert stage_of(world) == (Stage.PREPARE, "running")
    assert world.attempt().proof == "unknown" and codes(world)[-1] == "RUN035"


def test_a_check_that_only_did_not_answer_convicts_nobody() -> None:
    world = after_a_hang(3)
    world.pass_stage(Stage.TCP)
    assert stage_of(world) == (Stage.COLLECTIVE, "running")
    for replica_id in ("r-00000a", "r-00000b"):
        world.observe(replica_id, silent_s=20.0)
    for _ in range(12):
        world.step(70.0)
    assert "RUN034" not in codes(world)


def test_a_second_hang_at_the_same_place_with_links_that_pass_is_a_fault_of_the_training() -> None:
    world = after_a_hang(5)
    hang(world, hung_at(12))
    job = world.jobs["job00001"]
    assert job.state == "failed" and job.attempts == 2
    assert "rank 1 behind in train at step 12" in job.verdict
    world.step(60.0)
    assert len(world.attempts) == 2 and codes(world) == ["RUN030", "RUN033", "RUN030", "RUN034"]


def test_a_hang_elsewhere_is_another_hang_and_is_tried_again() -> None:
    world = after_a_hang(5)
    hang(world, hung_at(400))
    assert world.jobs["job00001"].state == "queued"


def test_a_training_that_failed_by_itself_is_not_tested_for_its_links() -> None:
    world = World("a", "b")
    world.submit(attempts_allowed=1)
    world.step()
    world.step()
    for stage in (Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE):
        world.pass_stage(stage)
    world.report(Stage.TRAIN, 0, RunResult(exit_code=1, tail=("KeyError: 'text'",)), state="failed")
    world.report(Stage.TRAIN, 1, RunResult(exit_code=1), state="failed")
    world.starts[world.attempt().id] = (ProgressRecord(type="start", at=0, rank=0, world_size=2),)
    world.step(1.0)
    world.let_go()
    world.step(1.0)
    assert world.jobs["job00001"].state == "failed" and len(world.attempts) == 1


# --- who takes part in the next attempt


def lost_second(*names: str) -> World:
    world = World(*names)
    world.submit(attempts_allowed=3)
    world.step()
    world.step()
    hang(world, hung_at(3))
    world.observe("r-00000b", silent_s=60.0)
    world.step(3.0)
    return world


def test_a_job_that_lost_a_replica_waits_for_it_or_a_spare_and_says_so() -> None:
    world = lost_second("a", "b")
    job = world.jobs["job00001"]
    assert job.state == "queued" and job.verdict == (
        "Attempt 1 failed: Nobody works any more. Waiting for rank 1 (b, gone) to come back, or for a spare."
    )
    world.step(600.0)
    assert len(world.attempts) == 1
    world.observe("r-00000b", silent_s=0.5)
    world.step(1.0)
    assert [seat.hostname for seat in world.attempt().seats] == ["a", "b"] and world.attempt().number == 2


def test_a_spare_takes_the_rank_of_a_replica_that_does_not_come_back_and_that_is_said() -> None:
    world = lost_second("a", "b", "c")
    assert "a spare is ready to take over" in world.jobs["job00001"].verdict
    assert len(world.attempts) == 1
    world.step(REPLACE_AFTER_S)
    assert [seat.hostname for seat in world.attempt().seats] == ["a", "c"]
    assert codes(world)[-1] == "RUN037" and "c takes rank 1 from b" in world.findings[-1].message
    world.step()
    world.pass_stage(Stage.TCP)
    collective(world)
    assert world.attempt().proof == "unknown"


def test_a_replica_that_is_back_in_time_keeps_its_rank_though_a_spare_is_there() -> None:
    world = lost_second("a", "b", "c")
    world.step(REPLACE_AFTER_S / 2)
    world.observe("r-00000b", silent_s=0.5)
    world.step(1.0)
    assert [seat.hostname for seat in world.attempt().seats] == ["a", "b"]
    assert "RUN037" not in codes(world)


def test_who_names_no_attempt_means_the_one_that_trained_and_not_the_test_of_links_after_it() -> None:
    world = after_a_hang(1)
    first, check = world.attempts.values()
    assert foremost([first, check]) == check  # it is what goes on now
    ended = check.model_copy(update={"state": "ended"})
    assert foremost([first, ended]) == first and foremost([ended]) == ended
