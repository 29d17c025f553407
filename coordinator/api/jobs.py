"""`/jobs`: submit, list, look at, cancel and retry; a job's metrics, findings, rendered files and bundle."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.answers import JSON, JobId, Limit, PageCursor, answer, body, position
from coordinator.api.examples import JOB, SUBMISSION
from coordinator.api.feeds import read_job_view
from coordinator.api.given import given
from coordinator.api.problems import no_such, parse_body, responses
from coordinator.api.routing import Guarded, principal_of
from coordinator.api.seats import seat_of
from coordinator.api.services import Services, ServicesDep
from coordinator.auth import Role
from coordinator.core.problem import problem
from coordinator.core.protocol import Bundle, BundleFile
from coordinator.core.views import (
    FindingPage,
    JobPage,
    JobState,
    JobView,
    MetricPage,
    RenderedView,
    Submission,
)
from coordinator.store import queries, rows
from coordinator.views_of import attempt_of, job_summary, metric_view

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], route_class=Guarded)

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes a repeated submission harmless: the same key with the same body is the same job.",
    ),
]


@router.post(
    "",
    status_code=201,
    response_model=JobView,
    summary="Submit a job",
    responses={
        200: {"model": JobView, "description": "This Idempotency-Key has made this job before"},
        201: {
            "description": "Queued",
            "content": {JSON: {"example": JOB}},
            "headers": {"Location": {"description": "The job", "schema": {"type": "string"}}},
        },
        **responses(413, 422),
    },
    openapi_extra=body("Submission", SUBMISSION),
)
async def submit(request: Request, services: ServicesDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Checks the submission and queues it. A refused one costs nothing: 422 with a finding for each fault."""
    raw = await request.body()
    submission = parse_body(raw, Submission)
    actor = principal_of(request).actor
    submitted = await services.submissions.submit(raw, submission, idempotency_key, actor)
    headers = {"Location": f"/api/v1/jobs/{submitted.job.id}"}
    return await _answer(services, submitted.job.id, 201 if submitted.created else 200, headers)


@router.get("", response_model=JobPage, summary="List jobs, newest first", responses=responses(422))
async def jobs(
    services: ServicesDep,
    cursor: PageCursor = None,
    limit: Limit = 50,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
) -> Response:
    before = position(cursor)
    found = await services.store.read(lambda c: queries.jobs_page(c, before, limit + 1, state))
    page = found[:limit]
    more = str(page[-1].seq) if len(found) > limit else None
    return answer(
        JobPage(items=tuple(job_summary(row) for row in page), next_cursor=more), veil=services.veils.base
    )


@router.get("/{job_id}", response_model=JobView, summary="Look at a job", responses=responses(404, 422))
async def job(job_id: JobId, services: ServicesDep) -> Response:
    """The job with its attempts, stages, progress, findings, artifacts and compared answers."""
    return await _answer(services, job_id)


@router.post(
    "/{job_id}/cancel",
    status_code=202,
    response_model=JobView,
    summary="Cancel a job",
    responses=responses(404, 409, 422),
)
async def cancel(job_id: JobId, request: Request, services: ServicesDep) -> Response:
    """Ends the job's processes on every replica. The job is `cancelled` once they are gone; repeating this is harmless."""
    await services.submissions.cancel(job_id, principal_of(request).actor)
    return await _answer(services, job_id, 202)


@router.post(
    "/{job_id}/retry",
    status_code=202,
    response_model=JobView,
    summary="Try a job again",
    responses=responses(404, 409, 422),
)
async def retry(job_id: JobId, request: Request, services: ServicesDep) -> Response:
    """Queues a job that has ended for one more attempt, with the same ranks for the same replicas."""
    await services.submissions.retry(job_id, principal_of(request).actor)
    return await _answer(services, job_id, 202)


@router.get(
    "/{job_id}/metrics",
    response_model=MetricPage,
    summary="A job's progress records, in the order of arrival",
    responses=responses(404, 422),
)
async def metrics(
    job_id: JobId,
    services: ServicesDep,
    cursor: PageCursor = None,
    limit: Limit = 1000,
    rank: Annotated[int | None, Query(ge=0, le=1 << 20, description="Only this rank's.")] = None,
) -> Response:
    """Any item's `id` is a cursor too: ask for what came after it."""
    after = position(cursor) or 0

    def look(c: Connection) -> list[rows.Metric] | None:
        if queries.job(c, job_id) is None:
            return None
        return queries.metrics_after(c, job_id, after, limit + 1, rank=rank)

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    page = found[:limit]
    more = str(page[-1].id) if len(found) > limit else None
    return answer(MetricPage(items=tuple(metric_view(row) for row in page), next_cursor=more))


@router.get(
    "/{job_id}/findings",
    response_model=FindingPage,
    summary="A job's findings",
    responses=responses(404, 422),
)
async def findings(job_id: JobId, services: ServicesDep) -> Response:
    """All that was found about the job, in the order it was found."""

    def look(c: Connection) -> tuple[rows.Job, list[rows.Finding]] | None:
        row = queries.job(c, job_id)
        return None if row is None else (row, queries.findings_of(c, job_id))

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    row, judged = found
    return answer(FindingPage(items=tuple(one.finding for one in judged)), veil=services.veils.of(row))


@router.get(
    "/{job_id}/files",
    response_model=RenderedView,
    summary="What one rank was given: files, environment and command",
    responses=responses(404, 409, 422),
)
async def files(
    job_id: JobId,
    services: ServicesDep,
    rank: Annotated[int, Query(ge=0, le=4096, description="A replica's rank (`machine_rank`).")] = 0,
    attempt: Annotated[
        int | None, Query(ge=1, le=10**6, description="Number of the attempt; else the last.")
    ] = None,
) -> Response:
    def look(c: Connection) -> tuple[rows.Job, list[rows.Attempt]] | None:
        row = queries.job(c, job_id)
        return None if row is None else (row, queries.attempts_of(c, job_id))

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    row, attempts = found
    if row.kind == "preflight":
        raise problem(409, "SYS106", f"{job_id} is a preflight: nothing is rendered for it.")
    if not attempts and attempt is None:
        raise problem(409, "SYS106", f"Job {job_id} has no attempt yet, so nothing has been rendered.")
    state, seat = seat_of(attempts, attempt, rank)
    presence = services.roster.get(seat.replica_id)
    view = given(row, state, seat, presence.facts if presence else None, services.veils.of(row))
    return answer(view, veil=services.veils.of(row))


@router.get(
    "/{job_id}/bundle",
    response_model=Bundle,
    summary="The files that travelled with the submission (for replicas)",
    tags=["replicas"],
    responses=responses(404, 422),
)
async def bundle(job_id: JobId, request: Request, services: ServicesDep) -> Response:
    """A replica gets the bundle of a job that it has a seat in."""
    principal = principal_of(request)

    def look(c: Connection) -> tuple[dict[str, bytes], list[rows.Attempt]] | None:
        if queries.job(c, job_id) is None:
            return None
        return queries.bundle(c, job_id), queries.attempts_of(c, job_id)

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    contents, attempts = found
    if principal.role is Role.REPLICA:
        seats = attempt_of(attempts[-1]).seats if attempts else ()
        if all(seat.replica_id != principal.replica_id for seat in seats):
            raise problem(403, "SYS101", f"{principal.replica_id} has no seat in job {job_id}.")
    return answer(Bundle(files=tuple(BundleFile(path=path, data=data) for path, data in contents.items())))


async def _answer(
    services: Services, job_id: str, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """The job as it is now."""
    replicas = services.roster.observed()

    def look(c: Connection) -> tuple[rows.Job, JobView] | None:
        row = queries.job(c, job_id)
        return None if row is None else (row, read_job_view(c, row, replicas))

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    row, view = found
    return answer(view, status, headers, services.veils.of(row))
