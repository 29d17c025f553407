"""`/preflights`: the handshake without a job, and what it found; `/jobs/{id}/links` has the same for any job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.answers import JSON, JobId, answer, body
from coordinator.api.examples import JOB, PREFLIGHT
from coordinator.api.jobs import IdempotencyKey
from coordinator.api.problems import no_such, parse_body, responses
from coordinator.api.routing import Guarded, principal_of
from coordinator.api.services import Services, ServicesDep
from coordinator.attempt import AttemptState, Observed
from coordinator.core.problem import problem
from coordinator.core.protocol import TaskReport, TcpResult
from coordinator.core.views import LinkGrid, PreflightRequest, PreflightView
from coordinator.preflight.grid import grid
from coordinator.stages import tcp_task_id
from coordinator.store import queries
from coordinator.views_of import attempt_of, attempt_view, job_summary

router = APIRouter(prefix="/api/v1", tags=["preflights"], route_class=Guarded)

PreflightId = Annotated[
    str,
    Path(
        max_length=64,
        description="A preflight's id, as `POST /preflights` answered it.",
        examples=["3f9c01d2"],
    ),
]
Worst = Annotated[
    int | None,
    Query(ge=1, le=1_000_000, description="Only so many links, the worst first; else all, rank by rank."),
]


@router.post(
    "/preflights",
    status_code=201,
    response_model=PreflightView,
    summary="Run the handshake without a job",
    responses={
        200: {"model": PreflightView, "description": "This Idempotency-Key has made this preflight before"},
        201: {
            "description": "Queued",
            "content": {JSON: {"example": {**JOB, "name": "preflight", "kind": "preflight"}}},
            "headers": {"Location": {"description": "The preflight", "schema": {"type": "string"}}},
        },
        **responses(413, 422),
    },
    openapi_extra=body("PreflightRequest", PREFLIGHT),
)
async def start(request: Request, services: ServicesDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Gathers replicas as a job would, compares them, probes every link and runs a collective; then they are free again.

    It stands in the same queue as jobs, and `/jobs/{id}/events`, `/cancel` and `/retry` work on it.
    """
    raw = await request.body()
    asked = parse_body(raw or b"{}", PreflightRequest)
    made = await services.submissions.preflight(raw, asked, idempotency_key, principal_of(request).actor)
    view = await _preflight(services, made.job.id)
    headers = {"Location": f"/api/v1/preflights/{made.job.id}"}
    return answer(view, 201 if made.created else 200, headers)


@router.get(
    "/preflights/{preflight_id}",
    response_model=PreflightView,
    summary="Look at a preflight",
    responses=responses(404, 422),
)
async def preflight(preflight_id: PreflightId, services: ServicesDep, worst: Worst = None) -> Response:
    """Its verdict, stages and findings, and the grid of links of its last attempt."""
    return answer(await _preflight(services, preflight_id, worst))


@router.get(
    "/jobs/{job_id}/links",
    response_model=LinkGrid,
    summary="The links between a job's replicas, as its handshake saw them",
    tags=["jobs"],
    responses=responses(404, 409, 422),
)
async def links(
    job_id: JobId,
    services: ServicesDep,
    attempt: Annotated[
        int | None, Query(ge=1, le=10**6, description="Number of the attempt; else the last.")
    ] = None,
    worst: Worst = None,
) -> Response:
    """Round trip, throughput and fault of each direction; addresses and interfaces in use; rounds of the collective."""

    def look(c: Connection) -> LinkGrid:
        if queries.job(c, job_id) is None:
            raise no_such("job", job_id)
        states = [attempt_of(row) for row in queries.attempts_of(c, job_id)]
        if attempt is not None:
            states = [state for state in states if state.number == attempt]
            if not states:
                raise no_such("attempt", str(attempt))
        if not states:
            raise problem(409, "SYS106", f"Job {job_id} has no attempt yet, so no link has been tested.")
        return _grid(c, states[-1], worst)

    return answer(await services.store.read(look))


async def _preflight(services: Services, preflight_id: str, worst: int | None = None) -> PreflightView:
    replicas = services.roster.observed()
    return await services.store.read(lambda c: _view(c, preflight_id, replicas, worst))


def _view(
    c: Connection, preflight_id: str, replicas: Mapping[str, Observed], worst: int | None
) -> PreflightView:
    row = queries.job(c, preflight_id)
    if row is None or row.kind != "preflight":
        raise no_such("preflight", preflight_id)
    states = [attempt_of(attempt) for attempt in queries.attempts_of(c, preflight_id)]
    return PreflightView(
        **job_summary(row).model_dump(),
        attempt=attempt_view(states[-1], replicas) if states else None,
        findings=tuple(found.finding for found in queries.findings_of(c, preflight_id)),
        grid=_grid(c, states[-1], worst) if states else None,
    )


def _grid(c: Connection, state: AttemptState, worst: int | None) -> LinkGrid:
    results: dict[str, TcpResult] = {}
    for row in queries.tasks_of(c, state.id):
        if row.task_id == tcp_task_id(state):
            result = TaskReport.model_validate(row.report).result
            if isinstance(result, TcpResult):
                results[row.replica_id] = result
    return grid(state, results, worst=worst)
