"""Serves the coordinator's page and API from this replica: `python -m agent.proxy`, started by `rankcall up`.

A platform exposes one port of the whole deployment and sends a visitor to any replica, so every replica that
is not the master answers there by passing on. Bytes go through as they are (nothing is buffered, so event
streams, followed logs and downloads arrive as they come), with the visitor's own credentials: the proxy has
none. Raw ASGI on uvicorn; FastAPI is not loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable

from agent.discovery import locate
from coordinator.core import tls
from coordinator.core.forward import BrokenOff, CannotForward, Forwarder, Receive, Scope, Send, end_to_end
from coordinator.core.whereabouts import (
    BadHint,
    Hints,
    Undecided,
    hints_of,
    speaks_tls,
    told_host,
    without_service_links,
)

Whereabouts = Callable[[], Awaitable[tuple[str, ...] | Undecided]]

_MOST_CONNECTIONS = 512
_BACKLOG = 256
_PASSED_THROUGH = b"x-rankcall-passed-through"


class Proxy:
    """The ASGI application. `whereabouts` says where the coordinator's processes are now; it is asked again after a failure."""

    def __init__(self, whereabouts: Whereabouts) -> None:
        self._whereabouts = whereabouts
        self._urls: tuple[str, ...] = ()
        self._forwarder = Forwarder(
            tls.verification("https:" if speaks_tls(os.environ) else "http:"), _MOST_CONNECTIONS
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._pass_on(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1011})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._forwarder.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == _PASSED_THROUGH for name, _ in scope["headers"]):
            await _refuse(scope, send, 508, "The coordinator's address leads back to a replica's proxy.")
            return
        urls = self._urls or await self._located()
        if isinstance(urls, Undecided):
            await _refuse(scope, send, 503, f"The coordinator is not known yet: {urls.why}.")
            return
        headers = [*end_to_end(scope["headers"]), *_forwarded(scope), (_PASSED_THROUGH, b"1")]
        self._urls, said = urls, ""
        for position, url in enumerate(urls):
            try:
                await self._forwarder.pass_on(url, scope, receive, send, headers)
                return
            except BrokenOff:
                return  # the server closes a connection whose answer is not whole
            except CannotForward as error:
                # The others first from now on; and where it is the only one, it may have moved.
                self._urls = (*urls[position + 1 :], *urls[: position + 1]) if len(urls) > 1 else ()
                said = said or f"The coordinator at {url} cannot be reached: {error}."
                if not error.untouched:
                    break
        await _refuse(scope, send, 502, said)

    async def _located(self) -> tuple[str, ...] | Undecided:
        try:
            return await self._whereabouts()
        except BadHint as error:
            return Undecided(str(error))


def _forwarded(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Who asked. A visitor's own claim about that is kept in front, as every proxy does."""
    client = scope.get("client")
    if not client:
        return []
    before = [value for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"]
    return [(b"x-forwarded-for", b", ".join([*before, str(client[0]).encode("latin-1")]))]


async def _refuse(scope: Scope, send: Send, status: int, detail: str) -> None:
    """A problem for a program, two sentences for a person, whose browser tries again by itself."""
    hint = "This replica only passes requests on; look whether the master replica is up, and try again."
    wants_page = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    headers = [(b"cache-control", b"no-store"), (b"retry-after", b"2")]
    if wants_page:
        headers += [(b"content-type", b"text/plain; charset=utf-8"), (b"refresh", b"3")]
        body = f"{detail}\n{hint}\n"
    else:
        headers.append((b"content-type", b"application/problem+json"))
        problem = {
            "title": "The coordinator does not answer",
            "status": status,
            "code": "SYS023",
            "detail": detail,
            "hint": hint,
        }
        body = json.dumps({"type": "about:blank", **problem})
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


def listen(host: str | None, port: int, *, has_token: bool) -> socket.socket:
    """Where to listen, by the coordinator's rule: this machine only while there is no token, else everywhere.

    Raises:
        OSError: when that cannot be.
    """
    if host is None and not has_token:
        host = "127.0.0.1"
    if host in (None, "::") and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    if host is None:
        return socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)  # noqa: S104
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


async def serve(hints: Hints, listener: socket.socket) -> None:
    """Until SIGTERM or SIGINT."""
    import uvicorn

    async def whereabouts() -> tuple[str, ...] | Undecided:
        place = await asyncio.to_thread(locate, hints)
        return place if isinstance(place, Undecided) else place.urls

    config = uvicorn.Config(
        Proxy(whereabouts),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        ssl_certfile=os.environ.get(tls.CERT) or None,
        ssl_keyfile=os.environ.get(tls.KEY) or None,
    )
    await uvicorn.Server(config).serve([listener])


def main() -> int:
    # Not the agent's settings: pydantic would be a third of this process's memory.
    environment = without_service_links(os.environ)
    host = told_host(environment)
    try:
        hints = hints_of(environment)
        if hints.tls:
            tls.verification("https:", environment)
        listener = listen(host, hints.port, has_token=bool(environment.get("RANKCALL_TOKEN")))
    except (BadHint, tls.BadCertificate) as error:
        print(f"rankcall proxy: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{host or 'this machine'}, port {hints.port}"
        print(f"rankcall proxy: the page cannot be served at {where}: {error.strerror}", file=sys.stderr)
        return 1
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(hints, listener))
    return 0


if __name__ == "__main__":
    sys.exit(main())
