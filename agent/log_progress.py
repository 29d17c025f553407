"""Progress told by the log, for a training whose plugin was not loaded. Called by `run_task.py` while the process runs.

The plugin speaks before the trainer starts (`agent/plugin.py`), so a log in which the trainer has started beside an empty
stream of records is that of a training without it. What the log says is then appended to that stream, as of the first rank
of this replica, and is mirrored and shown like the plugin's own words. A log does not say which world the others see: such
a training is shown, and still fails in the end for what nobody has vouched for (RUN004).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.core.logs import LogReader, Phase, records

# Of a log at one look: what a progress bar writes in a minute, a hundred times over.
_PIECE_BYTES = 4 << 20


@dataclass(slots=True)
class LogProgress:
    """Of one process of one attempt.

    Attributes:
        log: what the training prints.
        told: the stream of records, which the plugin writes where it is.
        mark: exists once the records are from the log, so that an agent that was restarted goes on with them.
    """

    log: Path
    told: Path
    mark: Path
    _reader: LogReader = field(default_factory=LogReader)
    _offset: int = 0
    _pending: list[bytes] = field(default_factory=list)
    _trainer_started: bool = False
    _decided: bool | None = None

    def look(self, rank: int, at: float) -> None:
        """Take in what the log has grown by. What was written before a restart of the agent is not written again.

        Raises:
            OSError: a disk that is full or gone; the next look tries again.
        """
        if self._decided is False:
            return
        while piece := self._grown():
            self._offset += len(piece)
            events = self._reader.feed(piece)
            self._trainer_started = self._trainer_started or Phase("started") in events
            made = records(events, at=at, rank=rank)
            self._pending += [one.model_dump_json(exclude_none=True).encode() + b"\n" for one in made]
        if not self._trainer_started:
            return
        if self._decided is None:
            self._decided = self._decide()
        if self._decided and self._pending:
            self._write()

    def _grown(self) -> bytes:
        try:
            with self.log.open("rb") as file:
                file.seek(self._offset)
                return file.read(_PIECE_BYTES)
        except FileNotFoundError:
            return b""

    def _decide(self) -> bool:
        """Whether the log has to speak, now that the trainer has started."""
        before = self.told.read_bytes() if self.told.exists() else b""
        if self.mark.exists():
            del self._pending[: before.count(b"\n")]
        elif before:
            self._pending.clear()
            return False
        self.mark.touch()
        return True

    def _write(self) -> None:
        with self.told.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                data = b"".join(self._pending)
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)  # whole lines or none
                raise
        self._pending.clear()
