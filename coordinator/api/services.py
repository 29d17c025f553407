"""What the routes work with: one frozen set of services per app, found at `app.state.services`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection, Request

from coordinator.api.feeds import Feeds
from coordinator.api.meters import Meters
from coordinator.audit import Refusals
from coordinator.auth import Authority
from coordinator.broadcast import Broadcast
from coordinator.controller import Controller
from coordinator.intake import Intake
from coordinator.relay import Relay
from coordinator.roster import Roster
from coordinator.settings import Settings
from coordinator.store import Store
from coordinator.submissions import Submissions
from coordinator.veils import Veils

SERVICES = "rankcall.services"


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    store: Store
    roster: Roster
    intake: Intake
    controller: Controller
    controller_task: asyncio.Task[None]
    broadcast: Broadcast
    relay: Relay
    authority: Authority
    submissions: Submissions
    feeds: Feeds
    meters: Meters
    refusals: Refusals
    veils: Veils


def services_of(connection: HTTPConnection) -> Services:
    """The services of the app that serves this request."""
    found = connection.scope.get(SERVICES)  # `Express` has looked them up already
    return cast(Services, connection.app.state.services if found is None else found)


async def _services(request: Request) -> Services:
    # A plain function would be run in a thread for each request.
    return services_of(request)


ServicesDep = Annotated[Services, Depends(_services)]
