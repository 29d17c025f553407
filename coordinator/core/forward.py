"""Passes an HTTP request on as it is and brings its answer back piece by piece. Raw ASGI in, httpx out.

Nothing is buffered, so event streams, followed logs, uploads and downloads pass as they come. Used by the page's proxy
of a replica (`agent/proxy.py`) and by a coordinator that is not the active one (`coordinator/api/elsewhere.py`).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

import httpx

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

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


class CannotForward(Exception):
    """Nobody answers there; nothing of an answer has been sent. The text says why.

    Attributes:
        untouched: nothing of the request has been read either, so that it may be tried again.
    """

    def __init__(self, why: str, *, untouched: bool) -> None:
        super().__init__(why)
        self.untouched = untouched


class BrokenOff(Exception):
    """The answer had begun, and its end is missing: the visitor must see that, too."""


class Forwarder:
    """Passes requests on to wherever each is to go.

    Args:
        verify: how to check who answers over TLS.
        most_connections: at once; further requests wait.
    """

    def __init__(self, verify: ssl.SSLContext, most_connections: int) -> None:
        self._client = httpx.AsyncClient(
            verify=verify,
            timeout=httpx.Timeout(_SILENT_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=most_connections, max_keepalive_connections=32),
            follow_redirects=False,
            trust_env=False,
        )

    async def pass_on(self, url: str, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Have the request answered by `url`.

        Args:
            headers: what to send as the request's headers.

        Raises:
            CannotForward: before an answer has begun.
            BrokenOff: in the middle of one; the caller ends the visitor's connection by not completing it.
        """
        request = self._request(url, scope, receive, headers)
        try:
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            untouched = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise CannotForward(_words(error), untouched=untouched) from error
        try:
            await _answer(response, receive, send, head=scope["method"] == "HEAD")
        except httpx.HTTPError as error:
            raise BrokenOff(_words(error)) from error
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    def _request(self, url: str, scope: Scope, receive: Receive, headers: Headers) -> httpx.Request:
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
        return httpx.Request(
            scope["method"],
            httpx.URL(url).copy_with(raw_path=path + query),
            headers=headers,
            content=_body(receive) if has_body else None,
            extensions={"timeout": self._client.timeout.as_dict()},
        )


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what belongs to one connection, and what its Connection header says belongs to it."""
    listed = list(headers)
    named = {
        token.strip().lower()
        for name, value in listed
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return [(name, value) for name, value in listed if name.lower() not in _HOP_BY_HOP | named]


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
            "headers": end_to_end(response.headers.raw),
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
