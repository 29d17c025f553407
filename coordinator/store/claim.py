"""An SQLite store is one process's alone: a second coordinator on the same file is turned away before it opens it.

Two would each be sure of what they have in memory, and hand out two plans. Called by `app.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections.abc import Iterator
from pathlib import Path

from coordinator.core.clock import monotonic_s
from coordinator.store.engine import parsed, prepare_file
from coordinator.store.errors import StoreError

# A predecessor that has been told to end closes its streams and its store first.
PREDECESSOR_S = 5.0


@contextlib.contextmanager
def claimed_store(url: str) -> Iterator[None]:
    """This process alone uses the SQLite file; the claim ends with the process, however it ends.

    Raises:
        StoreError: when another coordinator uses it, or the file cannot be made.
    """
    path = Path(str(parsed(url).database))
    prepare_file(parsed(url))
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(handle, PREDECESSOR_S):
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
            raise StoreError(
                f"the store {path} is in use by another coordinator{f' (pid {holder})' if holder else ''}: SQLite takes one; "
                "end that one, give this one a RANKCALL_STATE_DIR of its own, or let several share a PostgreSQL "
                "database (RANKCALL_DATABASE_URL)"
            )
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, wait_s: float) -> bool:
    give_up_s = monotonic_s() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic_s() >= give_up_s:
                return False
        select.select([], [], [], 0.1)
