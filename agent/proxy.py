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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import httpx

from agent.discovery import locate
from coordinator.core import tls
from coordinator.core.whereabouts import (
    BadHint,
    Hints,
    Undecided,
    hints_of,
    speaks_tls,
    without_service_links,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Whereabouts = Callable[[], Awaitable[str | Undecided]]

# Headers that belong to one connection (RFC 9110 §7.6.1), and those each side writes anew.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_CONNECT_S = 5.0
# Held reads answer within 20 s and event streams send a comment every 15 s; what is silent longer is dead.
_SILENT_S = 120.0
_MOST_CONNECTIONS = 512
_BACKLOG = 256
_PASSED_THROUGH = b"x-rankcall-passed-through"


class Proxy:
    """The ASGI application. `whereabouts` says where the coordinator is now; it is asked again after a failure."""

    def __init__(self, whereabouts: Whereabouts) -> None:
        self._whereabouts = whereabouts
        self._url: str | None = None
        self._client = httpx.AsyncClient(
            verify=tls.verification("https:" if speaks_tls(os.environ) else "http:"),
            timeout=httpx.Timeout(_SILENT_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=32),
            follow_redirects=False,
            trust_env=False,
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
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == _PASSED_THROUGH for name, _ in scope["headers"]):
            await _refuse(scope, send, 508, "The coordinator's address leads back to a replica's proxy.")
            return
        url = self._url or await self._located()
        if isinstance(url, Undecided):
            await _refuse(scope, send, 503, f"The coordinator is not known yet: {url.why}.")
            return
        try:
            response = await self._client.send(_request(self._client, url, scope, receive), stream=True)
        except httpx.HTTPError as error:
            self._url = None
            await _refuse(scope, send, 502, f"The coordinator at {url} cannot be reached: {_words(error)}.")
            return
        self._url = url
        try:
            await _answer(response, receive, send, head=scope["method"] == "HEAD")
        finally:
            await response.aclose()

    async def _located(self) -> str | Undecided:
        try:
            return await self._whereabouts()
        except BadHint as error:
            return Undecided(str(error))


def _request(client: httpx.AsyncClient, url: str, scope: Scope, receive: Receive) -> httpx.Request:
    path = scope.get("raw_path") or scope["path"].encode()
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    headers = [*_end_to_end(scope["headers"]), *_forwarded(scope), (_PASSED_THROUGH, b"1")]
    names = {name for name, _ in headers}
    has_body = b"content-length" in names or any(name == b"transfer-encoding" for name, _ in scope["headers"])
    target = httpx.URL(url).copy_with(raw_path=path + query)
    return httpx.Request(
        scope["method"],
        target,
        headers=headers,
        content=_body(receive) if has_body else None,
        extensions={"timeout": client.timeout.as_dict()},
    )


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what belongs to one connection, and what its Connection header says belongs to it."""
    listed = list(headers)
    named = {
        token.strip().lower()
        for name, value in listed
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return [(name, value) for name, value in listed if name.lower() not in _HOP_BY_HOP | named]


def _forwarded(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Who asked. A visitor's own claim about that is kept in front, as every proxy does."""
    client = scope.get("client")
    if not client:
        return []
    before = [value for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"]
    return [(b"x-forwarded-for", b", ".join([*before, str(client[0]).encode("latin-1")]))]


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise httpx.ReadError("the visitor left")
        if body := message.get("body"):
            yield body
        if not message.get("more_body"):
            return


async def _answer(response: httpx.Response, receive: Receive, send: Send, *, head: bool) -> None:
    """Passes the answer on piece by piece, as the visitor takes it; a visitor that leaves ends it."""
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": _end_to_end(response.headers.raw),
        }
    )
    gone = asyncio.ensure_future(_left(receive))
    sending = asyncio.ensure_future(_pieces(response, send, head=head))
    try:
        await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        for task in (gone, sending):
            task.cancel()
        await asyncio.gather(gone, sending, return_exceptions=True)


async def _pieces(response: httpx.Response, send: Send, *, head: bool) -> None:
    if not head:
        async for piece in response.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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


def _words(error: Exception) -> str:
    inner: BaseException = error
    while (cause := inner.__cause__ or inner.__context__) is not None:
        inner = cause
    if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
        return os.strerror(inner.errno).lower()
    return (
        "no answer in time"
        if isinstance(error, httpx.TimeoutException)
        else str(error) or type(error).__name__
    )


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

    async def whereabouts() -> str | Undecided:
        place = await asyncio.to_thread(locate, hints)
        return place if isinstance(place, Undecided) else place.url

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
    host = environment.get("RANKCALL_HOST") or None
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
