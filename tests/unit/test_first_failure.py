"""Among ranks that failed, the one that failed first is named; the others only lost it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.attempt import AttemptState, Observed, Seat, StageRecord
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, ProgressRecord, Registration, RunResult, Stage, TaskReport
from coordinator.stages.verdict import Verdict
from coordinator.stages.work import LAST_WORDS_S, judge_train

# As torchrun ends the log of a rank that was killed: behind a progress bar, then in its summary.
KILLED = (
    "  1%|          | 11/2025 [00:02<04:19,  7.78it/s]E1130 12:58:39 9 torch/distributed/elastic/multiprocessing/api.py:1002]"
    " failed (exitcode: -9) local_rank: 0 (pid: 23935)",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : -9 (pid: 23935)  (SIGKILL)",
    "  traceback : Signal 9 (SIGKILL) received by PID 23935",
)
LOST_IT = (
    "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41234",
    "E1130 12:58:46.405000 23718 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "  exitcode  : 1 (pid: 23936) ",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
)
RAISED = ("ValueError: the loss is not finite",)
NOW = 1_000.0


def member(rank: int, report: TaskReport | None, *, silent_s: float = 1.0, clock_s: float = 0.0) -> Observed:
    return Observed(
        f"r-{rank}",
        Registration(replica_id=f"r-{rank:04d}", fingerprint="f", incarnation=1, hostname=f"host-{rank}"),
        1,
        silent_s,
        attempt_id="job-1",
        tasks={} if report is None else {"train": report},
        clock_offset_s=clock_s,
    )


def ended(*tail: str, at: float = NOW, code: int = 1, found: Sequence[Finding] = ()) -> TaskReport:
    result = RunResult(exit_code=code, ended_at=at, tail=tail)
    return TaskReport(
        task_id="train", stage=Stage.TRAIN, state="failed", result=result, findings=tuple(found)
    )


RUNNING = TaskReport(task_id="train", stage=Stage.TRAIN, state="running")


def attempt(members: Sequence[Observed], echo_since: float | None = None) -> AttemptState:
    return AttemptState(
        id="job-1",
        job_id="job",
        number=1,
        created_at=0.0,
        seats=tuple(Seat(replica_id=m.replica_id, rank=rank) for rank, m in enumerate(members)),
        stages=(StageRecord(stage=Stage.TRAIN, state="running", started_at=0.0),),
        echo_since=echo_since,
    )


def judged(*members: Observed, echo_since: float | None = None) -> Verdict:
    starts = tuple(
        ProgressRecord(type="start", at=0.0, rank=rank, world_size=len(members))
        for rank in range(len(members))
    )
    return judge_train(attempt(members, echo_since), members, starts, NOW)


def named(verdict: Verdict) -> list[tuple[str, str | None, str]]:
    return [(found.code, found.replica, found.severity) for found in verdict.findings]


def test_a_rank_that_only_lost_another_is_not_taken_for_the_cause() -> None:
    verdict = judged(member(0, ended(*LOST_IT, at=NOW - 2)), member(1, ended(*KILLED, at=NOW - 1)))
    assert verdict.state == "failed"
    assert named(verdict) == [("RUN001", "r-1", "error"), ("RUN001", "r-0", "note")]
    assert verdict.summary.startswith(
        "train failed on rank 1 (host-1) with exit code 1. A process was killed"
    )
    assert (
        verdict.findings[1].message
        == "train failed on rank 0 (host-0) with exit code 1: another rank went away."
    )


def test_an_echo_waits_for_the_last_words_of_the_others() -> None:
    first = judged(member(0, ended(*LOST_IT)), member(1, RUNNING))
    assert (first.state, first.updates) == ("pending", {"echo_since": NOW})
    assert judged(member(0, ended(*LOST_IT)), member(1, None), echo_since=NOW - 5).state == "pending"
    came = judged(member(0, ended(*LOST_IT)), member(1, ended(*KILLED)), echo_since=NOW - 5)
    assert named(came)[0] == ("RUN001", "r-1", "error")


def test_an_echo_of_a_replica_that_says_nothing_more_names_that_replica() -> None:
    late = NOW - LAST_WORDS_S - 1
    verdict = judged(member(0, ended(*LOST_IT)), member(1, RUNNING, silent_s=17.0), echo_since=late)
    assert named(verdict) == [("SYS003", "r-1", "error"), ("RUN001", "r-0", "note")]
    assert verdict.summary == "rank 1 (host-1) has not been heard of for 17 s; train cannot go on."


def test_an_echo_alone_is_an_error_in_the_end() -> None:
    late = NOW - LAST_WORDS_S - 1
    verdict = judged(member(0, ended(*LOST_IT)), member(1, RUNNING), echo_since=late)
    assert named(verdict) == [("RUN001", "r-0", "error")]


@pytest.mark.parametrize("tail", [RAISED, (), KILLED, KILLED[:1], KILLED[1:]])
def test_a_cause_is_not_kept_waiting(tail: tuple[str, ...]) -> None:
    verdict = judged(member(0, RUNNING), member(1, ended(*tail)))
    assert verdict.state == "failed"
    assert named(verdict) == [("RUN001", "r-1", "error")]


def test_of_two_causes_the_earlier_comes_first_whatever_the_clocks_say() -> None:
    verdict = judged(
        member(0, ended(*RAISED, at=NOW - 1)),
        member(1, ended(*RAISED, at=NOW + 60), clock_s=63.0),
    )
    assert [found.replica for found in verdict.findings] == ["r-1", "r-0"]


def test_what_the_agent_found_itself_is_a_cause() -> None:
    lost = finding("RUN022", "The process of train is gone, and its exit code with it.")
    verdict = judged(member(0, ended(*LOST_IT)), member(1, ended(*LOST_IT, found=(lost,))))
    assert named(verdict) == [("RUN022", "r-1", "error"), ("RUN001", "r-0", "note")]
