"""The page and API through another replica: bytes as they come, both ways, with the visitor's own credentials."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from serving import TOKEN, running

from agent.proxy import Proxy, listen
from coordinator.core.whereabouts import Undecided

App = Callable[[Any, Any, Any], Awaitable[None]]


@contextmanager
def served(app: App) -> Iterator[str]:
    """An ASGI app behind a real server on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", ws="none", lifespan="on", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


class Origin:
    """A service with every kind of answer, which notes what reached it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[bytes, bytes], bytes]] = []
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        path = scope["raw_path"].decode() + (
            "?" + scope["query_string"].decode() if scope["query_string"] else ""
        )
        if path == "/ticks":
            await self._ticks(receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.seen.append((scope["method"], path, dict(scope["headers"]), body))
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"set-cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
            (b"content-length", str(len(body)).encode()),
            (b"content-encoding", b"gzip"),
        ]
        await send({"type": "http.response.start", "status": 418, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _ticks(self, receive: Any, send: Any) -> None:
        """An event each 0.3 s until the visitor leaves."""
        gone = asyncio.ensure_future(receive())
        await gone
        gone = asyncio.ensure_future(receive())
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(100):
            await send(
                {"type": "http.response.body", "body": f"data: {number}\n\n".encode(), "more_body": True}
            )
            done, _ = await asyncio.wait({gone}, timeout=0.3)
            if done:
                self.left.set()
                return


@pytest.fixture
def origin() -> Origin:
    return Origin()


@pytest.fixture
def proxied(origin: Origin) -> Iterator[str]:
    with served(origin) as url:

        async def locate() -> tuple[str, ...]:
            return (url,)

        with served(Proxy(locate)) as proxy:
            yield proxy


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, verify=False, timeout=20)


def test_requests_and_answers_pass_as_they_are(origin: Origin, proxied: str) -> None:
    with client(proxied) as visitor:
        request = visitor.build_request(
            "PUT",
            "/api/v1/a%2Fb/%C3%A9?x=1&y=%20",
            content=b"\x00\xff" * 1000,
            headers={"Authorization": "Bearer mine", "Cookie": "s=1", "Connection": "x-mine", "X-Mine": "1"},
        )
        response = visitor.send(request, stream=True)
        body = b"".join(response.iter_raw())
    assert response.status_code == 418
    assert body == b"\x00\xff" * 1000
    assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert response.headers["content-encoding"] == "gzip"
    ((method, path, headers, sent),) = origin.seen
    assert (method, path, sent) == ("PUT", "/api/v1/a%2Fb/%C3%A9?x=1&y=%20", b"\x00\xff" * 1000)
    assert headers[b"authorization"] == b"Bearer mine"
    assert headers[b"cookie"] == b"s=1"
    assert headers[b"host"] == proxied.removeprefix("http://").encode(), (
        "the visitor's name for us: origin checks"
    )
    assert headers[b"x-forwarded-for"] == b"127.0.0.1"
    assert b"x-mine" not in headers, "a header of the connection stays with it"


def test_a_body_of_unknown_length_is_streamed(origin: Origin, proxied: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000

    with client(proxied) as visitor:
        response = visitor.send(visitor.build_request("POST", "/upload", content=pieces()), stream=True)
        assert sum(len(piece) for piece in response.iter_raw()) == 2_000_000


def test_events_arrive_as_they_come_and_a_visitor_that_leaves_is_noticed(
    origin: Origin, proxied: str
) -> None:
    begun_s = time.monotonic()
    arrivals = []
    with client(proxied) as visitor, visitor.stream("GET", "/ticks") as response:
        for line in response.iter_lines():
            if line:
                arrivals.append(time.monotonic() - begun_s)
            if len(arrivals) == 4:
                break
    assert arrivals[0] < 1.0
    assert max(later - earlier for earlier, later in itertools.pairwise(arrivals)) < 1.0
    assert origin.left.wait(5), "the coordinator is told that the reader has gone"


def test_an_answer_to_head_has_no_body(proxied: str) -> None:
    with client(proxied) as visitor:
        assert visitor.head("/").status_code == 418


def test_the_coordinators_api_and_events_work_through_a_replica(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:

        async def locate() -> tuple[str, ...]:
            return (coordinator.url,)

        with served(Proxy(locate)) as proxy, client(proxy) as visitor:
            assert visitor.get("/api/v1/jobs").status_code == 401
            visitor.headers["Authorization"] = f"Bearer {TOKEN}"
            made = visitor.post("/api/v1/jobs", json={"config": _CONFIG, "gpus_per_node": 0})
            assert made.status_code == 201, made.text
            job_id = made.json()["id"]
            with visitor.stream("GET", f"/api/v1/jobs/{job_id}/events") as events:
                assert "text/event-stream" in events.headers["content-type"]
                for line in events.iter_lines():
                    if line.startswith("data:"):
                        assert job_id in line
                        break
            assert visitor.get("/").headers["content-type"].startswith("text/html")


_CONFIG = """\
base_model: org/model
datasets: [{path: org/data, type: alpaca}]
learning_rate: 0.0002
output_dir: ./outputs
"""


def test_a_coordinator_that_is_away_is_said_and_found_again_elsewhere(origin: Origin) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        places: list[tuple[str, ...] | Undecided] = [
            Undecided("nobody holds the lease"),
            (f"http://127.0.0.1:{unused.getsockname()[1]}",),
        ]
        with served(origin) as url:

            async def locate() -> tuple[str, ...] | Undecided:
                return places.pop(0) if places else (url,)

            with served(Proxy(locate)) as proxy, client(proxy) as visitor:
                unknown = visitor.get("/api/v1/jobs")
                assert unknown.status_code == 503
                assert unknown.headers["content-type"] == "application/problem+json"
                assert "nobody holds the lease" in unknown.json()["detail"]
                away = visitor.get("/api/v1/jobs")
                assert away.status_code == 502
                assert "refused" in away.json()["detail"]
                assert visitor.head("/").status_code == 418
    assert not places


def test_of_several_coordinators_another_is_asked_when_one_does_not_answer(origin: Origin) -> None:
    with socket.socket() as unused, served(origin) as url:
        unused.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{unused.getsockname()[1]}"

        async def locate() -> tuple[str, ...]:
            return away, url

        with served(Proxy(locate)) as proxy, client(proxy) as visitor:
            assert [visitor.head("/").status_code for _ in range(3)] == [418] * 3


def test_a_page_visitor_is_told_in_words(origin: Origin) -> None:
    async def locate() -> Undecided:
        return Undecided("its name does not resolve yet")

    with served(Proxy(locate)) as proxy, client(proxy) as visitor:
        page = visitor.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
        assert page.status_code == 503
        assert page.headers["content-type"].startswith("text/plain")
        assert "does not resolve yet" in page.text
        assert page.headers["refresh"]


def test_a_proxy_that_is_sent_to_itself_does_not_go_round(tmp_path: Path) -> None:
    own: list[str] = []

    async def locate() -> tuple[str, ...]:
        return (own[0],)

    with served(Proxy(locate)) as proxy, client(proxy) as visitor:
        own.append(proxy)
        assert visitor.get("/").status_code == 508


def test_a_port_in_use_is_an_error_and_without_a_token_it_listens_on_loopback() -> None:
    with listen(None, 0, has_token=False) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", listener.getsockname()[1], has_token=False)
    with listen(None, 0, has_token=True) as everywhere, contextlib.closing(socket.socket()) as visitor:
        visitor.connect(("127.0.0.1", everywhere.getsockname()[1]))
