"""A lease on a folder that all replicas see (RANKCALL_SHARED_DIR): exactly one of them is the master.

Each epoch is a file of its own, made by exclusive creation: whoever makes `coordinator-<epoch>.lease`
holds that epoch, and the highest epoch is the master. A holder counts up in its file; one whose count
stands still for `stale_s` *as the observer's own clock sees it* has lost it to whoever makes the next
epoch's file. A holder that sees a higher epoch is fenced and stops at once. No clock of another machine
is ever compared. `coordinator/up.py` holds leases, `agent/discovery.py` reads them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

_NAME = re.compile(r"coordinator-(\d{1,12})\.lease")


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Judgements about shared folders.

    Attributes:
        beat_s: between two counts; a file write on NFS takes milliseconds.
        stale_s: a count standing still for so long means a dead holder: above NFS attribute caching (3 s)
            and a stalled write.
        settle_s: after exclusive creation, before trusting it: object stores mounted as folders may let two
            creators through, and the later write shows.
    """

    beat_s: float = 2.0
    stale_s: float = 15.0
    settle_s: float = 0.3


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease file says. `beat` grows while the holder lives; `released`: it gave the lease back."""

    epoch: int
    holder: str = ""
    url: str = ""
    beat: int = 0
    released: bool = False


class Fenced(Exception):
    """Somebody else holds a higher epoch: this holder must stop serving."""

    def __init__(self, newer: Lease) -> None:
        super().__init__(f"epoch {newer.epoch} is held by {newer.holder or 'another replica'} at {newer.url}")
        self.newer = newer


@dataclass(frozen=True, slots=True)
class Sighting:
    """A lease and since when, on the observer's clock, it has looked exactly like this."""

    lease: Lease
    since_s: float

    def seen_again(self, lease: Lease, now_s: float) -> Sighting:
        return self if lease == self.lease else Sighting(lease, now_s)

    def is_free(self, now_s: float, stale_s: float) -> bool:
        return self.lease.released or now_s - self.since_s >= stale_s


class LeaseFolder:
    """The lease files of one folder. Every method may raise OSError: the folder is remote."""

    def __init__(self, folder: Path, times: LeaseTimes | None = None) -> None:
        self.folder = folder
        self.times = times or LeaseTimes()

    def newest(self) -> Lease | None:
        """The lease of the highest epoch; one whose file is still empty has no holder yet."""
        epochs = self._epochs()
        return self._read(max(epochs)) if epochs else None

    def take(
        self, epoch: int, holder: str, url: str, sleep: Callable[[float], None] = time.sleep
    ) -> Lease | None:
        """Makes the file of this epoch; None when somebody else made it first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(epoch)
        lease = Lease(epoch, holder, url, beat=1)
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return None
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(_encode(lease))
            file.flush()
            os.fsync(file.fileno())
        sleep(self.times.settle_s)
        if self._read(epoch).holder != holder or max(self._epochs(), default=epoch) > epoch:
            return None
        self._forget_before(epoch)
        return lease

    def beat(self, lease: Lease) -> Lease:
        """Counts up.

        Raises:
            Fenced: a higher epoch exists, or this epoch's file is another's.
        """
        self._check(lease)
        return self._write(replace(lease, beat=lease.beat + 1))

    def release(self, lease: Lease) -> None:
        """Gives the lease back, so that the next takes it without waiting; nothing when it is lost already."""
        try:
            self._check(lease)
        except Fenced:
            return
        self._write(replace(lease, beat=lease.beat + 1, released=True))

    def _check(self, lease: Lease) -> None:
        newest = self.newest()
        if newest is not None and newest.epoch > lease.epoch:
            raise Fenced(newest)
        current = self._read(lease.epoch)
        if current.holder not in ("", lease.holder):
            raise Fenced(current)

    def _write(self, lease: Lease) -> Lease:
        path = self._path(lease.epoch)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            beside.write_text(_encode(lease), encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        return lease

    def _read(self, epoch: int) -> Lease:
        try:
            text = self._path(epoch).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return Lease(epoch)
        return _decode(epoch, text)

    def _epochs(self) -> list[int]:
        try:
            names = [entry.name for entry in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name)) is not None]

    def _forget_before(self, epoch: int) -> None:
        """Removes old epochs' files but the last few: a holder fenced just now still compares with its own."""
        for old in self._epochs():
            if old < epoch - 3:
                self._path(old).unlink(missing_ok=True)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"coordinator-{epoch}.lease"


def _encode(lease: Lease) -> str:
    return json.dumps(
        {"holder": lease.holder, "url": lease.url, "beat": lease.beat, "released": lease.released}
    )


def _decode(epoch: int, text: str) -> Lease:
    """A half-written or foreign file is a lease without a holder: it grows stale like any other."""
    try:
        said = json.loads(text)
    except ValueError:
        return Lease(epoch)
    if not isinstance(said, dict):
        return Lease(epoch)
    beat = said.get("beat")
    return Lease(
        epoch=epoch,
        holder=str(said.get("holder", "")),
        url=str(said.get("url", "")),
        beat=beat if isinstance(beat, int) else 0,
        released=said.get("released") is True,
    )
