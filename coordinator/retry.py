"""May a failed attempt be followed by another, and when? (kind of fault, attempts so far, time) → yes or no, instant. Pure.

A fault of the configuration gives the same answer every time and is never tried again; a lack of memory or disk once,
for another process may have held it; the rest as often as the job allows, with growing pauses. Called by `lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.core.trouble import Kind


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, and how soon.

    Attributes:
        most: attempts beyond the first by kind of fault, where that is fewer than any job may ask for.
        first_s: the pause before the second attempt. A transient fault is most often over by then, and a hang must
            be followed by a training within half a minute; a replica that restarts is not waited for here but in gather.
        factor: each further pause is so many times longer, up to `longest_s`: a peer's outage takes minutes.
    """

    most: Mapping[Kind, int] = field(default_factory=lambda: {"configuration": 0, "resources": 1})
    first_s: Mapping[Kind, float] = field(
        default_factory=lambda: {"network": 2.0, "replica": 2.0, "resources": 10.0, "unknown": 2.0}
    )
    factor: float = 3.0
    longest_s: float = 300.0


POLICY = Policy()


def may_follow(kind: Kind, attempts: int, allowed: int, policy: Policy = POLICY) -> bool:
    """Whether another attempt may follow the `attempts` there were, of which the last failed by `kind`."""
    return attempts < allowed and attempts <= policy.most.get(kind, allowed)


def pause_s(kind: Kind, attempts: int, policy: Policy = POLICY) -> float:
    """Seconds between the end of attempt number `attempts` and the start of the next."""
    grown = policy.factor ** min(attempts - 1, 16)
    return min(policy.longest_s, policy.first_s.get(kind, 2.0) * grown)
