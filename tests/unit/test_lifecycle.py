"""What happens to a job next: gathering, gates in order, failures that end everything, ranks that stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.assignment import Work, plan
from coordinator.attempt import AttemptState, Job, Observed, Snapshot, StageRecord
from coordinator.core.catalogue import finding
from coordinator.core.protocol import (
    Address,
    ArtifactFacts,
    CollectiveResult,
    CollectiveTask,
    CollectResult,
    Facts,
    Finding,
    GpuFacts,
    LinkResult,
    ProgressRecord,
    Registration,
    RunResult,
    Stage,
    TaskReport,
    TcpResult,
    TcpTask,
)
from coordinator.core.views import Deadlines, Submission
from coordinator.lifecycle import Change, advance

PACKAGES = {
    "torch": "2.13.0",
    "accelerate": "1.13.0",
    "deepspeed": "0.18.9",
    "axolotl": "0.19.0",
    "transformers": "5.16.1",
    "rankcall": "0.1.0",
}


class World:
    """Jobs, attempts and replicas as a coordinator would hold them, and a clock that only moves when told."""

    def __init__(self, *names: str) -> None:
        self.now_at = 1000.0
        self.jobs: dict[str, Job] = {}
        self.attempts: dict[str, AttemptState] = {}
        self.replicas: dict[str, Observed] = {}
        self.starts: dict[str, tuple[ProgressRecord, ...]] = {}
        self.findings: list[Finding] = []
        self.broken: dict[str, str] = {}
        self.listening_since = 0.0
        for name in names:
            self.register(name)

    def register(self, name: str, **changes: Any) -> None:
        number = len(self.replicas) + 1
        registration = Registration(
            replica_id=f"r-{name:0>6}",
            fingerprint=name,
            incarnation=1,
            hostname=name,
            addresses=(Address(address=f"10.0.0.{number}", interface="eth0"),),
            echo_port=4000,
        )
        facts = Facts(python="3.11.7", packages=PACKAGES, torch_ready=True)
        self.replicas[registration.replica_id] = replace(
            Observed(registration.replica_id, registration, 1, 0.5, None, facts), **changes
        )

    def submit(self, job_id: str = "job00001", **changes: Any) -> None:
        job = Job(job_id, len(self.jobs) + 1, 2, self.now_at, name=job_id, has_prompts=True)
        self.jobs[job_id] = replace(job, **changes)

    def observe(self, replica_id: str, **changes: Any) -> None:
        self.replicas[replica_id] = replace(self.replicas[replica_id], **changes)

    def step(self, seconds: float = 0.0) -> Change:
        self.now_at += seconds
        open_jobs = [j for j in self.jobs.values() if j.state in ("queued", "running")]
        change = advance(
            Snapshot(
                self.now_at,
                tuple(sorted(open_jobs, key=lambda j: j.seq)),
                tuple(self.attempts.values()),
                self.replicas,
                self.starts,
                broken=self.broken,
                listening_since=self.listening_since,
            )
        )
        self.jobs.update({job.id: job for job in change.jobs})
        self.attempts.update({attempt.id: attempt for attempt in change.attempts})
        self.findings += [found for _, _, found in change.findings]
        return change

    def attempt(self, job_id: str = "job00001") -> AttemptState:
        return [a for a in self.attempts.values() if a.job_id == job_id][-1]

    def report(self, stage: Stage, rank: int, result: Any, state: str = "succeeded") -> None:
        attempt = self.attempt()
        replica_id = attempt.seats[rank].replica_id
        before = self.replicas[replica_id]
        tasks = dict(before.tasks) if before.attempt_id == attempt.id else {}
        tasks[stage.value] = TaskReport(task_id=stage.value, stage=stage, state=state, result=result)  # type: ignore[arg-type]
        self.observe(
            replica_id,
            attempt_id=attempt.id,
            tasks=tasks,
            holding=frozenset({attempt.id}),
        )

    def let_go(self) -> None:
        for replica_id in self.replicas:
            self.observe(replica_id, attempt_id=None, tasks={}, holding=frozenset())

    def pass_stage(self, stage: Stage) -> None:
        """Every replica reports this stage as a healthy one would; then the decision is taken."""
        attempt = self.attempt()
        for seat in attempt.seats:
            others = [o for o in attempt.seats if o.rank != seat.rank]
            result: Any
            if stage is Stage.TCP:
                links = [
                    LinkResult(
                        replica_id=o.replica_id, address=o.address, ok=True, rtt_s=0.001, bytes_per_s=1e9
                    )
                    for o in others
                ]
                result = TcpResult(links=tuple(links), rendezvous_port=29500 if seat.rank == 0 else None)
            elif stage is Stage.COLLECTIVE:
                result = CollectiveResult(
                    ok=True, values_ok=True, backend="gloo", init_s=0.4, bytes_per_s={4: 1e3}
                )
            elif stage is Stage.PREPARE:
                result = RunResult(exit_code=0, output={"digest": "abc", "rows": 40})
            elif stage is Stage.TRAIN:
                result = RunResult(exit_code=0)
            elif stage is Stage.COLLECT:
                file = ArtifactFacts(
                    path="outputs/adapter_model.safetensors", size_bytes=9, sha256="0", kind="adapter"
                )
                result = CollectResult(folder="outputs", artifacts=(file,), tensors=28)
            else:
                answer = {
                    "prompt": "?",
                    "base": "no",
                    "tuned": "yes",
                    "base_repetition": 0.5,
                    "tuned_repetition": 0.0,
                }
                result = RunResult(exit_code=0, output=[answer])
            if stage in (Stage.COLLECT, Stage.COMPARE) and seat.rank != 0:
                continue
            self.report(stage, seat.rank, result)
        if stage is Stage.TRAIN:
            self.starts[attempt.id] = tuple(
                ProgressRecord(type="start", at=0, rank=r, world_size=len(attempt.seats), total_steps=9)
                for r in range(len(attempt.seats))
            )
        self.step(1.0)


def stage_of(world: World) -> tuple[Stage, str]:
    record = world.attempt().stage
    return record.stage, record.state


def started(stage: Stage) -> World:
    """A job of two replicas that has reached `stage`."""
    world = World("a", "b")
    world.submit()
    world.step()
    world.step()
    for passed in (Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE, Stage.TRAIN, Stage.COLLECT):
        if stage_of(world)[0] is stage:
            break
        world.pass_stage(passed)
    assert stage_of(world) == (stage, "running")
    return world


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


def isolated(names: int, works: Callable[[frozenset[int]], bool]) -> World:
    """A handshake of `names` replicas whose collective passes in a group of ranks where `works` says so."""
    world = World(*(f"h{n:02}" for n in range(names)))
    world.submit(nodes=names)
    world.step()
    world.step()
    world.pass_stage(Stage.TCP)
    while stage_of(world) == (Stage.COLLECTIVE, "running"):
        attempt = world.attempt()
        rank_of = {seat.replica_id: seat.rank for seat in attempt.seats}
        running = attempt.rounds[-1]
        for group in running.groups:
            ok = works(frozenset(rank_of[replica_id] for replica_id in group))
            result = CollectiveResult(
                ok=ok,
                values_ok=ok,
                backend="gloo",
                phase="done" if ok else "all_reduce",
                error="" if ok else "timeout",
            )
            for replica_id in group:
                tasks = dict(world.replicas[replica_id].tasks)
                tasks[running.task_id] = TaskReport(
                    task_id=running.task_id,
                    stage=Stage.COLLECTIVE,
                    state="succeeded" if ok else "failed",
                    result=result,
                )
                world.observe(replica_id, tasks=tasks)
        world.step(1.0)
    return world


def test_one_bad_replica_of_many_is_named_and_no_healthy_one() -> None:
    world = isolated(16, lambda group: 5 not in group)
    errors = [found for found in world.findings if found.severity == "error"]
    assert [(found.code, found.replica) for found in errors] == [
        ("COL020", world.attempt().seats[5].replica_id)
    ]
    assert len(world.attempt().rounds) <= 1 + 5


def test_one_bad_link_is_named_and_no_replica() -> None:
    world = isolated(8, lambda group: not {2, 6} <= group)
    errors = [found for found in world.findings if found.severity == "error"]
    assert [found.code for found in errors] == ["COL021"]
    assert "rank 2" in errors[0].message and "rank 6" in errors[0].message


def test_between_two_only_the_link_can_be_named() -> None:
    world = isolated(2, lambda group: len(group) < 2)
    assert [f.code for f in world.findings if f.severity == "error"] == ["COL021"]


def test_what_fails_once_and_then_passes_is_transient_and_goes_on() -> None:
    seen: list[frozenset[int]] = []

    def works(group: frozenset[int]) -> bool:
        seen.append(group)
        return len(seen) > 1

    world = isolated(4, works)
    assert stage_of(world) == (Stage.PREPARE, "running")
    assert "COL023" in {found.code for found in world.findings if found.severity == "warning"}


def test_a_replica_that_rests_in_a_round_has_nothing_to_do() -> None:
    world = isolated(5, lambda group: 4 not in group)
    assert any(len(r.groups[0]) < 5 for r in world.attempt().rounds)
    assert [f.replica for f in world.findings if f.code == "COL020"] == [world.attempt().seats[4].replica_id]


def with_two_addresses(world: World, good: str) -> None:
    """All offer an address in 10.0.0.0/24 first and one in 10.1.0.0/24 second; only those that begin with `good` work."""
    for number, (replica_id, seen) in enumerate(world.replicas.items(), start=1):
        addresses = tuple(Address(address=f"10.{net}.0.{number}", interface=f"eth{net}") for net in range(2))
        registration = seen.registration.model_copy(update={"addresses": addresses})
        world.observe(replica_id, registration=registration)
    world.step()
    world.step()
    attempt = world.attempt()
    for seat in attempt.seats:
        links = tuple(
            LinkResult(
                replica_id=other.replica_id,
                address=offer.address,
                ok=offer.address.startswith(good),
                fault="" if offer.address.startswith(good) else "timed_out",
            )
            for other in attempt.seats
            if other is not seat
            for offer in other.offers
        )
        world.report(Stage.TCP, seat.rank, TcpResult(links=links, rendezvous_port=29500))
    world.step(1.0)


def test_the_address_that_works_becomes_the_seats_own_for_all_that_follows() -> None:
    world = World("a", "b")
    world.submit()
    with_two_addresses(world, "10.1.")
    assert stage_of(world) == (Stage.COLLECTIVE, "running")
    attempt = world.attempt()
    assert [(seat.address, seat.interface) for seat in attempt.seats] == [
        ("10.1.0.1", "eth1"),
        ("10.1.0.2", "eth1"),
    ]
    task = plan(world.jobs["job00001"], Work(Submission(config="")), attempt, attempt.seats[1]).task
    assert isinstance(task, CollectiveTask)
    assert (task.master_address, task.environment["GLOO_SOCKET_IFNAME"]) == ("10.1.0.1", "eth1")
    (note,) = world.findings
    assert (note.code, note.severity) == ("NET033", "note")


def test_where_no_address_works_the_links_are_the_finding() -> None:
    world = World("a", "b")
    world.submit()
    with_two_addresses(world, "none")
    assert world.attempt().outcome == "failed"
    assert [f.code for f in world.findings] == ["NET004"]


def test_every_address_of_a_peer_is_tried_the_first_ones_first() -> None:
    world = World("a", "b", "c")
    world.submit(nodes=3)
    with_two_addresses(world, "10.0.")
    attempt = world.attempt()
    tcp = attempt.model_copy(update={"stages": (*attempt.stages[:2], running(attempt, Stage.TCP))})
    task = plan(world.jobs["job00001"], Work(Submission(config="")), tcp, attempt.seats[1]).task
    assert isinstance(task, TcpTask)
    assert [target.address for target in task.targets] == ["10.0.0.3", "10.0.0.1", "10.1.0.3", "10.1.0.1"]


def running(attempt: AttemptState, stage: Stage) -> StageRecord:
    return StageRecord(stage=stage, state="running", started_at=attempt.created_at)


def several_gpus(bad: int | None) -> World:
    """Three replicas with four GPUs each; in rank `bad` they do not work together."""
    world = World("a", "b", "c")
    for replica_id, seen in world.replicas.items():
        gpus = tuple(
            GpuFacts(index=n, name="GPU", compute_capability="9.0", memory_bytes=1 << 34) for n in range(4)
        )
        facts = seen.facts.model_copy(update={"gpus": gpus}) if seen.facts else None
        world.observe(
            replica_id, facts=facts, registration=seen.registration.model_copy(update={"gpu_count": 4})
        )
    world.submit(nodes=3)
    world.step()
    world.step()
    world.pass_stage(Stage.TCP)
    attempt = world.attempt()
    (first,) = attempt.rounds
    assert first.within and [len(group) for group in first.groups] == [1, 1, 1]
    seat = attempt.seats[1]
    task = plan(world.jobs["job00001"], Work(Submission(config="")), attempt, seat).task
    assert isinstance(task, CollectiveTask)
    assert (task.rank, task.world_size, task.processes, task.master_address) == (0, 4, 4, seat.address)
    for rank, one in enumerate(attempt.seats):
        ok = rank != bad
        result = CollectiveResult(
            ok=ok, values_ok=ok, backend="nccl", phase="done" if ok else "init", error=""
        )
        report = TaskReport(task_id=first.task_id, stage=Stage.COLLECTIVE, state="succeeded", result=result)
        tasks = {**world.replicas[one.replica_id].tasks, first.task_id: report}
        world.observe(one.replica_id, tasks=tasks)
    world.step(1.0)
    return world


def test_replicas_with_several_gpus_are_tested_within_themselves_first() -> None:
    world = several_gpus(None)
    assert [one.within for one in world.attempt().rounds] == [True, False]
    world.pass_stage(Stage.COLLECTIVE)
    assert stage_of(world) == (Stage.PREPARE, "running")
    assert [one.passed for one in world.attempt().rounds] == [(True, True, True), (True,)]


def test_one_that_fails_within_itself_is_named_before_any_peer_is_involved() -> None:
    world = several_gpus(1)
    assert world.attempt().outcome == "failed"
    (named,) = (f for f in world.findings if f.severity == "error")
    assert (named.code, named.replica) == ("COL020", world.attempt().seats[1].replica_id)
    assert "within itself, among its own 4 GPUs" in named.message


def test_a_preflight_ends_after_the_collective() -> None:
    world = World("a", "b")
    world.submit(kind="preflight")
    world.step()
    world.step()
    world.pass_stage(Stage.TCP)
    world.pass_stage(Stage.COLLECTIVE)
    assert world.jobs["job00001"].state == "succeeded"
    assert [record.stage for record in world.attempt().stages] == list(Stage)[:4]


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
