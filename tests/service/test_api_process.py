"""`python -m coordinator` as a process: it says what is wrong in one sentence, stops when told, keeps what it had."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from least import CONFIG
from serving import TOKEN

from coordinator.auth import SESSION_COOKIE

PATIENCE_S = 60


def environment(state_dir: Path, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
    given = {f"RANKCALL_{name}": value for name, value in settings.items()}
    return {
        **kept,
        "RANKCALL_STATE_DIR": str(state_dir),
        "RANKCALL_PORT": "0",
        "RANKCALL_AXOLOTL_WAIT_S": "0",
        **given,
    }


@contextmanager
def process(state_dir: Path, **settings: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A coordinator process, its URL, and the lines it has said until it served."""
    started = subprocess.Popen(
        [sys.executable, "-m", "coordinator"],
        env=environment(state_dir, **settings),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    said: list[str] = []
    try:
        for line in started.stderr:
            said.append(line)
            event = json.loads(line)
            if event["event"] == "serving":
                host = "127.0.0.1" if event["address"] in ("::", "0.0.0.0") else event["address"]
                yield started, f"http://{host}:{event['port']}", said
                break
        else:
            raise AssertionError(f"it did not serve: {said}")
    finally:
        started.kill()
        started.wait(PATIENCE_S)
        started.stderr.close()


def refused(state_dir: Path, **settings: str) -> tuple[int, str]:
    """The exit code and all that was said."""
    ended = subprocess.run(
        [sys.executable, "-m", "coordinator"],
        env=environment(state_dir, **settings),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def client(url: str, token: str | None = TOKEN) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False, verify=False)


def test_a_port_in_use_is_one_sentence_that_names_the_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, said = refused(tmp_path, PORT=str(port))
    assert code == 1 and len(said.splitlines()) == 1
    assert f"port {port} is taken by" in said and f"pid {os.getpid()}" in said and "RANKCALL_PORT" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"HOST": "0.0.0.0"}, "RANKCALL_TOKEN"),
        ({"HOST": "192.0.2.1", "TOKEN": TOKEN}, "no address of this machine"),
        ({"HOST": "no.such.host.invalid", "TOKEN": TOKEN}, "no address of this machine"),
        ({"NODES": "many"}, "RANKCALL_NODES"),
        ({"TOKEN": "short-1"}, "RANKCALL_TOKEN"),
        ({"DATABASE_URL": "mysql://x"}, "mysql"),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence(
    settings: dict[str, str], words: str, tmp_path: Path
) -> None:
    code, said = refused(tmp_path, **settings)
    assert code in (1, 2) and words in said
    assert "Traceback" not in said and len(said.splitlines()) == 1
    assert settings.get("TOKEN", "-") not in said


def test_a_state_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    code, said = refused(file / "state")
    assert code == 1 and "Traceback" not in said and str(file) in said


def test_without_a_token_it_serves_this_machine_and_says_so(tmp_path: Path) -> None:
    with process(tmp_path) as (started, url, said):
        assert url.startswith("http://127.0.0.1:")
        with client(url, None) as asking:
            assert asking.get("/api/v1/jobs").status_code == 200
        started.terminate()
        assert started.stderr is not None
        rest = "".join(said) + started.stderr.read()
    assert "RANKCALL_TOKEN is not set" in rest


def test_with_a_token_it_serves_both_families(tmp_path: Path) -> None:
    with process(tmp_path, TOKEN=TOKEN) as (_, url, said):
        assert TOKEN not in "".join(said)
        with client(url) as asking:
            assert asking.get("/readyz").status_code == 200
        if Path("/proc/net/if_inet6").exists() and Path("/proc/net/if_inet6").read_text().strip():
            with client(url.replace("127.0.0.1", "[::1]")) as asking:
                assert asking.get("/readyz").status_code == 200


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_stops_at_once_also_with_streams_open(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with process(tmp_path, TOKEN=TOKEN) as (started, url, _), client(url) as asking:
        with asking.stream("GET", "/api/v1/watch") as stream:
            assert stream.status_code == 200
            began = time.monotonic()
            started.send_signal(number)
            assert started.wait(PATIENCE_S) == code
            assert time.monotonic() - began < 5
        assert started.stderr is not None
        rest = started.stderr.read()
    assert json.loads(rest.splitlines()[-1])["event"] == "stopped" and "Traceback" not in rest


def test_a_coordinator_that_was_killed_goes_on_with_the_jobs_it_had(tmp_path: Path) -> None:
    with process(tmp_path, TOKEN=TOKEN) as (started, url, _), client(url) as asking:
        made = asking.post(
            "/api/v1/jobs", json={"config": CONFIG, "nodes": 2}, headers={"Idempotency-Key": "k"}
        )
        assert made.status_code == 201
        started.kill()
    with process(tmp_path, TOKEN=TOKEN) as (_, url, _), client(url) as asking:
        job = asking.get(made.headers["location"]).json()
        assert job["state"] == "queued"
        again = asking.post(
            "/api/v1/jobs", json={"config": CONFIG, "nodes": 2}, headers={"Idempotency-Key": "k"}
        )
        assert again.status_code == 200 and again.json()["id"] == job["id"]


def test_the_log_is_lines_of_json_without_secrets(tmp_path: Path) -> None:
    with process(tmp_path, TOKEN=TOKEN) as (started, url, said), client(url) as asking:
        asking.post("/api/v1/session", json={"token": TOKEN}).raise_for_status()
        cookie = asking.cookies[SESSION_COOKIE]
        asking.get(f"/api/v1/jobs/{TOKEN}")
        asking.post("/api/v1/jobs", json={"config": CONFIG, "nodes": 2}).raise_for_status()
        started.terminate()
        assert started.stderr is not None
        lines = [*said, *started.stderr.read().splitlines()]
    for line in lines:
        event = json.loads(line)
        assert {"event", "level", "timestamp"} <= set(event)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", event["timestamp"])
        assert TOKEN not in line and cookie not in line
