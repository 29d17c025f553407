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


def parse_answer(data: bytes | bytearray) -> tuple[Answer, int] | None:
    """The answer at the beginning of `data` and its length; None while it is not whole.

    Raises:
        NotEcho: something else answered. The first bytes are enough: a proxy's error page may be short.
    """
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise NotEcho(bytes(data[:200]))
    if len(data) < ANSWER.size:
        return None
    _, id_length, seen_length, nonce_length = ANSWER.unpack_from(data)
    seen_at = ANSWER.size + id_length
    nonce_at = seen_at + seen_length
    end = nonce_at + nonce_length
    if len(data) < end:
        return None
    replica_id = data[ANSWER.size : seen_at].decode("utf-8", "replace")
    return Answer(
        replica_id, data[seen_at:nonce_at].decode("utf-8", "replace"), bytes(data[nonce_at:end])
    ), end


class _Exchange(asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, server: EchoServer) -> None:
        self._server = server
        self._received = bytearray()
        self._greeted = False
        self._payload_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._limit = asyncio.get_running_loop().call_later(EXCHANGE_S, transport.abort)
        self._server.exchanges.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the prober judges the link
        self._limit.cancel()
        self._server.exchanges.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._greeted and not self._greet():
            return
        if 0 < self._payload_bytes <= len(self._received):
            self._transport.write(RECEIVED)
            self._transport.write(bytes(self._received[: self._payload_bytes]))
            self._payload_bytes = 0
        # The prober closes: this side has nothing to say after that.

    def _greet(self) -> bool:
        if len(self._received) < GREETING.size:
            if not MAGIC.startswith(self._received[: len(MAGIC)]):
                self._transport.abort()
            return False
        magic, nonce_bytes, payload_bytes = GREETING.unpack_from(self._received)
        if magic != MAGIC or nonce_bytes > NONCE_LIMIT_BYTES or payload_bytes > PAYLOAD_LIMIT_BYTES:
            self._transport.abort()
            return False
        end = GREETING.size + nonce_bytes
        if len(self._received) < end:
            return False
        nonce = bytes(self._received[GREETING.size : end])
        del self._received[:end]
        seen_as = str(self._transport.get_extra_info("peername")[0]).removeprefix("::ffff:").encode()
        replica_id = self._server.replica_id
        head = ANSWER.pack(MAGIC, len(replica_id), len(seen_as), len(nonce))
        self._transport.write(head + replica_id + seen_as + nonce)
        self._greeted, self._payload_bytes = True, payload_bytes
        return True


class EchoServer:
    """A listening echo server. `port` is where peers find it; `aclose()` ends it and its connections."""

    def __init__(self, replica_id: str) -> None:
        self.replica_id = replica_id.encode()[:255]
        self.exchanges: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self, host: str | None, port: int) -> None:
        """Listen on `host`: None, "", "0.0.0.0" and "::" stand for every address of both families.

        Raises:
            OSError: the port is taken, or the address is not one of this machine's.
        """
        sock = _listener(host, port)
        self.port = int(sock.getsockname()[1])
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Exchange(self), sock=sock, backlog=BACKLOG)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in tuple(self.exchanges):
            transport.abort()
        await asyncio.sleep(0)


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
