"""An agent that is started anew during the handshake: it listens elsewhere and has forgotten its round, so that is done again."""

from __future__ import annotations

from typing import Any

import pytest
from world import World, stage_of, started

from coordinator.assignment import Work, plan
from coordinator.core.protocol import (
    CollectiveResult,
    CollectiveTask,
    LinkResult,
    ProgressRecord,
    RunResult,
    Stage,
    Task,
    TaskReport,
    TcpResult,
    TcpTask,
)
from coordinator.core.views import Submission
from coordinator.stages.collective import HELD_AGAIN
from coordinator.stages.gather import ABSENT_S
from coordinator.stages.handshake import PROBED_ANEW

HEALTHY = CollectiveResult(ok=True, values_ok=True, backend="gloo", init_s=0.4, bytes_per_s={4: 1e3})
BROKEN = CollectiveResult(ok=False, backend="gloo", phase="init", error="Connection closed by peer")


def restart(world: World, rank: int, port: int = 5000) -> None:
    replica_id = world.attempt().seats[rank].replica_id
    before = world.replicas[replica_id]
    incarnation = before.incarnation + 1
    registration = before.registration.model_copy(update={"incarnation": incarnation, "echo_port": port})
    world.observe(replica_id, registration=registration, incarnation=incarnation)


def task(world: World, rank: int) -> Task:
    attempt = world.attempt()
    found = plan(world.jobs["job00001"], Work(Submission(config="")), attempt, attempt.seats[rank]).task
    assert found is not None
    return found


def report(world: World, rank: int, result: Any) -> None:
    """What this rank says of the task it has now, beside what it has said before."""
    asked, attempt = task(world, rank), world.attempt()
    replica_id = attempt.seats[rank].replica_id
    said = TaskReport(task_id=asked.task_id, stage=asked.stage, state="succeeded", result=result)
    tasks = {**world.replicas[replica_id].tasks, asked.task_id: said}
    world.observe(replica_id, attempt_id=attempt.id, tasks=tasks, holding=frozenset({attempt.id}))


def link(world: World, rank: int, *, ok: bool) -> TcpResult:
    other = world.attempt().seats[1 - rank]
    found = LinkResult(
        replica_id=other.replica_id,
        address=other.address,
        ok=ok,
        fault="" if ok else "refused",
        rtt_s=0.001 if ok else None,
        bytes_per_s=1e9 if ok else None,
    )
    return TcpResult(links=(found,), rendezvous_port=29500)


def test_links_are_probed_where_an_agent_listens_now() -> None:
    world = World("a", "b")
    world.submit()
    world.step()
    restart(world, 1)
    world.step()
    probes = task(world, 0)
    assert isinstance(probes, TcpTask)
    assert [target.echo_port for target in probes.targets] == [5000]


def test_a_link_to_an_agent_that_was_restarted_meanwhile_is_probed_again_before_it_is_judged() -> None:
    world = started(Stage.TCP)
    report(world, 0, link(world, 0, ok=False))
    world.step(1.0)
    restart(world, 1)
    report(world, 1, link(world, 1, ok=True))
    world.step(1.0)
    probes = task(world, 0)
    assert isinstance(probes, TcpTask) and probes.task_id != "tcp"
    assert [target.echo_port for target in probes.targets] == [5000]
    world.step(35.0)
    assert stage_of(world) == (Stage.TCP, "running"), "they have the whole time for it"
    for rank in (0, 1):
        report(world, rank, link(world, rank, ok=True))
    world.step(1.0)
    assert stage_of(world) == (Stage.COLLECTIVE, "running")
    assert not [found for found in world.findings if found.severity == "error"]


def test_a_link_that_is_really_broken_is_judged_however_often_an_agent_is_restarted() -> None:
    world = started(Stage.TCP)
    for _ in range(PROBED_ANEW + 1):
        assert stage_of(world) == (Stage.TCP, "running")
        restart(world, 1)
        for rank in (0, 1):
            report(world, rank, link(world, rank, ok=False))
        world.step(1.0)
    world.step(1.0)
    assert world.attempt().state == "ending"


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_link_that_nobody_answers_is_judged_when_it_is_clear_whether_its_agent_lives(
    comes_back: bool,
) -> None:
    """It was killed after it had done its part, in the last moment before its peers did theirs."""
    world = started(Stage.TCP)
    report(world, 1, link(world, 1, ok=True))
    report(world, 0, link(world, 0, ok=False))
    killed = world.attempt().seats[1].replica_id
    for silent_s in (1.0, 2.0, 4.0):
        world.observe(killed, silent_s=silent_s)
        world.step(silent_s / 2)
        assert stage_of(world) == (Stage.TCP, "running")
    if comes_back:
        restart(world, 1)
        world.observe(killed, silent_s=0.1)
        world.step(0.5)
        assert task(world, 0).task_id == "tcp-1"
        return
    world.observe(killed, silent_s=16.0)
    world.step(12.0)
    (lost,) = (found for found in world.findings if found.severity == "error")
    assert (lost.code, lost.replica) == ("SYS003", killed)


def test_a_round_is_held_again_when_an_agent_is_restarted_in_the_middle_of_it() -> None:
    world = started(Stage.COLLECTIVE)
    first = task(world, 0)
    restart(world, 1)
    world.step(1.0)
    second = task(world, 0)
    assert isinstance(second, CollectiveTask) and second.task_id != first.task_id
    assert second.world_size == 2, "it is no search for a culprit"
    for rank in (0, 1):
        report(world, rank, HEALTHY)
    world.step(1.0)
    assert stage_of(world) == (Stage.PREPARE, "running")
    assert not world.findings, "nothing was wrong with the network"


def test_a_round_that_had_passed_needs_no_other() -> None:
    world = started(Stage.COLLECTIVE)
    for rank in (0, 1):
        report(world, rank, HEALTHY)
    restart(world, 1)
    world.step(1.0)
    assert stage_of(world) == (Stage.PREPARE, "running")


def test_an_agent_that_dies_in_every_round_does_not_get_one_for_ever() -> None:
    world = started(Stage.COLLECTIVE)
    for _ in range(HELD_AGAIN):
        restart(world, 1)
        world.step(1.0)
    last = task(world, 0).task_id
    restart(world, 1)
    world.step(1.0)
    assert task(world, 0).task_id == last
    for rank in (0, 1):
        report(world, rank, BROKEN)
    world.step(1.0)
    assert task(world, 0).task_id != last, "now it is searched for who prevents it"
    assert len(world.attempt().rounds) == HELD_AGAIN + 2


@pytest.mark.parametrize("stage", [Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE], ids=str)
def test_a_coordinator_that_was_away_for_longer_than_a_deadline_gives_all_of_it_again(stage: Stage) -> None:
    """What was done meanwhile is heard of in a moment; what was never asked for has to be done yet."""
    world = started(stage)
    world.now_at = world.listening_since = world.now_at + 5000.0
    world.step(1.0)
    assert stage_of(world) == (stage, "running")
    world.step(10.0)
    assert stage_of(world) == (stage, "running")
    world.step(5000.0)
    world.step(1.0)
    assert world.attempt().state != "active" or stage is Stage.COLLECTIVE


def test_a_coordinator_that_was_away_when_gathering_ended_waits_for_who_was_there() -> None:
    world = World("a", "b")
    world.submit(nodes=3)
    world.step()
    for replica_id in world.replicas:
        world.observe(replica_id, silent_s=ABSENT_S + 1)
    world.now_at = world.listening_since = world.now_at + 3 * 3600.0
    world.step(1.0)
    assert world.jobs["job00001"].state == "queued"
    world.register("c")
    for replica_id in world.replicas:
        world.observe(replica_id, silent_s=0.5)
    world.step(2.0)
    assert stage_of(world) == (Stage.MATCH, "running")


def test_the_next_attempt_reads_nothing_that_the_one_before_left_for_its_rendezvous() -> None:
    """Nonce, port, files and what the ranks said at the start are all its own."""
    world = World("a", "b")
    world.submit(attempts_allowed=2)
    world.step()
    world.step()
    nonces, given = [], []
    for port in (29500, 29501):
        probes = task(world, 0)
        assert isinstance(probes, TcpTask)
        nonces.append(probes.nonce)
        for rank in (0, 1):
            report(world, rank, link(world, rank, ok=True).model_copy(update={"rendezvous_port": port}))
        world.step(1.0)
        for stage in (Stage.COLLECTIVE, Stage.PREPARE):
            world.pass_stage(stage)
        attempt = world.attempt()
        assert stage_of(world) == (Stage.TRAIN, "running") and attempt.rendezvous_port == port
        work = Work(Submission(config="base_model: org/model\n"))
        given.append(plan(world.jobs["job00001"], work, attempt, attempt.seats[0]).model_dump_json())
        if attempt.number == 1:
            world.report(Stage.TRAIN, 1, RunResult(exit_code=1), state="failed")
            world.step(1.0)
            # Its last words: that both train alone. Of the next attempt that says nothing.
            world.starts[attempt.id] = tuple(
                ProgressRecord(type="start", at=0, rank=rank, world_size=1) for rank in (0, 1)
            )
            world.let_go()
            for _ in range(3):
                world.step(10.0)
            assert world.attempt().number == 2
    assert nonces[0] != nonces[1]
    assert "attempt-1" in given[0] and "29500" in given[0]
    assert "attempt-1" not in given[1] and "29500" not in given[1]
    world.step(1.0)
    assert stage_of(world) == (Stage.TRAIN, "running")
