"""What a coordinator process that is not the active one answers: it says that it lives, and passes everything else on.

So any process may be asked, by whichever of their addresses an agent, a user or a load balancer knows. While nobody is
active (the one that was has just died) a request waits for the few seconds until the next one is. Called by `edge.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api.peers import FORWARDED_HOST
from coordinator.core.clock import monotonic_s
from coordinator.core.forward import BrokenOff, CannotForward, Forwarder, end_to_end
from coordinator.core.problem import ProblemError, problem
from coordinator.core.tls import verification
from coordinator.core.views import Health
from coordinator.office import Office
from coordinator.settings import Settings
from coordinator.store.rows import Lease

# Set on a request that was passed on: the answer has its headers already.
PASSED_ON = "rankcall.passed_on"
SECRET_HEADER = b"x-rankcall-passed-on"
# A held read and an event stream have a connection each.
MOST_CONNECTIONS = 4096
# Longer than a takeover takes.
PATIENCE_S = 10.0
LOOK_S = 0.1
_REWRITTEN = frozenset({SECRET_HEADER, b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})


class Elsewhere:
    """Answers for the process that is the active one. `version`: rankcall's own, which it says when asked for its health."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._version = version
        scheme = "https:" if settings.tls_cert is not None else "http:"
        self._forwarder = Forwarder(verification(scheme), MOST_CONNECTIONS)

    async def answer(
        self,
        office: Office,
        active: Callable[[], bool],
        here: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """
        Args:
            active, here: whether this process has become the active one after all, and the app that answers then.

        Raises:
            ProblemError: 503 where no process is active for longer than a takeover takes.
        """
        if scope["path"] == "/healthz":
            await _health(self._version)(scope, receive, send)
            return
        if any(name == SECRET_HEADER for name, _ in scope["headers"]):
            raise _nobody("This process has just ceased to be the active one.")
        if scope["path"] == "/readyz":
            if office.elsewhere() is None:
                raise _nobody("No coordinator process is active.")
            await _health(self._version)(scope, receive, send)
            return
        give_up_s = monotonic_s() + PATIENCE_S
        why = "No coordinator process is active."
        while True:
            if active():
                await here(scope, receive, send)
                return
            lease = office.elsewhere()
            if lease is not None:
                try:
                    await self._pass_on(office, lease, scope, receive, send)
                    return
                except BrokenOff as fault:
                    raise _nobody(f"The coordinator process at {lease.url} broke off: {fault}.") from None
                except CannotForward as fault:
                    why = f"The active coordinator process at {lease.url} cannot be reached: {fault}."
                    if not fault.untouched:
                        raise _nobody(why) from None
            if monotonic_s() >= give_up_s:
                raise _nobody(why)
            await asyncio.sleep(LOOK_S)

    async def aclose(self) -> None:
        await self._forwarder.aclose()

    async def _pass_on(
        self, office: Office, lease: Lease, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Until the answer is over, or its sender is not the active one any more: it may be frozen, or cut off."""

        async def send_on(message: Message) -> None:
            scope[PASSED_ON] = True
            await send(message)

        passing = asyncio.ensure_future(
            self._forwarder.pass_on(lease.url, scope, receive, send_on, _headers(scope, lease))
        )
        try:
            while not (await asyncio.wait({passing}, timeout=1.0))[0]:
                now = office.elsewhere()
                if now is None or now.epoch != lease.epoch:
                    raise _nobody(f"The coordinator process at {lease.url} is not the active one any more.")
            passing.result()
        finally:
            passing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await passing


def _headers(scope: Scope, lease: Lease) -> list[tuple[bytes, bytes]]:
    """The visitor's own, who he is as far as that is known here, and the proof that one of us says so."""
    headers = [(name, value) for name, value in end_to_end(scope["headers"]) if name not in _REWRITTEN]
    headers.append((SECRET_HEADER, lease.secret.encode()))
    if scope.get("client"):
        headers.append((b"x-forwarded-for", str(scope["client"][0]).encode("latin-1")))
    headers.append((b"x-forwarded-proto", str(scope["scheme"]).encode("latin-1")))
    if scope.get(FORWARDED_HOST):
        headers.append((b"x-forwarded-host", str(scope[FORWARDED_HOST]).encode("latin-1")))
    return headers


def _health(version: str) -> Response:
    view = Health(version=version, role="standby")
    return Response(view.model_dump_json(), media_type="application/json")


def _nobody(why: str) -> ProblemError:
    return problem(503, "SYS120", why, headers={"Retry-After": "1"})
