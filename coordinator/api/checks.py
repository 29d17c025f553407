"""`POST /checks` judges a submission without queueing it; `/codes` explains what findings mean."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.answers import answer, body
from coordinator.api.examples import SUBMISSION
from coordinator.api.problems import no_such, parsed, responses
from coordinator.api.routing import Guarded
from coordinator.api.services import ServicesDep
from coordinator.core.catalogue import CODES
from coordinator.core.views import CheckVerdict, CodePage, CodeView, Submission

router = APIRouter(prefix="/api/v1", tags=["checks"], route_class=Guarded)


@router.post(
    "/checks",
    response_model=CheckVerdict,
    summary="Check a submission",
    responses=responses(413, 422),
    openapi_extra=body("Submission", SUBMISSION),
)
async def check(request: Request, services: ServicesDep) -> Response:
    """Says what `POST /jobs` would say of it, with the facts of the replicas that are here, and Axolotl where it is
    installed beside the coordinator. Nothing is kept."""
    return answer(await services.submissions.check(await parsed(request, Submission)))


@router.get("/codes", response_model=CodePage, summary="All codes that findings and problems can have")
async def codes() -> Response:
    return answer(CodePage(items=tuple(CodeView.model_validate(entry) for entry in CODES.values())))


@router.get("/codes/{code}", response_model=CodeView, summary="Explain a code", responses=responses(404, 422))
async def code(code: Annotated[str, Path(max_length=16, examples=["SYS100"])]) -> Response:
    entry = CODES.get(code.upper())
    if entry is None:
        raise no_such("code", code)
    return answer(CodeView.model_validate(entry))
