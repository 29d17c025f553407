"""The echo and its prober, over real sockets: every way a link can fail has its own word."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from agent.probes import echo, tcp
from agent.probes.link import Fault
from agent.probes.tcp import LIMITS
from coordinator.core.protocol import LinkResult, Member, Stage, TcpTask

ME, PEER, OTHER = "r-000000000a", "r-000000000b", "r-000000000c"
QUICK = replace(LIMITS, still_s=0.4, pause_s=0.01)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def target(port: int, address: str = "127.0.0.1", replica: str = PEER) -> Member:
    return Member(replica_id=replica, rank=1, address=address, echo_port=port)


def task(*targets: Member, deadline_s: float = 30.0, **more: object) -> TcpTask:
    return TcpTask.model_validate(
        {
            "task_id": "tcp",
            "stage": Stage.TCP,
            "deadline_s": deadline_s,
            "nonce": "n0nce",
            "targets": targets,
            "payload_bytes": 1 << 20,
            **more,
        }
    )


@contextlib.asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[int]:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def probe_one(port: int, **more: object) -> LinkResult:
    (link,) = (await tcp.probe(task(target(port), **more), ME, QUICK)).links
    return link


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_good_link_is_echoed_and_measured(address: str) -> None:
    async def run() -> None:
        server = await echo.serve(PEER)
        (link,) = (await tcp.probe(task(target(server.port, address)), ME)).links
        await server.aclose()
        assert link.ok, link
        assert (link.error, link.fault, link.tries) == ("", "", 1)
        assert link.seen_as == link.source == address
        assert link.connect_s is not None
        assert link.rtt_s is not None
        assert (link.bytes_per_s or 0) > 1e6
        assert (link.return_bytes_per_s or 0) > 1e6

    asyncio.run(run())


def test_a_link_that_is_not_sampled_has_no_throughput() -> None:
    async def run() -> None:
        server = await echo.serve(PEER)
        link = await probe_one(server.port, sampled=())
        await server.aclose()
        assert link.ok
        assert link.bytes_per_s is None

    asyncio.run(run())


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def speaks_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nserver: envoy\r\n\r\n")
    await reader.read()


def answering(after: Handler) -> Handler:
    """An echo server that answers the greeting and then does something else with the payload."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, nonce_length, _ = echo.GREETING.unpack(await reader.readexactly(echo.GREETING.size))
        nonce = await reader.readexactly(nonce_length)
        replica = PEER.encode()
        writer.write(echo.ANSWER.pack(echo.MAGIC, len(replica), 0, len(nonce)) + replica + nonce)
        await after(reader, writer)

    return handler


async def loses_the_way_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1 << 20)
    writer.write(echo.RECEIVED)
    await reader.read()


async def changes_a_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    payload = await reader.readexactly(1 << 20)
    writer.write(echo.RECEIVED + payload[:-1] + bytes([payload[-1] ^ 1]))
    await reader.read()


async def stops_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3)


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        (silent, Fault.SILENT),
        (hangs_up, Fault.CLOSED),
        (speaks_http, Fault.NOT_ECHO),
        (answering(stops_reading), Fault.LOST_OUT),
        (answering(loses_the_way_back), Fault.LOST_BACK),
        (answering(changes_a_byte), Fault.CORRUPT),
    ],
)
def test_each_way_of_failing_has_its_own_word(handler: Handler, fault: Fault) -> None:
    async def run() -> None:
        async with served(handler) as port:
            link = await probe_one(port)
        assert not link.ok
        assert link.fault == fault, link.error
        assert link.error

    asyncio.run(run())


def test_another_replica_at_the_address_is_told_by_its_id() -> None:
    async def run() -> None:
        server = await echo.serve(OTHER)
        link = await probe_one(server.port)
        await server.aclose()
        assert (link.ok, link.fault, link.answered_by) == (False, Fault.WRONG_REPLICA, OTHER)

    asyncio.run(run())


def test_a_refused_connect_is_tried_twice_and_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    link = asyncio.run(probe_one(port))
    assert (link.ok, link.fault, link.tries) == (False, Fault.REFUSED, 2)


def test_a_connect_without_answer_is_told_from_a_refusal() -> None:
    async def run() -> None:
        # A listener whose queue is full drops what comes, as a firewall would.
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            link = await probe_one(address[1])
            for filler in fillers:
                filler.close()
        assert (link.ok, link.fault) == (False, Fault.TIMED_OUT), link.error

    asyncio.run(run())


async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Pass one connection on to `port`."""
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)

    async def pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    await asyncio.gather(pour(reader, inner_writer), pour(inner_reader, writer))


def test_what_fails_once_and_passes_then_says_so() -> None:
    async def run() -> None:
        server = await echo.serve(PEER)
        calls = 0

        async def flaky(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                await relayed(reader, writer, server.port)

        async with served(flaky) as port:
            link = await probe_one(port)
        await server.aclose()
        assert (link.ok, link.tries) == (True, 2)

    asyncio.run(run())


def test_the_probe_ends_within_its_task_however_many_links_are_dead() -> None:
    async def run() -> None:
        async with served(silent) as port:
            targets = [target(port, replica=f"r-{number:010d}") for number in range(100)]
            began = time.monotonic()
            result = await tcp.probe(task(*targets, deadline_s=2.0), ME)
            assert time.monotonic() - began < 2.0
        assert len(result.links) == 100
        assert {link.fault for link in result.links} <= {Fault.SILENT, Fault.UNTRIED}

    asyncio.run(run())


def test_an_address_that_is_silent_is_given_up_soon_once_another_of_that_replica_answered() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        server = await echo.serve(PEER)
        async with served(never) as port:
            began = time.monotonic()
            limits = replace(LIMITS, still_s=5.0, spare_s=0.3)
            targets = (target(port), target(server.port, "::1"))
            silent, good = (await tcp.probe(task(*targets), ME, limits)).links
            assert time.monotonic() - began < 2.0
        await server.aclose()
        assert good.ok
        assert (silent.fault, silent.tries) == (Fault.SILENT, 1)

    asyncio.run(run())


def test_the_first_port_nobody_holds_becomes_the_rendezvous_port_and_holders_are_named() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
            held, next_free = taken.getsockname()[1], free.getsockname()[1]
            free.close()
            result = await tcp.probe(task(port_candidates=(held, next_free)), ME)
        assert result.rendezvous_port == next_free
        assert "pytest" in result.port_holders[held] or "python" in result.port_holders[held]

    asyncio.run(run())


def test_the_echo_server_leaves_strangers_and_oversized_wishes_alone() -> None:
    async def run() -> None:
        server = await echo.serve(PEER, "127.0.0.1")
        for bytes_sent in (b"GET / HTTP/1.1\r\n\r\n", echo.greeting(b"n", echo.PAYLOAD_LIMIT_BYTES + 1)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(bytes_sent)
            assert await asyncio.wait_for(reader.read(), 2) == b""
            writer.close()
        await server.aclose()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port)

    asyncio.run(run())
