"""A whole deployment for tests: the real coordinator and real agents as processes, the training stood in for.

Each agent has an address (127.0.0.1, 127.0.0.2 …) and a state folder of its own, as in the demo. Everything can be
killed and started again; at the end nothing is left, which is checked.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch_at_hand
from least import CONFIG

from agent import launcher
from coordinator.core.paths import Layout

TOKEN = "join-token-of-the-tests"
PATIENCE_S = 120.0  # torch is imported by every agent, on a machine that other tests keep busy

_SUPERVISOR = """
import subprocess, sys
from coordinator.core.tied import tied
subprocess.run(tied([sys.executable, "-m", "agent"]))
"""


@dataclass
class Deployment:
    """Use `deployed`."""

    folder: Path
    nodes: int
    port: int = 0
    coordinator: subprocess.Popen[bytes] | None = None
    agents: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    coordinator_has: dict[str, str] = field(default_factory=dict)
    agents_have: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.python = torch_at_hand.interpreter(self.folder, Path(__file__).with_name("stand_in.py"))
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}/api/v1",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=30,
            trust_env=False,
            verify=False,
        )

    # --- processes

    def environment(self, state: str, **more: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
        return {
            **own,
            "RANKCALL_TOKEN": TOKEN,
            "RANKCALL_NODES": str(self.nodes),
            "RANKCALL_PORT": str(self.port),
            "RANKCALL_STATE_DIR": str(self.folder / state),
            "RANKCALL_AXOLOTL_WAIT_S": "0",
            **more,
        }

    def start_coordinator(self, *, wait: bool = True) -> None:
        environment = self.environment("coordinator", RANKCALL_HOST="127.0.0.1", **self.coordinator_has)
        self.coordinator = self._start([sys.executable, "-m", "coordinator"], "coordinator", environment)
        if wait:
            self.eventually(self.answers)

    def start_agent(self, number: int, *, supervised: bool = False, **more: str) -> subprocess.Popen[bytes]:
        """An agent; `supervised`: below a process that waits for it, to which it is tied as to `rankcall up`."""
        usual = {
            "RANKCALL_URL": f"http://127.0.0.1:{self.port}",
            "RANKCALL_ADDRESS": f"127.0.0.{number + 1}",
            "RANKCALL_PYTHON": str(self.python),
        }
        environment = self.environment(f"agent-{number}", **{**usual, **more})
        argv = [sys.executable, "-c", _SUPERVISOR] if supervised else [sys.executable, "-m", "agent"]
        self.agents[number] = self._start(argv, f"agent-{number}", environment)
        return self.agents[number]

    def _start(self, argv: list[str], name: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(argv, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def end_agent(self, number: int, how: signal.Signals = signal.SIGTERM) -> int:
        agent = self.agents.pop(number)
        agent.send_signal(how)
        return agent.wait(PATIENCE_S)

    def end_coordinator(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self.coordinator is not None
        self.coordinator.send_signal(how)
        self.coordinator.wait(PATIENCE_S)
        self.coordinator = None

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    # --- what is where

    def layout(self, number: int) -> Layout:
        return Layout((self.folder / f"agent-{number}").resolve())

    def running(self, number: int) -> set[int]:
        """Pids of all processes of attempts on a replica, shims included."""
        return {one.pid for found in launcher.marked(self.layout(number)).values() for one in found}

    def stream(self, number: int, job_id: str, name: str = "train.log", attempt: int = 1) -> bytes:
        path = self.layout(number).attempt(job_id, attempt).streams / name
        return path.read_bytes() if path.exists() else b""

    # --- users

    def submit(self, behaviour: dict[str, Any], **more: Any) -> str:
        data = base64.b64encode(json.dumps(behaviour).encode()).decode()
        answer = self.client.post(
            "/jobs",
            json={
                "config": CONFIG,
                "gpus_per_node": 0,
                "files": [{"path": "behaviour.json", "data": data}],
                **more,
            },
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/jobs/{job_id}").json()
        return found

    def mirrored(
        self,
        rank: int,
        job_id: str,
        name: str = "train.log",
        attempt: int = 1,
        limit: int = 1 << 24,
        begin: int = 0,
    ) -> bytes:
        """What the coordinator has of a stream from byte `begin` on."""
        whole = b""
        while True:
            answer = self.client.get(
                f"/jobs/{job_id}/logs",
                params={
                    "rank": rank,
                    "stream": name,
                    "attempt": attempt,
                    "offset": begin + len(whole),
                    "limit": 1 << 20,
                },
            )
            if answer.status_code != 200 or not answer.content or len(whole) >= limit:
                return whole
            whole += answer.content

    def until(self, job_id: str, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while True:
            job = self.job(job_id)
            if good(job):
                return job
            assert time.monotonic() < end, (
                f"{job['state']}/{job['stage']}: {job['verdict']}\n{self.everything_said()}"
            )
            time.sleep(0.1)

    def training(self, job_id: str) -> dict[str, Any]:
        """Wait until both ranks are past their first step."""
        self.until(job_id, lambda job: job["stage"] == "train" or job["state"] in ("failed", "succeeded"))
        for number in range(self.nodes):
            self.eventually(lambda number=number: b"step 1" in self.stream(number, job_id))
        return self.job(job_id)

    def eventually(self, what: Callable[[], object], within_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < end, f"it never came true\n{self.everything_said()}"
            time.sleep(0.1)

    def everything_said(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def answers(self) -> bool:
        try:
            return self.client.get("/replicas").status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def deployed(
    folder: Path,
    nodes: int = 2,
    *,
    agents: bool = True,
    coordinator_has: Mapping[str, str] | None = None,
    **environment: str,
) -> Iterator[Deployment]:
    """A coordinator, and as many agents as it expects; `environment` is the agents'."""
    deployment = Deployment(folder, nodes, coordinator_has=dict(coordinator_has or {}))
    try:
        deployment.start_coordinator()
        if agents:
            for number in range(nodes):
                deployment.start_agent(number, **environment)
        yield deployment
        for number in tuple(deployment.agents):
            assert deployment.end_agent(number) == 0, deployment.everything_said()
            assert deployment.running(number) == set()
    finally:
        for process in (*deployment.agents.values(), deployment.coordinator):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for number in range(nodes):
            for attempt_id in launcher.marked(deployment.layout(number)):
                launcher.end_attempt(attempt_id, deployment.layout(number))
        deployment.client.close()
