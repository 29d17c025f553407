"""How bytes become requests, bounded: the size and the time of a request's head, and the number of connections.

uvicorn's own protocol reads a head of any size at any pace from any number of connections; this one is that
protocol with a limit on each. Bodies are bounded by `edge.py`. Called by `__main__.py`.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Any, ClassVar

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.core.problem import MEDIA_TYPE, problem
from coordinator.limits import Limits, network_of

log = structlog.get_logger(__name__)


class Doorman:
    """Counts the connections of one server, all and by address."""

    def __init__(self, limits: Limits, files: int) -> None:
        # Some files are the store's, the log's and the interpreter's; an upload or a download has one each.
        self.limits = limits
        self._most = limits.connections or max(64, files - 256)
        self._most_each = max(1, int(self._most * limits.connections_share))
        self._held: Counter[str] = Counter()
        self._all = 0

    def admit(self, host: str) -> bool:
        """One more connection from there, unless that is one too many; `leave` has to follow if it is admitted."""
        key = network_of(host)
        local = _is_local(host)
        if self._all >= self._most or (not local and self._held[key] >= self._most_each):
            return False
        self._all += 1
        self._held[key] += 1
        return True

    def leave(self, host: str) -> None:
        key = network_of(host)
        self._all -= 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]


def protocol(doorman: Doorman) -> type[HttpToolsProtocol]:
    """The class that uvicorn makes an instance of for each connection."""
    return type("Bounded", (_Bounded,), {"doorman": doorman})


class _Bounded(HttpToolsProtocol):
    doorman: ClassVar[Doorman]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._admitted: str | None = None
        self._in_head = False
        self._head_bytes = 0
        self._piece_bytes = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        if not self.doorman.admit(host):
            log.warning("connection refused: there are too many", peer=host)
            transport.abort()
            return
        self._admitted = host
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        if self._admitted is not None:
            self.doorman.leave(self._admitted)
            self._admitted = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._piece_bytes = len(data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.doorman.limits.head_bytes:
                self._refuse()
            elif self._late is None:
                self._expect_head()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():  # else it has been answered
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_is_here()
        most = self.doorman.limits.head_bytes
        # A head that came in pieces that are small enough together need not be counted: nearly all.
        if self._head_bytes + self._piece_bytes > most and most < len(self.url) + sum(
            len(name) + len(value) for name, value in self.headers
        ):
            self._refuse()
            raise httptools.HttpParserCallbackError
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(self.doorman.limits.head_s, self._close_late)

    def _head_is_here(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self.transport.abort()

    def _refuse(self) -> None:
        """431, and no more of this connection."""
        self._in_head = False
        self._head_is_here()
        if self.transport.is_closing():
            return
        limit = self.doorman.limits.head_bytes >> 10
        refusal = problem(431, "SYS118", f"The request line and headers are larger than {limit} KiB.")
        body = refusal.problem.model_dump_json(exclude_none=True).encode()
        head = (
            f"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _is_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True  # a socket without addresses
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
