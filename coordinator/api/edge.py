"""The outermost layer: what is true of every request and every answer, whatever the route.

Refuses unexpected hosts (DNS rebinding), browsers acting for another site (CSRF) and bodies beyond their
limit; adds the security headers; turns a fault into a problem without a traceback; counts and logs. Plain
ASGI, because it is on the path of every report.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from time import perf_counter
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI
from starlette.datastructures import State
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api.elsewhere import PASSED_ON, SECRET_HEADER, Elsewhere
from coordinator.api.meters import Meters
from coordinator.api.peers import FORWARDED_HOST, TrustedPeers
from coordinator.api.problems import problem_response
from coordinator.api.routing import PRINCIPAL, REFUSED
from coordinator.api.services import SERVICES, Services
from coordinator.audit import Refusal
from coordinator.auth import Principal, Role
from coordinator.core.problem import ProblemError, problem
from coordinator.core.redact import Redactor
from coordinator.limits import Rates
from coordinator.settings import Settings, is_loopback
from coordinator.store import StoreError

log = structlog.get_logger(__name__)

MIB = 1 << 20
# Largest bodies, by the end of the path. Uploads are not kept, so they have no limit.
SUBMISSION_BYTES = 96 * MIB
REPORT_BYTES = 8 * MIB
OTHER_BYTES = 1 * MIB

_EXPRESS = "/api/v1/replicas"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Answers that mean: not you, or not so.
_TURNED_AWAY = frozenset({401, 403, 429})
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"})

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")
# What is answered to an agent's own token: no browser gets that far, and each header costs each report.
_FOR_AGENTS = ((b"x-content-type-options", b"nosniff"),)
_SHAPES = Redactor()


def body_limit(method: str, path: str) -> int | None:
    """The largest body of a request, in bytes; None for no limit."""
    if method == "PUT" and "/uploads/" in path:
        return None
    if path.endswith(("/jobs", "/checks")):
        return SUBMISSION_BYTES
    # A registration may bring the snapshot of a job.
    return REPORT_BYTES if path.endswith(("/report", "/replicas")) else OTHER_BYTES


class Edge:
    """ASGI middleware around the whole app.

    Args:
        elsewhere: answers while this process is not the active one.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        meters: Meters,
        rates: Rates,
        elsewhere: Elsewhere,
    ) -> None:
        self._app = app
        self._elsewhere = elsewhere
        self._meters = meters
        # Without a token everything comes from this machine, the agents' first words included.
        self._rates = None if settings.open_on_loopback else rates
        self._peers = TrustedPeers(settings.trusted_proxies)
        self._names = frozenset(settings.allowed_hosts)
        self._any_host = not settings.open_on_loopback and not settings.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = perf_counter()
        method, path = scope["method"], scope["path"]
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if PASSED_ON in scope:
                    await send(message)
                    return
                ours = _FOR_AGENTS if SERVICES in scope and status < HTTPStatus.BAD_REQUEST else _HEADERS
                headers = message["headers"] = [*message.get("headers", ()), *ours]
                if path.startswith("/api/") and not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
            await send(message)

        try:
            headers = _headers(scope)
            state = scope["app"].state
            passed_on = headers.get(SECRET_HEADER)
            proven = passed_on is not None and state.office.proves(passed_on.decode("latin-1"))
            self._peers.settle(scope, headers, proven=proven)
            if self._rates is not None and b"authorization" not in headers:
                self._rates.request(_client(scope))
            self._check_host(headers)
            _check_origin(method, headers, scope.get(FORWARDED_HOST))
            bounded = _bounded(method, path, headers, receive)
            if SERVICES in scope or active(state):  # `Express` has asked already
                await self._app(scope, bounded, send_with_headers)
            else:
                await self._elsewhere.answer(
                    state.office, lambda: active(state), self._app, scope, bounded, send_with_headers
                )
        except ClientDisconnect:
            log.info("client left in the middle of its request", method=method, path=path)
        except ProblemError as refusal:
            scope[REFUSED] = refusal.problem.code
            await _answer(refusal, status, scope, receive, send_with_headers)
        except StoreError as fault:
            why = _SHAPES.mask_text(str(fault))  # an address of a database may hold its password
            log.error("store unavailable", why=why, method=method, path=path)
            await _answer(problem(503, "SYS111", why), status, scope, receive, send_with_headers)
        except Exception as fault:
            if isinstance(fault.__cause__, ProblemError):
                # Raised when the answer had begun: a download that broke.
                log.warning("answer cut short", method=method, path=path, why=str(fault.__cause__))
                return
            instance = secrets.token_hex(4)
            log.exception("request failed", method=method, path=path, instance=instance)
            hidden = problem(500, "SYS110", "The coordinator failed to answer; its log says why.")
            hidden.problem = hidden.problem.model_copy(update={"instance": f"urn:rankcall:fault:{instance}"})
            await _answer(hidden, status, scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "passed on" if PASSED_ON in scope else "unmatched")
            known = method if method in _METHODS else "other"
            if REFUSED in scope and status in _TURNED_AWAY:
                _note(scope, known, route, status)
            self._meters.answered(known, route, status, perf_counter() - started_s)

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        if self._any_host:
            return
        name = _hostname(headers.get(b"host", b"").decode("latin-1"))
        if name in self._names or is_loopback(name):
            return
        raise problem(403, "SYS112", f"This coordinator is not called {name!r}.")


class Express(FastAPI):
    """The app, with a short way for what every agent calls every two seconds: through the edge to the route, without the two
    thirds of a request's cost that lie between (seven layers, and a search through all routes).
    """

    def expedite(self, routes: Sequence[Route], edge: Callable[[ASGIApp], Edge]) -> None:
        """Take this way to `routes`, while this process is the active one."""
        self._expedited = tuple((route.path_regex, route.methods or set(), route) for route in routes)
        self._edge = edge(_straight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_EXPRESS) and active(self.state):
            for pattern, methods, route in self._expedited:
                found = pattern.match(scope["path"])
                if found is not None and scope["method"] in methods:
                    scope["app"], scope["route"], scope["path_params"] = self, route, found.groupdict()
                    scope[SERVICES] = self.state.services
                    await self._edge(scope, receive, send)
                    return
        await super().__call__(scope, receive, send)


async def _straight(scope: Scope, receive: Receive, send: Send) -> None:
    await scope["route"].app(scope, receive, send)


def active(state: State) -> bool:
    """Whether this process answers by itself."""
    return state.services is not None and state.office.here()


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _note(scope: Scope, method: str, route: str, status: int) -> None:
    """Into the audit: who was turned away. Not who has merely not signed in yet and only looked."""
    principal: Principal = scope.get(PRINCIPAL) or Principal(Role.NONE, _client(scope))
    showed_nothing = principal.role is Role.NONE and not any(
        name == b"authorization" for name, _ in scope["headers"]
    )
    if status == HTTPStatus.UNAUTHORIZED and showed_nothing and method in _SAFE_METHODS:
        return
    services: Services | None = getattr(scope["app"].state, "services", None)
    if services is not None:
        services.refusals.note(Refusal(principal.actor, method, route, status, str(scope[REFUSED])))


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _hostname(host: str) -> str:
    """The name in a Host header or an origin, without its port, in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _check_origin(method: str, headers: Mapping[bytes, bytes], forwarded_host: str | None) -> None:
    """Refuses a change that a browser sends for another site's page. Clients that are no browsers send neither header.

    Browsers send Sec-Fetch-Site over TLS and to this machine, Origin always; `forwarded_host` is what a trusted
    proxy that rewrites Host was asked for. A name that was made to point here (DNS rebinding) is same-origin with
    itself and passes, but no cookie and no token goes with it; where none is needed, only loopback names are answered.
    """
    if method in _SAFE_METHODS:
        return
    site = headers.get(b"sec-fetch-site")
    origin = headers.get(b"origin")
    if site is not None:
        foreign = site not in (b"same-origin", b"none")
    elif origin is not None:
        sent_from = urlsplit(origin.decode("latin-1")).netloc.lower()
        names = (headers.get(b"host", b"").decode("latin-1").lower(), forwarded_host)
        foreign = not sent_from or sent_from not in names
    else:
        foreign = False
    if foreign:
        raise problem(403, "SYS113", "A page of another site sent this.")


def _bounded(method: str, path: str, headers: Mapping[bytes, bytes], receive: Receive) -> Receive:
    """`receive`, or one that refuses a body beyond the limit. The server holds a body to its Content-Length."""
    limit = body_limit(method, path)
    if limit is None:
        return receive
    declared = headers.get(b"content-length")
    if declared is not None:
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        return receive
    if b"transfer-encoding" not in headers:
        return receive
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise _too_large(limit)
        return message

    return counted


def _too_large(limit: int) -> ProblemError:
    return problem(413, "SYS104", f"The body is larger than the {limit // MIB} MiB that this route takes.")


async def _answer(refusal: ProblemError, status: int, scope: Scope, receive: Receive, send: Send) -> None:
    if status == 0:  # else the answer has begun, and only its end can be missing
        await problem_response(refusal)(scope, receive, send)
