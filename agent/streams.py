"""Mirrors an attempt's append-only files to the coordinator by byte offset: nothing lost, nothing twice.

Every file in an attempt's `streams` folder is a stream. The coordinator says how much of each it has; the
next report carries what follows, within a budget, so memory stays bounded whatever the training prints. A
report that fails is no loss: the size the coordinator has decides what is sent next. Secrets are masked on the
way, byte for byte, so that offsets hold. Called by the report loop of `main.py`; does no network I/O.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.core.paths import AttemptFolder
from coordinator.core.protocol import Append, StreamSize
from coordinator.core.redact import Redactor

# Bytes of appends in one report, a request of 0.7 MB; the copies made of it are the peak of the agent's memory.
REPORT_BYTES = 512 << 10
_LEAST_SHARE_BYTES = 64 << 10  # what each of many streams gets of a report
_GUESS_BYTES = 64 << 10  # a stream that long or shorter is sent from 0 without asking for its size first
_MOST_STREAMS = 256  # of one attempt; more files than that are not streams but a mistake
_FORGOTTEN_S = 30.0  # how often a coordinator that does not know a stream's attempt is asked again
_NAME = re.compile(r"[a-z0-9][a-zA-Z0-9._-]{0,63}")
_LINES = "progress."  # streams of this name are cut at line ends only


@dataclass(slots=True)
class _Stream:
    """One file. `acknowledged` is the size the coordinator has, None while it is not known."""

    attempt_id: str
    name: str
    path: Path
    acknowledged: int | None = None
    size: int = 0
    waiting_for_more_than: int = -1  # with this size there was nothing that could be sent yet
    not_before_s: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.attempt_id, self.name

    def due(self, now_s: float) -> bool:
        if now_s < self.not_before_s or self.size == self.waiting_for_more_than:
            return False
        return self.acknowledged is None or self.size > self.acknowledged


@dataclass(slots=True)
class _Attempt:
    folder: AttemptFolder
    streams: dict[str, _Stream] = field(default_factory=dict)
    over: bool = False


class Mirror:
    """The streams of all attempts that are not mirrored in full yet.

    Args:
        redactor: masks what is secret, now (a job may bring secrets of its own).
    """

    def __init__(self, redactor: Callable[[], Redactor]) -> None:
        self._redactor = redactor
        self._attempts: dict[str, _Attempt] = {}

    def follow(self, attempt_id: str, folder: AttemptFolder) -> None:
        """Mirror this attempt's streams from now on."""
        self._attempts.setdefault(attempt_id, _Attempt(folder)).over = False
        folder.mirrored.unlink(missing_ok=True)

    def close(self, attempt_id: str) -> None:
        """No process writes to this attempt's streams any more: what is left is sent to the last byte, and then no more."""
        attempt = self._attempts.get(attempt_id)
        if attempt is not None and not attempt.over:
            attempt.over = True
            for stream in attempt.streams.values():
                stream.waiting_for_more_than = -1
            self._settle()

    def ask_again(self) -> None:
        """The coordinator may be another one, or have lost something: ask for every size anew."""
        for attempt in self._attempts.values():
            for stream in attempt.streams.values():
                stream.acknowledged, stream.waiting_for_more_than, stream.not_before_s = None, -1, 0.0

    @property
    def following(self) -> bool:
        return bool(self._attempts)

    def due(self, now_s: float) -> bool:
        """Whether a report would carry something. Looks at the sizes of the files."""
        self._look()
        return any(stream.due(now_s) for stream in self._all())

    def backlog_bytes(self) -> int:
        """What the coordinator does not have yet, as of the last look."""
        return sum(max(0, stream.size - (stream.acknowledged or 0)) for stream in self._all())

    def appends(self, now_s: float, budget_bytes: int = REPORT_BYTES) -> tuple[Append, ...]:
        """The next bytes of each stream, progress first, `budget_bytes` in all."""
        self._look()
        due = sorted(
            (stream for stream in self._all() if stream.due(now_s)),
            key=lambda stream: (not stream.name.startswith(_LINES), stream.size - (stream.acknowledged or 0)),
        )
        made: list[Append] = []
        for position, stream in enumerate(due):
            share = max(_LEAST_SHARE_BYTES, budget_bytes // (len(due) - position))
            if budget_bytes <= 0:
                break
            append = self._next(stream, min(share, budget_bytes))
            if append is not None:
                budget_bytes -= len(append.data)
                made.append(append)
        return tuple(made)

    def acknowledge(self, sent: Iterable[Append], sizes: Iterable[StreamSize], now_s: float) -> None:
        """Take the coordinator's word for what it has. A stream that it does not mention it does not know."""
        known = {(size.attempt_id, size.stream): size.size_bytes for size in sizes}
        for append in sent:
            attempt = self._attempts.get(append.attempt_id)
            stream = attempt.streams.get(append.stream) if attempt else None
            if stream is None:
                continue
            stream.acknowledged = known.get(stream.key)
            if stream.acknowledged is None:
                stream.not_before_s = now_s + _FORGOTTEN_S
        self._settle()

    def _settle(self) -> None:
        """Be done with attempts that are over and wholly mirrored, also for the agents to come."""
        for attempt_id, attempt in tuple(self._attempts.items()):
            if not attempt.over:
                continue
            self._look_at(attempt_id, attempt)
            if all(s.acknowledged is not None and s.acknowledged >= s.size for s in attempt.streams.values()):
                with contextlib.suppress(
                    OSError
                ):  # a full disk: the next agent looks through its streams once more
                    attempt.folder.mirrored.touch()
                del self._attempts[attempt_id]

    def _all(self) -> Iterator[_Stream]:
        for attempt in self._attempts.values():
            yield from attempt.streams.values()

    def _look(self) -> None:
        for attempt_id, attempt in self._attempts.items():
            self._look_at(attempt_id, attempt)

    def _look_at(self, attempt_id: str, attempt: _Attempt) -> None:
        try:
            with os.scandir(attempt.folder.streams) as entries:
                for entry in entries:
                    stream = attempt.streams.get(entry.name)
                    if stream is None:
                        if len(attempt.streams) >= _MOST_STREAMS or not _NAME.fullmatch(entry.name):
                            continue
                        stream = _Stream(attempt_id, entry.name, Path(entry.path))
                        attempt.streams[entry.name] = stream
                    found = entry.stat(follow_symlinks=False)
                    stream.size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        except FileNotFoundError:
            return

    def _next(self, stream: _Stream, limit_bytes: int) -> Append | None:
        offset = stream.acknowledged
        if offset is None and stream.size > _GUESS_BYTES:
            return Append(attempt_id=stream.attempt_id, stream=stream.name, offset=0)
        over = self._attempts[stream.attempt_id].over
        data = self._read(stream, offset or 0, limit_bytes, over)
        if not data and offset is not None:
            stream.waiting_for_more_than = stream.size
            return None
        return Append(attempt_id=stream.attempt_id, stream=stream.name, offset=offset or 0, data=data)

    def _read(self, stream: _Stream, offset: int, limit_bytes: int, over: bool) -> bytes:
        """Masked bytes from `offset` on; of a file that still grows, not what may yet turn out to be a secret."""
        redactor = self._redactor()
        before = min(offset, redactor.reach_bytes)
        window = _pread(stream.path, offset - before, before + limit_bytes + redactor.reach_bytes)
        until = min(len(window), before + limit_bytes)
        if until == len(window) and not over:
            until = max(before, until - redactor.unsafe_tail(window))
        data = redactor.mask(window)[before:until]
        if stream.name.startswith(_LINES) and not (over and until == len(window)):
            whole_lines = data.rfind(b"\n") + 1
            if whole_lines or len(data) < limit_bytes:
                return data[:whole_lines]
        return data


def _pread(path: Path, offset: int, length: int) -> bytes:
    """Part of a regular file; nothing of one that is missing, or a link that the training put there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(handle, length, offset) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    finally:
        os.close(handle)
