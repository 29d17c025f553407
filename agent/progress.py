"""One line of JSON per record, appended in a single write: how the training tells where it is.

Called by `agent/plugin.py` inside the training processes; the agent mirrors the files as streams. Needs
neither torch nor Axolotl. Nothing here may disturb the training: after the first failure the writer is
silent for good.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from coordinator.core.protocol import ProgressRecord

ATTEMPT_FOLDER = "RANKCALL_ATTEMPT_DIR"


class ProgressWriter:
    """Appends records to `$RANKCALL_ATTEMPT_DIR/streams/progress.<local_rank>`; without the variable, to nothing."""

    def __init__(self, local_rank: int) -> None:
        self.local_rank = local_rank
        self._descriptor: int | None = None
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
        try:
            if os.write(self._descriptor, line) != len(line):
                raise OSError("the disk is full")
        except OSError as error:
            self._fall_silent(error)

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
