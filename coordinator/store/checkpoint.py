"""Moves SQLite's log into the database beside the writer. `Store` runs it.

SQLite has the writer do that, after so many pages and in the middle of a commit; with thousands of agents everybody waits
for it several times a second. A checkpoint beside it stops nobody. It never quite catches up with a writer that is always at
it, though, and a log is begun anew only once all of it was moved: the writer moves what little is left (`engine.WAL_PAGES`).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable

EVERY_S = 0.5
# Fewer commits in that time than these are no load: the writer is left to do it alone.
BUSY_COMMITS = 25


class Checkpoints:
    """A thread of its own.

    Args:
        path: of the database.
        commits: how many there have been.
    """

    def __init__(self, path: str, commits: Callable[[], int]) -> None:
        self._path = path
        self._commits = commits
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-checkpoints", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before = self._commits()
        while not self._ended.wait(EVERY_S):
            now = self._commits()
            if now - before >= BUSY_COMMITS:
                # A full disk or a file that is gone: the writer meets it, too, and tells everybody.
                with contextlib.suppress(sqlite3.Error):
                    self._checkpoint()
            before = now

    def _checkpoint(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
