"""`rankcall preflight` against a real coordinator: the grid on stdout, the talk on stderr, the result as exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import Shell
from least import CONFIG
from serving import TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.core.protocol import LinkResult, Task, TaskResult, TcpResult


class Unheard(Agent):
    """Where `fails` is set, this replica reaches none of its peers."""

    fails = False

    def _result(self, task: Task) -> TaskResult:
        result = super()._result(task)
        if not self.fails or not isinstance(result, TcpResult):
            return result
        lost = (
            LinkResult(
                replica_id=link.replica_id, address=link.address, ok=False, fault="refused", error="refused"
            )
            for link in result.links
        )
        return result.model_copy(update={"links": tuple(lost)})


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path / "state") as served:
        yield served


@pytest.fixture
def shell(coordinator: Coordinator, tmp_path: Path) -> Shell:
    return Shell(tmp_path, coordinator.url)


@pytest.fixture
def agents(coordinator: Coordinator) -> Iterator[list[Unheard]]:
    pair = [Unheard(coordinator.url, number, TOKEN) for number in range(2)]
    yield pair
    for agent in pair:
        agent.end()


def test_a_healthy_preflight_prints_its_grid_and_is_good(shell: Shell, agents: list[Unheard]) -> None:
    for agent in agents:
        agent.live()
    ran = shell.run("preflight")
    assert ran.code == 0, ran.err
    for stage in ("gather", "match", "tcp", "collective"):
        assert f"✓ {stage}" in ran.err
    assert "prepare" not in ran.err and "The handshake passed." in ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["0", "replica-0", "10.0.0.1", "eth0"] in [line[:4] for line in lines]
    assert ["0", "·", "1.0", "ms"] in lines and ["1", "1.0", "ms", "·"] in lines
    assert "round 1: all at once: passed" in ran.out
    assert "\x1b" not in ran.out + ran.err


def test_json_is_one_document_and_an_id_shows_it_again(shell: Shell, agents: list[Unheard]) -> None:
    for agent in agents:
        agent.live()
    ran = shell.run("preflight", "--nodes", "2", "--json")
    view = json.loads(ran.out)
    assert (ran.code, view["kind"], view["state"]) == (0, "preflight", "succeeded")
    assert len(view["grid"]["links"]) == 2
    again = shell.run("preflight", view["id"], "--json")
    assert again.code == 0 and json.loads(again.out)["grid"] == view["grid"]


def test_a_failed_preflight_is_exit_4_and_says_which_link(shell: Shell, agents: list[Unheard]) -> None:
    agents[1].fails = True
    for agent in agents:
        agent.live()
    ran = shell.run("preflight")
    assert ran.code == 4
    assert "NET005" in ran.err and "rank 1 (replica-1" in ran.err
    assert "✗ refused" in ran.out
    assert shell.run("preflight", "--allow", "net005").code == 2
    assert shell.run("preflight", "--allow", "NET005").code == 0


def test_too_few_replicas_are_exit_124(shell: Shell) -> None:
    ran = shell.run("preflight", "--nodes", "3", "--deadline", "gather=1s")
    assert ran.code == 124
    assert "SYS001" in ran.err
    assert shell.run("preflight", "--deadline", "gather=soon").code == 2
    assert shell.run("preflight", "00000000").code == 102


def test_interrupting_it_detaches(shell: Shell) -> None:
    watching = shell.start("preflight")
    assert watching.stderr is not None
    preflight_id = watching.stderr.readline().split()[-1]
    for line in watching.stderr:
        if "waiting" in line:
            break
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=20)
    assert watching.returncode == 130
    assert f"rankcall preflight {preflight_id}" in err
    assert json.loads(shell.run("job", preflight_id, "--json").out)["state"] == "queued"


def test_a_jobs_links_are_shown_by_its_id(shell: Shell, agents: list[Unheard], tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(CONFIG)
    for agent in agents:
        agent.live()
    job_id = shell.run("submit", "config.yml", "--gpus-per-node", "0", "--watch").out.strip()
    ran = shell.run("preflight", job_id)
    assert ran.code == 0, ran.err
    assert ["0", "·", "1.0", "ms"] in [line.split() for line in ran.out.splitlines()]
