"""Who may do what, from where: the table of routes and roles, browser sessions, hosts, origins, sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from serving import MANY, TOKEN, VIEWER_TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.api.routing import Guarded
from coordinator.auth import ACCESS, SESSION_COOKIE, Role

PREVIOUS_TOKEN = "admin-token-before-that-of-the-tests"
FILLED = {
    "job_id": "00000000",
    "preflight_id": "00000000",
    "artifact_id": "0",
    "upload_id": "0",
    "code": "SYS100",
}


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("state"), limits=MANY, previous_token=PREVIOUS_TOKEN) as served:
        yield served


@pytest.fixture(scope="module")
def stale_token(coordinator: Coordinator) -> Iterator[str]:
    """The token of an incarnation that has been replaced."""
    agent = Agent(coordinator.url, 2, TOKEN)
    agent.register().raise_for_status()
    stale = agent.token
    agent.incarnation = 2
    agent.register().raise_for_status()
    yield stale
    agent.end()


@pytest.fixture(scope="module")
def agents(coordinator: Coordinator) -> Iterator[tuple[Agent, Agent]]:
    pair = Agent(coordinator.url, 0, TOKEN), Agent(coordinator.url, 1, TOKEN)
    for agent in pair:
        agent.register().raise_for_status()
    yield pair
    for agent in pair:
        agent.end()


def ask(coordinator: Coordinator, method: str, path: str, token: str | None) -> httpx.Response:
    """Only the head of the answer: an event stream would not end."""
    with coordinator.client(token) as client, client.stream(method, path) as response:
        if "event-stream" not in response.headers.get("content-type", ""):
            response.read()
        return response


@pytest.mark.parametrize(("method", "template"), ACCESS, ids=str)
def test_every_route_admits_exactly_the_roles_of_its_row(
    method: str, template: str, coordinator: Coordinator, agents: tuple[Agent, Agent], stale_token: str
) -> None:
    mine, other = agents
    path = template.format(**FILLED, replica_id=mine.replica_id)
    speaks_for_itself = "{replica_id}" in template
    allowed = ACCESS[method, template]
    tokens = {
        Role.NONE: None,
        Role.VIEWER: VIEWER_TOKEN,
        Role.REPLICA: mine.token,
        Role.JOINER: PREVIOUS_TOKEN,
        Role.ADMIN: TOKEN,
    }
    for role, token in tokens.items():
        status = ask(coordinator, method, path, token).status_code
        if role in allowed:
            assert status not in (401, 403), f"{role} must be admitted"
        else:
            assert status == (401 if role is Role.NONE else 403), f"{role} must be refused"
    for worthless in ("a-token-of-nobody", stale_token):
        assert ask(coordinator, method, path, worthless).status_code == 401
    if speaks_for_itself and Role.REPLICA in allowed:
        assert ask(coordinator, method, path, other.token).status_code == 403


def test_the_token_of_an_earlier_incarnation_is_worth_nothing(coordinator: Coordinator) -> None:
    agent = Agent(coordinator.url, 7, TOKEN)
    agent.register().raise_for_status()
    stale = agent.token
    agent.incarnation = 2
    agent.register().raise_for_status()
    path = f"/api/v1/replicas/{agent.replica_id}/desired"
    assert ask(coordinator, "GET", path, stale).status_code == 401
    assert ask(coordinator, "GET", path, agent.token).status_code == 200
    agent.incarnation = 1
    assert agent.register().status_code == 409
    agent.end()


def test_every_refusal_is_a_problem_with_a_code_and_a_hint(coordinator: Coordinator) -> None:
    refusals = {
        401: ask(coordinator, "GET", "/api/v1/jobs", None),
        403: ask(coordinator, "POST", "/api/v1/jobs", VIEWER_TOKEN),
        404: ask(coordinator, "GET", "/api/v1/nothing/here", TOKEN),
        405: ask(coordinator, "DELETE", "/api/v1/jobs", TOKEN),
    }
    for status, response in refusals.items():
        body = response.json()
        assert response.status_code == status == body["status"]
        assert response.headers["content-type"] == "application/problem+json"
        assert body["code"].startswith("SYS") and body["hint"] and body["detail"]
    assert refusals[401].headers["www-authenticate"].startswith("Bearer")
    assert refusals[405].headers["allow"]


def test_a_browser_signs_in_with_a_cookie_that_scripts_cannot_read(coordinator: Coordinator) -> None:
    with coordinator.client(None) as browser:
        assert browser.get("/api/v1/session").json() == {"role": "none", "open": False}
        assert browser.post("/api/v1/session", json={"token": "wrong"}).status_code == 401
        signed_in = browser.post("/api/v1/session", json={"token": TOKEN})
        assert signed_in.status_code == 201 and signed_in.json()["role"] == "admin"
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
        assert browser.get("/api/v1/jobs").status_code == 200
        assert browser.get("/api/v1/session").json()["role"] == "admin"
        session_id = browser.cookies[SESSION_COOKIE]
        assert browser.delete("/api/v1/session").status_code == 204
    with coordinator.client(None, cookies={SESSION_COOKIE: session_id}) as thief:
        assert thief.get("/api/v1/jobs").status_code == 401


def test_a_viewer_stays_a_viewer_in_the_browser(coordinator: Coordinator) -> None:
    with coordinator.client(None) as browser:
        browser.post("/api/v1/session", json={"token": VIEWER_TOKEN}).raise_for_status()
        assert browser.get("/api/v1/jobs").status_code == 200
        assert browser.post("/api/v1/jobs", json={}).status_code == 403


def test_behind_tls_the_cookie_is_for_tls_only(coordinator: Coordinator) -> None:
    with coordinator.client(None, headers={"X-Forwarded-Proto": "https"}) as browser:
        assert "Secure" in browser.post("/api/v1/session", json={"token": TOKEN}).headers["set-cookie"]


@pytest.mark.parametrize(
    ("headers", "admitted"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://public.example"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "https://public.example", "X-Forwarded-Host": "public.example"}, True),
        ({"Origin": "https://public.example:8443", "Host": "public.example:8443"}, True),
        ({"Origin": "https://public.example:8443", "Host": "public.example"}, False),
    ],
)
def test_another_sites_page_changes_nothing(
    headers: dict[str, str], admitted: bool, coordinator: Coordinator
) -> None:
    with coordinator.client() as client:
        answer = client.post("/api/v1/jobs/00000000/cancel", headers=headers)
    assert answer.status_code == (404 if admitted else 403)
    assert answer.json()["code"] == ("SYS102" if admitted else "SYS113")


def test_without_a_token_only_names_of_this_machine_are_answered(tmp_path: Path) -> None:
    with running(tmp_path, token=None) as coordinator, coordinator.client(None) as client:
        assert client.get("/api/v1/jobs").status_code == 200
        for name in ("localhost", "127.0.0.9:8000", "[::1]:80"):
            assert client.get("/api/v1/jobs", headers={"Host": name}).status_code == 200
        for name in ("evil.example", "127.0.0.1.evil.example", "10.0.0.7", ""):
            refused = client.get("/api/v1/jobs", headers={"Host": name})
            assert refused.status_code == 403 and refused.json()["code"] == "SYS112"
        assert client.get("/api/v1/session").json() == {"role": "admin", "open": True}
        unknown = client.get("/api/v1/jobs", headers={"Authorization": "Bearer of-an-old-replica"})
        assert unknown.status_code == 401


def test_a_body_beyond_its_limit_is_refused_before_it_is_read(coordinator: Coordinator) -> None:
    with coordinator.client() as client:
        declared = client.post("/api/v1/session", content=b"x" * (2 << 20))
        assert declared.status_code == 413 and declared.json()["code"] == "SYS104"
        pieces = (b"x" * (1 << 16) for _ in range(40))
        chunked = client.post("/api/v1/session", content=pieces)
        assert chunked.status_code == 413
        assert client.get("/healthz").status_code == 200


def test_every_answer_forbids_scripts_frames_and_sniffing(coordinator: Coordinator) -> None:
    with coordinator.client() as client:
        for path in ("/", "/healthz", "/api/v1/jobs", "/nothing", "/api/v1/replicas/r-0123456789/desired"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
        assert client.get("/api/v1/jobs").headers["cache-control"] == "no-store"


def test_every_route_of_the_app_has_a_row_and_every_row_a_route(coordinator: Coordinator) -> None:
    """But for the page, which is a shell without data, open to everybody."""
    served = {
        (method, route.path)
        for route in coordinator.app.routes
        if isinstance(route, APIRoute) and not isinstance(route, Guarded)
        for method in route.methods or ()
    }
    assert {path for _, path in served} == {
        "/", "/jobs/{job_id}", "/sign-in", "/favicon.ico", "/static/{version}/{path:path}"
    }  # fmt: skip
    assert {method for method, _ in served} == {"GET"}
    guarded = {
        (method, route.path)
        for route in coordinator.app.routes
        if isinstance(route, Guarded)
        for method in route.methods or ()
    }
    assert guarded == set(ACCESS)
    assert all(isinstance(route, APIRoute) for route in coordinator.app.routes)


@pytest.mark.parametrize(
    ("method", "path"), [key for key in ACCESS if key[0] not in ("GET", "HEAD")], ids=str
)
def test_a_session_changes_nothing_for_another_site(method: str, path: str, coordinator: Coordinator) -> None:
    with coordinator.client(None) as browser:
        browser.post("/api/v1/session", json={"token": TOKEN}).raise_for_status()
        path = path.format(**FILLED, replica_id="r-0000000000")
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
            refused = browser.request(method, path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "SYS113")


def test_sign_ins_and_wishes_are_in_the_audit(coordinator: Coordinator) -> None:
    with coordinator.client() as client:
        client.post("/api/v1/session", json={"token": TOKEN}).raise_for_status()
        newest = client.get("/api/v1/events", params={"limit": 1}).json()["items"][0]
    assert newest["action"] == "session.started" and newest["actor"] == "admin@127.0.0.1"
    assert TOKEN not in str(newest)


def test_a_number_that_no_database_holds_is_refused_not_a_fault(coordinator: Coordinator) -> None:
    with coordinator.client() as client:
        body = {"replica_id": "r-large", "fingerprint": "f", "incarnation": 1 << 63}
        refused = client.post("/api/v1/replicas", json=body)
    assert refused.status_code == 422 and refused.json()["findings"][0]["key"] == "incarnation"
