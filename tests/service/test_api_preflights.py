"""Preflights over HTTP: the handshake without a job, its grid of links, and the same grid for a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from least import CONFIG
from serving import TOKEN, VIEWER_TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.core.protocol import LinkResult, Stage, Task, TaskResult, TcpResult


class BadLink(Agent):
    """A replica whose packets to one peer are lost."""

    lost: str = ""

    def _result(self, task: Task) -> TaskResult:
        result = super()._result(task)
        if not isinstance(result, TcpResult):
            return result
        return result.model_copy(update={"links": tuple(map(self._broken, result.links))})

    def _broken(self, link: LinkResult) -> LinkResult:
        if link.replica_id != self.lost:
            return link
        return LinkResult(
            replica_id=link.replica_id,
            address=link.address,
            ok=False,
            fault="timed_out",
            error="no answer to the connect within 5.0 s",
            tries=2,
        )


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path, nodes=3) as served:
        yield served


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[httpx.Client]:
    with coordinator.client() as client:
        yield client


@pytest.fixture
def agents(coordinator: Coordinator) -> Iterator[list[BadLink]]:
    three = [BadLink(coordinator.url, number, TOKEN) for number in range(3)]
    yield three
    for agent in three:
        agent.end()


def until(client: httpx.Client, path: str, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        view: dict[str, Any] = client.get(path).json()
        if good(view):
            return view
        time.sleep(0.05)
    raise AssertionError(f"{path} stayed {view['state']}/{view['stage']}: {view['verdict']}")


def ended(client: httpx.Client, path: str) -> dict[str, Any]:
    return until(client, path, lambda view: view["state"] in ("succeeded", "failed", "cancelled"))


def test_a_preflight_proves_every_link_and_leaves_the_replicas_free(
    client: httpx.Client, agents: list[BadLink]
) -> None:
    for agent in agents:
        agent.live()
    answer = client.post("/api/v1/preflights", json={})
    assert answer.status_code == 201
    path = answer.headers["location"]
    assert path == f"/api/v1/preflights/{answer.json()['id']}"
    view = ended(client, path)
    assert (view["kind"], view["state"], view["nodes"]) == ("preflight", "succeeded", 3)
    assert view["verdict"] == "The handshake passed."
    stages = [(stage["stage"], stage["state"]) for stage in view["attempt"]["stages"]]
    assert stages == [(name, "passed") for name in ("gather", "match", "tcp", "collective")]
    grid = view["grid"]
    assert {(link["source"], link["target"]) for link in grid["links"]} == {
        (one, other) for one in range(3) for other in range(3) if one != other
    }
    assert all(link["state"] == "ok" and link["rtt_s"] for link in grid["links"])
    assert [(end["address"], end["interface"]) for end in grid["replicas"]] == [
        (f"10.0.0.{number}", "eth0") for number in (1, 2, 3)
    ]
    assert grid["rounds"] == [{"number": 1, "kind": "all", "groups": [{"ranks": [0, 1, 2], "passed": True}]}]

    def all_free() -> bool:
        return all(one["role"] == "spare" for one in client.get("/api/v1/replicas").json()["items"])

    end = time.monotonic() + 10
    while not all_free() and time.monotonic() < end:
        time.sleep(0.05)
    assert all_free()


def test_a_bad_link_fails_it_and_stands_first_among_the_worst(
    client: httpx.Client, agents: list[BadLink]
) -> None:
    agents[1].lost = agents[2].replica_id
    for agent in agents:
        agent.live()
    path = client.post("/api/v1/preflights", json={"nodes": 3}).headers["location"]
    view = ended(client, path)
    assert (view["state"], view["stage"]) == ("failed", "tcp")
    assert [found["code"] for found in view["findings"] if found["severity"] == "error"] == ["NET005"]
    assert view["grid"]["state"] == "failed"
    (worst,) = client.get(path, params={"worst": 1}).json()["grid"]["links"]
    assert (worst["source"], worst["target"], worst["state"], worst["fault"]) == (1, 2, "failed", "timed_out")
    assert worst["at_fault"] is True and worst["tries"] == 2
    same = client.get(f"/api/v1/jobs/{view['id']}/links", params={"attempt": 1}).json()
    assert same == view["grid"]


def test_a_finding_that_is_allowed_does_not_stop_it(client: httpx.Client, agents: list[BadLink]) -> None:
    agents[1].lost = agents[2].replica_id
    for agent in agents:
        agent.live()
    path = client.post("/api/v1/preflights", json={"allow": ["NET005"]}).headers["location"]
    view = ended(client, path)
    assert view["state"] == "succeeded"
    assert "NET005" in [found["code"] for found in view["findings"]]


def test_too_few_replicas_are_a_deadline_that_names_how_many(client: httpx.Client) -> None:
    path = client.post("/api/v1/preflights", json={"deadlines": {"gather_s": 0.2}}).headers["location"]
    view = ended(client, path)
    assert (view["state"], view["stage"]) == ("failed", "gather")
    assert [found["code"] for found in view["findings"]] == ["SYS001"]
    assert view["grid"] is None
    assert client.get(f"/api/v1/jobs/{view['id']}/links").json()["code"] == "SYS106"


def test_it_stands_in_the_queue_and_is_cancelled_like_a_job(client: httpx.Client) -> None:
    first = client.post("/api/v1/preflights", json={"nodes": 9}).json()["id"]
    second = client.post("/api/v1/preflights", json={"nodes": 1}).json()["id"]
    listed = client.get("/api/v1/jobs").json()["items"]
    assert [(item["id"], item["kind"], item["name"]) for item in listed] == [
        (second, "preflight", "preflight"),
        (first, "preflight", "preflight"),
    ]
    until(client, f"/api/v1/preflights/{second}", lambda view: "jobs before it" in view["verdict"])
    assert client.post(f"/api/v1/jobs/{first}/cancel").status_code == 202
    assert ended(client, f"/api/v1/preflights/{first}")["state"] == "cancelled"


def test_the_same_key_and_body_are_the_same_preflight(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = client.post("/api/v1/preflights", json={"nodes": 2}, headers=headers)
    again = client.post("/api/v1/preflights", json={"nodes": 2}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = client.post("/api/v1/preflights", json={"nodes": 3}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "SYS105")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"nodes": 0}, "nodes"),
        ({"node": 2}, "node"),
        ({"deadlines": {"tcp": 3}}, "deadlines.tcp"),
        ({"allow": ["ENV999"]}, "ENV999"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    client: httpx.Client, body: dict[str, Any], says: str
) -> None:
    answer = client.post("/api/v1/preflights", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]
    assert client.get("/api/v1/jobs").json()["items"] == []


def test_a_viewer_looks_but_starts_none_and_a_job_is_no_preflight(
    coordinator: Coordinator, client: httpx.Client
) -> None:
    preflight = client.post("/api/v1/preflights", json={}).json()["id"]
    job = client.post("/api/v1/jobs", json={"config": CONFIG, "gpus_per_node": 0}).json()["id"]
    with coordinator.client(VIEWER_TOKEN) as viewer:
        assert viewer.post("/api/v1/preflights", json={}).status_code == 403
        assert viewer.get(f"/api/v1/preflights/{preflight}").json()["id"] == preflight
        assert viewer.get(f"/api/v1/preflights/{job}").status_code == 404
        assert viewer.get("/api/v1/jobs/00000000/links").status_code == 404


def test_a_trainings_links_are_there_while_it_goes_on(client: httpx.Client, agents: list[BadLink]) -> None:
    for agent in agents:
        agent.hold = frozenset({Stage.TRAIN})
        agent.live()
    job = client.post("/api/v1/jobs", json={"config": CONFIG, "gpus_per_node": 0, "nodes": 3}).json()["id"]
    until(client, f"/api/v1/jobs/{job}", lambda view: view["stage"] == "train")
    grid = client.get(f"/api/v1/jobs/{job}/links").json()
    assert grid["state"] == "passed" and len(grid["links"]) == 6
    assert client.get(f"/api/v1/jobs/{job}/links", params={"attempt": 7}).status_code == 404


def test_nothing_is_rendered_for_a_preflight(client: httpx.Client, agents: list[BadLink]) -> None:
    for agent in agents:
        agent.live()
    preflight = client.post("/api/v1/preflights", json={}).json()["id"]
    ended(client, f"/api/v1/preflights/{preflight}")
    refused = client.get(f"/api/v1/jobs/{preflight}/files")
    assert (refused.status_code, refused.json()["code"]) == (409, "SYS106")
    assert "preflight" in refused.json()["detail"]
