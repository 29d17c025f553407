"""The echo server every replica runs, and the words it speaks; `tcp.py` is its other end.

A connection that succeeds proves nothing: a sidecar or a transparent proxy accepts for anybody. So the
prober first sends a greeting with a nonce, and the server says who it is, whom it saw, and the nonce; then the
prober sends a payload, the server says that it has it all, and sends it back. The two halves are apart so
that a payload lost on its way out is told from one lost on its way back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

MAGIC = b"rankcal1"
RECEIVED = b"received"
GREETING = struct.Struct("!8sBI")  # magic, length of nonce, length of payload
ANSWER = struct.Struct("!8sBBB")  # magic, lengths of replica id, of address seen, of nonce
NONCE_LIMIT_BYTES = 64
PAYLOAD_LIMIT_BYTES = 16 << 20  # the server holds a payload until all of it has come
EXCHANGE_S = 20.0  # longer than any prober waits for a link; frees what a dead prober left
BACKLOG = 1024  # every replica of a large job knocks at the same moment


class NotEcho(Exception):
    """What came is not this protocol; the argument is what did come."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to a greeting: who it is, and the address it saw the prober come from."""

    replica_id: str
    seen_as: str
    nonce: bytes


def greeting(nonce: bytes, payload_bytes: int) -> bytes:
    return GREETING.pack(MAGIC, len(nonce), payload_bytes) + nonce


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The server's answer.

    Raises:
        NotEcho: something else answered.
        asyncio.IncompleteReadError: the connection ended first.
    """
    head = await reader.readexactly(1)
    # A proxy's error page may be shorter than our answer: the first byte is enough to tell them apart.
    if head != MAGIC[:1]:
        raise NotEcho(head + await reader.read(200))
    head += await reader.readexactly(ANSWER.size - 1)
    magic, id_length, seen_length, nonce_length = ANSWER.unpack(head)
    if magic != MAGIC:
        raise NotEcho(head)
    body = await reader.readexactly(id_length + seen_length + nonce_length)
    return Answer(
        replica_id=body[:id_length].decode("utf-8", "replace"),
        seen_as=body[id_length : id_length + seen_length].decode("utf-8", "replace"),
        nonce=body[id_length + seen_length :],
    )


class EchoServer:
    """A listening echo server. `port` is where peers find it; `aclose()` ends it and its connections."""

    def __init__(self, replica_id: str) -> None:
        self._replica_id = replica_id.encode()[:255]
        self._server: asyncio.Server | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        self.port = 0

    async def listen(self, host: str | None, port: int) -> None:
        """Listen on `host`: None, "", "0.0.0.0" and "::" stand for every address of both families.

        Raises:
            OSError: the port is taken, or the address is not one of this machine's.
        """
        sock = _listener(host, port)
        self.port = int(sock.getsockname()[1])
        self._server = await asyncio.start_server(self._accept, sock=sock, backlog=BACKLOG)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        for exchange in tuple(self._exchanges):
            exchange.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = asyncio.current_task()
        assert exchange is not None
        self._exchanges.add(exchange)
        try:
            async with asyncio.timeout(EXCHANGE_S):
                await self._exchange(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the prober judges the link; this side only answers
        finally:
            self._exchanges.discard(exchange)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        magic, nonce_length, payload_bytes = GREETING.unpack(await reader.readexactly(GREETING.size))
        if magic != MAGIC or nonce_length > NONCE_LIMIT_BYTES or payload_bytes > PAYLOAD_LIMIT_BYTES:
            return
        nonce = await reader.readexactly(nonce_length)
        seen_as = str(writer.get_extra_info("peername")[0]).removeprefix("::ffff:").encode()
        head = ANSWER.pack(MAGIC, len(self._replica_id), len(seen_as), len(nonce))
        writer.write(head + self._replica_id + seen_as + nonce)
        if payload_bytes:
            payload = await reader.readexactly(payload_bytes)
            writer.write(RECEIVED)
            writer.write(payload)
        await writer.drain()
        # The prober closes first, so that the many short-lived ports stay on its side.
        with contextlib.suppress(OSError):
            await reader.read(1)


async def serve(replica_id: str, host: str | None = None, port: int = 0) -> EchoServer:
    """An echo server that answers as `replica_id`. See `EchoServer.listen` for `host` and errors."""
    server = EchoServer(replica_id)
    await server.listen(host, port)
    return server


def _listener(host: str | None, port: int) -> socket.socket:
    everywhere = host in (None, "", "0.0.0.0", "::")  # noqa: S104 peers come from any address
    if everywhere and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel can have IPv6 compiled in and switched off
            return _bound(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True))
    address = "0.0.0.0" if everywhere or host is None else host  # noqa: S104
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return _bound(socket.create_server((address, port), family=family))


def _bound(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock
