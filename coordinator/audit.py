"""Refusals in the audit: who was turned away, from where, at what. Whoever floods the service does not flood the store.

The first refusal of a kind is written at once; those like it soon after are counted, and written as one when that
time is over.
Called by `api/edge.py`; what succeeds is written by whoever does it, in the same transaction.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from coordinator.core.clock import now_at
from coordinator.store import Store, StoreError, queries

log = structlog.get_logger(__name__)

# Refusals alike within this time are one event with a count.
GATHER_S = 20.0
# Kinds that are held apart at once; further ones are only logged.
MOST_KINDS = 256


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind: the same asker at the same route with the same answer."""

    actor: str
    method: str
    route: str
    status: int
    code: str


@dataclass(slots=True)
class Refusals:
    """The refusals of one app."""

    store: Store
    gather_s: float = GATHER_S
    _more: dict[Refusal, int] = field(default_factory=dict)
    _timers: set[asyncio.TimerHandle] = field(default_factory=set)
    _writing: set[asyncio.Task[None]] = field(default_factory=set)

    def note(self, refusal: Refusal) -> None:
        """Somebody was turned away just now. Never raises, never waits."""
        if refusal in self._more:
            self._more[refusal] += 1
            return
        if len(self._more) >= MOST_KINDS:
            log.warning("refused", actor=refusal.actor, route=refusal.route, status=refusal.status)
            return
        self._more[refusal] = 0
        self._write(refusal, 1)
        self._settle_later(refusal)

    async def close(self) -> None:
        """Write what was only counted so far."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for refusal in tuple(self._more):
            self._settle(refusal)
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _settle_later(self, refusal: Refusal) -> None:
        def settle() -> None:
            self._timers.discard(timer)
            self._settle(refusal)

        timer = asyncio.get_running_loop().call_later(self.gather_s, settle)
        self._timers.add(timer)

    def _settle(self, refusal: Refusal) -> None:
        """Writes what was only counted; the next of this kind is a first one again."""
        times = self._more.pop(refusal, 0)
        if times:
            self._write(refusal, times)

    def _write(self, refusal: Refusal, times: int) -> None:
        task = asyncio.create_task(self._store(refusal, times))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _store(self, refusal: Refusal, times: int) -> None:
        detail = {
            "method": refusal.method,
            "route": refusal.route,
            "status": refusal.status,
            "code": refusal.code,
            "times": times,
        }
        at = now_at()
        try:
            await self.store.write(
                lambda c: queries.insert_event(
                    c, at=at, actor=refusal.actor, action="access.refused", detail=detail
                )
            )
        except StoreError as fault:
            log.warning("refused", actor=refusal.actor, why_not_in_the_audit=str(fault), **detail)
