"""A link that can fail: a TCP proxy between an agent and its coordinator, whose faults a test switches on and off.

`open` carries everything. `cut` breaks what is connected and refuses what comes. `silent` is a partition: nothing
passes, nobody is told, and what was under way goes on afterwards. `deaf` carries questions and loses the answers, so
that what the coordinator has committed is not known to have arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Literal

Mode = Literal["open", "cut", "silent", "deaf"]
_PIECE_BYTES = 1 << 14


class Link:
    """Use as a context manager; `port` is where the agent finds its coordinator."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._mode: Mode = "open"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> Link:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def become(self, mode: Mode) -> None:
        asyncio.run_coroutine_threadsafe(self._become(mode), self._loop).result(30)

    async def _listen(self) -> None:
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._down.set()
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _become(self, mode: Mode) -> None:
        before, self._mode = self._mode, mode
        for event, flows in ((self._up, mode in ("open", "deaf")), (self._down, mode == "open")):
            if flows:
                event.set()
            else:
                event.clear()
        if mode == "cut" or before == "deaf":  # an answer that was lost never comes
            self._break()

    def _break(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._mode == "cut":
                writer.transport.abort()
                return
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # the coordinator is not there
            writer.transport.abort()
            return
        finally:
            self._writers.discard(writer)
        both = (writer, there_writer)
        self._writers.update(both)
        pumps = [
            asyncio.create_task(_pump(reader, there_writer, self._up)),
            asyncio.create_task(_pump(there_reader, writer, self._down)),
        ]
        self._pumps.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._pumps.difference_update(pumps)
            self._writers.difference_update(both)
            for one in both:
                one.close()

    async def _close(self) -> None:
        self._server.close()
        self._break()
        for pump in tuple(self._pumps):
            pump.cancel()
        await asyncio.sleep(0.05)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            await flows.wait()
            writer.write(data)
            await writer.drain()
