"""From which checkpoint a further attempt goes on: the newest that is whole on every replica. Pure; called by `work.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, TypeAdapter, ValidationError

from coordinator.attempt import AttemptState
from coordinator.core.catalogue import finding
from coordinator.core.checkpoints import HeldCheckpoint
from coordinator.core.protocol import Finding, Stage
from coordinator.core.readings import ranks_of

_HELD = TypeAdapter(tuple[HeldCheckpoint, ...])


@dataclass(frozen=True, slots=True)
class Resume:
    """`checkpoint`: the name of its folder in output_dir; None: from the start. Nothing is said where there never was one."""

    checkpoint: str | None = None
    findings: tuple[Finding, ...] = ()


def choose(attempt: AttemptState, outputs: Sequence[Mapping[str, JsonValue]]) -> Resume:
    """What the attempt goes on from.

    Args:
        outputs: what prepare left on each replica, in rank order.
    """
    if attempt.number == 1:
        return Resume()
    seen = [_held(output) for output in outputs]
    whole = [_whole(attempt, seat.rank, found) for seat, found in zip(attempt.seats, seen, strict=True)]
    common = set.intersection(*(set(steps) for steps in whole)) if whole else set()
    newest = max((found.step for each in seen for found in each), default=None)
    if common:
        step = max(common)
        lost = (
            f"; checkpoint-{newest} is not whole everywhere" if newest is not None and newest > step else ""
        )
        said = (
            f"Attempt {attempt.number} goes on from {whole[0][step]}, which is whole on every replica{lost}."
        )
        return Resume(
            whole[0][step], (finding("RUN038", said, stage=Stage.PREPARE, evidence={"step": step}),)
        )
    if newest is None:
        return Resume()
    having = [
        f"rank {seat.rank} ({seat.hostname or seat.replica_id}): "
        + (", ".join(f"checkpoint-{step}" for step in sorted(steps, reverse=True)[:3]) or "none")
        for seat, steps in zip(attempt.seats, whole, strict=True)
    ]
    return Resume(
        None,
        (
            finding(
                "RUN036",
                f"Attempt {attempt.number} starts anew: no checkpoint is whole on every replica. Whole are, on "
                + "; ".join(having[:8])
                + (" …" if len(having) > 8 else "")
                + ".",
                stage=Stage.PREPARE,
                evidence={
                    "held": {
                        seat.replica_id: [one.model_dump(mode="json") for one in found]
                        for seat, found in zip(attempt.seats, seen, strict=True)
                    }
                },
            ),
        ),
    )


def _whole(attempt: AttemptState, node_rank: int, found: Sequence[HeldCheckpoint]) -> dict[int, str]:
    """Steps of the checkpoints that this replica can resume from with the ranks it has now, with their folders."""
    needed = set(ranks_of(node_rank, attempt.gpus_per_node))
    return {
        one.step: one.name
        for one in found
        if one.world_size == attempt.world_size and needed <= set(one.ranks)
    }


def _held(output: Mapping[str, JsonValue]) -> tuple[HeldCheckpoint, ...]:
    try:
        return _HELD.validate_python(output.get("checkpoints") or ())
    except ValidationError:
        return ()
