"""One id, two containers: a clone gets an id of its own, a container that was restarted keeps the one it has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.core.protocol import Report

PATIENCE_S = 60.0


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path) as served:
        yield served


def pair(coordinator: Coordinator) -> tuple[Agent, Agent]:
    """The first, registered; and another container with the same id."""
    first, second = Agent(coordinator.url, 1, TOKEN), Agent(coordinator.url, 2, TOKEN)
    second.replica_id = first.replica_id
    second.incarnation = 2
    first.register().raise_for_status()
    return first, second


def test_a_clone_gets_an_id_of_its_own_as_soon_as_the_first_has_spoken(coordinator: Coordinator) -> None:
    first, second = pair(coordinator)
    for _ in range(2):
        doubted = second.register()
        assert (doubted.status_code, doubted.headers["retry-after"]) == (409, "1")
        assert doubted.json()["code"] == "SYS119"
        assert "replica-2 comes with the id of replica-1" in doubted.json()["detail"]
    first.report().raise_for_status()
    cloned = second.register()
    assert cloned.status_code == 201
    assert second.replica_id != first.replica_id
    (found,) = cloned.json()["findings"]
    assert (found["code"], found["replica"]) == ("SYS002", second.replica_id)
    first.report().raise_for_status()
    second.report().raise_for_status()
    assert second.register().json()["replica_id"] == second.replica_id, "it keeps the id it was given"
    third = Agent(coordinator.url, 3, TOKEN)
    third.replica_id = first.replica_id
    assert third.register().status_code == 409, "each newcomer is doubted anew"


def test_a_container_that_was_restarted_keeps_its_id(coordinator: Coordinator) -> None:
    """Its first pid and so its fingerprint are new; its past speaks no more."""
    first, again = pair(coordinator)
    end = time.monotonic() + PATIENCE_S
    while (answer := again.register()).status_code == 409:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert answer.status_code == 201
    assert (answer.json()["replica_id"], answer.json()["findings"]) == (first.replica_id, [])
    assert first.report().status_code == 401, "the one before is over"
    again.report().raise_for_status()


def test_an_agent_that_was_restarted_in_its_container_is_back_at_once(coordinator: Coordinator) -> None:
    first, _ = pair(coordinator)
    first.incarnation = 2
    assert first.register().status_code == 201


def test_a_container_that_said_that_it_leaves_is_gone_at_once_and_back_at_once(
    coordinator: Coordinator,
) -> None:
    first, again = pair(coordinator)
    with coordinator.client(first.token) as client:
        leaving = Report(incarnation=1, leaving=True).model_dump_json()
        client.post(f"/api/v1/replicas/{first.replica_id}/report", content=leaving).raise_for_status()
    with coordinator.client() as client:
        (view,) = client.get("/api/v1/replicas").json()["items"]
        assert (view["id"], view["alive"]) == (first.replica_id, False)
    assert again.register().json()["replica_id"] == first.replica_id
