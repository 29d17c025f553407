"""How a route is guarded, and how a hot one is called. Every route of the app is one of these two classes.

`Guarded` looks its row up in `auth.ACCESS` when it is made (a route without a row is an error at start)
and authorises each request before anything of its body is read. `Lean` does the same and then calls
`endpoint(request) -> Response` directly: FastAPI documents it, but resolves nothing for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.api.problems import problem_response
from coordinator.api.services import services_of
from coordinator.auth import ACCESS, SESSION_COOKIE, Principal, Role, authorise
from coordinator.core.clock import now_at
from coordinator.core.problem import ProblemError

Endpoint = Callable[[Request], Awaitable[Response]]
PRINCIPAL = "rankcall.principal"
REFUSED = "rankcall.refused"  # the code of the problem with which the guard turned a request away


def principal_of(request: Request) -> Principal:
    """Who asks; only after the guard let the request pass."""
    return cast(Principal, request.scope[PRINCIPAL])


def peer_host(request: Request) -> str:
    """The address of who asks: of the other end of the connection, or of whom a trusted proxy asks for (`peers.py`)."""
    return request.client.host if request.client else ""


def bearer_of(request: Request) -> str | None:
    """The bearer token of a request; None where there is no Authorization header of that kind."""
    # Of the bytes: Starlette's headers decode each name, and every report comes this way.
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if scheme.lower() == "bearer" and token.strip() else None
    return None


async def _admit(request: Request, allowed: frozenset[Role]) -> None:
    bearer = bearer_of(request)
    session_id = request.cookies.get(SESSION_COOKIE) if bearer is None else None
    authority = services_of(request).authority
    try:
        principal = await authority.identify(bearer, session_id, peer_host(request), now_at())
        request.scope[PRINCIPAL] = principal
        authorise(principal, allowed, request.path_params.get("replica_id"))
    except ProblemError as refusal:
        turned_away(request, refusal, bearer)
        raise


def turned_away(request: Request, refusal: ProblemError, token: str | None) -> None:
    """Leaves word for the audit (`edge.py`): the code, and whether a token was shown that is nobody's."""
    request.scope[REFUSED] = refusal.problem.code
    known = request.scope.get(PRINCIPAL)
    if token is not None and (known is None or known.role is Role.NONE):
        wrong = not services_of(request).authority.knows(token)
        request.scope[PRINCIPAL] = Principal(Role.NONE, peer_host(request), wrong_token=wrong)


class Guarded(APIRoute):
    """A route that FastAPI serves, behind the guard."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.allowed = _allowed(path, options.get("methods"))
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        serve = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            await _admit(request, self.allowed)
            return await serve(request)

        return guarded


class Lean(Guarded):
    """A route whose endpoint takes the request and answers with a response, and nothing in between."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        call = cast(Endpoint, endpoint)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            try:
                await _admit(request, self.allowed)
                response = await call(request)
            except ProblemError as refusal:
                response = problem_response(refusal)
            await response(scope, receive, send)

        self.app = app


def _allowed(path: str, methods: Any) -> frozenset[Role]:
    rows = {ACCESS[method, path] for method in methods or ("GET",)}
    if len(rows) != 1:
        raise KeyError(f"{path}: methods with different access need routes of their own")
    return rows.pop()
