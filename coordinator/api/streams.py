"""What is followed: a job's events, its logs byte for byte, and the page's overview."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query
from sqlalchemy import Connection
from starlette.responses import Response

from coordinator.api.answers import JobId, answer
from coordinator.api.problems import no_such, responses
from coordinator.api.routing import Guarded
from coordinator.api.seats import seat_of
from coordinator.api.services import Services, ServicesDep
from coordinator.api.sse import Cursor, Streamed, event_stream
from coordinator.attempt import AttemptState
from coordinator.core.problem import problem
from coordinator.core.views import TERMINAL_STATES, StreamInfo, StreamPage
from coordinator.store import queries, rows, streams
from coordinator.views_of import attempt_of

router = APIRouter(prefix="/api/v1", tags=["streams"], route_class=Guarded)

EVENTS = "text/event-stream"
TEXT = "text/plain"
# One read of the store for a followed log; a page of it for one that is not.
FOLLOW_BYTES = 256 << 10
PAGE_BYTES = 1 << 20
LARGEST_PAGE_BYTES = 16 << 20
# New lines are gathered for so long; a person sees no difference, a burst becomes a few large reads.
GATHER_S = 0.05
# Without a publication a followed log looks again after this long, to see that the attempt has ended.
LOOK_S = 5.0
# The tail of a log may arrive after the attempt's end: so long without news means that it is whole.
SETTLED_S = 3.0

_EVENT_EXAMPLE = 'id: 0.17\nevent: metric\ndata: {"id":17,"attempt":1,"rank":0,"type":"log","step":5}\n\n'
_OVERVIEW_EXAMPLE = (
    'event: overview\ndata: {"jobs":[],"replicas":{"items":[],"message":"0 replicas registered"}}\n\n'
)
_CURSOR = r"^[0-9]{1,18}\.[0-9]{1,18}$"
_STREAM_HEADERS = {
    "X-Rankcall-Offset": {
        "schema": {"type": "integer"},
        "description": "Offset of the first byte of the answer",
    },
    "X-Rankcall-Size": {"schema": {"type": "integer"}, "description": "Bytes of the stream when it was read"},
    "X-Rankcall-Attempt": {
        "schema": {"type": "integer"},
        "description": "Number of the attempt; absent before it",
    },
}


@router.get(
    "/jobs/{job_id}/events",
    response_class=Response,
    summary="A job's changes as server-sent events",
    responses={
        200: {
            "description": "Events `job` (a JobView), `metric` (a MetricView) and `finding` (a Finding)",
            "content": {EVENTS: {"example": _EVENT_EXAMPLE}},
        },
        **responses(404, 422),
    },
)
async def events(
    job_id: JobId,
    services: ServicesDep,
    last_event_id: Annotated[
        str | None,
        Header(alias="Last-Event-ID", pattern=_CURSOR, description="`id` of the last event received."),
    ] = None,
    cursor: Annotated[
        str | None, Query(pattern=_CURSOR, description="The same, where no header can be set.")
    ] = None,
) -> Response:
    """All metrics and findings from the beginning, or behind `Last-Event-ID`, then everything as it comes.

    None is lost and none comes twice over any number of reconnections. A `job` event is the state at that
    moment; it comes at once and whenever it has changed.
    """
    after = Cursor.parse(last_event_id or cursor or "0.0")
    if await services.store.read(lambda c: queries.job(c, job_id)) is None:
        raise no_such("job", job_id)
    return event_stream(services.feeds.job(job_id, after))


@router.get(
    "/watch",
    response_class=Response,
    summary="The newest jobs and all replicas as server-sent events",
    responses={
        200: {
            "description": "Events `overview`: `{jobs: [JobSummary…], replicas: ReplicaPage}`, at most four a second",
            "content": {EVENTS: {"example": _OVERVIEW_EXAMPLE}},
        }
    },
)
async def watch(services: ServicesDep) -> Response:
    return event_stream(services.feeds.overview())


@router.get(
    "/jobs/{job_id}/streams",
    response_model=StreamPage,
    summary="The streams that a job's attempts have written",
    responses=responses(404, 422),
)
async def written(job_id: JobId, services: ServicesDep) -> Response:
    def look(c: Connection) -> list[StreamInfo] | None:
        if queries.job(c, job_id) is None:
            return None
        return [info for row in queries.attempts_of(c, job_id) for info in _written(c, attempt_of(row))]

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    return answer(StreamPage(items=tuple(found)))


@router.get(
    "/jobs/{job_id}/logs",
    response_class=Response,
    summary="A stream of one rank, byte for byte",
    responses={
        200: {
            "description": "Bytes of the stream as they were written: escape codes, carriage returns and all",
            "content": {TEXT: {"schema": {"type": "string"}, "example": "{'loss': 1.207, 'epoch': 1.0}\n"}},
            "headers": _STREAM_HEADERS,
        },
        **responses(404, 410, 422),
    },
)
async def logs(
    job_id: JobId,
    services: ServicesDep,
    rank: Annotated[int, Query(ge=0, le=4096, description="A replica's rank (`machine_rank`).")] = 0,
    stream: Annotated[
        str, Query(pattern=r"^[a-z0-9][a-zA-Z0-9._-]{0,63}$", description="E.g. train.log, prepare.log.")
    ] = "train.log",
    attempt: Annotated[
        int | None, Query(ge=1, le=10**6, description="Number of the attempt; else the last.")
    ] = None,
    offset: Annotated[
        int, Query(ge=-(1 << 62), le=1 << 62, description="First byte; negative counts from the end.")
    ] = 0,
    limit: Annotated[
        int, Query(ge=1, le=LARGEST_PAGE_BYTES, description="Most bytes, without `follow`.")
    ] = PAGE_BYTES,
    follow: Annotated[bool, Query(description="Go on until the attempt has ended.")] = False,
) -> Response:
    """Read on from `X-Rankcall-Offset` plus the bytes received. A stream nobody has written yet is empty."""
    place = await _place(services, job_id, attempt, rank)
    if place is None and not follow:
        return Response(b"", headers={"X-Rankcall-Offset": "0", "X-Rankcall-Size": "0"}, media_type=TEXT)
    size, start = 0, max(0, offset)
    headers = {}
    if place is not None:
        state, replica_id = place
        await _still_kept(services, job_id, state)
        size = await services.store.read(lambda c: streams.size(c, state.id, replica_id, stream))
        start = max(0, size + offset) if offset < 0 else offset
        headers["X-Rankcall-Attempt"] = str(state.number)
    headers |= {"X-Rankcall-Offset": str(start), "X-Rankcall-Size": str(size)}
    if follow:
        return Streamed(_followed(services, job_id, attempt, rank, stream, start), 200, headers, TEXT)
    assert place is not None
    data = await services.store.read(lambda c: streams.read(c, state.id, replica_id, stream, start, limit))
    return Response(data, headers=headers, media_type=TEXT)


async def _followed(
    services: Services, job_id: str, attempt: int | None, rank: int, stream: str, offset: int
) -> AsyncGenerator[bytes, None]:
    """A stream from `offset` on, until its attempt has ended and its tail is here."""
    with services.broadcast.subscribe([f"job:{job_id}"]) as subscription:
        place = await _place(services, job_id, attempt, rank)
        while place is None:
            if subscription.closed or await _ended(services, job_id):
                return
            await subscription.wait(LOOK_S)
            place = await _place(services, job_id, attempt, rank)
    state, replica_id = place
    topics = [f"job:{job_id}", f"logs:{state.id}:{replica_id}"]
    with services.broadcast.subscribe(topics) as subscription:
        while not subscription.closed:

            def look(c: Connection, start: int = offset) -> tuple[bytes, bool]:
                row = queries.attempt(c, state.id)
                ended = row is None or row.state == "ended"
                return streams.read(c, state.id, replica_id, stream, start, FOLLOW_BYTES), ended

            data, ended = await services.store.read(look)
            if data:
                offset += len(data)
                yield data
                if len(data) < FOLLOW_BYTES:
                    await asyncio.sleep(GATHER_S)
                continue
            news = await subscription.wait(SETTLED_S if ended else LOOK_S)
            if ended and not news:
                return


async def _place(
    services: Services, job_id: str, number: int | None, rank: int
) -> tuple[AttemptState, str] | None:
    """The attempt and the replica that has this rank in it; None while the job has no attempt.

    Raises:
        ProblemError: 404 for an unknown job, attempt or rank.
    """

    def look(c: Connection) -> tuple[rows.Job | None, list[rows.Attempt]]:
        return queries.job(c, job_id), queries.attempts_of(c, job_id)

    row, attempts = await services.store.read(look)
    if row is None:
        raise no_such("job", job_id)
    if not attempts and number is None:
        if rank >= row.nodes:
            raise no_such("rank", str(rank))
        return None
    state, seat = seat_of(attempts, number, rank)
    return state, seat.replica_id


async def _still_kept(services: Services, job_id: str, state: AttemptState) -> None:
    """
    Raises:
        ProblemError: 410 where the attempt's streams were dropped.
    """
    row = await services.store.read(lambda c: queries.job(c, job_id))
    if row is not None and row.dropped_at is not None and state.created_at < row.dropped_at:
        on = datetime.fromtimestamp(row.dropped_at, UTC).date()
        raise problem(410, "SYS121", f"The log of job {job_id} was dropped on {on}.")


async def _ended(services: Services, job_id: str) -> bool:
    row = await services.store.read(lambda c: queries.job(c, job_id))
    return row is None or row.state in TERMINAL_STATES


def _written(c: Connection, state: AttemptState) -> list[StreamInfo]:
    ranks = {seat.replica_id: seat.rank for seat in state.seats}
    found = [
        StreamInfo(
            attempt=state.number,
            rank=ranks[row.replica_id],
            replica_id=row.replica_id,
            stream=row.name,
            size_bytes=row.size_bytes,
        )
        for row in streams.of_attempt(c, state.id)
        if row.replica_id in ranks
    ]
    return sorted(found, key=lambda info: (info.rank, info.stream))
