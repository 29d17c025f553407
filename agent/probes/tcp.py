"""The tcp probe: this replica's half of the N×N mesh. Called by the agent for a `TcpTask`.

Every target is greeted, must answer with its own replica id and our nonce, take a payload and give it back.
What went wrong is one word of `Fault`, so that `coordinator/preflight/verdict.py` can tell a firewall from a
sidecar from a lost large packet. All links are driven by one selector in a thread of their own: a link costs
little, is timed without the agent's other work, and stands still only when nothing moves on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import selectors
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from agent.probes import sockets
from agent.probes.link import Fault, Link
from coordinator.core.protocol import LinkResult, Member, TcpResult, TcpTask


@dataclass(frozen=True, slots=True)
class Limits:
    """Judgements about time and load.

    Attributes:
        still_s: a link on which nothing moves for so long has failed; a lost first packet of a connection is
            repeated after 1 and 3 s.
        share: part of the task's deadline this probe uses; the rest is for the report's way.
        at_once: links that are moving at a time: enough to be quick, few enough to load nobody.
        parked_s: a link that waits for so long no longer counts as moving, so that dead ones do not hold up
            the others.
        pause_s: before a failed link is tried again.
        large_bytes: payload of a link that is not sampled: several packets even of jumbo size.
        spare_s: a link that stands still while the same replica was reached at another of its addresses is given
            up after this, and not tried again: it is only to be known whether it would do as well.
        slower, fast_bytes_per_s, measured_again: a link so many times slower than the best, and below a gigabit,
            is measured again, alone.
        busy_s: how much longer to wait each time before that: a busy moment may last.
    """

    still_s: float = 5.0
    share: float = 0.7
    at_once: int = 8
    parked_s: float = 0.25
    pause_s: float = 0.3
    spare_s: float = 2.5
    large_bytes: int = 32 * 1024
    slower: float = 4.0
    fast_bytes_per_s: float = 125e6
    measured_again: int = 4
    busy_s: float = 0.05


LIMITS = Limits()
_FINAL = frozenset({Fault.WRONG_REPLICA, Fault.NOT_ECHO})  # a second try says the same


async def probe(task: TcpTask, replica_id: str, limits: Limits = LIMITS) -> TcpResult:
    """Probe all targets of `task` as `replica_id`; never raises, never outlasts `task.deadline_s`."""
    return await asyncio.to_thread(_probe, task, replica_id, limits)


def _probe(task: TcpTask, replica_id: str, limits: Limits) -> TcpResult:
    links = _Mesh(task, replica_id, limits).run()
    rows = sockets.table()
    port, holders = sockets.first_free(task.port_candidates, rows)
    half_open = sockets.half_open(rows)
    links = tuple(
        link.model_copy(update={"half_open": True})
        if link.fault == Fault.TIMED_OUT and link.address in half_open
        else link
        for link in links
    )
    return TcpResult(links=links, rendezvous_port=port, port_holders=holders, sidecars=sockets.sidecars(rows))


def _better(one: LinkResult, other: LinkResult) -> LinkResult:
    """Of a link that was measured twice: the better figures of both."""
    if not other.ok:
        return one
    speeds = {
        name: max(getattr(one, name) or 0.0, getattr(other, name) or 0.0)
        for name in ("bytes_per_s", "return_bytes_per_s")
    }
    return one.model_copy(update={**speeds, "rtt_s": min(one.rtt_s or 0.0, other.rtt_s or 0.0)})


class _Mesh:
    """All links of one replica, driven to their end by one selector."""

    def __init__(self, task: TcpTask, replica_id: str, limits: Limits) -> None:
        self._task = task
        self._me = replica_id
        self._limits = limits
        self._until = time.monotonic() + task.deadline_s * limits.share
        # A quarter of the time at most, so that a dead link can stand still twice.
        self._still_s = min(limits.still_s, task.deadline_s * limits.share / 2.5)
        self._payload = os.urandom(max(task.payload_bytes, limits.large_bytes))
        self._selector = selectors.DefaultSelector()
        self._working: set[Link] = set()
        self._results: dict[tuple[str, str], LinkResult] = {}
        self._arrived: set[str] = set()

    def run(self) -> tuple[LinkResult, ...]:
        targets = [target for target in self._task.targets if target.replica_id != self._me]
        try:
            self._drive(targets, self._limits.at_once)
            for again in range(self._limits.measured_again):
                if not (slow := self._slow(targets)):
                    break
                time.sleep(self._limits.busy_s * again)
                self._drive(slow, 1)
        finally:
            for link in self._working:
                link.close()
            self._selector.close()
        return tuple(self._result(target) for target in targets)

    def _drive(self, targets: Iterable[Member], at_once: int) -> None:
        waiting = deque((target, 1, 0.0) for target in targets)
        while (waiting or self._working) and time.monotonic() < self._until:
            self._begin(waiting, at_once)
            self._turn(waiting)
            for link in [link for link in self._working if link.finished]:
                self._end(link, waiting)

    def _slow(self, targets: Iterable[Member]) -> list[Member]:
        """Links far slower than the best, in one direction: perhaps only because this moment was busy."""
        speeds = {
            key: min(seen.bytes_per_s, seen.return_bytes_per_s)
            for key, seen in self._results.items()
            if seen.bytes_per_s and seen.return_bytes_per_s
        }
        limit = min(max(speeds.values(), default=0.0) / self._limits.slower, self._limits.fast_bytes_per_s)
        return [t for t in targets if speeds.get((t.replica_id, t.address), limit) < limit]

    def _begin(self, waiting: deque[tuple[Member, int, float]], at_once: int) -> None:
        """Start links while few are moving. Those that failed before wait at the end of the queue."""
        now = time.monotonic()
        moving = sum(now - max(link.began, link.moved) < self._limits.parked_s for link in self._working)
        while waiting and moving < at_once and waiting[0][2] <= now:
            target, tries, _ = waiting.popleft()
            sampled = self._task.sampled is None or target.replica_id in self._task.sampled
            size_bytes = self._task.payload_bytes
            if not sampled:
                size_bytes = min(size_bytes, self._limits.large_bytes)
            nonce = hashlib.sha256(f"{self._task.nonce} {self._me} {target.replica_id}".encode()).digest()[
                :16
            ]
            link = Link(target, nonce, self._payload[:size_bytes], sampled=sampled, tries=tries)
            self._working.add(link)
            link.start()
            if link.finished is None and link.sock is not None:
                self._selector.register(link.sock, link.wants, link)
            moving += 1

    def _turn(self, waiting: Iterable[object]) -> None:
        """Wait for what moves, and give up what does not."""
        waited = time.monotonic()
        look_s = 0.02 if waiting else 0.1
        events = self._selector.select(look_s if self._working else self._limits.pause_s / 4)
        now = time.monotonic()
        # Time in which this thread itself did not run is nobody's fault.
        starved_s = max(0.0, now - waited - 2 * look_s) if not events else 0.0
        for key, mask in events:
            link: Link = key.data
            wanted = link.wants
            link.step(mask)
            if link.finished is None and link.wants != wanted:
                self._selector.modify(key.fileobj, link.wants, link)
        for link in self._working:
            link.moved += starved_s
            if link.finished is not None:
                continue
            patience_s = self._still_s
            if self._reached(link.target.replica_id):
                patience_s = min(patience_s, self._limits.spare_s)
            if now - link.moved > patience_s:
                link.stand_still(patience_s)

    def _end(self, link: Link, waiting: deque[tuple[Member, int, float]]) -> None:
        assert link.finished is not None
        self._working.discard(link)
        if link.sock is not None:
            if link.sock in self._selector.get_map():
                self._selector.unregister(link.sock)
            link.close()
        result = link.finished
        key = (link.target.replica_id, link.target.address)
        before = self._results.get(key)
        if before is not None and before.ok:
            self._results[key] = _better(before, result)
            return
        self._results[key] = result
        if result.ok:
            self._arrived.add(link.target.replica_id)
        elif result.fault not in _FINAL and link.tries == 1 and not self._reached(link.target.replica_id):
            waiting.append((link.target, 2, time.monotonic() + self._limits.pause_s))

    def _reached(self, replica_id: str) -> bool:
        """Whether this replica was reached at one of its addresses."""
        return replica_id in self._arrived

    def _result(self, target: Member) -> LinkResult:
        found = self._results.get((target.replica_id, target.address))
        if found is not None:
            return found
        return LinkResult(
            replica_id=target.replica_id,
            address=target.address,
            ok=False,
            fault=str(Fault.UNTRIED),
            error="the task's time was up before this link had an answer",
        )
