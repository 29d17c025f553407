"""A failed training is explained: known lines of public failures, their tracebacks, and the rank that failed first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_first_failure import KILLED, LOST_IT, NOW, RUNNING, ended, judged, member, named

from coordinator.core.catalogue import CODES
from coordinator.core.last_words import MOST_ERRORS, last_words
from coordinator.core.protocol import RunResult, TaskReport
from coordinator.core.trouble import TROUBLES, trouble_in
from coordinator.diagnosis import cause_of

DATA = Path(__file__).parent / "data"
LINES = [json.loads(line) for line in (DATA / "failure-lines.jsonl").read_text().splitlines()]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
STORE_GONE = next(case["line"] for case in LINES if case["case"] == "c89")


@pytest.mark.parametrize("case", LINES, ids=lambda case: f"{case['case'] or 'kind'}-{case['name']}")
def test_a_line_of_a_public_failure_is_recognised(case: Mapping[str, str]) -> None:
    (seen,) = last_words(case["line"].strip())
    assert seen.name == case["name"]


def test_every_kind_of_trouble_has_a_code_that_can_be_explained() -> None:
    for trouble in TROUBLES:
        assert trouble.code in CODES, trouble.name
        assert trouble.code.startswith("RUN")


@pytest.mark.parametrize(
    ("name", "cause", "last_of_traceback"),
    [
        (
            "crash-device-map.log",
            "no-accelerator",
            "RuntimeError: Cannot access accelerator device when none",
        ),
        ("crash-gloo-view.log", "gloo-view", "RuntimeError: Output 0 of Split is a view"),
    ],
)
def test_the_cause_of_a_real_crash_is_named_with_its_traceback(
    name: str, cause: str, last_of_traceback: str
) -> None:
    found = cause_of(RunResult(exit_code=1, errors=last_words((DATA / name).read_text(errors="replace"))))
    assert found.seen is not None
    assert (found.seen.name, found.echo, found.kind) == (cause, False, "configuration")
    assert found.seen.traceback[0] == "Traceback (most recent call last):"
    assert found.seen.traceback[-1].startswith(last_of_traceback)


@pytest.mark.parametrize("name", ["h200-zero2.rank0.log", "h200-zero2.rank1.log", "cpu-zero1.rank0.log"])
def test_nothing_is_found_in_the_log_of_a_healthy_run(name: str) -> None:
    assert last_words((DATA / name).read_text(errors="replace")) == ()


def test_tracebacks_of_ranks_that_print_at_once_are_told_apart() -> None:
    text = """
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "a.py", line 1, in zero
[rank1]:   File "b.py", line 2, in one
[rank0]: KeyError: 'text'
[rank1]: ValueError: no
"""
    first, second = last_words(text)
    assert first.traceback == (
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in zero',
        "KeyError: 'text'",
    )
    assert second.traceback[1] == '  File "b.py", line 2, in one'


def test_a_progress_bar_before_a_line_does_not_hide_it() -> None:
    (seen,) = last_words(f" 12%|#2        | 28/232 [01:10<08:31,  2.51s/it]{OOM}")
    assert (seen.name, seen.line) == ("out-of-gpu-memory", OOM)


def report(*lines: str, at: float = NOW, signal: int | None = None) -> TaskReport:
    result = RunResult(
        exit_code=None if signal else 1,
        signal=signal,
        ended_at=at,
        tail=lines[-1:],
        errors=last_words("\n".join(lines)),
    )
    return ended().model_copy(update={"result": result})


def test_a_failed_training_names_cause_rank_and_traceback() -> None:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 3, in step', OOM, "x", "y")
    verdict = judged(member(0, RUNNING), member(1, report(*lines)))
    (found,) = verdict.findings
    assert (found.code, found.replica) == ("RUN040", "r-1")
    assert (
        found.message
        == f"train failed on rank 1 (host-1) with exit code 1. The GPU's memory did not suffice: {OOM}"
    )
    assert "micro_batch_size" in found.hint
    assert found.evidence["traceback"] == [*lines[:2], OOM]
    assert verdict.kind == "resources"


def test_an_exception_is_shown_in_its_own_words() -> None:
    verdict = judged(member(0, report("KeyError: 'text'")), member(1, RUNNING))
    assert verdict.summary == "train failed on rank 0 (host-0) with exit code 1: KeyError: 'text'"
    assert verdict.retryable


@pytest.mark.parametrize(
    "echo", [(STORE_GONE,), LOST_IT, (STORE_GONE, "E api.py] failed (exitcode: -6) local_rank: 0")]
)
@pytest.mark.parametrize(
    "cause", [(OOM,), KILLED, ("ValueError: no",), ("OSError: [Errno 28] No space left on device",)]
)
def test_what_lost_another_rank_is_never_the_cause_however_early_it_came(
    echo: tuple[str, ...], cause: tuple[str, ...]
) -> None:
    verdict = judged(member(0, report(*echo, at=NOW - 30)), member(1, report(*cause, at=NOW)))
    assert [(found.replica, found.severity) for found in verdict.findings] == [
        ("r-1", "error"),
        ("r-0", "note"),
    ]


def test_a_collective_that_timed_out_stands_behind_a_fault_of_another_rank() -> None:
    timed_out = next(case["line"] for case in LINES if case["case"] == "c77")
    verdict = judged(member(0, report(timed_out, at=NOW - 5)), member(1, report("KeyError: 'text'", at=NOW)))
    assert named(verdict) == [("RUN001", "r-1", "error"), ("RUN053", "r-0", "note")]
    alone = judged(member(0, report(timed_out)), member(1, RUNNING))
    assert named(alone) == [("RUN053", "r-0", "error")]


@pytest.mark.parametrize("kind", ["configuration", "network", "resources"])
def test_a_fault_of_the_configuration_is_not_tried_again(kind: str) -> None:
    line = {
        "configuration": "ValueError: Your setup doesn't support bf16/gpu.",
        "network": "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms",
        "resources": OOM,
    }[kind]
    verdict = judged(member(0, report(line)), member(1, RUNNING))
    assert verdict.kind == kind
    assert verdict.retryable is (kind != "configuration")


def test_what_many_trainings_survive_is_the_cause_only_where_nothing_else_is() -> None:
    retries = next(case["line"] for case in LINES if case["case"] == "c43")
    both = cause_of(RunResult(exit_code=1, errors=last_words(f"{retries}\n{OOM}")))
    alone = cause_of(RunResult(exit_code=1, errors=last_words(retries)))
    assert both.seen is not None
    assert alone.seen is not None
    assert (both.seen.name, alone.seen.name) == ("out-of-gpu-memory", "nccl-retries")


def test_an_error_printed_a_million_times_fills_no_report() -> None:
    lines = [f"ValueError: number {number}" for number in range(5000)]
    found = last_words("\n".join([*lines, OOM, *(case["line"] for case in LINES)]))
    assert len(found) <= MOST_ERRORS
    assert OOM in [seen.line for seen in found]


@given(st.text(max_size=3000))
def test_rubbish_is_survived(text: str) -> None:
    last_words(text)
    trouble_in(text)


def test_what_the_kernel_killed_for_want_of_memory_is_told_from_what_somebody_killed() -> None:
    by_kernel = {"killed_by_kernel": 1, "memory_limit_bytes": 3 << 30}
    report = ended(*KILLED)
    assert isinstance(report.result, RunResult)
    short = report.model_copy(update={"result": report.result.model_copy(update=by_kernel)})
    verdict = judged(member(0, ended(*LOST_IT, at=NOW - 2)), member(1, short))
    assert named(verdict) == [("RUN041", "r-1", "error"), ("RUN001", "r-0", "note")]
    assert verdict.kind == "resources" and "(3.0 GiB) was used up" in verdict.summary
    assert named(judged(member(0, RUNNING), member(1, report)))[0][0] == "RUN001"
    # another process of the container was killed, and this one failed by itself
    raised = RunResult(exit_code=1, tail=("ValueError: no", "exitcode  : 1"), **by_kernel)
    assert not cause_of(raised).out_of_memory
    assert cause_of(RunResult(signal=9, killed_by_kernel=1)).out_of_memory
    assert not cause_of(RunResult(signal=9)).out_of_memory
