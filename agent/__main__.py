"""`python -m agent`, and `rankcall agent`: makes the process small, then hands over to `start.py`.

Exit codes: 0 asked to end or to leave, 1 failed, or another agent works here (the training goes on, start it again),
2 cannot start with these settings, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

from coordinator.core import interrupt

# malloc.h. One heap for all threads; what is larger than a page or sixty goes back to the system when it is freed,
# and so does the free end of the heap: a burst of log lines must not leave the agent large for ever.
_MALLOPT = {-8: 1, -3: 256 << 10, -1: 512 << 10}  # M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def main() -> int:
    """Run the agent of this replica until it is asked to end."""
    interrupt.leave_at_once()
    _stay_small()
    from agent import start

    try:
        return start.main()
    finally:
        interrupt.leave_at_once()


def _stay_small() -> None:
    """Leave out what an agent never uses; it shares the memory of the machine with a training.

    httpx and structlog import what draws on terminals where they find it (6 MB). The allocator would give each
    thread a heap of its own, and keep it.
    """
    for name in ("rich", "click"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    with contextlib.suppress(OSError, AttributeError):
        for option, value in _MALLOPT.items():
            ctypes.CDLL(None).mallopt(option, value)


if __name__ == "__main__":
    sys.exit(main())
