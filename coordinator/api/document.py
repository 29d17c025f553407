"""The OpenAPI document, made true: FastAPI's own, and what it cannot know.

Bodies that routes parse from bytes, the problems every route may answer with, and who may call it.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from coordinator.api.problems import responses
from coordinator.auth import ACCESS, Role
from coordinator.core.protocol import Registration, Report
from coordinator.core.views import PreflightRequest, Problem, ReportView, SignIn, Submission

_BODIES: tuple[type[BaseModel], ...] = (PreflightRequest, Registration, Report, SignIn, Submission)
_REF = "#/components/schemas/{model}"

_DESCRIPTION = (
    "Multi-node fine-tuning on rented GPU containers. Errors are `application/problem+json` (RFC 9457) with a "
    "`code` that `GET /api/v1/codes/{code}` explains. Lists are cursor pages: pass `next_cursor` as `cursor`."
)


def install(app: FastAPI, version: str) -> None:
    """Gives the app its document; it is made at the first request for it."""

    def document() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _document(app, version)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, version: str) -> dict[str, Any]:
    made = get_openapi(title="rankcall", version=version, description=_DESCRIPTION, routes=app.routes)
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, bodies = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_REF)
    for name, schema in bodies["$defs"].items():
        schemas.setdefault(name, schema)
    _, answered = models_json_schema(
        [(Problem, "serialization"), (ReportView, "serialization")], ref_template=_REF
    )
    for name, schema in answered["$defs"].items():
        schemas.setdefault(name, schema)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "RANKCALL_TOKEN, or a replica's own token",
        },
        "session": {"type": "apiKey", "in": "cookie", "name": "rankcall_session"},
    }
    for path, item in made["paths"].items():
        for method, operation in item.items():
            _complete(operation, ACCESS.get((method.upper(), path)))
    return made


def _complete(operation: dict[str, Any], allowed: frozenset[Role] | None) -> None:
    """Adds what the guard and the edge may answer."""
    answers: dict[str, Any] = operation["responses"]
    guarded = allowed is not None and Role.NONE not in allowed
    always = (401, 403, 429, 431) if guarded else (403, 429, 431)
    # An unknown bearer token is refused on open routes as well.
    for status, described in responses(*always, 401).items():
        answers.setdefault(str(status), described)
    if guarded:
        operation["security"] = [{"token": []}, {"session": []}]
