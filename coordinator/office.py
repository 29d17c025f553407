"""Holding the office of the active coordinator: several processes share a store, one of them serves and controls.

What an agent says is known first in the memory of the process it speaks to (who is alive, held reads, downloads on
their way), so all agents speak to one process; the others stand by, pass on whatever they are asked
(`api/elsewhere.py`), and take over when its lease in the store is not renewed (`tenure.py`). A process that takes over
goes on from the store, exactly as one that was restarted. With SQLite there is one process, which is always in office.
Called by `app.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import structlog
from sqlalchemy import Connection

from coordinator.core.clock import monotonic_s, now_at
from coordinator.role import holder_name
from coordinator.store import Fenced, Store, StoreError, queries, streams
from coordinator.store.rows import Lease
from coordinator.tenure import (
    Sighting,
    TenureTimes,
    counted,
    following,
    is_live,
    may_serve,
    may_take,
    seen,
)

log = structlog.get_logger(__name__)

SECRET_BYTES = 24


@contextlib.contextmanager
def own_name(state: Path) -> Iterator[str]:
    """A name for this coordinator process that is the same after a restart, so that it takes its own lease back at once.

    Where that is in use by a process that still lives, or cannot be kept, it is a new one.
    """
    with contextlib.ExitStack() as held:
        name = secrets.token_hex(8)
        with contextlib.suppress(OSError):
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = held.enter_context((state / "coordinator.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = holder_name(state)
        yield name


class Office(Protocol):
    """Whether this process is the active one, and if not, which is."""

    def here(self) -> bool:
        """This process may answer, now."""

    def elsewhere(self) -> Lease | None:
        """The lease of another process, which may answer; None where none is known to live."""

    def proves(self, secret: str) -> bool:
        """Whether a request that brings this was passed on by a process of the same store."""


class OnlyOffice:
    """The one process of a store that takes no second one."""

    def here(self) -> bool:
        return True

    def elsewhere(self) -> Lease | None:
        return None

    def proves(self, secret: str) -> bool:  # noqa: ARG002
        return False


def _taken(c: Connection, lease: Lease) -> None:
    """The first write of an epoch: what another process has written meanwhile is looked up anew."""
    streams.forget_sizes(c)
    queries.insert_event(
        c,
        at=now_at(),
        actor=f"coordinator@{lease.url}",
        action="coordinator.active",
        detail={"epoch": lease.epoch, "name": lease.url},
    )


class SharedOffice:
    """One process's part in who is the active one.

    Args:
        holder: this process's name in the lease; the same as that of a process whose place it takes.
        url: where the others reach this process.
    """

    def __init__(self, store: Store, holder: str, url: str, times: TenureTimes | None = None) -> None:
        self._store = store
        self._holder = holder
        self._url = url
        self._times = times or TenureTimes()
        self._sighting: Sighting | None = None
        self._held: Lease | None = None
        self._confirmed_s = 0.0
        store.fence(self._check)

    # --- what others ask

    def here(self) -> bool:
        return self._held is not None and may_serve(self._confirmed_s, monotonic_s(), self._times)

    def elsewhere(self) -> Lease | None:
        sighting = self._sighting
        if self._held is not None or sighting is None or not is_live(sighting, monotonic_s(), self._times):
            return None
        assert sighting.lease is not None
        return sighting.lease if sighting.lease.holder != self._holder else None

    def proves(self, secret: str) -> bool:
        return self._held is not None and hmac.compare_digest(self._held.secret.encode(), secret.encode())

    # --- holding it

    async def look(self) -> bool:
        """Look at the lease once, and take it if nobody lives who holds it; whether it is held here now.

        Raises:
            StoreError: when the store does not answer.
        """
        found = await self._store.read(queries.lease)
        now_s = monotonic_s()
        self._sighting = seen(self._sighting, found, now_s)
        if not may_take(self._sighting, self._holder, now_s, self._times):
            return False
        new = following(found, self._holder, self._url, secrets.token_urlsafe(SECRET_BYTES))
        if not await asyncio.to_thread(self._store.seize, lambda c: queries.take_lease(c, found, new)):
            return False
        self._held, self._confirmed_s = new, now_s
        await self._store.write(lambda c: _taken(c, new))
        log.info("this coordinator process is the active one now", epoch=new.epoch, url=self._url)
        return True

    async def win(self) -> None:
        """Stand by until the lease is held here."""
        while True:
            try:
                if await self.look():
                    return
            except StoreError as error:
                log.warning("the store does not answer", why=str(error))
            await asyncio.sleep(self._times.look_s)

    async def keep(self) -> None:
        """Renew the lease until it is another's. A store that does not answer ends nothing: it may be back in time."""
        while self._held is not None:
            began_s, new = monotonic_s(), counted(self._held)

            def beat(c: Connection, new: Lease = new) -> None:
                queries.beat_lease(c, new.epoch, new.beat)

            try:
                await self._store.write(beat)
            except Fenced as fenced:
                log.warning("another coordinator process has taken over; this one stands by", why=str(fenced))
                self._held = self._sighting = None
                return
            except StoreError as error:
                log.warning("the lease cannot be renewed", why=str(error))
            else:
                self._held, self._confirmed_s = new, began_s
            await asyncio.sleep(max(0.0, began_s + self._times.beat_s - monotonic_s()))

    async def leave(self) -> None:
        """Give the lease back, so that another process takes it without waiting."""
        held = self._held
        if held is None:
            return
        try:
            async with asyncio.timeout(self._times.beat_s):
                await self._store.write(lambda c: queries.release_lease(c, held.epoch))
        except (StoreError, TimeoutError) as error:
            log.warning("the lease could not be given back; it runs out by itself", why=str(error))
        self._held = None

    def _check(self, c: Connection) -> None:
        """The fence of the store: what is written is written in the name of the epoch that is held."""
        held = self._held
        queries.check_epoch(c, held.epoch if held is not None else 0)
