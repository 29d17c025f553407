"""A coordinator that lost its store: training goes on, and the job comes back from what the replicas hold."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment, deployed
from serving import TOKEN, running
from simulated_agent import Agent

from coordinator.core.protocol import Desired, HeldAttempt, JobSnapshot, Registered, Registration


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path) as made:
        yield made


def lose_store(deployment: Deployment) -> None:
    """The coordinator dies with its disk; another one starts in its place."""

    deployment.end_coordinator(signal.SIGKILL)
    shutil.rmtree(deployment.folder / "coordinator")
    deployment.start_coordinator()


def mirrored_whole(deployment: Deployment, rank: int, job_id: str, name: str) -> bool:
    return deployment.mirrored(rank, job_id, name) == deployment.stream(rank, job_id, name)


def all_here(deployment: Deployment, **wanted: Any) -> bool:
    items = deployment.client.get("/replicas").json()["items"]
    return len(items) == deployment.nodes and all(
        item["alive"] and all(item[key] == value for key, value in wanted.items()) for item in items
    )


def test_a_job_comes_back_with_every_byte_and_its_training_is_not_interrupted(deployment: Deployment) -> None:
    job_id = deployment.submit({"until": "release", "steps": 10})
    deployment.training(job_id)
    deployment.eventually(lambda: b"waiting" in deployment.stream(0, job_id))
    before = {number: deployment.running(number) for number in (0, 1)}
    lose_store(deployment)
    deployment.eventually(lambda: all_here(deployment, job_id=job_id))
    job = deployment.job(job_id)
    assert job["state"] == "running" and job["attempt"]["number"] == 1
    assert "SYS030" in {found["code"] for found in job["findings"]}
    assert {number: deployment.running(number) for number in (0, 1)} == before
    for number in (0, 1):
        (deployment.layout(number).work(job_id) / "release").touch()
    job = deployment.until(job_id, lambda job: job["state"] not in ("queued", "running"))
    assert job["state"] == "succeeded", (job["findings"], deployment.everything_said())
    assert job["attempt"]["number"] == 1 and job["artifacts"]
    for rank in (0, 1):
        for name in ("train.log", "progress.0", "prepare.log"):
            deployment.eventually(lambda: mirrored_whole(deployment, rank, job_id, name))  # noqa: B023


@pytest.mark.long
def test_without_a_snapshot_training_goes_on_and_it_is_said_that_nobody_knows_it(
    deployment: Deployment,
) -> None:
    job_id = deployment.submit({"until": "release"})
    deployment.training(job_id)
    before = {number: deployment.running(number) for number in (0, 1)}
    for number in (0, 1):
        deployment.layout(number).attempt(job_id, 1).snapshot.unlink()
    lose_store(deployment)
    deployment.eventually(lambda: all_here(deployment, role="ending"))
    deployment.eventually(lambda: "of which this coordinator knows nothing" in deployment.log("agent-0"))
    # Another restart, now with a store that has never heard of it, and an agent that is started anew.

    deployment.end_coordinator(signal.SIGKILL)
    deployment.end_agent(1, signal.SIGKILL)
    deployment.start_coordinator()
    deployment.start_agent(1)
    deployment.eventually(lambda: all_here(deployment, role="ending"))
    assert {number: deployment.running(number) for number in (0, 1)} == before
    for number in (0, 1):
        (deployment.layout(number).work(job_id) / "release").touch()
    deployment.eventually(lambda: not deployment.running(0) and not deployment.running(1))
    assert b"the end" in deployment.stream(0, job_id)
    # Free again, and good for new work.
    deployment.eventually(lambda: all_here(deployment, role="spare"), within_s=60)


HELD = "0badcafe-1"


def held(replica_id: str, **changes: Any) -> HeldAttempt:
    """A snapshot as a replica would bring it, but for `changes`."""
    attempt = {
        "id": HELD, "job_id": "0badcafe", "number": 1, "created_at": 1.0,
        "seats": [{"replica_id": replica_id, "rank": 0, "address": "10.0.0.1", "interface": "eth0"}],
        "stages": [{"stage": "train", "state": "running", "started_at": 2.0}],
        **changes,
    }  # fmt: skip
    job = {
        "id": "0badcafe", "name": "a job", "nodes": 1, "created_at": 1.0, "kind": "train",
        "submission": {"config": "base_model: x\n", "nodes": 1, "gpus_per_node": 0},
    }  # fmt: skip
    return HeldAttempt(attempt_id=HELD, snapshot=JobSnapshot.model_validate({"job": job, "attempt": attempt}))


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "0badcafe-2"},
        {"job_id": "another0"},
        {"seats": [{"replica_id": "r-9999999999", "rank": 0}]},
        {"state": "ended"},
        {"stages": []},
        {"created_at": "yesterday"},
        {"seats": [{"replica_id": "r-0000000000", "rank": 0}]},  # nothing can be rendered without its address
    ],
    ids=str,
)
def test_a_snapshot_that_is_not_of_what_the_replica_holds_makes_no_job(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    with running(tmp_path) as coordinator, coordinator.client() as client:
        agent = Agent(coordinator.url, 0, TOKEN)
        one = held(agent.replica_id, **changes)
        assert register(client, agent.replica_id, one).unknown == (HELD,)
        assert client.get("/api/v1/jobs").json()["items"] == []
        agent.end()


def test_a_snapshot_is_believed_only_from_who_has_the_join_token_in_force(tmp_path: Path) -> None:
    previous = "the-token-before-the-present-one"
    with running(tmp_path, previous_token=previous) as coordinator:
        with coordinator.client(previous) as stranger:
            assert register(stranger, "r-0000000000", held("r-0000000000")).unknown == (HELD,)
        with coordinator.client() as client:
            assert client.get("/api/v1/jobs").json()["items"] == []
            desired = register(client, "r-0000000000", held("r-0000000000"))
            assert desired.unknown == () and desired.attempt is not None
            assert [job["id"] for job in client.get("/api/v1/jobs").json()["items"]] == ["0badcafe"]


def register(client: Any, replica_id: str, one: HeldAttempt) -> Desired:
    """What a replica that registers with this should do."""
    registration = Registration(replica_id=replica_id, fingerprint="f", incarnation=1, held=(one,))
    answer = client.post("/api/v1/replicas", content=registration.model_dump_json())
    registered = Registered.model_validate_json(answer.raise_for_status().content)
    told = client.get(
        f"/api/v1/replicas/{replica_id}/desired", headers={"Authorization": f"Bearer {registered.token}"}
    )
    assert json.loads(told.content)["version"]
    return Desired.model_validate_json(told.content)
