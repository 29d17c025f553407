"""`/jobs/{id}/artifacts`: the files of a result, and their download through the coordinator.

The bytes come from the replica that trained (`relay.py`); nothing is kept here. A download resumes with
`Range` and proves itself with the SHA-256 in `ETag` and `Repr-Digest`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.answers import JobId, answer
from coordinator.api.problems import no_such, responses
from coordinator.api.routing import Guarded
from coordinator.api.services import Services, ServicesDep
from coordinator.api.sse import Streamed
from coordinator.core.problem import problem
from coordinator.core.views import ArtifactPage
from coordinator.relay import Source
from coordinator.store import queries, rows
from coordinator.views_of import artifact_view, attempt_of

router = APIRouter(prefix="/api/v1/jobs/{job_id}/artifacts", tags=["artifacts"], route_class=Guarded)

BINARY = "application/octet-stream"
ArtifactId = Annotated[str, Path(max_length=64, description="An artifact's id, from the list.")]
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

_HEADERS = {
    "Content-Length": {"schema": {"type": "integer"}, "description": "Bytes that follow"},
    "ETag": {"schema": {"type": "string"}, "description": "The file's SHA-256 in hexadecimal, quoted"},
    "Repr-Digest": {"schema": {"type": "string"}, "description": "The whole file's SHA-256 (RFC 9530)"},
    "Accept-Ranges": {"schema": {"type": "string"}, "description": "`bytes`"},
}
_CONTENT = {BINARY: {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "", response_model=ArtifactPage, summary="The files of a job's result", responses=responses(404, 422)
)
async def artifacts(job_id: JobId, services: ServicesDep) -> Response:
    def look(c: Connection) -> tuple[list[rows.Artifact], list[rows.Attempt]] | None:
        if queries.job(c, job_id) is None:
            return None
        return queries.artifacts_of(c, job_id), queries.attempts_of(c, job_id)

    found = await services.store.read(look)
    if found is None:
        raise no_such("job", job_id)
    listed, attempts = found
    names = {seat.replica_id: seat.hostname for row in attempts for seat in attempt_of(row).seats}
    return answer(
        ArtifactPage(items=tuple(artifact_view(row, names.get(row.replica_id, "")) for row in listed))
    )


@router.get(
    "/{artifact_id}",
    response_class=Response,
    summary="Download a file",
    responses={
        200: {"description": "The file", "content": _CONTENT, "headers": _HEADERS},
        206: {"description": "The part that Range asked for", "content": _CONTENT, "headers": _HEADERS},
        304: {"description": "The file is the one named by If-None-Match"},
        **responses(404, 410, 416, 422, 503, 504),
    },
)
async def download(
    job_id: JobId, artifact_id: ArtifactId, request: Request, services: ServicesDep
) -> Response:
    """Streams the file from the replica that holds it. `Range: bytes=N-` resumes a download that broke."""
    source = await _source(services, job_id, artifact_id)
    if request.headers.get("if-none-match") == f'"{source.sha256}"':
        return Response(status_code=304, headers=_described(source, 0))
    start, stop, partial = _range(request.headers, source)
    headers = _described(source, stop - start)
    if partial:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{source.size_bytes}"
    chunks = await services.relay.open(source, start, stop)
    return Streamed(chunks, 206 if partial else 200, headers, BINARY)


@router.head(
    "/{artifact_id}",
    response_class=Response,
    summary="Size and hash of a file",
    responses={
        200: {"description": "As for GET, without the bytes", "headers": _HEADERS},
        **responses(404, 422),
    },
)
async def described(job_id: JobId, artifact_id: ArtifactId, services: ServicesDep) -> Response:
    source = await _source(services, job_id, artifact_id)
    return Response(status_code=200, headers=_described(source, source.size_bytes), media_type=BINARY)


async def _source(services: Services, job_id: str, artifact_id: str) -> Source:
    row = await services.store.read(lambda c: queries.artifact(c, artifact_id))
    if row is None or row.job_id != job_id:
        raise no_such("artifact", artifact_id)
    return Source(row.id, row.job_id, row.replica_id, row.path, row.size_bytes, row.sha256)


def _described(source: Source, length: int) -> dict[str, str]:
    digest = base64.b64encode(bytes.fromhex(source.sha256)).decode()
    name = source.path.rpartition("/")[2]
    return {
        "Content-Length": str(length),
        "ETag": f'"{source.sha256}"',
        "Repr-Digest": f"sha-256=:{digest}:",
        "Digest": f"sha-256={digest}",
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
    }


def _range(headers: Mapping[str, str], source: Source) -> tuple[int, int, bool]:
    """(start, stop, whether it is a part). A range of another kind, or for another version, means all of it.

    Raises:
        ProblemError: 416 where it begins beyond the end.
    """
    size = source.size_bytes
    whole = (0, size, False)
    asked = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    if asked is None or headers.get("if-range", f'"{source.sha256}"') != f'"{source.sha256}"':
        return whole
    first, last = asked.groups()
    if first:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return whole
    elif last:
        start, stop = max(0, size - int(last)), size
    else:
        return whole
    if start >= stop:
        detail = f"{source.path} has {size} bytes; the range begins at {start}."
        raise problem(416, "SYS115", detail, headers={"Content-Range": f"bytes */{size}"})
    return start, stop, True
