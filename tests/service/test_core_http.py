"""The HTTP adapter against real sockets: what goes wrong has one exception each, in words."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from coordinator.core.http import AsyncClient, BadAnswer, Client, ProblemAnswer, Timeouts, Unreachable
from coordinator.core.protocol import ReportReply, StreamSize

Respond = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(respond: Respond) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            respond(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def saying(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Respond:
    def respond(request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("content-length") or 0)
        request.rfile.read(length)
        request.send_response(status)
        for name, value in {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return respond


PROBLEM = {
    "title": "Unprocessable",
    "status": 422,
    "detail": "CFG001: no such file",
    "code": "SYS108",
    "hint": "look",
    "findings": [{"code": "CFG001", "severity": "error", "message": "no such file"}],
}


def test_an_answer_becomes_a_message_and_the_token_goes_along() -> None:
    seen: list[str | None] = []

    def respond(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("authorization"))
        saying(200, b'{"acknowledged": [{"attempt_id": "a", "stream": "s", "size_bytes": 7}]}')(request)

    with serving(respond) as url, Client(url, token="secret") as client:
        (size,) = client.request("GET", "/x").parse(ReportReply).acknowledged
        assert (size.stream, size.size_bytes) == ("s", 7)
        assert (
            client.request("POST", "/x", message=StreamSize(attempt_id="a", stream="s", size_bytes=1)).status
            == 200
        )
    assert seen == ["Bearer secret", "Bearer secret"]


def test_a_problem_keeps_its_code_hint_and_findings() -> None:
    with (
        serving(
            saying(422, json.dumps(PROBLEM).encode(), "application/problem+json", Retry_After="7")
        ) as url,
        Client(url) as client,
        pytest.raises(ProblemAnswer, match="CFG001") as caught,
    ):
        client.request("GET", "/x")
    problem = caught.value
    assert (problem.status, problem.code, problem.hint, problem.retry_after_s) == (422, "SYS108", "look", 7.0)
    assert [found.code for found in problem.findings] == ["CFG001"]


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"{", b"[]", b""])
def test_an_error_page_of_something_else_is_a_problem_too(body: bytes) -> None:
    with serving(saying(502, body)) as url, Client(url) as client, pytest.raises(ProblemAnswer) as caught:
        client.request("GET", "/x")
    assert caught.value.status == 502


def test_something_that_is_not_rankcall_is_called_that() -> None:
    page = saying(200, b"<html>Jupyter</html>", "text/html")
    with serving(page) as url, Client(url) as client, pytest.raises(BadAnswer, match="not a ReportReply"):
        client.request("GET", "/x").parse(ReportReply)
    sign_in = saying(302, b"", Location="/login")
    with serving(sign_in) as url, Client(url) as client, pytest.raises(BadAnswer, match="redirect to /login"):
        client.request("GET", "/x")


def test_nobody_there_a_name_that_is_none_and_a_silent_service_are_unreachable_in_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with Client(url) as client, pytest.raises(Unreachable, match="connection refused"):
            client.request("GET", "/x")
    with Client("http://no-such-host.invalid") as client, pytest.raises(Unreachable, match="resolved"):
        client.request("GET", "/x")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, timeouts=Timeouts(transfer_s=0.3)) as client,
            pytest.raises(Unreachable, match="in time"),
        ):
            client.request("GET", "/x")


def test_a_connection_that_breaks_in_mid_answer_is_unreachable() -> None:
    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100")
        request.end_headers()
        request.wfile.write(b"half")
        request.wfile.flush()
        request.connection.shutdown(socket.SHUT_RDWR)

    with serving(respond) as url:
        with Client(url) as client, pytest.raises(Unreachable):
            client.request("GET", "/x")
        with Client(url) as client, pytest.raises(Unreachable), client.stream("GET", "/x") as (_, pieces):
            list(pieces)


def test_downloads_and_events_come_in_pieces() -> None:
    events = b"id: 1\nevent: job\ndata: {}\n\nid: 2\nevent: metric\ndata: a\ndata: b\n\n"
    with serving(saying(200, events, "text/event-stream")) as url, Client(url) as client:
        with client.stream("GET", "/x") as (headers, pieces):
            assert b"".join(pieces) == events
            assert headers["content-type"] == "text/event-stream"
        assert [(one.id, one.type, one.data) for one in client.events("/x")] == [
            ("1", "job", "{}"),
            ("2", "metric", "a\nb"),
        ]


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(saying(200, b"{}")) as url, Client(url) as client:
        assert client.request("GET", "/x").status == 200


def test_the_asynchronous_client_does_the_same() -> None:
    async def body() -> None:
        client = AsyncClient(url, token="secret")
        try:
            with pytest.raises(ProblemAnswer, match="CFG001"):
                await client.request("GET", "/x", parameters={"a": None, "b": 1})
            with pytest.raises(ProblemAnswer, match="CFG001"):
                async with client.stream("GET", "/x"):
                    pass
        finally:
            await client.aclose()

    with serving(saying(422, json.dumps(PROBLEM).encode(), "application/problem+json")) as url:
        asyncio.run(body())
