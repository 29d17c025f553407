"""Wake-ups for whoever follows something: "topic X has changed, look again". No data travels here.

Publishers (intake, controller, submissions) call `publish` after their write has been committed; readers
(event streams, followed logs, held reads) wait on a `Subscription` and read the store or the roster. Any
number of publications between two waits are one wake-up, so a slow reader costs nothing.

Topics: `job:<id>`, `jobs`, `replicas`, `logs:<attempt_id>:<replica_id>`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator


class Subscription:
    """One reader's pending wake-ups."""

    __slots__ = ("_closed", "_pending", "_wake")

    def __init__(self) -> None:
        self._pending: set[str] = set()
        self._wake: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """The coordinator is stopping: the reader should end."""
        return self._closed

    async def wait(self, timeout_s: float | None = None) -> frozenset[str]:
        """Topics published since the last wait; empty when `timeout_s` passed or the coordinator is stopping."""
        if not self._pending and not self._closed:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake
            except TimeoutError:
                pass
            finally:
                self._wake = None
        topics = frozenset(self._pending)
        self._pending.clear()
        return topics

    def notify(self, topic: str) -> None:
        self._pending.add(topic)
        self._resolve()

    def close(self) -> None:
        self._closed = True
        self._resolve()

    def _resolve(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Broadcast:
    """Topics and who waits for them. Belongs to one event loop; call it from there only."""

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = {}
        self._all: set[Subscription] = set()
        self._closed = False

    def publish(self, topic: str) -> None:
        """Wakes everybody who waits for `topic`. Costs a dictionary look-up when nobody does."""
        for subscription in self._readers.get(topic, ()):
            subscription.notify(topic)

    @contextlib.contextmanager
    def subscribe(self, topics: Iterable[str]) -> Iterator[Subscription]:
        """A subscription for the length of a `with` block."""
        names = tuple(topics)
        subscription = Subscription()
        if self._closed:
            subscription.close()
        self._all.add(subscription)
        for topic in names:
            self._readers.setdefault(topic, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._all.discard(subscription)
            for topic in names:
                readers = self._readers.get(topic)
                if readers is not None:
                    readers.discard(subscription)
                    if not readers:
                        del self._readers[topic]

    @property
    def readers(self) -> int:
        return len(self._all)

    def close(self) -> None:
        """Ends every subscription, so that open event streams let the server stop."""
        self._closed = True
        for subscription in tuple(self._all):
            subscription.close()
