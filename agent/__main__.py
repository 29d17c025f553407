"""`python -m agent`, and `rankcall agent`: makes the process small, then hands over to `start.py`.

Exit codes: 0 asked to end, 1 failed (the training goes on, start it again), 2 cannot start with these
settings, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

_M_ARENA_MAX = -8  # malloc.h


def main() -> int:
    """Run the agent of this replica until it is asked to end."""
    _stay_small()
    from agent import start

    return start.main()


def _stay_small() -> None:
    """Leave out what an agent never uses; it shares the memory of the machine with a training.

    httpx and structlog import what draws on terminals where they find it (6 MB). The allocator gives each thread
    a heap of its own, and keeps it.
    """
    for name in ("rich", "click"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


if __name__ == "__main__":
    sys.exit(main())
