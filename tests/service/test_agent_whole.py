"""Real agents and a real coordinator, as processes: a job from end to end, and everything killed while it runs."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from deployment import Deployment, deployed

from agent import launcher

SECRET = "a-very-secret-value"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment for the tests that leave its agents as they found them."""
    with deployed(tmp_path_factory.mktemp("shared"), HF_TOKEN=SECRET) as deployment:
        yield deployment


def pids_in(log: bytes) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith(b"worker ")]


def test_a_job_runs_from_end_to_end_and_its_result_can_be_downloaded(shared: Deployment) -> None:
    job_id = shared.submit({"steps": 5})
    job = shared.until(job_id, lambda job: job["state"] not in ("queued", "running"))
    assert job["state"] == "succeeded", (job["findings"], shared.everything_said())
    for rank in (0, 1):
        shared.eventually(lambda rank=rank: shared.mirrored(rank, job_id) == shared.stream(rank, job_id))
        shared.eventually(
            lambda rank=rank: (
                shared.mirrored(rank, job_id, "progress.0") == shared.stream(rank, job_id, "progress.0")
            )
        )
    (model,) = (found for found in job["artifacts"] if found["path"] == "outputs/model.safetensors")
    content = shared.client.get(f"/jobs/{job_id}/artifacts/{model['id']}").content
    assert hashlib.sha256(content).hexdigest() == model["sha256"]
    assert content == (shared.layout(0).work(job_id) / "outputs/model.safetensors").read_bytes()
    shared.eventually(lambda: shared.running(0) == shared.running(1) == set())


def test_a_cancelled_job_leaves_no_process_and_the_end_of_its_log_arrives(shared: Deployment) -> None:
    job_id = shared.submit({"until": "never", "stubborn": True})
    shared.training(job_id)
    workers = [pid for number in (0, 1) for pid in pids_in(shared.stream(number, job_id))]
    assert len(workers) == 2
    shared.client.post(f"/jobs/{job_id}/cancel")
    shared.until(job_id, lambda job: job["state"] == "cancelled")
    shared.eventually(lambda: shared.running(0) == shared.running(1) == set())
    assert not any(psutil.pid_exists(pid) for pid in workers)
    for rank in (0, 1):
        shared.eventually(lambda rank=rank: shared.mirrored(rank, job_id) == shared.stream(rank, job_id))
        shared.eventually(lambda rank=rank: shared.layout(rank).attempt(job_id, 1).mirrored.exists())


def test_one_rank_that_fails_ends_the_others_and_says_why(shared: Deployment) -> None:
    job_id = shared.submit({"until": "release", "exit": {"0": 9}})
    shared.training(job_id)
    (shared.layout(0).work(job_id) / "release").touch()
    job = shared.until(job_id, lambda job: job["state"] == "failed")
    (found,) = (one for one in job["findings"] if one["code"] == "RUN001")
    assert found["evidence"]["exit_code"] == 9
    assert "the end" in found["evidence"]["tail"][-1]
    shared.eventually(lambda: shared.running(0) == shared.running(1) == set())


@pytest.mark.long  # what is read of a log: tests/unit/test_log_progress.py
def test_a_training_without_the_plugin_is_shown_by_its_log(shared: Deployment) -> None:
    printed = (Path(__file__).parents[1] / "unit/data/h200-zero2.rank0.log").read_text()
    job_id = shared.submit({"no_plugin": True, "print": printed, "until": "release"})
    job = shared.until(job_id, lambda job: (job["progress"] or {}).get("train_loss") == 11.38)
    assert (job["progress"]["total_steps"], job["progress"]["loss"]) == (28, 11.0)
    shared.client.post(f"/jobs/{job_id}/cancel").raise_for_status()
    shared.until(job_id, lambda job: job["state"] == "cancelled")


@pytest.mark.long
def test_training_does_not_start_on_a_port_that_somebody_took_meanwhile(shared: Deployment) -> None:
    """The port is free when it is agreed on; then a process of ours takes it before training begins."""
    job_id = shared.submit({"until": "release"})
    shared.until(job_id, lambda job: job["stage"] == "prepare")
    port = shared.until(job_id, lambda job: job["attempt"]["rendezvous_port"])["attempt"]["rendezvous_port"]
    with socket.create_server(("127.0.0.1", port)):
        job = shared.until(job_id, lambda job: job["state"] == "failed")
    (found,) = (one for one in job["findings"] if one["code"] == "RUN020")
    assert str(port) in found["message"]
    assert "python" in found["message"] and found["evidence"]["holder"]
    shared.eventually(lambda: shared.running(0) == shared.running(1) == set())


def test_a_preparation_that_says_nothing_is_ended(shared: Deployment) -> None:
    job_id = shared.submit({"silent": True}, deadlines={"prepare_idle_s": 3})
    job = shared.until(job_id, lambda job: job["state"] == "failed")
    assert "RUN021" in {found["code"] for found in job["findings"]}
    shared.eventually(lambda: shared.running(0) == shared.running(1) == set())


def test_secrets_of_the_container_do_not_reach_the_coordinator(shared: Deployment) -> None:
    job_id = shared.submit({"print": f"my token is {SECRET} indeed"})
    shared.until(job_id, lambda job: job["state"] == "succeeded")
    written = shared.stream(0, job_id)
    assert SECRET.encode() in written
    shared.eventually(lambda: len(shared.mirrored(0, job_id)) == len(written))
    assert shared.mirrored(0, job_id) == written.replace(SECRET.encode(), b"*" * len(SECRET))
    assert SECRET not in shared.everything_said()


def test_killed_agents_and_a_killed_coordinator_cost_no_step_and_no_byte(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit({"until": "release", "steps": 20})
        deployment.training(job_id)
        before = {number: pids_in(deployment.stream(number, job_id)) for number in (0, 1)}

        deployment.end_agent(1, signal.SIGKILL)
        assert deployment.running(1)
        deployment.start_agent(1)
        deployment.end_coordinator(signal.SIGKILL)
        time.sleep(1.0)
        deployment.end_agent(0, signal.SIGKILL)
        deployment.start_agent(0)
        time.sleep(1.0)
        deployment.start_coordinator()

        for number in (0, 1):
            (deployment.layout(number).work(job_id) / "release").touch()
        job = deployment.until(job_id, lambda job: job["state"] not in ("queued", "running"))
        assert job["state"] == "succeeded", (job["findings"], deployment.everything_said())
        assert job["attempt"]["number"] == 1
        for rank in (0, 1):
            assert pids_in(deployment.stream(rank, job_id)) == before[rank]
            for name in ("train.log", "progress.0"):
                deployment.eventually(
                    lambda rank=rank, name=name: (
                        deployment.mirrored(rank, job_id, name) == deployment.stream(rank, job_id, name)
                    )
                )
        metrics = deployment.client.get(f"/jobs/{job_id}/metrics", params={"limit": 500}).json()["items"]
        steps = [(one["rank"], one["step"]) for one in metrics if one["type"] == "log"]
        assert sorted(steps) == [(rank, step) for rank in (0, 1) for step in range(1, 21)]


@pytest.mark.long
def test_an_agent_that_is_asked_to_end_takes_its_training_along_and_says_so(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit({"until": "never"})
        deployment.training(job_id)
        assert deployment.end_agent(1, signal.SIGTERM) == 0
        assert deployment.running(1) == set()
        job = deployment.until(job_id, lambda job: job["state"] == "failed")
        assert job["findings"]
        deployment.eventually(lambda: deployment.running(0) == set())
        deployment.eventually(lambda: deployment.mirrored(1, job_id) == deployment.stream(1, job_id))


@pytest.mark.long
def test_a_shim_that_is_killed_fails_the_task_and_its_orphans_are_ended(shared: Deployment) -> None:
    job_id = shared.submit({"until": "never", "stubborn": True})
    shared.training(job_id)
    (shim,) = launcher.shims(shared.layout(0).attempt(job_id, 1))
    launcher.process.send(shim, signal.SIGKILL)
    job = shared.until(job_id, lambda job: job["state"] == "failed")
    assert "RUN022" in {found["code"] for found in job["findings"]}
    shared.eventually(lambda: shared.running(0) == shared.running(1) == set())


@pytest.mark.long
def test_agents_wait_for_a_coordinator_that_comes_late_without_much_ado(tmp_path: Path) -> None:
    with deployed(tmp_path, 1, agents=False) as deployment:
        deployment.end_coordinator()
        deployment.start_agent(0)
        time.sleep(6.0)
        waiting = [
            line for line in deployment.log("agent-0").splitlines() if "waiting for the coordinator" in line
        ]
        assert len(waiting) == 1
        deployment.start_coordinator()
        deployment.eventually(lambda: len(deployment.client.get("/replicas").json()["items"]) == 1)
        deployment.eventually(lambda: "the coordinator is there" in deployment.log("agent-0"))


@pytest.mark.long
def test_a_second_agent_in_the_same_state_folder_is_told_so(tmp_path: Path) -> None:
    with deployed(tmp_path, 1) as deployment:
        deployment.eventually(lambda: "registered" in deployment.log("agent-0"))
        first = deployment.agents[0]
        second = deployment.start_agent(0)
        assert second.wait(60) == 1
        assert "another agent" in deployment.log("agent-0")
        deployment.agents[0] = first


@pytest.mark.long
def test_an_agent_whose_state_went_back_in_time_registers_as_a_later_incarnation(tmp_path: Path) -> None:
    with deployed(tmp_path, 1) as deployment:
        deployment.eventually(lambda: '"event": "registered"' in deployment.log("agent-0"))
        deployment.end_agent(0)
        path = deployment.layout(0).replica_file
        first = path.read_text()
        for _ in range(2):
            deployment.start_agent(0)
            deployment.eventually(lambda: deployment.agents[0].poll() is None)
            count = deployment.log("agent-0").count('"event": "registered"')
            deployment.eventually(
                lambda count=count: deployment.log("agent-0").count('"event": "registered"') > count
            )
            deployment.end_agent(0)
        path.write_text(first)
        deployment.start_agent(0)
        deployment.eventually(
            lambda: (
                deployment.client.get("/replicas").json()["items"][0]["alive"]
                and json.loads(path.read_text())["incarnation"] >= 4
            )
        )
        assert len(deployment.client.get("/replicas").json()["items"]) == 1


def test_a_burst_of_log_lines_arrives_whole_and_leaves_the_agent_small(shared: Deployment) -> None:
    job_id = shared.submit({"until": "release", "burst_lines": 200_000})
    shared.training(job_id)
    shared.eventually(lambda: shared.stream(0, job_id).count(b"\n") > 200_000)
    shared.eventually(lambda: shared.mirrored(0, job_id, begin=20_000_000))
    for number in (0, 1):
        (shared.layout(number).work(job_id) / "release").touch()
    shared.until(job_id, lambda job: job["state"] == "succeeded")
    written = shared.stream(0, job_id)
    shared.eventually(lambda: shared.mirrored(0, job_id, begin=len(written) - 1))
    assert shared.mirrored(0, job_id, limit=1 << 25) == written
    agent = psutil.Process(shared.agents[0].pid)
    shared.eventually(lambda: agent.memory_info().rss <= 60 << 20)


@pytest.mark.long  # test_up.py has it with a process that does nothing
def test_a_supervisor_that_is_killed_takes_the_agent_along_but_not_the_training(tmp_path: Path) -> None:
    """`rankcall up` starts its agent like this; SIGKILL of it is nobody's wish to end the training."""
    with deployed(tmp_path, 1, agents=False) as deployment:
        supervisor = deployment.start_agent(0, supervised=True)
        job_id = deployment.submit({"until": "release"})
        deployment.training(job_id)
        (agent,) = psutil.Process(supervisor.pid).children()
        supervisor.kill()
        supervisor.wait()
        agent.wait(30)
        assert deployment.running(0)
        deployment.start_agent(0)
        (deployment.layout(0).work(job_id) / "release").touch()
        job = deployment.until(job_id, lambda job: job["state"] not in ("queued", "running"))
        assert job["state"] == "succeeded", (job["findings"], deployment.everything_said())
        assert len(pids_in(deployment.stream(0, job_id))) == 1
