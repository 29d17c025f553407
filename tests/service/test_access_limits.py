"""Guessing tokens, flooding and endless heads are slowed down; who belongs here is not; who was turned away is on record."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import TOKEN, VIEWER_TOKEN, Coordinator, running
from simulated_agent import Agent

from coordinator.limits import Allowance, Limits, network_of

JOBS = "/api/v1/jobs"


def refusals(coordinator: Coordinator, at_least: int) -> list[dict[str, Any]]:
    """Newest first, once there are so many: they are written beside the answer, not before it."""
    deadline = time.monotonic() + 10
    while True:
        with coordinator.client() as client:
            items = client.get("/api/v1/events").json()["items"]
        found = [item for item in items if item["action"] == "access.refused"]
        if len(found) >= at_least or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def test_wrong_tokens_are_turned_away_soon_and_the_right_one_is_always_answered(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(guesses=3, guesses_per_s=1.0)) as coordinator:
        agent = Agent(coordinator.url, 0, TOKEN)
        agent.register().raise_for_status()
        with coordinator.client("wrong-token") as guesser, coordinator.client(None) as browser:
            assert [guesser.get(JOBS).status_code for _ in range(2)] == [401, 401]
            assert browser.post("/api/v1/session", json={"token": "wrong"}).status_code == 401
            slowed = guesser.get(JOBS)
            assert slowed.status_code == 429 and slowed.json()["code"] == "SYS117"
            assert slowed.headers["retry-after"] == "1"
            assert guesser.get(JOBS).status_code == 429
            assert browser.post("/api/v1/session", json={"token": TOKEN}).status_code == 201
        assert agent.report().status_code == 200
        with coordinator.client() as client:
            assert client.get(JOBS).status_code == 200
        agent.end()


def test_who_shows_no_token_or_only_looks_may_not_flood(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(requests=5, requests_per_s=0.01)) as coordinator:
        with coordinator.client(None) as nobody:
            statuses = [nobody.get("/healthz").status_code for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        with coordinator.client(VIEWER_TOKEN) as viewer:
            assert viewer.get(JOBS).status_code == 429  # from the same address
        with coordinator.client() as admin:
            assert [admin.get(JOBS).status_code for _ in range(20)] == [200] * 20


def test_a_trusted_proxy_says_who_asks_and_nobody_else_does(tmp_path: Path) -> None:
    with running(tmp_path, trusted_proxies=("10.1.0.0/16",)) as coordinator:
        chains = {
            "203.0.113.7": "203.0.113.7",
            "6.6.6.6, 203.0.113.8": "203.0.113.8",  # the visitor's own claim stands first
            "6.6.6.6, 203.0.113.9, 10.1.2.3": "203.0.113.9",  # a proxy of ours in between
            "[2001:db8::1]": "2001:db8::1",
            "nonsense": "127.0.0.1",
        }
        for number, (chain, visitor) in enumerate(chains.items(), 1):
            with coordinator.client("wrong-token", headers={"X-Forwarded-For": chain}) as client:
                client.get(JOBS)
            newest = refusals(coordinator, number)[0]
            assert newest["actor"] == f"wrong-token@{visitor}", chain


def test_forwarded_headers_of_a_stranger_are_not_believed() -> None:
    from coordinator.api.peers import FORWARDED_HOST, TrustedPeers

    told = {b"x-forwarded-for": b"1.2.3.4", b"x-forwarded-proto": b"https", b"x-forwarded-host": b"a.example"}
    peers = TrustedPeers(("10.1.0.0/16",))
    for host, believed in {
        "192.0.2.9": False,
        "::ffff:10.1.0.7": True,
        "10.1.0.7": True,
        "10.2.0.7": False,
    }.items():
        scope: dict[str, Any] = {"client": (host, 1), "scheme": "http"}
        peers.settle(scope, told)
        assert (scope["client"][0] == "1.2.3.4") is believed
        assert (scope["scheme"] == "https") is believed
        assert (scope.get(FORWARDED_HOST) == "a.example") is believed


def test_a_sign_in_with_a_wrong_token_is_in_the_audit_as_such_with_how_often(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        coordinator.services.refusals.gather_s = 0.3
        with coordinator.client(None) as browser:
            for _ in range(4):
                assert browser.post("/api/v1/session", json={"token": "mistyped"}).status_code == 401
        noted = refusals(coordinator, 2)
    assert {item["actor"] for item in noted} == {"wrong-token@127.0.0.1"}
    assert [(item["detail"]["route"], item["detail"]["times"]) for item in noted] == [
        ("/api/v1/session", 3),
        ("/api/v1/session", 1),
    ]


def test_refusals_and_registrations_are_in_the_audit_with_who_and_from_where(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        agent = Agent(coordinator.url, 0, TOKEN)
        agent.register().raise_for_status()
        with coordinator.client(VIEWER_TOKEN) as viewer:
            for _ in range(5):
                assert viewer.post("/api/v1/jobs/00000000/cancel").status_code == 403
        with coordinator.client(agent.token) as replica:
            replica.get("/api/v1/events")
        with coordinator.client(None) as nobody:
            nobody.get("/api/v1/events")  # a page before its visitor has signed in: nothing to note
            nobody.post(JOBS, json={})
        agent.end()
        refusals(coordinator, 3)
        with coordinator.client() as client:
            events = client.get("/api/v1/events").json()["items"]
    noted = {(e["actor"], e["action"], e["detail"].get("route"), e["detail"].get("status")) for e in events}
    assert noted == {
        (f"replica:{agent.replica_id}@127.0.0.1", "replica.registered", None, None),
        ("viewer@127.0.0.1", "access.refused", "/api/v1/jobs/{job_id}/cancel", 403),
        (f"replica:{agent.replica_id}@127.0.0.1", "access.refused", "/api/v1/events", 403),
        ("none@127.0.0.1", "access.refused", "/api/v1/jobs", 401),
    }
    with running(tmp_path) as coordinator:  # what was only counted is written when the service ends
        assert sorted(e["detail"]["times"] for e in refusals(coordinator, 4)) == [1, 1, 1, 4]


@contextmanager
def connected(coordinator: Coordinator) -> Iterator[socket.socket]:
    host, port = coordinator.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        yield connection


def answered(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    try:
        while piece := connection.recv(1 << 16):
            received += piece
    except ConnectionError:
        pass
    return received


@pytest.mark.parametrize(
    "kind", ["one long header", "many headers", "a long path", "a header without an end"]
)
def test_a_head_beyond_its_limit_is_refused_however_it_comes(kind: str, tmp_path: Path) -> None:
    with (
        running(tmp_path, limits=Limits(head_bytes=8 << 10)) as coordinator,
        connected(coordinator) as connection,
    ):
        start, end = b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"\r\n\r\n"
        head = {
            "one long header": start + b"X: " + b"x" * 9000 + end,
            "many headers": start + b"".join(b"X%d: y\r\n" % n for n in range(2000)) + b"\r\n",
            "a long path": b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            "a header without an end": start + b"X: " + b"x" * 40_000,
        }[kind]
        for at in range(0, len(head), 1000):
            try:
                connection.sendall(head[at : at + 1000])
            except ConnectionError:
                break
        assert answered(connection).startswith((b"HTTP/1.1 431", b""))
        with coordinator.client() as client:
            assert client.get("/healthz").status_code == 200


def test_a_head_in_one_piece_beyond_its_limit_says_why(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(head_bytes=8 << 10)) as coordinator:
        with coordinator.client(headers={"X-Long": "x" * 9000}) as client:
            refused = client.get("/healthz")
        assert refused.status_code == 431 and refused.json()["code"] == "SYS118"
        with coordinator.client(headers={"X-Long": "x" * 7000}) as client:
            assert client.get("/healthz").status_code == 200


def test_a_connection_that_says_nothing_or_says_it_for_ever_is_closed(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(head_s=0.3)) as coordinator:
        for said in (b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HT"):
            with connected(coordinator) as connection:
                connection.sendall(said)
                started = time.monotonic()
                answered(connection)
                assert 0.2 < time.monotonic() - started < 5
        with coordinator.client() as client:  # one that is merely idle between two requests is kept
            client.get("/healthz").raise_for_status()
            time.sleep(0.5)
            client.get("/healthz").raise_for_status()


def test_connections_are_counted_and_given_back(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(connections=3)) as coordinator:
        held = [connected(coordinator) for _ in range(3)]
        opened = [one.__enter__() for one in held]
        time.sleep(0.2)
        with connected(coordinator) as one_too_many:
            assert answered(one_too_many) == b""
        for connection in opened:
            connection.close()
        time.sleep(0.2)
        with coordinator.client() as client:
            assert client.get("/healthz").status_code == 200


def test_one_address_counts_as_one_whatever_its_last_bits() -> None:
    assert network_of("10.0.0.7") != network_of("10.0.0.8")
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth1")


def test_of_many_addresses_only_so_many_are_remembered() -> None:
    allowance = Allowance(burst=1, per_s=0.001, most=10)
    for number in range(100):
        allowance.take(f"10.0.0.{number}")
    assert allowance.wait_s("10.0.0.0") == 0.0 and allowance.wait_s("10.0.0.99") > 0
