"""`/replicas`: what agents call, every two seconds from every replica. The hot path, kept lean.

Bodies are parsed once from their bytes, answers are bytes; authorisation is the guard's (`routing.py`).
"""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.answers import JSON, answer, body
from coordinator.api.examples import REGISTRATION, REPORT
from coordinator.api.problems import parsed, responses
from coordinator.api.routing import Guarded, Lean, peer_host, principal_of
from coordinator.api.services import ServicesDep, services_of
from coordinator.auth import Role
from coordinator.core.problem import ProblemError, problem
from coordinator.core.protocol import Desired, Registered, Registration, Report, ReportReply
from coordinator.core.views import ReplicaPage
from coordinator.intake import Doubtful, Stale, Unknown
from coordinator.views_of import replica_page

agents = APIRouter(prefix="/api/v1/replicas", tags=["replicas"], route_class=Lean)
router = APIRouter(prefix="/api/v1/replicas", tags=["replicas"], route_class=Guarded)

# The longest `Prefer: wait=` that is looked at; the intake holds a read for less.
LONGEST_WAIT_S = 60.0
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})")

_REPLICA_ID = {
    "name": "replica_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "maxLength": 64},
    "example": "r-0123456789",
}


def _header(name: str, description: str, example: str) -> dict[str, object]:
    return {
        "name": name,
        "in": "header",
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


@agents.post(
    "/{replica_id}/report",
    response_model=ReportReply,
    summary="What a replica observes, and the next bytes of its streams",
    responses=responses(404, 409, 413, 422),
    openapi_extra={"parameters": [_REPLICA_ID], **body("Report", REPORT)},
)
async def report(request: Request) -> Response:
    """Everything in it is committed before it is answered. 409 when a later incarnation has registered."""
    given = await parsed(request, Report)
    principal = principal_of(request)
    assert principal.replica_id is not None and principal.incarnation is not None
    try:
        reply = await services_of(request).intake.report(principal.replica_id, principal.incarnation, given)
    except (Stale, Unknown) as refusal:
        raise _fenced(refusal) from None
    return Response(reply.model_dump_json(), media_type=JSON)


@agents.get(
    "/{replica_id}/desired",
    response_model=Desired,
    summary="What a replica should do; held until that changes",
    responses={
        200: {
            "headers": {"ETag": {"schema": {"type": "string"}, "description": "The desired state's version"}}
        },
        304: {"description": "Nothing changed while the request was held"},
        **responses(404, 409),
    },
    openapi_extra={
        "parameters": [
            _REPLICA_ID,
            _header(
                "If-None-Match", "The version the replica has; the answer is held while it stays.", '"0f3a"'
            ),
            _header("Prefer", "How many seconds to hold the request (RFC 7240), at most 30.", "wait=20"),
        ]
    },
)
async def desired(request: Request) -> Response:
    """With `If-None-Match` and `Prefer: wait=20` the answer comes when it differs, or 304 after that time."""
    principal = principal_of(request)
    assert principal.replica_id is not None and principal.incarnation is not None
    known = request.headers.get("if-none-match")
    wait = _WAIT.search(request.headers.get("prefer", ""))
    try:
        found = await services_of(request).intake.desired(
            principal.replica_id,
            principal.incarnation,
            known.removeprefix("W/").strip('"') if known is not None else None,
            min(float(wait[1]), LONGEST_WAIT_S) if wait else 0.0,
        )
    except (Stale, Unknown) as refusal:
        raise _fenced(refusal) from None
    if found is None:
        return Response(status_code=304, headers={"ETag": known or ""})
    version, raw = found
    return Response(raw, headers={"ETag": f'"{version}"'}, media_type=JSON)


@agents.post(
    "",
    status_code=201,
    response_model=Registered,
    summary="Register a replica",
    responses=responses(409, 413, 422),
    openapi_extra=body("Registration", REGISTRATION),
)
async def register(request: Request) -> Response:
    """An agent introduces its replica with the join token and gets a token of its own, bound to its incarnation."""
    given = await parsed(request, Registration)
    try:
        registered = await services_of(request).intake.register(
            given, peer_host(request), joined_with_previous=principal_of(request).role is Role.JOINER
        )
    except (Stale, Unknown) as refusal:
        raise _fenced(refusal) from None
    except Doubtful as doubt:
        raise problem(409, "SYS119", str(doubt), headers={"Retry-After": "1"}) from None
    return Response(registered.model_dump_json(), 201, media_type=JSON)


@agents.put(
    "/{replica_id}/uploads/{upload_id}",
    status_code=204,
    summary="Send a file that somebody downloads",
    responses=responses(410),
    openapi_extra={
        "parameters": [
            _REPLICA_ID,
            {
                "name": "upload_id",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "maxLength": 64},
            },
            _header(
                "X-Rankcall-Error", "Why the file cannot be sent; the body is empty then.", "no such file"
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
async def upload(request: Request) -> Response:
    """Takes the bytes from the offset that was asked for, as fast as they are read at the other end."""
    principal = principal_of(request)
    assert principal.replica_id is not None
    await services_of(request).relay.receive(
        principal.replica_id,
        request.path_params["upload_id"],
        request.stream(),
        request.headers.get("x-rankcall-error", "")[:200],
    )
    return Response(status_code=204)


@router.get("", response_model=ReplicaPage, summary="All replicas, those with a rank first")
async def replicas(services: ServicesDep) -> Response:
    page = replica_page(services.roster.views(), services.settings.nodes)
    return answer(page, veil=services.veils.base)


def _fenced(refusal: Stale | Unknown) -> ProblemError:
    if isinstance(refusal, Unknown):
        return problem(404, "SYS102", f"Replica {refusal} is not registered.")
    return problem(409, "SYS107", str(refusal))
