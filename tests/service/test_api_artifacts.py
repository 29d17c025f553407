"""Results through the coordinator: whole, in parts, over broken uploads, as fast as the reader reads, never wrong."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from planted import Planted
from serving import TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator import relay

CONTENT = bytes(range(256)) * 4096  # 1 MiB
PATH = "outputs/lora out/модель.safetensors"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path) as served:
        yield served


@pytest.fixture
def agent(coordinator: Coordinator) -> Iterator[Agent]:
    agent = Agent(coordinator.url, 0, TOKEN, {PATH: CONTENT})
    yield agent
    agent.end()


@pytest.fixture
def url(coordinator: Coordinator, agent: Agent) -> str:
    """The address of a collected file that the agent holds."""
    planted = Planted(coordinator)
    artifact_id = planted.artifact(PATH, CONTENT, hashlib.sha256(CONTENT).hexdigest())
    return f"/api/v1/jobs/{planted.job_id}/artifacts/{artifact_id}"


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[httpx.Client]:
    with coordinator.client() as client:
        yield client


def test_a_file_arrives_whole_with_its_size_and_hash(client: httpx.Client, agent: Agent, url: str) -> None:
    agent.live()
    whole = client.get(url)
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert whole.status_code == 200 and whole.content == CONTENT
    assert whole.headers["content-length"] == str(len(CONTENT)) and whole.headers["etag"] == f'"{digest}"'
    assert whole.headers["repr-digest"].startswith("sha-256=:")
    assert "filename*=UTF-8''%D0%BC" in whole.headers["content-disposition"]
    head = client.head(url)
    assert head.status_code == 200 and head.content == b""
    assert head.headers["content-length"] == str(len(CONTENT)) and head.headers["etag"] == f'"{digest}"'
    assert client.get(url, headers={"If-None-Match": f'"{digest}"'}).status_code == 304
    listed = client.get(url.rpartition("/")[0]).json()["items"]
    assert [(item["path"], item["sha256"], item["hostname"]) for item in listed] == [
        (PATH, digest, "replica-0")
    ]


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=1000-", 1000, len(CONTENT)),
        ("bytes=1000-1999", 1000, 2000),
        ("bytes=-16", len(CONTENT) - 16, len(CONTENT)),
        ("bytes=5-99999999", 5, len(CONTENT)),
    ],
)
def test_a_part_is_exactly_the_part(
    asked: str, start: int, stop: int, client: httpx.Client, agent: Agent, url: str
) -> None:
    agent.live()
    part = client.get(url, headers={"Range": asked})
    assert part.status_code == 206 and part.content == CONTENT[start:stop]
    assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(CONTENT)}"
    assert agent.uploads_begun[0].offset_bytes == start


def test_a_range_beyond_the_end_is_refused_and_one_not_understood_means_everything(
    client: httpx.Client, agent: Agent, url: str
) -> None:
    agent.live()
    beyond = client.get(url, headers={"Range": f"bytes={len(CONTENT)}-"})
    assert beyond.status_code == 416 and beyond.headers["content-range"] == f"bytes */{len(CONTENT)}"
    for odd in ("lines=1-2", "bytes=9-1", "bytes=-", "bytes=0-1,5-6"):
        assert client.get(url, headers={"Range": odd}).status_code == 200
    stale = client.get(url, headers={"Range": "bytes=5-", "If-Range": '"of another file"'})
    assert stale.status_code == 200 and stale.content == CONTENT


def test_an_upload_that_breaks_goes_on_where_it_broke(client: httpx.Client, agent: Agent, url: str) -> None:
    def send(request: relay.UploadRequest) -> httpx.Response | None:
        if len(agent.uploads_begun) > 2:
            return Agent.send(agent, request)
        content = CONTENT[request.offset_bytes : request.offset_bytes + 300_000]
        host, port = str(client.base_url).removeprefix("http://").rstrip("/").split(":")
        path = f"/api/v1/replicas/{agent.replica_id}/uploads/{request.upload_id}"
        with socket.create_connection((host, int(port))) as connection:
            head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {agent.token}\r\n"
            connection.sendall(f"{head}Content-Length: {len(CONTENT)}\r\n\r\n".encode() + content)
            time.sleep(0.2)
        return None

    agent.send = send  # type: ignore[method-assign,assignment]
    agent.live()
    assert client.get(url).content == CONTENT
    assert len(agent.uploads_begun) == 3
    assert [request.offset_bytes for request in agent.uploads_begun] == sorted(
        request.offset_bytes for request in agent.uploads_begun
    )
    assert agent.uploads_begun[1].offset_bytes > 0


def test_a_file_that_has_changed_since_is_never_delivered_as_if_it_were_right(
    client: httpx.Client, agent: Agent, url: str
) -> None:
    agent.files[PATH] = CONTENT[:-1] + b"!"
    agent.live()
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(url)
    told = client.get(url, headers={"Range": "bytes=1000-"})
    assert (told.status_code, told.json()["code"]) == (410, "SYS122")
    agent.files[PATH] = CONTENT
    assert client.get(url).content == CONTENT


def test_a_file_that_is_too_short_now_ends_in_an_error(client: httpx.Client, agent: Agent, url: str) -> None:
    agent.files[PATH] = b""
    agent.live()
    answer = client.get(url)
    assert answer.status_code == 504 and answer.json()["code"] == "SYS114"
    assert len(agent.uploads_begun) == relay.MOST_EMPTY_UPLOADS


def test_what_the_agent_says_of_a_file_it_cannot_send_reaches_the_user(
    client: httpx.Client, agent: Agent, url: str
) -> None:
    def send(request: relay.UploadRequest) -> httpx.Response:
        path = f"/replicas/{agent.replica_id}/uploads/{request.upload_id}"
        return agent.client.put(path, content=b"", headers={"X-Rankcall-Error": "it is not there any more"})

    agent.send = send  # type: ignore[method-assign]
    agent.live()
    answer = client.get(url)
    assert answer.status_code == 503 and "not there any more" in answer.json()["detail"]


def test_a_file_on_a_replica_that_is_not_here_is_said_at_once(client: httpx.Client, url: str) -> None:
    started = time.monotonic()
    answer = client.get(url)
    assert (
        answer.status_code == 503
        and answer.json()["code"] == "SYS114"
        and "r-0000000000" in answer.json()["detail"]
    )
    assert time.monotonic() - started < 2


def test_a_replica_that_does_not_send_costs_a_bounded_wait(
    client: httpx.Client, coordinator: Coordinator, agent: Agent, url: str
) -> None:
    coordinator.services.relay.times = relay.RelayTimes(first_byte_s=0.3)
    agent.send = lambda request: None  # type: ignore[method-assign,assignment,return-value]
    agent.live()
    answer = client.get(url)
    assert answer.status_code == 504 and answer.json()["code"] == "SYS114"


def test_a_slow_reader_slows_the_replica_and_memory_stays_bounded(
    client: httpx.Client, coordinator: Coordinator, agent: Agent
) -> None:
    big = bytes(64 << 20)
    agent.files["outputs/big.bin"] = big
    planted = Planted(coordinator)
    artifact_id = planted.artifact("outputs/big.bin", big, hashlib.sha256(big).hexdigest())
    sent = 0

    def send(request: relay.UploadRequest) -> httpx.Response:
        def pieces() -> Iterator[bytes]:
            nonlocal sent
            for start in range(request.offset_bytes, len(big), 1 << 16):
                sent = start
                yield big[start : start + (1 << 16)]

        return agent.client.put(f"/replicas/{agent.replica_id}/uploads/{request.upload_id}", content=pieces())

    agent.send = send  # type: ignore[method-assign]
    agent.live()
    with client.stream("GET", f"/api/v1/jobs/{planted.job_id}/artifacts/{artifact_id}") as response:
        chunks = response.iter_raw(1 << 16)
        got = len(next(chunks))
        time.sleep(1.5)
        # What is on its way lies in socket buffers (a few MiB on loopback), not in the coordinator.
        assert sent < 24 << 20, "the replica ran ahead of a reader that has stopped"
        with coordinator.client() as other:
            assert other.get("/healthz").status_code == 200
        got += sum(map(len, chunks))
    assert got == len(big)


def test_a_download_that_is_given_up_ends_the_upload(
    client: httpx.Client, coordinator: Coordinator, agent: Agent
) -> None:
    big = bytes(64 << 20)
    agent.files["outputs/big.bin"] = big
    planted = Planted(coordinator)
    artifact_id = planted.artifact("outputs/big.bin", big, hashlib.sha256(big).hexdigest())
    statuses: list[int] = []
    done = threading.Event()

    def send(request: relay.UploadRequest) -> None:
        try:
            statuses.append(Agent.send(agent, request).status_code)
        except httpx.HTTPError:
            statuses.append(0)
        done.set()

    agent.send = send  # type: ignore[method-assign,assignment]
    agent.live()
    with client.stream("GET", f"/api/v1/jobs/{planted.job_id}/artifacts/{artifact_id}") as response:
        next(response.iter_raw(1 << 16))
    assert done.wait(20) and statuses[0] in (0, 410)
    assert coordinator.call(lambda: coordinator.services.relay.waiting) == 0
    presence = coordinator.services.roster.get(agent.replica_id)
    assert presence is not None and presence.uploads == {}


def test_an_upload_nobody_waits_for_is_gone(coordinator: Coordinator, agent: Agent) -> None:
    agent.register().raise_for_status()
    path = f"/replicas/{agent.replica_id}/uploads/unknown"
    refused = agent.client.put(path, content=b"bytes")
    assert refused.status_code == 410 and refused.json()["code"] == "SYS116"


def test_an_empty_file_is_a_file(client: httpx.Client, coordinator: Coordinator, agent: Agent) -> None:
    planted = Planted(coordinator)
    artifact_id = planted.artifact("outputs/empty", b"", hashlib.sha256(b"").hexdigest())
    empty = client.get(f"/api/v1/jobs/{planted.job_id}/artifacts/{artifact_id}")
    assert empty.status_code == 200 and empty.content == b"" and empty.headers["content-length"] == "0"
