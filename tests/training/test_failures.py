"""What users fear, done to the real stack on two hosts: found, named, ended everywhere, explained, and tried again.

Axolotl, accelerate, DeepSpeed and gloo train a small model for eight steps and save after every second. A plugin of the
test's own (`faults.py`) does the damage from inside on rank 1; what happens to the network is done from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import twohosts
from fleet import Fleet
from namespaces import Host
from twohosts import PATIENCE_S, SHORT, ended, found, training

pytestmark = [pytest.mark.training, pytest.mark.hosts, pytest.mark.timeout(1800)]

COORDINATOR = (sys.executable, "-m", "coordinator")


def submit(
    pair: Fleet,
    demo: Path,
    what: str,
    *,
    rank: int = 1,
    step: int = 7,
    attempts: int = 1,
    overrides: tuple[str, ...] = (),
) -> str:
    """A job of which this rank does that at the beginning of this step, in the first attempt."""
    plan = {"what": what, "rank": rank, "step": step, "attempt": 1}
    return twohosts.submit(
        pair, demo, "faults.FaultPlugin", plan, attempts=attempts, overrides=(*SHORT, *overrides)
    )


@contextlib.contextmanager
def memory_limit(host: Host, limit_bytes: int) -> Iterator[None]:
    """What runs on this host, and what it starts, shares so much memory, as a container does: a control group of its own."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    top, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (second, "memory.max")
    group = top / f"rankcall-{os.getpid()}"
    try:
        if top is second:
            second.joinpath("cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        group.joinpath(limit).write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here ({error}); nothing of it was tested")
    try:
        _move(host.pids(), group)
        yield
    finally:
        _move(host.pids(), top)
        group.rmdir()


def _move(pids: list[int], group: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            group.joinpath("cgroup.procs").write_text(str(pid))


@pytest.mark.long  # test_agent_hang.py has it with a training that takes no time
def test_a_rank_that_is_stopped_in_mid_training_is_named_and_the_next_attempt_loses_no_step_that_was_saved(
    pair: Fleet, demo: Path
) -> None:
    job = ended(pair, submit(pair, demo, "stop", attempts=2))
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    assert [past.number for past in job.previous] == [1]
    hang = found(job, "RUN030")
    assert hang.evidence["behind"] == [1] and "it is stopped" in hang.message
    second = pair.replicas[1]
    stacks = pair.stream(second, job.id, "evidence.stacks").decode()
    assert "=== rank 1" in stacks and "state T" in stacks and "on_step_begin" in stacks
    assert "ESTABLISHED" in pair.stream(second, job.id, "evidence.sockets").decode()
    verdict = found(job, "RUN033")
    assert (verdict.evidence["verdict"], verdict.evidence["passes"]) == ("transient", 3)
    assert "checkpoint-6" in found(job, "RUN038").message
    for replica in pair.replicas:
        records = pair.stream(replica, job.id, "progress.0", attempt=2).splitlines()
        (start,) = [one for line in records if (one := json.loads(line))["type"] == "start"]
        assert (start["step"], start["total_steps"]) == (6, 8)


@pytest.mark.long
def test_a_rank_that_is_killed_is_the_first_failure_and_the_others_are_ended(pair: Fleet, demo: Path) -> None:
    job = ended(pair, submit(pair, demo, "kill", attempts=2))
    assert job.state == "succeeded", (job.verdict, job.findings)
    first = next(one for one in job.findings if one.severity == "error")
    assert first.replica == job.previous[0].members[1].replica_id and "rank 1" in first.message
    assert "checkpoint-6" in found(job, "RUN038").message


@pytest.mark.long
def test_a_hang_while_the_coordinator_is_away_leaves_evidence_and_is_ended_when_it_is_back(
    pair: Fleet, demo: Path
) -> None:
    first, second = pair.replicas
    job_id = submit(pair, demo, "stop", step=30, attempts=2, overrides=("max_steps=40", "save_steps=10"))
    pair.until(job_id, lambda job: training(job, 5), PATIENCE_S)
    coordinator = first.pid_of(*COORDINATOR)
    assert coordinator is not None
    os.kill(coordinator, signal.SIGSTOP)
    try:
        for replica in (first, second):
            pair.eventually(
                lambda replica=replica: pair.stream(replica, job_id, "evidence.judgement"),  # type: ignore[misc]
                "the agents see it by themselves",
            )
            assert replica.training(), "nobody ends it yet"
    finally:
        os.kill(coordinator, signal.SIGCONT)
    job = ended(pair, job_id)
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    assert found(job, "RUN030").evidence["behind"] == [1]
    assert "checkpoint-20" in found(job, "RUN038").message
    assert b"on_step_begin" in pair.stream(second, job_id, "evidence.stacks")
    for rank, replica in enumerate(pair.replicas):
        judged = pair.stream(replica, job_id, "evidence.judgement")
        assert pair.mirrored(rank, job_id, "evidence.judgement") == judged


@pytest.mark.long
def test_an_exception_in_one_rank_is_shown_with_its_traceback_and_not_the_one_that_lost_it(
    pair: Fleet, demo: Path
) -> None:
    job = ended(pair, submit(pair, demo, "raise"))
    assert job.state == "failed" and "the rank's own fault" in job.verdict
    first = next(one for one in job.findings if one.severity == "error")
    traceback = first.evidence["traceback"]
    assert isinstance(traceback, list) and any("faults.py" in str(line) for line in traceback)
    assert not [one for one in job.findings if one.code == "RUN030"]


@pytest.mark.long
def test_before_the_first_step_the_rank_that_does_nothing_is_told_from_the_one_that_waits_at_a_barrier(
    pair: Fleet, demo: Path
) -> None:
    """The field report's own case: rank 1 at a barrier, rank 0's CPU flat. torch would say nothing for half an hour."""
    job = ended(pair, submit(pair, demo, "idle", rank=0, attempts=2))
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    first, second = pair.replicas
    hang = found(job, "RUN030")
    assert hang.evidence["behind"] == [0] and hang.replica == job.previous[0].members[0].replica_id
    assert "rank 0 is in never (faults.py" in hang.message and "rank 1 is in barrier" in hang.message
    assert "Rank 1 waits." in hang.message and "does nothing" in hang.message
    for number, replica, frame in ((0, first, "never (faults.py"), (1, second, "barrier (torch")):
        stacks = pair.stream(replica, job.id, "evidence.stacks")
        assert frame in stacks.decode() and f"=== rank {number}" in stacks.decode()
        assert pair.mirrored(number, job.id, "evidence.stacks") == stacks
        assert "ESTABLISHED" in pair.stream(replica, job.id, "evidence.sockets").decode()
    verdict = found(job, "RUN033")
    assert (verdict.evidence["verdict"], verdict.evidence["passes"]) == ("transient", 3)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_that_blocks_is_a_hang_whose_links_are_good(
    pair: Fleet, demo: Path, workers: int
) -> None:
    job = ended(pair, submit(pair, demo, "block", overrides=(f"dataloader_num_workers={workers}",)))
    assert job.state == "failed" and job.stage == "train"
    hang = found(job, "RUN030")
    assert hang.evidence["behind"] == [1], hang.message
    stacks = pair.stream(pair.replicas[1], job.id, "evidence.stacks").decode()
    assert "never (faults.py" in stacks and "dataloader.py" in stacks
    assert found(job, "RUN033").evidence["verdict"] == "transient"


@pytest.mark.long
def test_a_rank_that_may_not_have_more_memory_is_the_one_that_failed(pair: Fleet, demo: Path) -> None:
    job = ended(pair, submit(pair, demo, "limit"))
    first = next(one for one in job.findings if one.severity == "error")
    assert (job.state, first.code) == ("failed", "RUN041")
    assert first.replica == job.attempt.members[1].replica_id and "rank 1" in first.message


@pytest.mark.long
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_told_from_one_that_was_killed(
    pair: Fleet, demo: Path
) -> None:
    """The container of rank 1 has 3 GB; a rank takes one of them."""
    with memory_limit(pair.replicas[1].host, 3 << 30):
        job = ended(pair, submit(pair, demo, "memory", attempts=3))
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    first = next(one for one in job.findings if one.severity == "error")
    assert first.code == "RUN041" and first.replica == job.previous[0].members[1].replica_id
    assert "rank 1" in first.message and "3.0 GiB" in first.message
    assert first.evidence["killed_by_kernel"] == 1


@pytest.mark.long
def test_a_disk_that_is_full_at_a_save_is_named_with_its_rank(pair: Fleet, demo: Path) -> None:
    job = ended(pair, submit(pair, demo, "disk"))
    first = next(one for one in job.findings if one.severity == "error")
    assert (job.state, first.code) == ("failed", "RUN046")
    assert first.replica == job.attempt.members[1].replica_id and "rank 1" in first.message
    assert not [one for one in job.findings if one.code == "RUN030"]


@pytest.mark.long
def test_weights_that_are_no_numbers_end_the_training_with_rank_and_step(pair: Fleet, demo: Path) -> None:
    job = ended(pair, submit(pair, demo, "nan", step=5, attempts=3, overrides=("max_steps=60",)))
    assert (job.state, len(job.previous)) == ("failed", 0)
    spoiled = found(job, "RUN049")
    assert "rank 1" in spoiled.message and spoiled.evidence["step"] in (4, 5)


@pytest.mark.long
@pytest.mark.parametrize("how", ["both", "one way"])
def test_a_link_that_is_dropped_in_mid_training_and_comes_back_costs_an_attempt_and_no_saved_step(
    pair: Fleet, demo: Path, how: str
) -> None:
    first, second = pair.replicas
    job_id = submit(pair, demo, "nothing", attempts=3, overrides=("max_steps=200", "save_steps=20"))
    pair.until(job_id, lambda job: training(job, 45), PATIENCE_S)
    cut: list[Callable[[], None]] = [lambda: first.host.drop_from(second.host)]
    if how == "both":
        cut.append(lambda: second.host.drop_from(first.host))
    for rule in cut:
        rule()
    try:
        pair.until(job_id, lambda job: [one for one in job.findings if one.code == "RUN030"], PATIENCE_S)
        time.sleep(20.0)
    finally:
        first.host.clear()
        second.host.clear()
    job = ended(pair, job_id)
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    assert "goes on from checkpoint-" in found(job, "RUN038").message
