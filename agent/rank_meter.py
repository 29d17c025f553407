"""What each rank of the training has used so far: CPU, reads and writes, network; and the state of its sockets.

The watchdog judges by it whether anybody still works. A rank is told by RANK in the environment that torchrun starts its
processes with, which data loaders and compilers inherit; the launcher and the shim belong to none. Whose
process and whose socket is whose is looked up now and then only, so that a reading costs a millisecond. Called by
`telemetry.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.connections import Connection, connections
from coordinator.core import process
from coordinator.core.clock import monotonic_s, now_at
from coordinator.core.process import ProcessId, ProcessStat
from coordinator.core.protocol import RankTelemetry

_TREE_EVERY_S = 10.0  # listing every process costs milliseconds; workers are started once
_YOUNG_EVERY_S = 3.0  # but while no process knows its rank yet, the next one to come does
_SOCKETS_EVERY_S = 4.0  # a link per open file; connections of a training live long
_NO_RANK = (None, 0)

Place = tuple[int | None, int]


@dataclass(slots=True)
class _Traffic:
    """Bytes of one rank's connections; those of a closed one stay counted."""

    bytes_in: int = 0
    bytes_out: int = 0
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, found: Sequence[Connection]) -> None:
        now = {
            c.inode: (c.bytes_in, c.bytes_out)
            for c in found
            if c.bytes_in is not None and c.bytes_out is not None
        }
        for inode, (bytes_in, bytes_out) in now.items():
            before_in, before_out = self.seen.get(inode, (0, 0))
            self.bytes_in += max(0, bytes_in - before_in)
            self.bytes_out += max(0, bytes_out - before_out)
        self.seen = now


class RankMeter:
    """Takes readings of the process trees below the shims."""

    def __init__(self) -> None:
        self._roots: tuple[ProcessId, ...] = ()
        self._tree: tuple[ProcessId, ...] = ()
        self._tree_at_s = self._sockets_at_s = float("-inf")
        self._places: dict[ProcessId, Place] = {}
        self._inodes: dict[ProcessId, frozenset[int]] = {}
        self._traffic: dict[Place, _Traffic] = {}

    def read(
        self, roots: Sequence[ProcessId], streams: Path | None
    ) -> tuple[float | None, tuple[RankTelemetry, ...]]:
        """CPU seconds of everything below the roots, and a reading of each rank; nothing where nothing runs."""
        if not roots:
            self._forget()
            return None, ()
        self._look(tuple(roots))
        stats = {
            one: found
            for one in self._tree
            if (found := process.stat(one.pid)) is not None and found.id == one
        }
        total_s = round(sum(found.cpu_s for found in stats.values()), 2)
        of_place: dict[Place, list[ProcessStat]] = {}
        for one, found in stats.items():
            of_place.setdefault(self._places.get(one, _NO_RANK), []).append(found)
        if len(of_place) > 1:
            of_place.pop(_NO_RANK, None)
        open_now = connections()
        age_s = _line_age_s(streams)
        readings = [
            self._reading(place, found, open_now, age_s)
            for place, found in sorted(of_place.items(), key=_order)
        ]
        return total_s, tuple(readings)

    def _forget(self) -> None:
        self._roots, self._tree = (), ()
        self._places.clear()
        self._inodes.clear()
        self._traffic.clear()

    def _look(self, roots: tuple[ProcessId, ...]) -> None:
        now_s = monotonic_s()
        known = any(place != _NO_RANK for place in self._places.values())
        every_s = _TREE_EVERY_S if known else _YOUNG_EVERY_S
        if roots != self._roots or now_s - self._tree_at_s >= every_s:
            self._tree = tuple(one for root in roots for one in process.tree(root))
            self._places = {one: self._places.get(one, _NO_RANK) for one in self._tree}
            for one, place in self._places.items():
                if place == _NO_RANK:
                    self._places[one] = place_of(one.pid)
            self._roots, self._tree_at_s = roots, now_s
        if now_s - self._sockets_at_s >= _SOCKETS_EVERY_S or self._tree_at_s == now_s:
            self._inodes = {one: _socket_inodes(one.pid) for one in self._tree}
            self._sockets_at_s = now_s

    def _reading(
        self, place: Place, found: Sequence[ProcessStat], open_now: Sequence[Connection], age_s: float | None
    ) -> RankTelemetry:
        inodes = frozenset[int]().union(*(self._inodes.get(one.id, frozenset()) for one in found))
        own = [connection for connection in open_now if connection.inode in inodes]
        traffic = self._traffic.setdefault(place, _Traffic())
        traffic.add(own)
        counted = not own or any(connection.bytes_in is not None for connection in own)
        io_bytes = [count for one in found if (count := _io_bytes(one.id.pid)) is not None]
        return RankTelemetry(
            rank=place[0],
            local_rank=place[1],
            pid=min(found, key=lambda one: one.id.start_ticks).id.pid,
            processes=len(found),
            cpu_s=round(sum(one.cpu_s for one in found), 2),
            io_bytes=sum(io_bytes) if io_bytes else None,
            network_bytes_in=traffic.bytes_in if counted else None,
            network_bytes_out=traffic.bytes_out if counted else None,
            sockets=dict(Counter(connection.state for connection in own)),
            stopped=any(one.state in ("T", "t") for one in found),
            disk_wait=any(one.state == "D" for one in found),
            line_age_s=age_s,
        )


def _order(item: tuple[Place, object]) -> tuple[int, int]:
    rank, local_rank = item[0]
    return (-1 if rank is None else rank, local_rank)


def place_of(pid: int) -> Place:
    """Rank and local rank that a process was started with."""
    with contextlib.suppress(OSError):
        found: dict[bytes, bytes] = {}
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name in (b"RANK", b"LOCAL_RANK") and value.isdigit():
                found[name] = value
        if b"RANK" in found:
            return int(found[b"RANK"]), int(found.get(b"LOCAL_RANK", b"0"))
    return _NO_RANK


def _socket_inodes(pid: int) -> frozenset[int]:
    found = set()
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/fd"
        for name in os.listdir(folder):  # noqa: PTH208 - thousands of files: paths cost more than the calls
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return frozenset(found)


def _io_bytes(pid: int) -> int | None:
    """Bytes that went through read and write calls, files and pipes alike."""
    try:
        lines = Path(f"/proc/{pid}/io").read_bytes().splitlines()
        return int(lines[0].split()[1]) + int(lines[1].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _line_age_s(streams: Path | None) -> float | None:
    """Seconds since a log of the attempt last grew."""
    if streams is None:
        return None
    newest = None
    with contextlib.suppress(OSError):
        for entry in os.scandir(streams):
            if entry.name.endswith(".log"):
                newest = max(newest or 0.0, entry.stat().st_mtime)
    return None if newest is None else round(max(0.0, now_at() - newest), 1)
