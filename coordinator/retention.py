"""What of ended jobs is kept no longer: the logs, figures and files of the oldest, beyond an age and a size. Pure.

A job that has not ended loses nothing, whatever it weighs. Called by `upkeep.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How long, and how much: the bytes of all jobs together, those that run included."""

    age_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Weight:
    """What lies in the store of one job; `ended_at`: None while it is queued or runs."""

    job_id: str
    ended_at: float | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Drop:
    """What a job loses: its logs, figures and files; when it is old also the list of its result and its events."""

    job_id: str
    why: Literal["old", "large"]


def to_drop(weights: Iterable[Weight], now_at: float, keep: Keep) -> tuple[Drop, ...]:
    """The jobs that lose what they weigh, those that ended first first."""
    known = tuple(weights)
    total = sum(weight.size_bytes for weight in known)
    ended = sorted(
        ((weight.ended_at, weight) for weight in known if weight.ended_at is not None and weight.size_bytes),
        key=lambda one: one[0],
    )
    found: list[Drop] = []
    for ended_at, weight in ended:
        if now_at - ended_at > keep.age_s:
            found.append(Drop(weight.job_id, "old"))
        elif total > keep.size_bytes:
            found.append(Drop(weight.job_id, "large"))
        else:
            continue
        total -= weight.size_bytes
    return tuple(found)
