"""Ctrl-C while a process only begins or ends: exit code 130, and no traceback of a half-loaded library.

`rankcall` and the processes it turns into call `leave_at_once` first of all, before the imports that take a
second. Who has something to close afterwards installs a handler of its own, or asks for the exception.
Nothing but the standard library is imported here, and little of it.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def leave_at_once() -> None:
    """From now on Ctrl-C ends this process where it stands: nothing is open yet, or nothing any more.

    One that came while it was held back (`hold_back`) does so now. Where Ctrl-C is ignored (`nohup`, a job in the
    background of a script) it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def raise_it() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt, for who catches it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def hold_back() -> None:
    """Keep Ctrl-C waiting while this process turns into another (`exec`), whose interpreter would end with a traceback.

    The kernel keeps it over the exec; the other process takes it with `leave_at_once`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _leave(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)
