"""How routes answer, and what parameters they share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel
from starlette.responses import Response

from coordinator.core.redact import Redactor

JSON = "application/json"

JobId = Annotated[
    str, Path(max_length=64, description="A job's id, as `POST /jobs` answered it.", examples=["3f9c01d2"])
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most items of this page.")]
PageCursor = Annotated[
    str | None, Query(max_length=20, pattern=r"^[0-9]+$", description="`next_cursor` of the page before.")
]

_LARGEST_ID = 1 << 62


def answer(
    view: BaseModel,
    status: int = 200,
    headers: dict[str, str] | None = None,
    veil: Redactor | None = None,
) -> Response:
    """A view as JSON, encoded once. FastAPI would validate it again, which costs more than all the rest.

    Args:
        veil: masks what is secret in it.
    """
    encoded = view.model_dump_json().encode()
    return Response(encoded if veil is None else veil.mask(encoded), status, headers, JSON)


def position(cursor: str | None) -> int | None:
    """The id a page cursor stands for."""
    return None if cursor is None else min(int(cursor), _LARGEST_ID)


def body(model: str, example: dict[str, Any]) -> dict[str, Any]:
    """The document of a JSON body that the route parses from its bytes itself."""
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema, "example": example}}}}
