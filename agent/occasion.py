"""When the agent speaks: at once when something is new, else in its usual rhythm. Called by the loops of `main.py`."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from agent.streams import Mirror
from coordinator.core.clock import monotonic_s


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often the agent does what, in seconds.

    Attributes:
        report_s: a report goes out at least so often; the coordinator judges liveness by it.
        gather_s: what is new waits so long for company; what a gate waits for (a task that ended) does not.
        look_s: how often streams are looked at while an attempt is here.
        stream_s: the least between two reports that carry nothing but stream bytes.
        reading_s: how long a report waits for a reading of the load.
        room_s: how often it is seen whether the disk runs short.
        last_words_s: how long the end of the streams may take to be delivered when the agent is asked to end.
    """

    report_s: float = 2.0
    gather_s: float = 0.25
    look_s: float = 0.5
    stream_s: float = 1.0
    reading_s: float = 1.0
    last_words_s: float = 3.0
    room_s: float = 30.0


class Occasion:
    """Whether a report is due, and what of that has arrived.

    Attributes:
        reported_s: when the last report that arrived was made.
        spoken: how often somebody wanted to know that a report arrived.
    """

    def __init__(self, rhythm: Rhythm, mirror: Mirror) -> None:
        self._rhythm = rhythm
        self._mirror = mirror
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()
        self._delivered = asyncio.Event()
        self._heard = self.spoken = 0
        self.reported_s = float("-inf")

    def tell(self, urgent: bool = False) -> None:
        """Something is new; `urgent`: and a gate waits for it."""
        self._news.set()
        if urgent:
            self._urgent.set()

    async def delivered(self) -> None:
        """Have a report made of what is now, and wait until it has arrived; one that is under way does not count."""
        self.spoken += 1
        this = self.spoken
        while self._heard < this:
            self._delivered.clear()
            self.tell(urgent=True)
            await self._delivered.wait()

    def taken(self) -> None:
        """A report is being made: what becomes new from now on is for the next."""
        self._news.clear()
        self._urgent.clear()

    def arrived(self, spoken: int, made_s: float) -> None:
        """A report has arrived that was made at `made_s`, when `spoken` was this."""
        self.reported_s = made_s
        self._heard = spoken
        self._delivered.set()

    async def due(self, *, full: bool) -> None:
        """Return when a report is due. `full`: the last one could not carry all there was."""
        rhythm = self._rhythm
        due_s = self.reported_s + rhythm.report_s
        stream_s = self.reported_s + (0.0 if full else rhythm.stream_s)
        while True:
            if self._news.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rhythm.gather_s):
                        await self._urgent.wait()
                return
            now_s = monotonic_s()
            following = self._mirror.following
            if now_s >= due_s or (following and now_s >= stream_s and self._mirror.due(now_s)):
                return
            pause_s = min(due_s - now_s, rhythm.look_s) if following else due_s - now_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
