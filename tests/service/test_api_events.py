"""What is followed: events that resume without loss or doubles, logs byte for byte, readers who harm nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import ServerSentEvent, connect_sse
from least import CONFIG
from planted import Planted
from serving import TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.api.feeds import TAIL_EVENTS
from coordinator.api.sse import Cursor


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path) as served:
        yield served


@dataclass
class Reader:
    """Reads an event stream until it has what it waits for."""

    events: Iterator[ServerSentEvent]

    def take(self, count: int, of: str = "metric") -> list[ServerSentEvent]:
        taken: list[ServerSentEvent] = []
        for event in self.events:
            if event.event == of:
                taken.append(event)
                if len(taken) == count:
                    break
        return taken

    def until(self, event: str) -> ServerSentEvent:
        return next(found for found in self.events if found.event == event)


@contextmanager
def reading(coordinator: Coordinator, path: str, last_event_id: str | None = None) -> Iterator[Reader]:
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    with coordinator.client() as client, connect_sse(client, "GET", path, headers=headers) as source:
        yield Reader(source.iter_sse())


def steps(events: list[ServerSentEvent]) -> list[int]:
    return [json.loads(event.data)["step"] for event in events]


def test_a_new_reader_gets_everything_from_the_beginning_then_the_state(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    job.metrics(range(5))
    job.finding("odd")
    with reading(coordinator, f"/api/v1/jobs/{job.job_id}/events") as reader:
        assert json.loads(reader.until("finding").data)["message"] == "odd"
        assert steps(reader.take(5)) == [0, 1, 2, 3, 4]
        state = json.loads(reader.until("job").data)
    assert state["id"] == job.job_id and state["progress"]["step"] == 4


def test_what_happens_arrives_while_it_happens(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    with reading(coordinator, f"/api/v1/jobs/{job.job_id}/events") as reader:
        reader.until("job")
        started = time.monotonic()
        job.metrics([7])
        assert steps(reader.take(1)) == [7]
        assert time.monotonic() - started < 2
        assert json.loads(reader.until("job").data)["progress"]["step"] == 7


def test_a_reader_that_comes_back_loses_nothing_and_gets_nothing_twice(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    total, seen, findings = 600, [], []
    stop = threading.Event()

    def produce() -> None:
        for step in range(total):
            job.metrics([step])
            if step % 100 == 0:
                job.finding(str(step))
        stop.set()

    producer = threading.Thread(target=produce)
    producer.start()
    last: str | None = None
    while len(seen) < total or len(findings) < total // 100:
        with reading(coordinator, f"/api/v1/jobs/{job.job_id}/events", last) as reader:
            for count, event in enumerate(reader.events):
                before, last = last, event.id or last
                if last is not None:
                    assert Cursor.parse(last).covers(Cursor.parse(before or "0.0")), "an id went back"
                if event.event == "metric":
                    seen += steps([event])
                if event.event == "finding":
                    findings.append(json.loads(event.data)["message"])
                if count == 37 or len(seen) == total:
                    break
    producer.join()
    assert seen == list(range(total))
    assert findings == [str(step) for step in range(0, total, 100)]


def test_a_reader_that_is_far_behind_is_served_from_the_store(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    total = 3 * TAIL_EVENTS
    with reading(coordinator, f"/api/v1/jobs/{job.job_id}/events") as reader:
        reader.until("job")
        for start in range(0, total, 512):
            job.metrics(range(start, start + 512))
        time.sleep(0.5)
        assert steps(reader.take(total)) == list(range(total))


@pytest.mark.parametrize("cursor", ["x", "1", "1.2.3", "-1.0", "١.٢", "9" * 40 + ".1"])
def test_a_cursor_that_was_never_given_out_is_refused(cursor: str, coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    with coordinator.client() as client:
        refused = client.get(f"/api/v1/jobs/{job.job_id}/events", params={"cursor": cursor})
    assert refused.status_code == 422 and refused.json()["code"] == "SYS103"


def open_and_never_read(coordinator: Coordinator, path: str) -> socket.socket:
    host, port = coordinator.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    connection.sendall(request.encode())
    return connection


def test_a_reader_that_never_reads_slows_nobody_and_fills_no_memory(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    path = f"/api/v1/jobs/{job.job_id}/events"
    stuck = [open_and_never_read(coordinator, path) for _ in range(5)]
    time.sleep(0.3)
    with reading(coordinator, path) as reader:
        reader.until("job")
        for start in range(0, 8192, 256):
            started = time.monotonic()
            job.metrics(range(start, start + 256))
            assert steps(reader.take(256)) == list(range(start, start + 256))
            assert time.monotonic() - started < 5
    with coordinator.client() as client:
        figures = client.get("/metrics").text
    assert "rankcall_event_stream_readers 5.0" in figures or "rankcall_event_stream_readers 6.0" in figures
    for connection in stuck:
        connection.close()


def test_readers_who_leave_are_forgotten(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    for _ in range(5):
        with reading(coordinator, f"/api/v1/jobs/{job.job_id}/events") as reader:
            reader.until("job")
        with reading(coordinator, "/api/v1/watch") as reader:
            reader.until("overview")
        with coordinator.client() as client, client.stream("GET", f"/api/v1/jobs/{job.job_id}/logs?follow=1"):
            pass
    end = time.monotonic() + 10
    while coordinator.call(lambda: coordinator.services.broadcast.readers) and time.monotonic() < end:
        time.sleep(0.1)
    assert coordinator.call(lambda: coordinator.services.broadcast.readers) == 0
    assert coordinator.call(lambda: coordinator.services.feeds.readers) == 0


def test_the_overview_follows_jobs_and_replicas_at_most_four_times_a_second(coordinator: Coordinator) -> None:
    with reading(coordinator, "/api/v1/watch") as reader:
        first = json.loads(reader.until("overview").data)
        assert first["jobs"] == [] and first["replicas"]["message"].startswith("0 of 2")
        agent = Agent(coordinator.url, 0, TOKEN)
        agent.register().raise_for_status()
        second = json.loads(reader.until("overview").data)
        assert second["replicas"]["items"][0]["id"] == agent.replica_id
        started = time.monotonic()
        for number in range(1, 30):
            Agent(coordinator.url, number, TOKEN).register().raise_for_status()
        elapsed = time.monotonic() - started
        count, overview = 0, second
        while len(overview["replicas"]["items"]) < 30:
            overview = json.loads(reader.until("overview").data)
            count += 1
        assert count <= elapsed * 4 + 3
        agent.end()


def follow(coordinator: Coordinator, job: Planted, offset: int = 0) -> bytes:
    with coordinator.client() as client:
        return client.get(f"/api/v1/jobs/{job.job_id}/logs", params={"follow": 1, "offset": offset}).content


def test_a_followed_log_is_every_byte_until_the_attempt_has_ended(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    written = b"\x1b[31mred\x1b[0m 10%\r20%\r\xff\xfe\x00 no utf-8\n" + bytes(range(256)) * 4096
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(follow(coordinator, job)))
    reader.start()
    for start in range(0, len(written), 100_000):
        job.write(written[start : start + 100_000])
        time.sleep(0.02)
    job.end()
    job.write(b"the tail comes late")
    reader.join(30)
    assert got == [written + b"the tail comes late"]
    assert follow(coordinator, job, offset=len(written)) == b"the tail comes late"


def test_a_log_is_followed_from_before_its_job_has_an_attempt(coordinator: Coordinator) -> None:
    agents = [Agent(coordinator.url, number, TOKEN) for number in range(2)]
    with coordinator.client() as client:
        job_id = client.post("/api/v1/jobs", json={"config": CONFIG, "gpus_per_node": 0}).json()["id"]
        assert client.get(f"/api/v1/jobs/{job_id}/logs").content == b""
        assert client.get(f"/api/v1/jobs/{job_id}/logs", params={"rank": 2}).status_code == 404
        got: list[bytes] = []

        def read() -> None:
            got.append(client.get(f"/api/v1/jobs/{job_id}/logs", params={"follow": 1, "rank": 1}).content)

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.3)
        for agent in agents:
            agent.live()
        reader.join(60)
    for agent in agents:
        agent.end()
    assert got == [b"rank 1 trained\n"]


def test_open_streams_do_not_keep_the_coordinator_from_stopping(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        job = Planted(coordinator)
        paths = (
            "/api/v1/watch",
            f"/api/v1/jobs/{job.job_id}/events",
            f"/api/v1/jobs/{job.job_id}/logs?follow=1",
        )
        clients: list[tuple[httpx.Client, Any]] = []
        for path in paths:
            client = coordinator.client()
            stream = client.stream("GET", path)
            stream.__enter__()
            clients.append((client, stream))
        started = time.monotonic()
        coordinator.stop()
        assert time.monotonic() - started < 2.5
        for client, stream in clients:
            stream.__exit__(None, None, None)
            client.close()


def test_a_reader_of_a_store_that_is_lost_gets_everything_of_the_new_one(coordinator: Coordinator) -> None:
    job = Planted(coordinator)
    job.metrics(range(3))
    job.finding("odd")
    with reading(coordinator, f"/api/v1/jobs/{job.job_id}/events", "5000.900000") as reader:
        assert json.loads(reader.until("finding").data)["message"] == "odd"
        assert steps(reader.take(3)) == [0, 1, 2]
        job.metrics(range(3, 5))
        assert steps(reader.take(2)) == [3, 4]
