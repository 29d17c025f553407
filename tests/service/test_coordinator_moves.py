"""Several coordinator processes on one PostgreSQL database: any of them may be asked, one is active, another takes over."""

from __future__ import annotations

import asyncio
import json
import os
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
import pytest
from cable import Cable
from postgresql import Server
from serving import CONFIG, TOKEN
from simulated_agent import Agent, _progress
from sqlalchemy import Connection
from test_api_process import environment, refused

from coordinator.core.protocol import Append, Facts, ProgressRecord, Stage
from coordinator.office import SharedOffice
from coordinator.store import Fenced, Store, StoreError, queries, streams
from coordinator.tenure import TenureTimes

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


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as made:
        yield made


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
        self._urls = urls
        self._sizes = {"train.log": 0, "progress.0": 0}
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
            while not self._stop.is_set() or self._sizes["progress.0"] < len(self.progress):
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
                    self._urls = [*self._urls[1:], self._urls[0]]
                    time.sleep(0.1)

    def _say(self, client: httpx.Client) -> None:
        whole = {"train.log": self.log, "progress.0": self.progress}
        appends = [
            Append(attempt_id=self.attempt_id, stream=name, offset=size, data=whole[name][size:])
            for name, size in self._sizes.items()
        ]
        report = {
            "incarnation": 1,
            "holding": [self.attempt_id],
            "attempt_id": self.attempt_id,
            "tasks": [one.model_dump(mode="json") for one in self.agent._tasks.values()],
            "appends": [one.model_dump(mode="json") for one in appends],
        }
        answer = client.post(
            f"{self._urls[0]}/api/v1/replicas/{self.agent.replica_id}/report",
            json=report,
            headers={"Authorization": f"Bearer {self.agent.token}"},
        )
        for size in answer.raise_for_status().json()["acknowledged"]:
            self._sizes[size["stream"]] = size["size_bytes"]
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

    def finish(self, asked: Process) -> dict[str, Any]:
        """Let the training end, and return the job when it has."""
        for writer in self.writers:
            writer.end()
        for agent, writer in zip(self.agents, self.writers, strict=True):
            agent._client.base_url = f"{asked.url}/api/v1"
            agent._sizes = dict(writer._sizes)
            assert agent._plan is not None
            for record in _progress(agent._plan):
                agent.append("progress.0", record.model_dump_json(exclude_none=True).encode() + b"\n")
            agent.hold = frozenset()
            agent._version = None  # look again at what it has been told already
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


def test_the_active_coordinator_is_killed_in_mid_training_and_no_byte_is_lost_or_doubled(
    fleet: Fleet, postgresql: Server
) -> None:
    url = postgresql.database()
    active, standby = two(fleet, url)
    training = Training(fleet, standby, [active.url, standby.url])  # all of it through the one that stands by
    eventually(lambda: all(writer.steps > 20 for writer in training.writers), fleet.said)
    killed_s = time.monotonic()
    active.end(signal.SIGKILL)
    eventually(
        lambda: all(writer.acknowledged_since(killed_s + 0.5) for writer in training.writers),
        fleet.said,
        TAKEOVER_S,
    )
    assert standby.role() == "active"
    # The one that was killed is started again, and the other in turn is killed.
    back = fleet.start(url)
    assert back.role() == "standby"
    for writer in training.writers:
        writer._urls = [standby.url, back.url]
    eventually(lambda: all(writer.acknowledged_since(time.monotonic() - 1) for writer in training.writers))
    killed_s = time.monotonic()
    standby.end(signal.SIGKILL)
    eventually(
        lambda: all(writer.acknowledged_since(killed_s + 0.5) for writer in training.writers),
        fleet.said,
        TAKEOVER_S,
    )
    job = training.finish(back)
    assert (job["state"], job["attempt"]["number"]) == ("succeeded", 1), (job["findings"], fleet.said())
    training.check(back)


def test_one_that_was_frozen_stands_by_when_it_wakes_up_and_writes_nothing_of_its_own(
    fleet: Fleet, postgresql: Server
) -> None:
    active, standby = two(fleet, postgresql.database())
    training = Training(fleet, active, [active.url, standby.url])
    eventually(lambda: all(writer.steps > 5 for writer in training.writers), fleet.said)
    active.popen.send_signal(signal.SIGSTOP)
    eventually(lambda: standby.role() == "active", fleet.said, TAKEOVER_S)
    eventually(
        lambda: all(writer.acknowledged_since(time.monotonic() - 1) for writer in training.writers),
        fleet.said,
    )
    os.kill(active.popen.pid, signal.SIGCONT)
    eventually(lambda: active.role() == "standby", fleet.said)
    # It passes on now, also what is said to it by those who have not noticed anything.
    for writer in training.writers:
        writer._urls = [active.url]
    then_s = time.monotonic()
    eventually(
        lambda: all(writer.acknowledged_since(then_s + 1.0) for writer in training.writers), fleet.said
    )
    job = training.finish(active)
    assert (job["state"], job["attempt"]["number"]) == ("succeeded", 1), (job["findings"], fleet.said())
    training.check(standby)


def test_one_that_is_cut_off_from_the_database_answers_nobody_and_another_takes_over(
    fleet: Fleet, postgresql: Server
) -> None:
    url = postgresql.database()
    with Cable(postgresql.port) as cable:
        through = url.replace(f":{postgresql.port}/", f":{cable.port}/")
        active, standby = two(fleet, through, url)
        with active.client() as client:
            assert client.get("/jobs").status_code == 200
            cable.cut()
            eventually(lambda: standby.role() == "active", fleet.said, TAKEOVER_S)
            refusal = client.get("/replicas")  # which it would answer from memory
            assert refusal.status_code == 503 and refusal.json()["code"] == "SYS120"
            assert (
                httpx.get(f"{active.url}/readyz", trust_env=False, timeout=30).json()["detail"]
                == "No coordinator process is active."
            )
        with standby.client() as client:
            assert (
                client.post("/jobs", json={"config": CONFIG}).raise_for_status().json()["state"] == "queued"
            )
        cable.mend()
        eventually(lambda: active.role() == "standby", fleet.said)
        with active.client() as client:
            eventually(lambda: client.get("/jobs").status_code == 200, fleet.said)
            assert len(client.get("/jobs").json()["items"]) == 1


def test_one_that_is_told_to_end_hands_over_at_once(fleet: Fleet, postgresql: Server) -> None:
    active, standby = two(fleet, postgresql.database())
    with (
        standby.client() as client,
        client.stream("GET", "/watch") as events,
    ):  # an event stream that is passed on ends with its sender, and the browser asks again
        assert "overview" in next(text for text in events.iter_text() if "overview" in text)
        active.end(signal.SIGTERM)
        for _ in range(100):
            if standby.role() == "active":
                break
            time.sleep(0.05)
        assert standby.role() == "active", fleet.said()
    with standby.client() as client:
        assert client.get("/jobs").status_code == 200


def test_who_asked_is_known_though_another_process_passed_it_on(fleet: Fleet, postgresql: Server) -> None:
    active, standby = two(fleet, postgresql.database())
    with standby.client() as client:
        visitor = {"X-Forwarded-For": "192.0.2.9"}  # as a proxy on its machine tells it
        client.post("/jobs", json={"config": CONFIG}, headers=visitor).raise_for_status()
        answer = client.get("/events")
    submitted = next(event for event in answer.json()["items"] if event["action"] == "job.submitted")
    assert submitted["actor"] == "admin@192.0.2.9"
    assert len([name for name in answer.headers if name == "content-security-policy"]) == 1
    with httpx.Client(base_url=active.url, trust_env=False) as stranger:
        forged = {"X-Rankcall-Passed-On": "guess", "X-Forwarded-For": "192.0.2.7"}
        assert stranger.get("/api/v1/jobs", headers=forged).status_code == 401


def test_what_an_earlier_epoch_writes_is_refused_inside_its_transaction(postgresql: Server) -> None:
    url = postgresql.database()
    first, second = Store.open(url), Store.open(url)
    times = TenureTimes(stale_s=0.3, serve_s=0.2)
    ours, theirs = SharedOffice(first, "a", "http://a", times), SharedOffice(second, "b", "http://b", times)

    async def change_hands() -> None:
        assert await ours.look() and ours.here()
        await first.write(lambda c: streams.append(c, "a-1", "r-1", "s", 0, b"before"))
        assert not await theirs.look()
        found = theirs.elsewhere()
        assert found is not None and found.url == "http://a" and ours.proves(found.secret)
        with pytest.raises(Fenced):
            await second.write(lambda c: streams.append(c, "a-1", "r-1", "s", 6, b"stranger"))
        await asyncio.sleep(0.4)
        assert not ours.here()  # by its own clock, before anybody tells it
        assert await theirs.look() and theirs.here()
        await second.write(lambda c: streams.append(c, "a-1", "r-1", "s", 6, b" after"))
        with pytest.raises(Fenced, match="http://b"):
            await first.write(lambda c: streams.append(c, "a-1", "r-1", "s", 6, b" ghost"))
        await ours.keep()  # returns: it is lost
        assert not ours.here()
        assert not await ours.look()

    asyncio.run(change_hands())
    kept = first.read_now(lambda c: (streams.read(c, "a-1", "r-1", "s", 0, 99), queries.lease(c)))
    assert kept[0] == b"before after" and kept[1] is not None and kept[1].epoch == 2
    first.close()
    second.close()


def test_a_lease_is_taken_though_its_holder_was_frozen_in_the_middle_of_a_transaction(
    postgresql: Server,
) -> None:
    url = postgresql.database()
    frozen, other = Store.open(url), Store.open(url)
    inside, go_on = threading.Event(), threading.Event()

    def stand_still(c: Connection) -> None:
        streams.append(c, "a-1", "r-1", "s", 0, b"never committed")
        inside.set()
        go_on.wait(PATIENCE_S)

    writing = threading.Thread(target=lambda: refusals.append(failure_of(frozen, stand_still)))
    refusals: list[BaseException | None] = []

    async def take_over() -> float:
        times = TenureTimes(stale_s=0.1)
        assert await SharedOffice(frozen, "a", "http://a", times).look()
        theirs = SharedOffice(other, "b", "http://b", times)
        assert not await theirs.look()
        writing.start()
        inside.wait(PATIENCE_S)
        await asyncio.sleep(0.2)
        began_s = time.monotonic()
        assert await theirs.look()
        return time.monotonic() - began_s

    assert asyncio.run(take_over()) < 3.5  # before the server itself ends a transaction that stands still
    go_on.set()
    writing.join(PATIENCE_S)
    assert isinstance(refusals[0], Fenced)
    assert frozen.read_now(lambda c: streams.size(c, "a-1", "r-1", "s")) == 0
    frozen.close()
    other.close()


def failure_of(store: Store, operation: Callable[[Connection], object]) -> BaseException | None:
    try:
        store.write_now(operation)
    except StoreError as error:
        return error
    return None


def test_a_second_coordinator_on_an_sqlite_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    settings = {"TOKEN": TOKEN, "HOST": "127.0.0.1"}
    log = tmp_path / "log"
    with log.open("wb") as out:
        first = subprocess.Popen(
            [sys.executable, "-m", "coordinator"], env=environment(tmp_path, **settings), stderr=out
        )
    try:
        eventually(lambda: '"serving"' in log.read_text(), log.read_text)
        code, said = refused(tmp_path, **settings)
        assert code == 1 and len(said.splitlines()) == 1
        assert f"in use by another coordinator (pid {first.pid})" in said and "RANKCALL_DATABASE_URL" in said
        first.kill()
        first.wait(PATIENCE_S)
        with log.open("wb") as out:  # a claim ends with its process, however that ended
            first = subprocess.Popen(
                [sys.executable, "-m", "coordinator"], env=environment(tmp_path, **settings), stderr=out
            )
        eventually(lambda: '"serving"' in log.read_text(), log.read_text)
    finally:
        first.kill()
        first.wait(PATIENCE_S)
