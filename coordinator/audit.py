"""Refusals in the audit: who was turned away, from where, at what. Whoever floods the service does not flood the store.

The first refusal of a kind is written at once; those like it within a minute are counted and written as one.
Called by `api/edge.py`; what succeeds is written by whoever does it, in the same transaction.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from coordinator.core.clock import monotonic_s, now_at
from coordinator.store import Store, StoreError, queries

log = structlog.get_logger(__name__)

# Refusals alike within this time are one event with a count.
GATHER_S = 60.0
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
    _since: dict[Refusal, tuple[float, int]] = field(default_factory=dict)
    _writing: set[asyncio.Task[None]] = field(default_factory=set)

    def note(self, refusal: Refusal) -> None:
        """Somebody was turned away just now. Never raises, never waits."""
        now_s = monotonic_s()
        held = self._since.get(refusal)
        if held is not None and now_s - held[0] < GATHER_S:
            self._since[refusal] = held[0], held[1] + 1
            return
        self._forget(now_s)
        if len(self._since) >= MOST_KINDS:
            log.warning("refused", actor=refusal.actor, route=refusal.route, status=refusal.status)
            return
        self._since[refusal] = now_s, 0
        self._write(refusal, 1)

    async def close(self) -> None:
        """Write what was only counted so far."""
        for refusal, (_, times) in self._since.items():
            if times:
                self._write(refusal, times)
        self._since.clear()
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _forget(self, now_s: float) -> None:
        for refusal, (since_s, times) in tuple(self._since.items()):
            if now_s - since_s >= GATHER_S:
                del self._since[refusal]
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
