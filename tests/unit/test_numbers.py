"""A loss that is not a number is said with its rank and step, and ends the training when it stays so."""

from __future__ import annotations

from test_watch import attempt

from coordinator.core.protocol import ProgressRecord
from coordinator.stages.numbers import judge_numbers


def record(rank: int, total: int, run: int, step: int = 12) -> ProgressRecord:
    return ProgressRecord(
        type="log",
        at=0,
        rank=rank,
        step=30,
        losses_not_finite=total,
        losses_not_finite_run=run,
        not_finite_step=step,
    )


def test_numbers_are_nothing_to_speak_of() -> None:
    assert judge_numbers(attempt(), ()) is None


def test_one_is_a_warning_with_rank_and_step_that_is_said_once() -> None:
    verdict = judge_numbers(attempt(), (record(1, 1, 0),))
    assert verdict is not None and verdict.state == "pending"
    (found,) = verdict.findings
    assert (found.code, found.severity, found.replica) == ("RUN056", "warning", "r-1")
    assert "rank 1" in found.message and "step 12" in found.message
    assert judge_numbers(attempt(warned=verdict.updates["warned"]), (record(1, 2, 1),)) is None


def test_several_in_a_row_end_the_training_and_the_first_rank_is_named() -> None:
    verdict = judge_numbers(attempt(warned=("RUN056",)), (record(0, 6, 6, 13), record(1, 7, 7, 12)))
    assert verdict is not None and (verdict.state, verdict.retryable, verdict.kind) == (
        "failed",
        False,
        "configuration",
    )
    (found,) = verdict.findings
    assert found.code == "RUN049" and "rank 1" in found.message and found.evidence["step"] == 12
