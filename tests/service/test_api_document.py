"""The OpenAPI document is true: what it does not mention does not happen, whatever is sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import MANY, TOKEN, VIEWER_TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.app import create_app
from coordinator.auth import ACCESS
from coordinator.settings import Settings

# Whether a submission is good is for the checks to say, so two checks of schemathesis have no place here:
# that everything the schema admits is accepted, and that nothing else is.
CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "unsupported_method",
        "missing_required_header",
    )
)
# The overview does not end, nor does what follows a job that exists, and only the administrator makes any;
# test_api_events.py follows them.
ENDLESS = {"admin": r"/watch$|\{job_id\}/(events|logs)$"}
ALWAYS_ENDLESS = r"/watch$"
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("state"), limits=MANY) as served:
        yield served


@pytest.fixture(scope="module")
def replica_token(coordinator: Coordinator) -> str:
    # The replica of the document's examples, so that what is sent speaks for it.
    agent = Agent(coordinator.url, 123456789, TOKEN)
    agent.register().raise_for_status()
    return agent.token


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "role", [*(pytest.param(role, marks=LONG) for role in ("none", "viewer", "replica")), "admin"]
)
def test_no_request_gets_an_answer_that_the_document_does_not_have(
    role: str, coordinator: Coordinator, replica_token: str, tmp_path: Path
) -> None:
    token = {"none": None, "viewer": VIEWER_TOKEN, "replica": replica_token, "admin": TOKEN}[role]
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{coordinator.url}/openapi.json"),
        *(("-H", f"Authorization: Bearer {token}") if token else ()),
        *(
            "--checks",
            CHECKS,
            "--exclude-path-regex",
            ENDLESS.get(role, ALWAYS_ENDLESS),
            "--phases",
            "examples,coverage,fuzzing",
        ),
        *("--max-examples", "6", "--seed", "1", "--request-timeout", "10", "--no-color"),
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr


def test_every_route_of_the_api_has_a_row_in_the_table_and_is_documented() -> None:
    app = create_app(Settings())
    served = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    assert {row for row in served if row[1].startswith("/api/")} <= set(ACCESS)
    assert set(ACCESS) <= served
    documented = {(method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item}
    assert documented == set(ACCESS) - {("GET", "/openapi.json")}


def test_every_body_has_an_example_and_every_operation_says_what_it_is_for() -> None:
    for path, item in create_app(Settings()).openapi()["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                assert media != "application/json" or content["example"], (method, path)
