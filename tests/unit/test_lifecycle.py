"""What happens to a job next: gathering, gates in order, failures that end everything, ranks that stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import World, stage_of, started

from coordinator.attempt import Snapshot
from coordinator.core.catalogue import finding
from coordinator.core.protocol import (
    CollectResult,
    ProgressRecord,
    RunResult,
    Stage,
)
from coordinator.core.views import Deadlines
from coordinator.lifecycle import Change, advance


def test_a_healthy_job_passes_every_gate_in_order_and_succeeds() -> None:
    world = started(Stage.COMPARE)
    world.pass_stage(Stage.COMPARE)
    job, attempt = world.jobs["job00001"], world.attempt()
    assert job.state == "succeeded" and attempt.outcome == "succeeded"
    assert [record.state for record in attempt.stages] == ["passed"] * 8
    assert attempt.comparison[0].tuned == "yes" and attempt.rendezvous_port == 29500
    world.let_go()
    world.step(1.0)
    assert world.attempt().state == "ended"
    assert not [f for f in world.findings if f.severity == "error"]


def test_it_waits_for_the_missing_replica_says_so_and_names_it_later() -> None:
    world = World("a", "b")
    world.observe("r-00000b", silent_s=40.0)
    world.submit()
    world.step()
    assert world.jobs["job00001"].verdict == "1 of 2 replicas registered, waiting for one more."
    world.step(31.0)
    assert "b (silent for 40 s)" in world.jobs["job00001"].verdict


def test_a_late_replica_joins_the_waiting_job() -> None:
    world = World("a")
    world.submit()
    world.step()
    world.step(3600.0)
    world.register("b")
    world.step(1.0)
    assert world.jobs["job00001"].state == "running"


def test_too_few_replicas_at_the_deadline_is_a_finding_that_counts_them() -> None:
    world = World("a")
    world.submit(nodes=3, deadlines=Deadlines(gather_s=60))
    world.step()
    world.step(61.0)
    assert world.jobs["job00001"].state == "failed"
    assert [f.code for f in world.findings] == ["SYS001"] and "2 missing" in world.findings[0].message


def test_replicas_beyond_what_a_job_wants_stand_by_and_serve_the_next_job() -> None:
    world = World("a", "b", "c")
    world.submit()
    world.submit("job00002", nodes=1)
    world.step()
    assert world.attempt("job00002").seats[0].hostname == "c"


def test_a_job_does_not_overtake_the_one_before_it() -> None:
    world = World("a")
    world.submit(nodes=2)
    world.submit("job00002", nodes=1)
    world.step()
    assert world.jobs["job00002"].state == "queued"
    assert world.jobs["job00002"].verdict == "Waiting for the jobs before it."


def test_one_failed_rank_ends_the_attempt_and_the_job_fails_only_when_all_let_go() -> None:
    world = started(Stage.TRAIN)
    world.report(Stage.TRAIN, 0, None, state="running")
    world.report(Stage.TRAIN, 1, RunResult(exit_code=1, tail=("ValueError: no",)), state="failed")
    world.step(1.0)
    assert world.attempt().state == "ending" and world.jobs["job00001"].state == "running"
    world.step(5.0)
    assert world.attempt().state == "ending"
    world.let_go()
    world.step(1.0)
    job = world.jobs["job00001"]
    assert job.state == "failed" and "rank 1 (b) with exit code 1" in job.verdict
    found = world.findings[-1]
    assert found.code == "RUN001" and found.evidence["tail"] == ["ValueError: no"]


def test_machines_that_train_alone_are_a_failure_although_they_exit_0() -> None:
    world = started(Stage.TRAIN)
    world.starts[world.attempt().id] = tuple(
        ProgressRecord(type="start", at=0, rank=0, world_size=1, total_steps=9) for _ in range(2)
    )
    for rank in range(2):
        world.report(Stage.TRAIN, rank, RunResult(exit_code=0))
    world.step(1.0)
    assert world.attempt().outcome == "failed"
    assert "RUN003" in {f.code for f in world.findings}


def test_a_rank_that_never_said_that_it_trained_is_waited_for_and_then_a_failure() -> None:
    world = started(Stage.TRAIN)
    for rank in range(2):
        world.report(Stage.TRAIN, rank, RunResult(exit_code=0))
    world.step(1.0)
    world.step(30.0)
    assert world.attempt().state == "active"
    world.step(31.0)
    assert world.attempt().outcome == "failed" and world.findings[-1].code == "RUN004"


def test_a_training_that_ends_well_while_evidence_is_gathered_did_not_hang() -> None:
    world = started(Stage.TRAIN)
    found = finding("RUN030", "nobody works")
    seen = world.attempt().model_copy(update={"hung": found, "hung_at": world.now_at})
    world.attempts[seen.id] = seen
    world.pass_stage(Stage.TRAIN)
    assert stage_of(world) == (Stage.COLLECT, "running") and world.attempt().hung is None


def test_ranks_with_different_numbers_of_steps_are_stopped() -> None:
    world = started(Stage.TRAIN)
    world.starts[world.attempt().id] = tuple(
        ProgressRecord(type="start", at=0, rank=r, world_size=2, total_steps=9 + r) for r in range(2)
    )
    world.step(1.0)
    assert world.attempt().outcome == "failed"
    assert "rank 0: 9, rank 1: 10" in world.findings[-1].message


def test_different_data_is_found_before_training() -> None:
    world = started(Stage.PREPARE)
    world.report(Stage.PREPARE, 0, RunResult(exit_code=0, output={"digest": "a", "rows": 10}))
    world.report(Stage.PREPARE, 1, RunResult(exit_code=0, output={"digest": "b", "rows": 11}))
    world.step(1.0)
    assert world.findings[-1].code == "RUN002" and world.attempt().outcome == "failed"


def test_an_empty_tensor_is_a_lost_model_not_a_success() -> None:
    world = started(Stage.COLLECT)
    world.report(
        Stage.COLLECT, 0, CollectResult(folder="outputs", tensors=21, empty_tensors=("lm_head.weight",))
    )
    world.step(1.0)
    assert world.findings[-1].code == "RUN006" and world.attempt().outcome == "failed"


def test_a_failed_comparison_never_costs_the_model() -> None:
    world = started(Stage.COMPARE)
    world.report(Stage.COMPARE, 0, RunResult(exit_code=1), state="failed")
    world.step(1.0)
    assert world.jobs["job00001"].state == "succeeded"
    assert [f.severity for f in world.findings if f.code == "RUN007"] == ["warning"]


def test_a_comparison_that_never_ends_does_not_cost_the_model_either() -> None:
    world = started(Stage.COMPARE)
    world.step(700.0)
    assert world.jobs["job00001"].state == "succeeded"


@pytest.mark.parametrize(
    ("stage", "code"), [(Stage.MATCH, "SYS004"), (Stage.TCP, "NET040"), (Stage.PREPARE, "SYS004")]
)
def test_a_stage_that_hears_nothing_fails_at_its_deadline(stage: Stage, code: str) -> None:
    world = World("a", "b")
    world.submit()
    if stage is Stage.MATCH:
        world.observe("r-00000b", facts=None)
        world.step()
    else:
        world = started(stage)
    world.step(4000.0)
    assert world.attempt().outcome == "failed"
    assert code in {found.code for found in world.findings}


def test_a_replica_gone_between_join_and_start_ends_the_attempt_by_name() -> None:
    world = started(Stage.TCP)
    world.observe("r-00000b", silent_s=20.0)
    world.step(1.0)
    assert world.findings[-1].code == "SYS003" and world.findings[-1].replica == "r-00000b"


def test_a_short_silence_does_not_end_a_training() -> None:
    world = started(Stage.TRAIN)
    world.observe("r-00000b", silent_s=60.0)
    world.step(60.0)
    assert world.attempt().state == "active"


def test_cancelling_ends_the_processes_first() -> None:
    world = started(Stage.TRAIN)
    world.report(Stage.TRAIN, 0, None, state="running")
    world.jobs["job00001"] = replace(world.jobs["job00001"], cancel_requested=True)
    world.step(1.0)
    assert world.attempt().state == "ending" and world.jobs["job00001"].state == "running"
    world.let_go()
    world.step(1.0)
    assert world.jobs["job00001"].state == "cancelled"


def test_a_queued_job_is_cancelled_at_once() -> None:
    world = World()
    world.submit(cancel_requested=True)
    world.step()
    assert world.jobs["job00001"].state == "cancelled"


def test_a_failed_attempt_is_tried_again_with_the_same_ranks_as_often_as_allowed() -> None:
    world = World("a", "b")
    world.submit(attempts_allowed=2)
    world.step()
    world.step()
    ranks = [seat.replica_id for seat in world.attempt().seats]
    for attempt in (1, 2):
        for passed in (Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE):
            world.pass_stage(passed)
        world.report(Stage.TRAIN, 1, RunResult(exit_code=1), state="failed")
        world.step(1.0)
        world.let_go()
        world.step(1.0)
        world.step(1.0)
        world.step(1.0)
        assert world.attempt().number == min(attempt + 1, 2)
        assert [seat.replica_id for seat in world.attempt().seats] == ranks
    assert world.jobs["job00001"].state == "failed"


def test_a_job_that_is_retried_while_its_replicas_still_let_go_is_tried_again() -> None:
    world = started(Stage.COMPARE)
    world.pass_stage(Stage.COMPARE)
    assert (world.jobs["job00001"].state, world.attempt().state) == ("succeeded", "ending")
    world.submit(state="queued", stage=Stage.GATHER, attempts=1, attempts_allowed=2)  # as `retry` leaves it
    world.step()
    assert world.jobs["job00001"].state == "queued"
    world.let_go()
    world.step(0.5)
    world.step(0.5)
    assert (world.jobs["job00001"].state, world.attempt().number) == ("running", 2)


def test_a_replica_that_still_holds_an_old_attempt_gets_no_seat() -> None:
    world = World("a", "b")
    world.observe("r-00000b", holding=frozenset({"old-1"}))
    world.submit()
    world.step()
    assert world.jobs["job00001"].state == "queued"


def test_an_error_of_our_own_ends_its_job_and_no_other() -> None:
    world = started(Stage.COLLECTIVE)
    damaged = world.attempt().model_copy(update={"rounds": ()})  # a record that no judge can read
    world.attempts[damaged.id] = damaged
    world.register("c")
    world.submit("job00002", nodes=1)
    world.step(1.0)
    assert world.attempt().outcome == "failed" and world.findings[-1].code == "SYS032"
    assert "IndexError" in world.findings[-1].message and world.findings[-1].evidence["traceback"]
    assert world.jobs["job00002"].state == "running"


def test_an_attempt_without_a_plan_is_ended_with_the_reason() -> None:
    world = started(Stage.PREPARE)
    world.broken = {world.attempt().id: "zero9.json was not submitted"}
    world.step(1.0)
    assert world.attempt().outcome == "failed" and "zero9.json" in world.findings[-1].message
    world.let_go()
    world.step(1.0)
    assert world.jobs["job00001"].state == "failed"


def test_deciding_twice_changes_nothing() -> None:
    world = started(Stage.TRAIN)
    change = world.step()
    assert not change.jobs and not change.attempts and not change.findings


def failed_training(world: World, tail: str) -> Change:
    """The running training of a job fails on rank 1, and both replicas let go."""
    for stage in (Stage.MATCH, Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE):
        world.pass_stage(stage)
    world.report(Stage.TRAIN, 1, RunResult(exit_code=1, ended_at=world.now_at, tail=(tail,)), "failed")
    world.step(1)
    world.let_go()
    return world.step(0.5)


@pytest.mark.parametrize(
    ("tail", "state"),
    [
        ("RuntimeError: [gloo] Timed out waiting 1800000ms for recv operation to complete", "queued"),
        ("KeyError: 'text'", "queued"),
        ("ValueError: Your setup doesn't support bf16/gpu.", "failed"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "failed"),
    ],
)
def test_only_a_fault_that_may_pass_is_tried_again(tail: str, state: str) -> None:
    world = World("one", "two")
    world.submit(attempts_allowed=3)
    world.step()
    failed_training(world, tail)
    job = world.jobs["job00001"]
    assert job.state == state
    assert tail in job.verdict


def test_the_next_attempt_follows_after_a_pause_that_grows_with_the_same_ranks() -> None:
    world = World("one", "two")
    world.submit(attempts_allowed=3)
    world.step()
    first = world.attempt()
    change = failed_training(world, "KeyError: 'text'")
    assert len(world.attempts) == 1
    change = world.step(0.1)
    assert change.wake_at is not None
    world.step(change.wake_at - world.now_at - 0.1)
    assert len(world.attempts) == 1
    world.step(0.2)
    second = world.attempt()
    assert second.number == 2
    assert [seat.replica_id for seat in second.seats] == [seat.replica_id for seat in first.seats]
    failed_training(world, "KeyError: 'text'")
    again = world.step(0.1)
    assert again.wake_at is not None
    assert again.wake_at - world.now_at > 3.0


def test_a_look_at_some_jobs_leaves_the_attempts_of_the_others_and_their_replicas_alone() -> None:
    world = World("one", "two", "three", "four")
    world.submit("job00001")
    world.step()
    training = world.attempt()
    for seat in training.seats:  # nobody has said yet that it holds a process of it
        assert world.replicas[seat.replica_id].holding == frozenset()
    world.submit("job00002")
    change = advance(Snapshot(world.now_at, (world.jobs["job00002"],), (training,), world.replicas))
    assert [attempt.job_id for attempt in change.attempts] == ["job00002"]
    (begun,) = change.attempts
    assert not {seat.replica_id for seat in begun.seats} & {seat.replica_id for seat in training.seats}
