"""Settings in, app out. Nothing happens at import, and nothing is opened before the app starts.

`create_app` is called by `__main__.py` and by tests, which run several apps in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog
from fastapi import FastAPI
from starlette.datastructures import State

from coordinator.api import (
    artifacts,
    checks,
    document,
    jobs,
    pages,
    preflights,
    problems,
    replicas,
    reports,
    service,
    streams,
)
from coordinator.api.edge import Edge, Express
from coordinator.api.elsewhere import Elsewhere
from coordinator.api.feeds import Feeds
from coordinator.api.meters import Meters
from coordinator.api.routing import Lean
from coordinator.api.services import Services
from coordinator.audit import Refusals
from coordinator.auth import Authority
from coordinator.broadcast import Broadcast
from coordinator.controller import Controller
from coordinator.intake import Intake
from coordinator.limits import Limits, Rates
from coordinator.office import OnlyOffice, SharedOffice, own_name
from coordinator.relay import Relay
from coordinator.roster import Roster
from coordinator.second_opinion import SecondOpinion
from coordinator.sessions import Sessions, digest
from coordinator.settings import Settings
from coordinator.store import Store, StoreError, is_server
from coordinator.store.claim import claimed_store
from coordinator.submissions import Submissions
from coordinator.upkeep import Upkeep
from coordinator.veils import Veils

log = structlog.get_logger(__name__)

# Between two tries to serve, so that another process may try before.
PAUSE_S = 1.0

# The hot routes first: they are looked for one after the other.
_ROUTERS = (
    replicas.agents,
    jobs.router,
    reports.router,
    streams.router,
    artifacts.router,
    replicas.router,
    preflights.router,
    checks.router,
    service.router,
    pages.router,
)


def create_app(settings: Settings, limits: Limits | None = None, url: str = "") -> FastAPI:
    """The coordinator as an ASGI app. Its store is opened, and its controller runs, while its lifespan does.

    Args:
        url: where other coordinator processes on the same PostgreSQL store reach this one.
    """
    meters, rates = Meters(), Rates(limits or Limits())
    version = service.installed_version()
    elsewhere = Elsewhere(settings, version)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        parts = _Parts(settings, meters, rates, app.state)
        meters.gauges(lambda: _gauges(app.state.services))
        try:
            if is_server(settings.store_url):
                async with _one_of_several(parts, url):
                    yield
            else:
                async with _alone(parts):
                    yield
        finally:
            await elsewhere.aclose()

    app = Express(
        title="rankcall",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.services, app.state.office = None, OnlyOffice()
    for router in _ROUTERS:
        # Added as they are: an included router would be matched twice.
        app.router.routes.extend(router.routes)
    document.install(app, version)
    problems.install(app)
    edge = functools.partial(Edge, settings=settings, meters=meters, rates=rates, elsewhere=elsewhere)
    app.add_middleware(edge)
    app.expedite([route for route in replicas.agents.routes if isinstance(route, Lean)], edge)
    return app


@dataclass(frozen=True, slots=True)
class _Parts:
    """What outlives a change of the active process; `state` is the app's, where the routes find their services."""

    settings: Settings
    meters: Meters
    rates: Rates
    state: State


@contextlib.asynccontextmanager
async def _alone(parts: _Parts) -> AsyncIterator[None]:
    """The one process on an SQLite file."""
    with claimed_store(parts.settings.store_url):
        store = await asyncio.to_thread(Store.open, parts.settings.store_url)
        try:
            async with serving(parts.settings, store, parts.meters, parts.rates) as services:
                parts.state.services = services
                yield
        finally:
            parts.state.services = None
            await asyncio.to_thread(store.close)


@contextlib.asynccontextmanager
async def _one_of_several(parts: _Parts, url: str) -> AsyncIterator[None]:
    """One of any number of processes on a PostgreSQL store. Entered once it is known whether this is the active one."""
    store = await asyncio.to_thread(Store.open, parts.settings.store_url)
    try:
        with own_name(parts.settings.state_dir) as holder:
            office = parts.state.office = SharedOffice(store, holder, url)
            settled = asyncio.Event()
            running = asyncio.create_task(_in_turn(parts, store, office, settled), name="office")
            waiting = asyncio.create_task(settled.wait())
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if running.done():
                await running  # it has failed, and says why
            try:
                yield
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
    finally:
        await asyncio.to_thread(store.close)


async def _in_turn(parts: _Parts, store: Store, office: SharedOffice, settled: asyncio.Event) -> None:
    """Stand by, serve while the lease is held, and stand by again. `settled` is set once either has begun.

    Raises:
        StoreError: when the store cannot be used at the first look; later on it is waited for.
    """
    if not await office.look():
        log.info("standing by: another coordinator process is the active one", store=store.name)
        settled.set()
        await office.win()
    while True:
        keeping = asyncio.create_task(office.keep(), name="lease")
        try:
            async with serving(parts.settings, store, parts.meters, parts.rates) as services:
                parts.state.services = services
                settled.set()
                await keeping
        except StoreError as error:
            log.error("serving could not begin", why=str(error))
        except Exception:
            if not settled.is_set():
                raise
            log.exception("serving has failed; it is tried again")
        finally:
            parts.state.services = None
            keeping.cancel()
            # what it ended with was raised where it is awaited; none of its counts may follow the lease's return
            await asyncio.gather(keeping, return_exceptions=True)
            await office.leave()
        await asyncio.sleep(PAUSE_S)
        await office.win()


@contextlib.asynccontextmanager
async def serving(settings: Settings, store: Store, meters: Meters, rates: Rates) -> AsyncIterator[Services]:
    """Makes what the routes work with, runs the controller, and ends everything in the reverse order."""
    roster, broadcast = Roster(_join_keys(settings)), Broadcast()
    refusals = Refusals(store)
    opinion = SecondOpinion(settings.axolotl_wait_s)
    veils = Veils(os.environ, tuple(token.get_secret_value() for token in settings.secrets().values()))
    controller = Controller(store, roster, broadcast)
    await controller.load()
    running = asyncio.create_task(controller.run(), name="controller")
    services = Services(
        settings=settings,
        store=store,
        roster=roster,
        intake=Intake(store, roster, controller, broadcast),
        controller=controller,
        controller_task=running,
        broadcast=broadcast,
        relay=Relay(roster),
        authority=Authority(settings, roster, Sessions(store), rates),
        submissions=Submissions(settings, store, roster, controller, broadcast, veils, opinion),
        feeds=Feeds(store, roster, broadcast, settings.nodes, veils),
        meters=meters,
        refusals=refusals,
        veils=veils,
    )
    tidying = asyncio.create_task(Upkeep(store, broadcast, settings.keep).run(), name="upkeep")
    try:
        yield services
    finally:
        broadcast.close()
        roster.release_all()
        for task in (running, tidying):
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(ended, Exception):  # it must not keep the rest from being ended
                log.error("a task had failed", task=task.get_name(), why=repr(ended))
        await opinion.aclose()
        await refusals.close()


def _join_keys(settings: Settings) -> tuple[bytes, ...]:
    """What replicas' tokens are bound to: the present join token, then the one before while that may still join."""
    tokens = (settings.token, settings.previous_token)
    return tuple(digest(token.get_secret_value()) for token in tokens if token is not None) or (b"",)


def stop_streaming(app: FastAPI) -> None:
    """Ends event streams, followed logs and held reads, so that the server can stop. Safe to call at any time."""
    services: Services | None = getattr(app.state, "services", None)
    if services is not None:
        services.broadcast.close()
        services.roster.release_all()


def _gauges(services: Services | None) -> dict[str, float]:
    if services is None:
        return {}
    presences = list(services.roster.all())
    store = services.store.figures()
    return {
        "replicas_registered": len(presences),
        "replicas_alive": sum(services.roster.alive(presence.replica_id) for presence in presences),
        "event_stream_readers": services.feeds.readers,
        "uploads_waiting": services.relay.waiting,
        "store_operations": store.operations,
        "store_groups": store.groups,
        "store_busy_seconds": store.busy_s,
        "store_operations_waiting": store.waiting,
    }
