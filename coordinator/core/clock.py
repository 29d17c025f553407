"""The one clock. Decisions take the time as an argument; only shells ask for it here."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_at() -> float:
    """Seconds since the epoch: for what is stored and shown."""
    return time.time()


def monotonic_s() -> float:
    """Seconds of a clock that never jumps: for deadlines and liveness inside one process."""
    return time.monotonic()


def instant(at: float | None) -> datetime | None:
    """An epoch time as an aware UTC datetime; None stays None."""
    return None if at is None else datetime.fromtimestamp(at, UTC)
