"""What is torn in the middle is completed: the coordinator killed in each phase, replicas that die or come back meanwhile.

A real coordinator process that is killed; replicas that speak the real protocol without training (`simulated_agent.py`).
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from deployment import TOKEN, Deployment, deployed
from least import CONFIG
from simulated_agent import Agent

from coordinator.core.protocol import Stage
from coordinator.stages import GONE_IN_HANDSHAKE_S
from coordinator.stages.gather import ABSENT_S

HELD = (Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE, Stage.TRAIN, Stage.COLLECT)


def mostly_long(*stages: Stage, always: Stage) -> list[Any]:
    """All of them as parameters, but only one in the default run."""
    return [stage if stage is always else pytest.param(stage, marks=pytest.mark.long) for stage in stages]


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("torn"), 2, agents=False) as deployment:
        yield deployment


@pytest.fixture
def deployment(lasting: Deployment) -> Deployment:
    """A coordinator that knows of no replica that is here."""
    lasting.end_coordinator(signal.SIGKILL)
    shutil.rmtree(lasting.folder / "coordinator")
    lasting.start_coordinator()
    return lasting


@contextmanager
def replicas(deployment: Deployment, count: int, *hold: Stage) -> Iterator[list[Agent]]:
    """That many, which live and do all but what they hold back."""
    with ExitStack() as stack:
        made = []
        for number in range(count):
            agent = Agent(f"http://127.0.0.1:{deployment.port}", number, TOKEN)
            stack.callback(agent.end)
            agent.hold = frozenset(hold)
            agent.live()
            made.append(agent)
        yield made


def submitted(deployment: Deployment, nodes: int) -> str:
    answer = deployment.client.post("/jobs", json={"config": CONFIG, "nodes": nodes, "gpus_per_node": 0})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ended(deployment: Deployment, job_id: str) -> dict[str, Any]:
    return deployment.until(job_id, lambda job: job["state"] not in ("queued", "running"))


def in_stage(deployment: Deployment, job_id: str, stage: Stage) -> None:
    deployment.until(job_id, lambda job: job["stage"] == stage.value)


def restart(deployment: Deployment) -> None:
    deployment.end_coordinator(signal.SIGKILL)
    deployment.start_coordinator()


@pytest.mark.parametrize("stage", mostly_long(*HELD, always=Stage.COLLECTIVE), ids=str)
def test_a_coordinator_killed_in_this_stage_goes_on_with_it(deployment: Deployment, stage: Stage) -> None:
    """Half of the replicas have done their part by then, and say so to the one that comes after."""
    with replicas(deployment, 2, stage) as (first, second):
        job_id = submitted(deployment, 2)
        in_stage(deployment, job_id, stage)
        second.hold = frozenset()
        deployment.end_coordinator(signal.SIGKILL)
        first.hold = frozenset()
        deployment.start_coordinator()
        job = ended(deployment, job_id)
    assert (job["state"], job["attempts"]) == ("succeeded", 1), (job["verdict"], job["findings"])
    assert [one["state"] for one in job["attempt"]["stages"]] == ["passed"] * 7 + ["skipped"]
    for rank in (0, 1):
        assert deployment.mirrored(rank, job_id) == f"rank {rank} trained\n".encode()


@pytest.mark.parametrize("stage", mostly_long(*HELD, always=Stage.TRAIN), ids=str)
def test_a_coordinator_killed_while_it_cancels_ends_the_job_as_cancelled(
    deployment: Deployment, stage: Stage
) -> None:
    with replicas(deployment, 2, stage) as both:
        job_id = submitted(deployment, 2)
        in_stage(deployment, job_id, stage)
        deployment.client.post(f"/jobs/{job_id}/cancel").raise_for_status()
        restart(deployment)
        assert ended(deployment, job_id)["state"] == "cancelled"
        for agent in both:
            agent.hold = frozenset()
        assert ended(deployment, submitted(deployment, 2))["state"] == "succeeded", (
            "they are free for the next"
        )


def test_half_have_joined_when_the_coordinator_is_killed_and_the_others_complete_it(
    deployment: Deployment,
) -> None:
    with replicas(deployment, 2) as early:
        job_id = submitted(deployment, 4)
        deployment.until(job_id, lambda job: "waiting for 2 more" in job["verdict"])
        before = [agent.token for agent in early]
        restart(deployment)
        with ExitStack() as stack:
            for number in (2, 3):
                agent = Agent(f"http://127.0.0.1:{deployment.port}", number, TOKEN)
                stack.callback(agent.end)
                agent.live()
            job = ended(deployment, job_id)
        assert [agent.token for agent in early] == before, "who had joined did not have to do so again"
    assert (job["state"], job["attempts"]) == ("succeeded", 1), (job["verdict"], job["findings"])
    seated = [member["replica_id"] for member in job["attempt"]["members"]]
    assert sorted(seated) == [f"r-{number:010d}" for number in range(4)]


@pytest.mark.parametrize(
    "as_container", [False, pytest.param(True, marks=pytest.mark.long)], ids=["agent", "container"]
)
@pytest.mark.parametrize("stage", mostly_long(*HELD[:3], always=Stage.COLLECTIVE), ids=str)
def test_a_replica_that_restarts_in_this_stage_does_its_part_while_the_others_wait(
    deployment: Deployment, stage: Stage, as_container: bool
) -> None:
    with replicas(deployment, 2, stage) as (waiting, restarted):
        job_id = submitted(deployment, 2)
        in_stage(deployment, job_id, stage)
        waiting.hold = frozenset()
        restarted.vanish()
        restarted.hold = frozenset()
        restarted.come_back(as_container=as_container)
        job = ended(deployment, job_id)
    assert (job["state"], job["attempts"]) == ("succeeded", 1), (job["verdict"], job["findings"])


@pytest.mark.parametrize("stage", mostly_long(Stage.TCP, Stage.PREPARE, always=Stage.TCP), ids=str)
@pytest.mark.long
def test_a_coordinator_that_was_stopped_for_long_takes_nobody_for_gone(
    deployment: Deployment, stage: Stage
) -> None:
    """As a machine that is moved or suspended: what could not be heard was not silence."""
    with replicas(deployment, 2, stage) as both:
        job_id = submitted(deployment, 2)
        in_stage(deployment, job_id, stage)
        assert deployment.coordinator is not None
        deployment.coordinator.send_signal(signal.SIGSTOP)
        time.sleep(GONE_IN_HANDSHAKE_S + 3.0)
        deployment.coordinator.send_signal(signal.SIGCONT)
        for agent in both:
            agent.hold = frozenset()
        job = ended(deployment, job_id)
    assert (job["state"], job["attempts"]) == ("succeeded", 1), (job["verdict"], job["findings"])


def test_a_replica_killed_after_it_joined_is_not_counted(deployment: Deployment) -> None:
    with replicas(deployment, 2) as (living, killed):
        deployment.eventually(lambda: len(alive(deployment)) == 2)
        killed.vanish()
        deployment.eventually(lambda: len(alive(deployment)) == 1, within_s=ABSENT_S + 5)
        job_id = submitted(deployment, 2)
        deployment.until(job_id, lambda job: "1 of 2 replicas registered" in job["verdict"])
        restart(deployment)  # a coordinator that knows it from its store alone does not count it either
        deployment.eventually(lambda: alive(deployment) == [living.replica_id])
        time.sleep(1.0)
        assert deployment.job(job_id)["state"] == "queued"
        killed.come_back()
        job = ended(deployment, job_id)
    assert (job["state"], job["attempts"]) == ("succeeded", 1), (job["verdict"], job["findings"])


def alive(deployment: Deployment) -> list[str]:
    return [one["id"] for one in deployment.client.get("/replicas").json()["items"] if one["alive"]]


@pytest.mark.parametrize("ahead_s", [3 * 3600.0, pytest.param(-7 * 3600.0, marks=pytest.mark.long)])
def test_clocks_hours_apart_harm_no_job(deployment: Deployment, ahead_s: float) -> None:
    """Who failed first in spite of that: tests/unit/test_first_failure.py."""
    with replicas(deployment, 2, Stage.TRAIN) as (right, off):
        off.clock_s = ahead_s
        deployment.eventually(lambda: shown_offset(deployment, off) == pytest.approx(ahead_s, abs=5))
        job_id = submitted(deployment, 2)
        in_stage(deployment, job_id, Stage.TRAIN)
        time.sleep(2.0)
        assert deployment.job(job_id)["state"] == "running"
        right.hold = off.hold = frozenset()
        job = ended(deployment, job_id)
        assert (job["state"], job["attempts"]) == ("succeeded", 1), (job["verdict"], job["findings"])
        assert sorted(alive(deployment)) == sorted(agent.replica_id for agent in (right, off))


def shown_offset(deployment: Deployment, agent: Agent) -> float:
    found = {one["id"]: one["clock_offset_s"] for one in deployment.client.get("/replicas").json()["items"]}
    return float(found.get(agent.replica_id) or 0.0)
