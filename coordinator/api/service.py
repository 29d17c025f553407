"""The service about itself: health, figures, the audit, and the browser's session."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator.api.answers import Limit, PageCursor, answer, body, position
from coordinator.api.problems import parsed, responses
from coordinator.api.routing import Guarded, peer_host, principal_of, turned_away
from coordinator.api.services import Services, ServicesDep
from coordinator.auth import SESSION_COOKIE, Principal
from coordinator.core.clock import now_at
from coordinator.core.problem import ProblemError, problem
from coordinator.core.views import EventPage, Health, SessionView, SignIn
from coordinator.sessions import SESSION_S
from coordinator.store import queries
from coordinator.views_of import event_view

router = APIRouter(route_class=Guarded)


def installed_version() -> str:
    """rankcall's own version; empty where it runs from a folder that was never installed."""
    try:
        return version("rankcall")
    except PackageNotFoundError:
        return ""


@router.get("/healthz", response_model=Health, tags=["service"], summary="The process answers")
async def healthz() -> Response:
    return answer(Health(version=installed_version()))


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


@router.get(
    "/readyz",
    response_model=Health,
    tags=["service"],
    summary="The store answers and the controller runs",
    responses=responses(503),
)
async def readyz(services: ServicesDep) -> Response:
    await services.store.read(lambda c: queries.jobs_page(c, limit=1))
    if services.controller_task.done():
        raise problem(503, "SYS111", "The controller has stopped.")
    return answer(Health(version=installed_version()))


@router.get(
    "/metrics",
    response_class=Response,
    tags=["service"],
    summary="Figures for Prometheus",
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}
    },
)
async def metrics(services: ServicesDep) -> Response:
    jobs = await services.store.read(queries.job_counts)
    return Response(services.meters.render(jobs), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get(
    "/api/v1/events",
    response_model=EventPage,
    tags=["service"],
    summary="Who did what, newest first",
    responses=responses(422),
)
async def events(services: ServicesDep, cursor: PageCursor = None, limit: Limit = 50) -> Response:
    before = position(cursor)
    found = await services.store.read(lambda c: queries.events_page(c, before, limit + 1))
    page = found[:limit]
    more = str(page[-1].id) if len(found) > limit else None
    view = EventPage(items=tuple(event_view(row) for row in page), next_cursor=more)
    return answer(view, veil=services.veils.base)


@router.get("/api/v1/session", response_model=SessionView, tags=["session"], summary="Who am I?")
async def session(request: Request, services: ServicesDep) -> Response:
    return answer(SessionView(role=principal_of(request).role.value, open=services.authority.open))


@router.post(
    "/api/v1/session",
    status_code=201,
    response_model=SessionView,
    tags=["session"],
    summary="Sign a browser in",
    responses={
        201: {
            "headers": {
                "Set-Cookie": {"schema": {"type": "string"}, "description": "HttpOnly, SameSite=Strict"}
            }
        },
        **responses(401, 413, 422, 429),
    },
    openapi_extra=body("SignIn", {"token": "the value of RANKCALL_TOKEN or RANKCALL_VIEWER_TOKEN"}),
)
async def sign_in(request: Request, services: ServicesDep) -> Response:
    """Turns a token into a session that scripts cannot read and other sites cannot use."""
    given = await parsed(request, SignIn)
    try:
        role, session_id = await services.authority.sign_in(given.token, peer_host(request), now_at())
    except ProblemError as refusal:
        turned_away(request, refusal, given.token)
        raise
    await _note(services, Principal(role, peer_host(request)), "session.started")
    response = answer(SessionView(role=role.value, open=services.authority.open), 201)
    response.set_cookie(
        SESSION_COOKIE,
        session_id,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=_over_tls(request),
    )
    return response


@router.delete("/api/v1/session", status_code=204, tags=["session"], summary="Sign a browser out")
async def sign_out(request: Request, services: ServicesDep) -> Response:
    session_id = request.cookies.get(SESSION_COOKIE)
    if session_id is not None and await services.authority.sign_out(session_id):
        await _note(services, principal_of(request), "session.ended")
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict", secure=_over_tls(request))
    return response


async def _note(services: Services, principal: Principal, action: str) -> None:
    await services.store.write(
        lambda c: queries.insert_event(c, at=now_at(), actor=principal.actor, action=action, detail={})
    )


def _over_tls(request: Request) -> bool:
    """Whether the browser speaks TLS, to us or to any proxy in front. Who lies here only hurts his own cookie."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
