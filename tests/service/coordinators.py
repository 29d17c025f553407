"""Coordinator processes on one database, and a training whose replicas write without end: for tests of takeovers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from least import CONFIG
from serving import TOKEN
from simulated_agent import Agent, progress_of
from test_api_process import environment

from coordinator.core.protocol import Append, Facts, ProgressRecord, Stage

PATIENCE_S = 40.0
# From the death of the active process to the first answer of another.
TAKEOVER_S = 10.0


@dataclass
class Process:
    """One `python -m coordinator`. Use `Fleet.start`."""

    popen: subprocess.Popen[bytes]
    url: str
    log: Path

    def role(self) -> str:
        try:
            return str(httpx.get(f"{self.url}/healthz", timeout=2, trust_env=False).json()["role"])
        except httpx.HTTPError:
            return ""

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=30,
            trust_env=False,
        )

    def end(self, how: signal.Signals) -> None:
        self.popen.send_signal(how)
        self.popen.wait(PATIENCE_S)


@dataclass
class Fleet:
    """Coordinator processes; what is left of them is killed at the end."""

    folder: Path
    processes: list[Process] = field(default_factory=list)

    def start(self, database_url: str) -> Process:
        number = len(self.processes)
        log = self.folder / f"coordinator-{number}.log"
        settings = {"TOKEN": TOKEN, "HOST": "127.0.0.1", "DATABASE_URL": database_url, "NODES": "2"}
        with log.open("wb") as out:
            popen = subprocess.Popen(
                [sys.executable, "-m", "coordinator"],
                env=environment(self.folder / f"state-{number}", **settings),
                stderr=out,
            )
        started = Process(popen, "", log)
        self.processes.append(started)
        eventually(lambda: '"serving"' in log.read_text() or popen.poll() is not None, log.read_text)
        assert popen.poll() is None, log.read_text()
        said = [json.loads(line) for line in log.read_text().splitlines()]
        port = next(line["port"] for line in said if line["event"] == "serving")
        started.url = f"http://127.0.0.1:{port}"
        return started

    def said(self) -> str:
        return "\n".join(f"== {one.log.name}\n{one.log.read_text()[-4000:]}" for one in self.processes)


@contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(folder)
    try:
        yield fleet
    finally:
        for one in fleet.processes:
            one.popen.kill()
            one.popen.wait(PATIENCE_S)


def eventually(
    what: Callable[[], object], said: Callable[[], str] = str, within_s: float = PATIENCE_S
) -> None:
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end, f"it never came true\n{said()}"
        time.sleep(0.05)


class Writer:
    """A replica that writes a log and its figures without end, and says everything again until it is acknowledged,
    to whichever coordinator answers."""

    def __init__(self, agent: Agent, attempt_id: str, urls: list[str]) -> None:
        self.agent, self.attempt_id = agent, attempt_id
        self.log = self.progress = b""
        self.steps = 0
        self.urls = urls
        self.sizes = {"train.log": 0, "progress.0": 0}
        self._acknowledged_s: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Until the last byte is acknowledged."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def acknowledged_since(self, then_s: float) -> bool:
        return any(at_s > then_s for at_s in self._acknowledged_s[-3:])

    def _write(self) -> None:
        with httpx.Client(timeout=3, trust_env=False) as client:
            while not self._stop.is_set() or self.sizes["progress.0"] < len(self.progress):
                if not self._stop.is_set():
                    self.steps += 1
                    self.log += b"rank %d step %d\n" % (self.agent.number, self.steps)
                    record = ProgressRecord(
                        type="log", at=1.0, rank=self.agent.number, step=self.steps, loss=1.0
                    )
                    self.progress += record.model_dump_json(exclude_none=True).encode() + b"\n"
                try:
                    self._say(client)
                except (httpx.HTTPError, KeyError):
                    self.urls = [*self.urls[1:], self.urls[0]]
                    time.sleep(0.1)

    def _say(self, client: httpx.Client) -> None:
        whole = {"train.log": self.log, "progress.0": self.progress}
        appends = [
            Append(attempt_id=self.attempt_id, stream=name, offset=size, data=whole[name][size:])
            for name, size in self.sizes.items()
        ]
        report = {
            "incarnation": 1,
            "holding": [self.attempt_id],
            "attempt_id": self.attempt_id,
            "tasks": [one.model_dump(mode="json") for one in self.agent.tasks.values()],
            "appends": [one.model_dump(mode="json") for one in appends],
        }
        answer = client.post(
            f"{self.urls[0]}/api/v1/replicas/{self.agent.replica_id}/report",
            json=report,
            headers={"Authorization": f"Bearer {self.agent.token}"},
        )
        for size in answer.raise_for_status().json()["acknowledged"]:
            self.sizes[size["stream"]] = size["size_bytes"]
        self._acknowledged_s.append(time.monotonic())


class Training:
    """A job whose two replicas train, and go on writing, until `finish`."""

    def __init__(self, fleet: Fleet, asked: Process, urls: list[str]) -> None:
        self.fleet, self.urls = fleet, urls
        self.agents = [Agent(asked.url, number, TOKEN) for number in range(2)]
        for agent in self.agents:
            agent.hold = frozenset({Stage.TRAIN})
            agent.register().raise_for_status()
            agent.report(facts=Facts(packages={"torch": "2.13.0"}, python="3.11", torch_ready=True))
        with asked.client() as client:
            made = client.post("/jobs", json={"config": CONFIG, "gpus_per_node": 0})
            self.job_id = str(made.raise_for_status().json()["id"])
        self.until(lambda job: job["stage"] == "train", asked)
        self.writers = [Writer(agent, f"{self.job_id}-1", urls) for agent in self.agents]

    def until(self, good: Callable[[dict[str, Any]], bool], asked: Process) -> dict[str, Any]:
        job: dict[str, Any] = {}

        def look() -> bool:
            for agent in self.agents:
                if (desired := agent.desired()) is not None:
                    agent.converge(desired)
                agent.report().raise_for_status()
            with asked.client() as client:
                job.update(client.get(f"/jobs/{self.job_id}").raise_for_status().json())
            return good(job)

        eventually(look, self.fleet.said)
        return job

    def ask(self, *urls: str) -> None:
        """The replicas speak to these from now on."""
        for writer in self.writers:
            writer.urls = [*urls]

    def acknowledged(self, since_s: Callable[[], float], within_s: float = PATIENCE_S) -> None:
        """Wait until something of every replica's was acknowledged after the moment `since_s` names."""
        eventually(
            lambda: all(writer.acknowledged_since(since_s()) for writer in self.writers),
            self.fleet.said,
            within_s,
        )

    def ended_well(self, asked: Process, checked: Process) -> None:
        """Let the training end: it has succeeded at the first attempt, and all it wrote is there."""
        job = self.finish(asked)
        assert (job["state"], job["attempt"]["number"]) == ("succeeded", 1), (
            job["findings"],
            self.fleet.said(),
        )
        self.check(checked)

    def finish(self, asked: Process) -> dict[str, Any]:
        """Let the training end, and return the job when it has."""
        for writer in self.writers:
            writer.end()
        for agent, writer in zip(self.agents, self.writers, strict=True):
            agent.client.base_url = f"{asked.url}/api/v1"
            agent.sizes = dict(writer.sizes)
            assert agent.plan is not None
            for record in progress_of(agent.plan):
                agent.append("progress.0", record.model_dump_json(exclude_none=True).encode() + b"\n")
            agent.hold = frozenset()
            agent.version = None  # look again at what it has been told already
        return self.until(lambda job: job["state"] not in ("queued", "running"), asked)

    def check(self, asked: Process) -> None:
        """Every byte and every figure is there, once, in its order."""
        with asked.client() as client:
            for rank, writer in enumerate(self.writers):
                for name, written in (("train.log", writer.log), ("progress.0", writer.progress)):
                    parameters: dict[str, Any] = {"rank": rank, "stream": name, "limit": 1 << 24}
                    kept = client.get(f"/jobs/{self.job_id}/logs", params=parameters).content
                    assert kept[: len(written)] == written, (rank, name)
                found = client.get(f"/jobs/{self.job_id}/metrics", params={"rank": rank, "limit": 1000})
                steps = [item["step"] for item in found.json()["items"] if item["values"].get("loss") == 1.0]
                assert [step for step in steps if step is not None][: writer.steps] == list(
                    range(1, writer.steps + 1)
                )


def two(fleet: Fleet, url: str, other_url: str = "") -> tuple[Process, Process]:
    """The active process, and one that stands by."""
    active, standby = fleet.start(url), fleet.start(other_url or url)
    assert (active.role(), standby.role()) == ("active", "standby")
    return active, standby
