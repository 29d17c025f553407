"""Which rank holds the others up: its own work on a batch takes longer than that of the others, for long enough. Pure.

A step takes all ranks equally long, because they wait for each other; what tells them apart is what a rank does before it
waits: getting its batch, and computing it forward (`agent/plugin.py`). Under ZeRO-3 and FSDP the forward pass itself waits
for the others' weights, so that nothing can be told there. What differs on the slow rank's replica is looked for in its
load. Called by `stages/pace.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal


@dataclass(frozen=True, slots=True)
class Margins:
    """Judgements.

    Attributes:
        over_s: the pace is taken over so long; a neighbour's burst of work is over by then.
        points: and over so many readings at least, however old.
        times: so many times the others' median. GPUs of one model differ by a few per cent.
        share: and by so large a share of a step that it matters.
    """

    over_s: float = 60.0
    points: int = 5
    times: float = 1.3
    share: float = 0.1


MARGINS = Margins()
# So many times the usual distance of two readings is a pause.
_PAUSE_TIMES = 3.0
# Readings of a rank that are kept, and the least between two of them: together they span the while that is judged, however
# often a training logs.
_KEPT = 120
_APART_S = 1.0


@dataclass(frozen=True, slots=True)
class Own:
    """What one rank did by itself for a step, in seconds: heard at `at_s`."""

    at_s: float
    forward_s: float
    data_s: float = 0.0
    step_s: float | None = None

    @property
    def seconds(self) -> float:
        return self.forward_s + self.data_s


def kept(points: Sequence[Own], new: Own) -> tuple[Own, ...]:
    """What is known of a rank after one more reading."""
    if points and new.at_s - points[-1].at_s < _APART_S:
        return tuple(points)
    return (*points[1 - _KEPT :], new)


@dataclass(frozen=True, slots=True)
class Straggler:
    """`part`: where the time goes. Seconds a step, of it and of the others."""

    rank: int
    part: Literal["data", "compute"]
    own_s: float
    others_s: float


def stragglers(readings: Mapping[int, Sequence[Own]], margins: Margins = MARGINS) -> tuple[Straggler, ...]:
    """The ranks that are slower than the others, the slowest first."""
    recent = {rank: _recent(points, margins) for rank, points in readings.items()}
    if len(recent) < 2 or any(not points for points in recent.values()):
        return ()
    found: list[Straggler] = []
    for rank, points in recent.items():
        others = [point for other, theirs in recent.items() if other != rank for point in theirs]
        own_s, others_s = _seconds(points), _seconds(others)
        steps = [point.step_s for point in points if point.step_s]
        matters_s = margins.share * (median(steps) if steps else own_s)
        if own_s < margins.times * others_s or own_s - others_s < matters_s:
            continue
        data_s = median(point.data_s for point in points) - median(point.data_s for point in others)
        part: Literal["data", "compute"] = "data" if data_s > (own_s - others_s) / 2 else "compute"
        found.append(Straggler(rank, part, own_s, others_s))
    return tuple(sorted(found, key=lambda one: -one.own_s))


def _seconds(points: Sequence[Own]) -> float:
    return median(point.seconds for point in points)


def _recent(points: Sequence[Own], margins: Margins) -> Sequence[Own]:
    """Those of the last while before the newest, or the last few; nothing where they do not reach so far back."""
    steady = _since_pause(points, margins)
    if len(steady) < margins.points or steady[-1].at_s - steady[0].at_s < margins.over_s:
        return ()
    young = [point for point in steady if steady[-1].at_s - point.at_s <= margins.over_s]
    return young if len(young) >= margins.points else steady[-margins.points :]


def _since_pause(points: Sequence[Own], margins: Margins) -> Sequence[Own]:
    """A few quick steps before a long pause and a few after it are no minute of steps, though they lie so far apart."""
    gaps_s = [after.at_s - before.at_s for before, after in pairwise(points)]
    if not gaps_s:
        return points
    pause_s = max(margins.over_s, _PAUSE_TIMES * median(gaps_s))
    last = max((number for number, gap_s in enumerate(gaps_s) if gap_s > pause_s), default=-1)
    return points[last + 1 :]


@dataclass(frozen=True, slots=True)
class Load:
    """What may explain it, of one rank; None where it cannot be read."""

    clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    machine_cpu_percent: float | None = None
    sent_bytes_per_s: float | None = None


def differences(own: Load, others: Sequence[Load]) -> tuple[str, ...]:
    """What differs on the slow one, in words."""
    said: list[str] = []
    if own.throttled and not all(other.throttled for other in others):
        said.append(f"its GPU is throttled ({', '.join(own.throttled)})")
    clock = _typical([other.clock_mhz for other in others])
    if own.clock_mhz is not None and clock is not None and own.clock_mhz < 0.9 * clock:
        said.append(f"its GPU runs at {own.clock_mhz:.0f} MHz, the others at {clock:.0f}")
    warm = _typical([other.temperature_c for other in others])
    if own.temperature_c is not None and warm is not None and own.temperature_c > warm + 10:
        said.append(f"its GPU has {own.temperature_c:.0f} °C, the others {warm:.0f}")
    busy = _typical([other.machine_cpu_percent for other in others])
    here = own.machine_cpu_percent
    if here is not None and busy is not None and here >= 90 and here > busy + 10:
        said.append(f"the CPU of its machine is {here:.0f} % busy, that of the others {busy:.0f} %")
    sent = _typical([other.sent_bytes_per_s for other in others])
    if own.sent_bytes_per_s is not None and sent and own.sent_bytes_per_s < sent / 2:
        said.append(f"it sends {own.sent_bytes_per_s / 1e6:.1f} MB/s, the others {sent / 1e6:.1f}")
    return tuple(said)


def _typical(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
