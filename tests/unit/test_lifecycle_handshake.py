"""What the handshake decides of a job: the address that works, which replica or link is named, several GPUs, preflights."""

from __future__ import annotations

from collections.abc import Callable

from world import World, stage_of

from coordinator.assignment import Work, plan
from coordinator.attempt import AttemptState, StageRecord
from coordinator.core.protocol import (
    Address,
    CollectiveResult,
    CollectiveTask,
    GpuFacts,
    LinkResult,
    Stage,
    TaskReport,
    TcpResult,
    TcpTask,
)
from coordinator.core.views import Submission


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
