"""The shape of one catalogue entry."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.protocol import Severity, Stage


@dataclass(frozen=True, slots=True)
class Entry:
    """One code: `what` it found, `why` that is wrong, how to `fix` it, in sentences for a user.

    `bad` and `good` show what triggers it and what to write instead, where a few lines can.
    """

    code: str
    title: str
    severity: Severity
    what: str
    why: str
    fix: str
    stage: Stage | None = None
    bad: str = ""
    good: str = ""
