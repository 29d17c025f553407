"""`/jobs/{id}/report`: everything about a job in one document, as Markdown for people or as data."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from sqlalchemy import Connection
from starlette.responses import Response

from coordinator.api.answers import JSON, JobId
from coordinator.api.feeds import read_job_view
from coordinator.api.given import given
from coordinator.api.problems import no_such, responses
from coordinator.api.routing import Guarded
from coordinator.api.seats import seat_of
from coordinator.api.service import installed_version
from coordinator.api.services import Services, ServicesDep
from coordinator.attempt import AttemptState
from coordinator.core.problem import ProblemError
from coordinator.core.protocol import EVIDENCE, Facts
from coordinator.core.redact import Redactor
from coordinator.core.views import CurvePoint, EvidenceView, RenderedView, ReportView
from coordinator.report import markdown, spread
from coordinator.store import queries, rows, streams
from coordinator.views_of import attempt_of, foremost

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], route_class=Guarded)

MARKDOWN = "text/markdown"
# A table that fits a page or two, whatever the training's length.
MOST_POINTS = 24
# Of each stream of evidence, and of all: the stacks of a rank are a few KB, those of a thousand must not be a gigabyte.
EVIDENCE_BYTES = 32 << 10
MOST_EVIDENCE_BYTES = 1 << 20

_EXAMPLE = "# llama-1b: succeeded\n\nSucceeded: 3 files, 45.1 MB, 128 tensors whole\n"


@router.get(
    "/{job_id}/report",
    response_class=Response,
    summary="A job's report: one document to keep and to read without rankcall",
    responses={
        200: {
            "description": "Markdown, or the same as data with `format=json`",
            "content": {
                MARKDOWN: {"schema": {"type": "string"}, "example": _EXAMPLE},
                JSON: {"schema": {"$ref": "#/components/schemas/ReportView"}},
            },
        },
        **responses(404, 422),
    },
)
async def report(
    job_id: JobId,
    services: ServicesDep,
    form: Annotated[
        Literal["markdown", "json"], Query(alias="format", description="In which form.")
    ] = "markdown",
) -> Response:
    """What came of the job, its figures and answers, findings, attempts, replicas, rendered files (secrets masked), and the
    evidence of a hang. Of a job that still runs: all that as it is now."""
    row, told = await _told(services, job_id)
    # Not in the event loop: a megabyte of evidence would hold up the reports of all agents.
    document = await asyncio.to_thread(_written, told, services.veils.of(row), form)
    if form == "json":
        return Response(document, media_type=JSON)
    headers = {"Content-Disposition": f'inline; filename="rankcall-{row.id}.md"'}
    return Response(document, headers=headers, media_type=MARKDOWN)


def _written(told: ReportView, veil: Redactor, form: str) -> bytes:
    """Masked before it is written: in Markdown a secret may have a backslash in it, and would be missed."""
    masked = veil.mask(told.model_dump_json().encode())
    return masked if form == "json" else markdown(ReportView.model_validate_json(masked)).encode()


async def _told(services: Services, job_id: str) -> tuple[rows.Job, ReportView]:
    replicas = services.roster.observed()

    def look(c: Connection) -> tuple[rows.Job, ReportView] | None:
        row = queries.job(c, job_id)
        if row is None:
            return None
        attempts = queries.attempts_of(c, job_id)
        states = [attempt_of(one) for one in attempts]
        facts = _facts(c, foremost(states)) if states else {}
        return row, ReportView(
            job=read_job_view(c, row, replicas),
            made_at=datetime.now(UTC),
            version=installed_version(),
            facts=facts,
            given=_given(services, row, attempts, facts),
            curve=_curve(c, foremost(states).id) if states else (),
            evidence=tuple(_evidence(c, states)),
        )

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    return found


def _facts(c: Connection, state: AttemptState) -> dict[str, Facts]:
    found = {seat.replica_id: queries.replica(c, seat.replica_id) for seat in state.seats}
    return {name: Facts.model_validate(row.facts) for name, row in found.items() if row and row.facts}


def _given(
    services: Services, row: rows.Job, attempts: list[rows.Attempt], facts: dict[str, Facts]
) -> RenderedView | None:
    if row.kind == "preflight" or not attempts:
        return None
    try:
        state, seat = seat_of(attempts, None, 0)
        return given(row, state, seat, facts.get(seat.replica_id), services.veils.of(row))
    except ProblemError:  # no replica had come yet, or nothing can be rendered: a finding says why
        return None


def _curve(c: Connection, attempt_id: str) -> tuple[CurvePoint, ...]:
    points: dict[int, dict[str, float]] = {}
    for kind in ("log", "eval"):
        ids = queries.logged_ids(c, attempt_id, kind)
        for metric in queries.metrics_by_id(c, [ids[index] for index in spread(len(ids), MOST_POINTS)]):
            if metric.step is not None:
                known = {name: metric.record.get(name) for name in CurvePoint.model_fields}
                points.setdefault(metric.step, {}).update({k: v for k, v in known.items() if v is not None})
    return tuple(CurvePoint.model_validate({**said, "step": step}) for step, said in sorted(points.items()))


def _evidence(c: Connection, states: Sequence[AttemptState]) -> list[EvidenceView]:
    """What was kept of hangs, the newest attempt's first where not all of it has room; in the order of attempts and ranks."""
    found: list[EvidenceView] = []
    room = MOST_EVIDENCE_BYTES
    for state in reversed(states):
        ranks = {seat.replica_id: seat.rank for seat in state.seats}
        for stream in streams.of_attempt(c, state.id):
            if not stream.name.startswith(f"{EVIDENCE}.") or stream.replica_id not in ranks or room <= 0:
                continue
            data = streams.tail(c, state.id, stream.replica_id, stream.name, min(EVIDENCE_BYTES, room)).data
            room -= len(data)
            found.append(
                EvidenceView(
                    attempt=state.number,
                    rank=ranks[stream.replica_id],
                    stream=stream.name,
                    size_bytes=stream.size_bytes,
                    text=data.decode(errors="replace"),
                )
            )
    return sorted(found, key=lambda one: (one.attempt, one.rank, one.stream))
