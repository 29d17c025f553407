"""Settings in, app out. Nothing happens at import, and nothing is opened before the app starts.

`create_app` is called by `__main__.py` and by tests, which run several apps in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import structlog
from fastapi import FastAPI

from coordinator.api import (
    artifacts,
    checks,
    document,
    jobs,
    pages,
    preflights,
    problems,
    replicas,
    service,
    streams,
)
from coordinator.api.edge import Edge
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
from coordinator.relay import Relay
from coordinator.roster import Roster
from coordinator.sessions import Sessions, digest
from coordinator.settings import Settings
from coordinator.store import Store
from coordinator.submissions import Submissions
from coordinator.veils import Veils

log = structlog.get_logger(__name__)

# The hot routes first: they are looked for one after the other.
_ROUTERS = (
    replicas.agents,
    jobs.router,
    streams.router,
    artifacts.router,
    replicas.router,
    preflights.router,
    checks.router,
    service.router,
    pages.router,
)


def create_app(settings: Settings, limits: Limits | None = None) -> FastAPI:
    """The coordinator as an ASGI app. Its store is opened, and its controller runs, while its lifespan does."""
    meters, rates = Meters(), Rates(limits or Limits())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with serving(settings, meters, rates) as services:
            app.state.services = services
            yield

    app = FastAPI(
        title="rankcall",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for router in _ROUTERS:
        # Added as they are: an included router would be matched twice.
        app.router.routes.extend(router.routes)
    version = service.installed_version()
    document.install(app, version)
    problems.install(app)
    express = [route for route in replicas.agents.routes if isinstance(route, Lean)]
    app.add_middleware(Edge, settings=settings, meters=meters, rates=rates, express=express)
    return app


@contextlib.asynccontextmanager
async def serving(settings: Settings, meters: Meters, rates: Rates) -> AsyncIterator[Services]:
    """Opens what the routes work with, runs the controller, and closes everything in the reverse order."""
    store = await asyncio.to_thread(Store.open, settings.store_url)
    try:
        roster, broadcast = Roster(_join_keys(settings)), Broadcast()
        refusals = Refusals(store)
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
            submissions=Submissions(settings, store, roster, controller, broadcast, veils),
            feeds=Feeds(store, roster, broadcast, settings.nodes, veils),
            meters=meters,
            refusals=refusals,
            veils=veils,
        )
        meters.gauges(lambda: _gauges(services))
        try:
            yield services
        finally:
            broadcast.close()
            roster.release_all()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await refusals.close()
    finally:
        await asyncio.to_thread(store.close)


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


def _gauges(services: Services) -> dict[str, float]:
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
