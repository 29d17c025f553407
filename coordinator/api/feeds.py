"""What event streams send: changes are read once, encoded once, and taken by each reader at its own pace.

A `JobFeed` lives while somebody follows its job. It reads the store when the job is published, appends what
is new to a short tail and keeps the newest snapshot. A reader is a position in that tail: it takes what is
behind its position when its connection has room, so a slow one holds nobody up and costs no memory. One
that falls off the tail, or comes back with `Last-Event-ID`, reads from the store up to the tail: nothing is
lost and nothing comes twice.

Called by `api/streams.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from coordinator.api.sse import GREETING, KEEP_ALIVE, KEEP_ALIVE_S, Cursor, encode
from coordinator.attempt import Observed
from coordinator.broadcast import Broadcast
from coordinator.core.clock import monotonic_s
from coordinator.core.protocol import ProgressRecord
from coordinator.core.views import JobSummary, JobView, ReplicaPage, View
from coordinator.roster import Roster
from coordinator.store import Store, queries, rows
from coordinator.veils import Veils
from coordinator.views_of import (
    attempt_of,
    foremost,
    job_summary,
    job_view,
    metric_view,
    progress_view,
    replica_page,
)

log = structlog.get_logger(__name__)

# A job's changes are gathered for so long before they are read; people see no difference.
JOB_INTERVAL_S = 0.2
# Progress alone renews the whole state no more often than this: that costs ten times what its metrics cost.
STATE_INTERVAL_S = 1.0
# Without a publication it looks again after this long: a replica that falls silent publishes nothing.
LOOK_S = 5.0
OVERVIEW_INTERVAL_S = 0.25
# Building the overview of a thousand replicas may take a twentieth of the loop, no more.
OVERVIEW_SHARE = 20
# Beyond this many replicas their facts are left out of the overview: read them at /replicas.
MOST_WITH_FACTS = 64
NEWEST_JOBS = 50
# Events kept for readers that are a little behind; older ones come from the store.
TAIL_EVENTS = 2048
PAGE_METRICS = 1000


def read_job_view(c: Connection, row: rows.Job, replicas: Mapping[str, Observed]) -> JobView:
    """A job as users see it, from one look at the store.

    Args:
        replicas: who is here, by id (the roster belongs to the event loop, this runs in a reader's thread).
    """
    attempts = [attempt_of(attempt) for attempt in queries.attempts_of(c, row.id)]
    newest = queries.newest_metrics(c, foremost(attempts).id) if attempts else ()
    progress = progress_view(ProgressRecord.model_validate(metric.record) for metric in newest)
    findings, artifacts = queries.findings_of(c, row.id), queries.artifacts_of(c, row.id)
    return job_view(row, attempts, progress, findings, artifacts, replicas)


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    cursor: Cursor
    data: bytes


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at the store found; no view where the one before will do a little longer."""

    row: rows.Job | None
    findings: list[rows.Finding]
    metrics: list[rows.Metric]
    view: JobView | None


class JobFeed:
    """The events of one job, for all who follow it."""

    def __init__(self, job_id: str, store: Store, roster: Roster, broadcast: Broadcast, veils: Veils) -> None:
        self._job_id = job_id
        self._veils = veils
        self._veil = veils.base
        self._store = store
        self._roster = roster
        self._broadcast = broadcast
        self._topic = f"feed:{job_id}"
        self._tail: deque[_Event] = deque(maxlen=TAIL_EVENTS)
        self._number = 0
        self._cursor = Cursor()
        self._row: rows.Job | None = None
        self._snapshot = b""
        self._version = 0
        self._renewed_s = 0.0
        self._stale = False

    async def begin(self) -> None:
        """Takes a place: what was before it is read from the store, what comes after it from the tail."""

        replicas = self._roster.observed()

        def look(c: Connection) -> tuple[Cursor, rows.Job | None, JobView | None]:
            last_metric = queries.last_metric_id(c)
            findings = queries.findings_of(c, self._job_id)
            row = queries.job(c, self._job_id)
            view = None if row is None else read_job_view(c, row, replicas)
            return Cursor(findings[-1].id if findings else 0, last_metric), row, view

        self._cursor, row, view = await self._store.read(look)
        if row is not None:
            self._veil = self._veils.of(row)
        self._take(view)

    async def run(self) -> None:
        """Reads the store when the job was published, until cancelled."""
        with self._broadcast.subscribe([f"job:{self._job_id}"]) as subscription:
            while not subscription.closed:
                try:
                    await self._refresh()
                except Exception:
                    log.exception("a job's events could not be read; they are tried again", job=self._job_id)
                    await asyncio.sleep(LOOK_S)
                await asyncio.sleep(JOB_INTERVAL_S)
                await subscription.wait(STATE_INTERVAL_S if self._stale else LOOK_S)

    async def follow(self, after: Cursor) -> AsyncGenerator[bytes, None]:
        """Events behind `after`, then the newest snapshot, then everything as it comes."""
        with self._broadcast.subscribe([self._topic]) as subscription:
            yield GREETING
            # From a store that is lost: its numbers begin anew, and a reader that waited for them would miss all.
            known = (mine if mine <= last else 0 for mine, last in zip(after, self._cursor, strict=True))
            position, number, version = Cursor(*known), -1, 0
            while not subscription.closed:
                if number < 0 or (self._tail and number + 1 < self._tail[0].number):
                    goal, number = self._cursor, self._number
                    async for page in self._stored(position, goal):
                        yield page
                    position = Cursor(*map(max, position, goal))
                batch = []
                for event in self._after(number):
                    number = event.number
                    if not position.covers(event.cursor):
                        position = event.cursor
                        batch.append(event.data)
                if version != self._version:
                    version = self._version
                    batch.append(f"id: {position}\n".encode() + self._snapshot)
                if batch:
                    yield b"".join(batch)
                elif not await subscription.wait(KEEP_ALIVE_S):
                    yield KEEP_ALIVE

    def _after(self, number: int) -> list[_Event]:
        newer = self._number - number
        return [self._tail[i] for i in range(max(0, len(self._tail) - newer), len(self._tail))]

    async def _refresh(self) -> None:
        """Appends what is new to the tail, renews the snapshot where that is due, and wakes the readers."""
        more = True
        while more:
            after, before, replicas = self._cursor, self._row, self._roster.observed()
            due = monotonic_s() - self._renewed_s >= STATE_INTERVAL_S

            def look(
                c: Connection,
                after: Cursor = after,
                before: rows.Job | None = before,
                replicas: Mapping[str, Observed] = replicas,
                due: bool = due,
            ) -> _Look:
                row = queries.job(c, self._job_id)
                findings = queries.findings_after(c, self._job_id, after.finding)
                metrics = queries.metrics_after(c, self._job_id, after.metric, PAGE_METRICS)
                wanted = row is not None and (due or findings or row != before)
                return _Look(
                    row, findings, metrics, read_job_view(c, row, replicas) if row and wanted else None
                )

            found = await self._store.read(look)
            self._row = found.row
            for cursor, data in self._encoded(after, found.findings, found.metrics):
                self._number += 1
                self._cursor = cursor
                self._tail.append(_Event(self._number, cursor, data))
            self._stale = found.view is None
            if self._take(found.view) or found.findings or found.metrics:
                self._broadcast.publish(self._topic)
            more = len(found.metrics) == PAGE_METRICS

    def _encoded(
        self, after: Cursor, findings: Iterable[rows.Finding], metrics: Iterable[rows.Metric]
    ) -> Iterator[tuple[Cursor, bytes]]:
        """Events behind a cursor, each with the cursor of a reader that has it and all before it."""
        cursor = after
        for finding in findings:
            cursor = cursor._replace(finding=finding.id)
            yield cursor, self._veil.mask(encode("finding", finding.finding, cursor))
        for metric in metrics:
            cursor = cursor._replace(metric=metric.id)
            yield cursor, encode("metric", metric_view(metric), cursor)

    def _take(self, view: JobView | None) -> bool:
        """Keeps a snapshot; False where it says what the one before said."""
        if view is None:
            return False
        self._renewed_s = monotonic_s()
        snapshot = self._veil.mask(encode("job", view))
        if snapshot == self._snapshot:
            return False
        self._snapshot = snapshot
        self._version += 1
        return True

    async def _stored(self, after: Cursor, goal: Cursor) -> AsyncIterator[bytes]:
        """Events between two cursors from the store, in pages: the findings first, then the metrics."""
        position = after
        while not position.covers(goal):

            def look(c: Connection, start: Cursor = position) -> tuple[list[rows.Finding], list[rows.Metric]]:
                findings = queries.findings_after(c, self._job_id, start.finding)
                return findings, queries.metrics_after(c, self._job_id, start.metric, PAGE_METRICS)

            findings, metrics = await self._store.read(look)
            known = [f for f in findings if f.id <= goal.finding], [m for m in metrics if m.id <= goal.metric]
            page = list(self._encoded(position, *known))
            if not page:
                return
            position = page[-1][0]
            yield b"".join(data for _, data in page)


class Overview(View):
    """The data of `overview` events of `GET /watch`."""

    jobs: tuple[JobSummary, ...]
    replicas: ReplicaPage


class OverviewFeed:
    """The newest jobs and all replicas, for all who watch the page."""

    _topic = "feed:overview"

    def __init__(
        self, store: Store, roster: Roster, broadcast: Broadcast, expected: int | None, veils: Veils
    ) -> None:
        self._store = store
        self._roster = roster
        self._broadcast = broadcast
        self._expected = expected
        self._veils = veils
        self._event = b""
        self._version = 0
        self._pause_s = OVERVIEW_INTERVAL_S

    async def begin(self) -> None:
        jobs = await self._store.read(lambda c: queries.jobs_page(c, limit=NEWEST_JOBS))
        started_s = perf_counter()
        replicas = self._roster.views()
        if len(replicas) > MOST_WITH_FACTS:
            replicas = tuple(view.model_copy(update={"facts": None}) for view in replicas)
        page = replica_page(replicas, self._expected)
        overview = Overview(jobs=tuple(job_summary(row) for row in jobs), replicas=page)
        event = self._veils.base.mask(encode("overview", overview))
        if event != self._event:
            self._event = event
            self._version += 1
            self._broadcast.publish(self._topic)
        self._pause_s = max(OVERVIEW_INTERVAL_S, OVERVIEW_SHARE * (perf_counter() - started_s))

    async def run(self) -> None:
        """Builds the event anew when something was published, until cancelled."""
        with self._broadcast.subscribe(["jobs", "replicas"]) as subscription:
            while not subscription.closed:
                await asyncio.sleep(self._pause_s)
                await subscription.wait(LOOK_S)
                try:
                    await self.begin()
                except Exception:
                    log.exception("the overview could not be read; it is tried again")
                    await asyncio.sleep(LOOK_S)

    async def follow(self) -> AsyncGenerator[bytes, None]:
        with self._broadcast.subscribe([self._topic]) as subscription:
            yield GREETING
            version = 0
            while not subscription.closed:
                if version != self._version:
                    version = self._version
                    yield self._event
                elif not await subscription.wait(KEEP_ALIVE_S):
                    yield KEEP_ALIVE


_Feed = TypeVar("_Feed", JobFeed, OverviewFeed)


@dataclass(slots=True)
class _Running:
    feed: JobFeed | OverviewFeed
    began: asyncio.Task[None]
    task: asyncio.Task[None]
    readers: int = 0


class Feeds:
    """The feeds that somebody follows; each ends with its last reader."""

    def __init__(
        self, store: Store, roster: Roster, broadcast: Broadcast, expected: int | None, veils: Veils
    ) -> None:
        self._store = store
        self._roster = roster
        self._broadcast = broadcast
        self._expected = expected
        self._veils = veils
        self._running: dict[str, _Running] = {}

    async def job(self, job_id: str, after: Cursor) -> AsyncGenerator[bytes, None]:
        """The event stream of a job for one reader."""
        held = self._held(
            f"job:{job_id}", lambda: JobFeed(job_id, self._store, self._roster, self._broadcast, self._veils)
        )
        async with held as feed, contextlib.aclosing(feed.follow(after)) as events:
            async for event in events:
                yield event

    async def overview(self) -> AsyncGenerator[bytes, None]:
        """The event stream of the page for one reader."""
        held = self._held(
            "overview",
            lambda: OverviewFeed(self._store, self._roster, self._broadcast, self._expected, self._veils),
        )
        async with held as feed, contextlib.aclosing(feed.follow()) as events:
            async for event in events:
                yield event

    @property
    def readers(self) -> int:
        return sum(running.readers for running in self._running.values())

    @contextlib.asynccontextmanager
    async def _held(self, key: str, make: Callable[[], _Feed]) -> AsyncIterator[_Feed]:
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _start(make())
        running.readers += 1
        try:
            await asyncio.shield(running.began)
            feed: _Feed = running.feed  # type: ignore[assignment]  # the key says which kind it is
            yield feed
        finally:
            running.readers -= 1
            if running.readers == 0:
                del self._running[key]
                running.task.cancel()


def _start(feed: JobFeed | OverviewFeed) -> _Running:
    began = asyncio.create_task(feed.begin())

    async def run() -> None:
        await began
        await feed.run()

    task = asyncio.create_task(run())
    # An error of `begin` reaches every reader through `began`; here it must only not be reported as unseen.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return _Running(feed, began, task)
