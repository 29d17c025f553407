"""One line of JSON per record, appended in a single write: how the training tells where it is.

Called by `agent/plugin.py` inside the training processes; the agent mirrors the files as streams. Needs
neither torch nor Axolotl. Nothing here may disturb the training: on a full disk records are lost until there is
room again, which is said; after any other failure the writer is silent for good.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

from coordinator.core.protocol import ProgressRecord

_FULL = (errno.ENOSPC, errno.EDQUOT)
ATTEMPT_FOLDER = "RANKCALL_ATTEMPT_DIR"


class ProgressWriter:
    """Appends records to `$RANKCALL_ATTEMPT_DIR/streams/progress.<local_rank>`; without the variable, to nothing."""

    def __init__(self, local_rank: int) -> None:
        self.local_rank = local_rank
        self._descriptor: int | None = None
        self._lost = 0
        self._torn = False
        folder = os.environ.get(ATTEMPT_FOLDER)
        if not folder:
            return
        path = Path(folder) / "streams" / f"progress.{local_rank}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._fall_silent(error)

    def write(self, record: ProgressRecord) -> None:
        """Appends one line. A number that is not finite is left out (JSON has none)."""
        if self._descriptor is None:
            return
        line = record.model_dump_json(exclude_none=True).encode() + b"\n"
        if self._torn:  # what is there of the line before would swallow this one
            line = b"\n" + line
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            if error.errno not in _FULL:
                self._fall_silent(error)
                return
            written = 0
        if written < len(line):
            self._torn = self._torn or written > 0
            if not self._lost:
                print("rankcall: progress is not recorded while the disk is full", file=sys.stderr)
            self._lost += 1
            return
        self._torn = False
        if self._lost:
            print(f"rankcall: {self._lost} records of progress were lost: the disk was full", file=sys.stderr)
            self._lost = 0

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _fall_silent(self, error: OSError) -> None:
        print(f"rankcall: progress is not recorded any more: {error}", file=sys.stderr)
        self.close()


def now_at() -> float:
    """Seconds since the epoch."""
    return time.time()
