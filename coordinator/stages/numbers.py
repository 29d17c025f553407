"""Whether the losses of a training are numbers still. Pure; called by `work.py`.

One that is not may be the fault of one batch, and is said once. Several in a row on a rank mean that the weights are not
numbers any more: no later step mends that, and checkpoints from now on are worthless, so the training is ended for the
GPU hours that it would waste. It is a fault of data or settings, and not tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.attempt import AttemptState
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, ProgressRecord, Stage
from coordinator.core.readings import ranks_of
from coordinator.stages.verdict import Verdict

# Gradients are exchanged each step, so the second loss after a NaN in the weights is NaN on every rank; five leave no doubt.
SPOILED_RUN = 5


def judge_numbers(attempt: AttemptState, spoiled: Sequence[ProgressRecord]) -> Verdict | None:
    """A failure, a warning that is said once, or None.

    Args:
        spoiled: the newest record of each rank whose losses were not all numbers.
    """
    if not spoiled:
        return None
    first = min(spoiled, key=lambda record: (record.not_finite_step or 0, record.rank))
    if any((record.losses_not_finite_run or 0) >= SPOILED_RUN for record in spoiled):
        found = _finding(
            "RUN049",
            f"{_said(attempt, first)}, and has not been one since: the weights are lost.",
            first,
            attempt,
        )
        return Verdict("failed", found.message, (found,), kind="configuration")
    if "RUN056" in attempt.warned:
        return None
    found = _finding("RUN056", f"{_said(attempt, first)}.", first, attempt)
    return Verdict("pending", findings=(found,), updates={"warned": (*attempt.warned, "RUN056")})


def _said(attempt: AttemptState, record: ProgressRecord) -> str:
    seat = _seat(attempt, record.rank)
    where = (
        f"rank {record.rank} ({attempt.seats[seat].hostname})" if seat is not None else f"rank {record.rank}"
    )
    return (
        f"The loss of {where} was not a number (NaN or infinite), first seen at step {record.not_finite_step}"
    )


def _finding(code: str, message: str, record: ProgressRecord, attempt: AttemptState) -> Finding:
    seat = _seat(attempt, record.rank)
    return finding(
        code,
        message,
        stage=Stage.TRAIN,
        replica=attempt.seats[seat].replica_id if seat is not None else None,
        evidence={
            "rank": record.rank,
            "step": record.not_finite_step,
            "losses_not_finite": record.losses_not_finite,
            "in_a_row": record.losses_not_finite_run,
        },
    )


def _seat(attempt: AttemptState, rank: int) -> int | None:
    return next((at for at in range(len(attempt.seats)) if rank in ranks_of(at, attempt.gpus_per_node)), None)
