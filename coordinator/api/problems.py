"""Every refusal leaves as `application/problem+json`: the exception handlers of the app, and their documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from coordinator.api import pages
from coordinator.core.problem import MEDIA_TYPE, ProblemError, problem
from coordinator.core.protocol import Finding

# More than this many complaints about one body help nobody, and a hostile body could have millions.
MOST_FINDINGS = 50

_WHEN: Mapping[int, str] = {
    400: "The request is not HTTP that can be understood",
    401: "No token, or an unknown one",
    403: "Known, but not allowed to do this; or sent by a browser for another site",
    404: "No such thing",
    409: "Not possible in the present state, or stale",
    410: "Nobody waits for this any more, or it is kept no longer",
    413: "The body is too large",
    416: "The range is beyond the end of the file",
    429: "Too many wrong tokens from this address, or requests without one",
    431: "The request line and headers are too large",
    422: "A parameter or the body is wrong, or the submission is refused; `findings` say why",
    503: "Not available now",
    504: "The replica did not answer in time",
}

M = TypeVar("M", bound=BaseModel)
Responses = dict[int | str, dict[str, Any]]


def responses(*statuses: int) -> Responses:
    """For a route's `responses=`: the problems it may answer with. 401 and 403 are added to guarded routes."""
    return {
        status: {
            "description": _WHEN[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def problem_response(refusal: ProblemError) -> Response:
    return Response(
        refusal.problem.model_dump_json(exclude_none=True),
        refusal.problem.status,
        refusal.headers,
        MEDIA_TYPE,
    )


def invalid(errors: Sequence[Mapping[str, Any]], where: str) -> ProblemError:
    """A 422 that names each field that is wrong. Values are not repeated: they may be secrets."""
    findings = tuple(
        Finding(
            code="SYS103",
            severity="error",
            message=str(error["msg"]),
            key=".".join(str(part) for part in error["loc"]) or None,
        )
        for error in errors[:MOST_FINDINGS]
    )
    named = "; ".join(f"{f.key or where}: {f.message}" for f in findings[:3])
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    return problem(422, "SYS103", f"{named}{more}", findings=findings)


async def parsed(request: Request, model: type[M]) -> M:
    """The body as a message, parsed once from its bytes.

    Raises:
        ProblemError: 422 naming each field that is wrong.
    """
    return parse_body(await request.body(), model)


def parse_body(raw: bytes, model: type[M]) -> M:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        raise invalid([{**dict(one), "msg": _worded(dict(one), model)} for one in errors], "body") from None


def _worded(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Pydantic's words; for a key that does not exist the keys that do."""
    if error["type"] != "extra_forbidden":
        return str(error["msg"])
    inner: object = model
    for part in error["loc"][:-1]:
        fields = inner.model_fields if isinstance(inner, type) and issubclass(inner, BaseModel) else {}
        inner = fields[part].annotation if part in fields else None
    if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
        return "there is no such key"
    return f"there is no such key; there are {', '.join(inner.model_fields)}"


def no_such(what: str, name: str) -> ProblemError:
    return problem(404, "SYS102", f"There is no {what} {name!r}.")


def install(app: FastAPI) -> None:
    """Makes all that can be raised below the middleware into problems."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return problem_response(error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(invalid(error.errors(), "request"))


async def _on_http(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, method not allowed, a body cut short."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        page = pages.missing(request)
        if page is not None:
            return page
        refusal = problem(404, "SYS102", f"There is nothing at {path}.")
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = ", ".join(_methods(request))
        refusal = problem(405, "SYS109", f"{request.method} is not possible at {path}; these are: {methods}.")
        refusal.headers["Allow"] = methods
        return problem_response(refusal)
    else:
        refusal = problem(error.status_code, "SYS103", str(error.detail))
    refusal.headers.update(error.headers or {})
    return problem_response(refusal)


def _methods(request: Request) -> list[str]:
    """All methods that the path has; Starlette names those of one route, and a path may have several."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in route.methods or ()})
