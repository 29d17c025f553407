"""Carries a command's output into its stream file, and goes on without the file where the disk is full.

A command that writes to the disk itself dies of a full one: Python's print raises, and hours of training with it.
So its output comes through a pipe, and a thread of the shim writes it down. Where the disk has nothing left but what
checkpoints and reports need, output is dropped, whole pieces at a time, counted, and the count is written in
its place as soon as there is room. Standard library only; called by `shim.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from dataclasses import dataclass

PIECE_BYTES = 1 << 20
# What a burst may be ahead of the disk; the kernel gives an ordinary user no more.
PIPE_BYTES = 1 << 20
# Left on the disk by streams, for the last file of a checkpoint, exit codes and reports: the smaller of the two.
KEPT_FREE_BYTES = 64 << 20
KEPT_FREE_SHARE = 0.02
# After a drop the disk is left alone for so long: else every freed block would cost a line about what is missing.
PAUSE_S = 0.5
# Something of the command may hold the pipe open after its end; what it has written by then is kept.
LAST_WORDS_S = 1.0


def has_room(descriptor: int, wanted_bytes: int = 1) -> bool:
    """Whether streams may take so much more of the disk that this file is on."""
    disk = os.fstatvfs(descriptor)
    kept = min(KEPT_FREE_BYTES, int(disk.f_blocks * disk.f_frsize * KEPT_FREE_SHARE))
    return disk.f_bavail * disk.f_frsize >= kept + wanted_bytes


@dataclass(slots=True)
class Spool:
    """One command's output. `writer` is for the command; `stream` stays the caller's to close, after `finish`."""

    stream: int
    writer: int = -1
    dropped_bytes: int = 0
    _reader: int = -1
    _unsaid_bytes: int = 0
    _not_before_s: float = float("-inf")
    _wake: tuple[int, int] = (-1, -1)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """
        Raises:
            OSError: no pipe can be made.
        """
        self._reader, self.writer = os.pipe()
        self._wake = os.pipe()
        with contextlib.suppress(OSError):  # it stays smaller, where the user has many pipes
            fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._thread = threading.Thread(target=self._carry, name="spool", daemon=True)
        self._thread.start()

    def handed_over(self) -> None:
        """The command has its end of the pipe, or will never have it."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def finish(self) -> None:
        """Return once everything that the command has written was carried."""
        self.handed_over()
        if self._thread is None:
            return
        os.write(self._wake[1], b"x")
        self._thread.join()
        self._thread = None
        for end in (self._reader, *self._wake):
            os.close(end)

    def _carry(self) -> None:
        until_s = float("inf")
        watched = [self._reader, self._wake[0]]
        while time.monotonic() < until_s:
            over = until_s < float("inf")
            ready, _, _ = select.select(watched, [], [], 0.0 if over else None)
            if self._reader in ready:
                data = os.read(self._reader, PIECE_BYTES)
                if not data:
                    break
                self._put(data)
            elif over:
                break
            if self._wake[0] in ready:
                until_s = time.monotonic() + LAST_WORDS_S
                watched = [self._reader]
        self._say_dropped()

    def _put(self, data: bytes) -> None:
        if not self._may_write(len(data)):
            self._drop(len(data))
            return
        self._say_dropped()
        if self._unsaid_bytes:
            self._drop(len(data))
            return
        written = self._write(data)
        if written < len(data):
            self._drop(len(data) - written)

    def _may_write(self, size: int) -> bool:
        if time.monotonic() < self._not_before_s:
            return False
        try:
            return has_room(self.stream, size)
        except OSError:
            return True  # the write will tell

    def _drop(self, size: int) -> None:
        self.dropped_bytes += size
        self._unsaid_bytes += size
        now_s = time.monotonic()
        if now_s >= self._not_before_s:  # not put off again by all that comes meanwhile
            self._not_before_s = now_s + PAUSE_S

    def _say_dropped(self) -> None:
        """In the place of what is missing: on a line of its own, since the one before may be torn."""
        if not self._unsaid_bytes:
            return
        said = f"\nrankcall: the disk was full; {self._unsaid_bytes} bytes of output were dropped here\n".encode()
        if self._write(said) == len(said):
            self._unsaid_bytes = 0

    def _write(self, data: bytes) -> int:
        """How much of it the disk took."""
        written = 0
        while written < len(data):
            try:
                written += os.write(self.stream, data[written:])
            except OSError:
                break
        return written
