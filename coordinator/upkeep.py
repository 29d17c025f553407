"""Keeps the store bounded: now and then the oldest ended jobs lose their logs, and SQLite gives the space back.

Runs in the active coordinator process beside its controller (`app.py`); what goes is `retention.py`'s decision.
Everything is let go in pieces of some milliseconds, each a write like any other: reports pass in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from sqlalchemy import Connection

from coordinator.broadcast import Broadcast
from coordinator.core.catalogue import finding
from coordinator.core.clock import now_at
from coordinator.retention import Drop, Keep, to_drop
from coordinator.store import Store, StoreError, queries

log = structlog.get_logger(__name__)

FIRST_S = 30.0
EVERY_S = 600.0
# Between two pieces: the writer is ours for a third of the time at most.
PAUSE_S = 0.02
# Of the audit, however young they are: some 60 MB.
MOST_EVENTS = 200_000
_WORDS = {
    "old": "RANKCALL_KEEP_DAYS is how long logs are kept.",
    "large": "RANKCALL_KEEP_GIB is how much of logs is kept, and younger jobs needed the room.",
}


class Upkeep:
    """One for the service."""

    def __init__(self, store: Store, broadcast: Broadcast, keep: Keep) -> None:
        self._store = store
        self._broadcast = broadcast
        self._keep = keep

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                await self.sweep(now_at())
            except StoreError as error:
                log.warning("the store could not be tidied", why=str(error))
            except Exception:  # a fault of ours: without a next time the store would grow for good
                log.exception("the store could not be tidied; it is tried again")
            await asyncio.sleep(EVERY_S)

    async def sweep(self, at: float) -> tuple[Drop, ...]:
        """Let go of what is not kept any longer; says what that was."""
        dropped = []
        for drop in to_drop(await self._store.read(queries.weights), at, self._keep):
            if await self._store.write(lambda c, d=drop: _mark(c, d, at)):  # type: ignore[misc]
                await self._let_go(drop)
                dropped.append(drop)
        newest = await self._store.read(queries.last_event_id)
        await self._in_pieces(lambda c: queries.drop_events(c, at - self._keep.age_s, newest - MOST_EVENTS))
        await self._in_pieces(queries.give_back)
        return tuple(dropped)

    async def _let_go(self, drop: Drop) -> None:
        log.info("a job's logs are kept no more", job=drop.job_id, why=drop.why)
        await self._in_pieces(lambda c: queries.drop_piece(c, drop.job_id))
        if drop.why == "old":
            await self._store.write(lambda c: queries.drop_lists(c, drop.job_id))
        self._broadcast.publish(f"job:{drop.job_id}")

    async def _in_pieces(self, piece: Callable[[Connection], bool]) -> None:
        """Until there is no more."""
        more = True
        while more:
            more = await self._store.write(piece)
            await asyncio.sleep(PAUSE_S)


def _mark(c: Connection, drop: Drop, at: float) -> bool:
    """Say it where the job is shown, before the first byte goes. False: it runs again, and keeps everything."""
    row = queries.job(c, drop.job_id)
    if row is None or not queries.mark_dropped(c, drop.job_id, at):
        return False
    if row.dropped_at is None or row.dropped_at < (
        row.ended_at or 0.0
    ):  # else a replica has sent its log once more
        day = datetime.fromtimestamp(at, UTC).date()
        said = finding("SYS033", f"Its logs, figures and files were dropped on {day}. {_WORDS[drop.why]}")
        queries.insert_findings(c, drop.job_id, None, at, [said])
        queries.insert_event(
            c, at=at, actor="coordinator", action="job.dropped", job_id=drop.job_id, detail={"why": drop.why}
        )
    return True
