"""Axolotl's own word on a submission: never waited for long, never in the way. Its process is a stand-in of a few lines,
which RANKCALL_PYTHON names; the real one is asked in `tests/training/test_second_opinion.py`."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from least import CONFIG
from serving import Coordinator, running

from coordinator.checks.axolotl_process import AxolotlSchema, Limits, Unavailable

PATIENCE_S = 30.0
# Refuses a config that says so, and is silent about one that says so.
STAND_IN = """\
#!{python}
import json, sys, time
print(json.dumps({{"ready": True}}), flush=True)
for line in sys.stdin:
    config = json.loads(line)["config"]
    if "hang" in config:
        time.sleep(600)
    errors = [{{"at": ["learning_rate"], "message": "not this one"}}] if "refuse" in config else []
    warnings = ["a remark"]
    print(json.dumps({{"ok": not errors, "axolotl": "1", "errors": errors, "warnings": warnings}}), flush=True)
"""
REFUSED, HANGING = f"{CONFIG}wandb_name: refuse\n", f"{CONFIG}wandb_name: hang\n"


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "python"
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv("RANKCALL_PYTHON", str(path))
        return path

    return write


@pytest.fixture
def coordinator(interpreter: Callable[[str], Path], tmp_path: Path) -> Iterator[Coordinator]:
    interpreter(STAND_IN.format(python=sys.executable))
    with running(tmp_path / "state", axolotl_wait_s=20.0) as service:
        yield service
    assert not workers(), "its process ends with the coordinator"


def workers() -> list[psutil.Process]:
    """Axolotl's processes below this one."""
    return [one for one in psutil.Process().children(recursive=True) if "axolotl_worker.py" in _argv(one)]


def _argv(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def submitted(client: httpx.Client, config: str = CONFIG) -> httpx.Response:
    return client.post("/api/v1/jobs", json={"config": config})


def notes(answer: httpx.Response) -> list[str]:
    return [one["message"] for one in answer.json()["findings"] if one["code"] == "CFG902"]


def test_what_axolotl_refuses_is_refused_and_what_it_remarks_upon_is_left_to_the_log(
    coordinator: Coordinator,
) -> None:
    with coordinator.client() as client:
        answer = submitted(client, REFUSED)
        assert answer.status_code == 422
        (error,) = answer.json()["findings"]
        assert (error["code"], error["key"], error["line"]) == ("CFG901", "learning_rate", 5)
        assert "not this one" in answer.json()["detail"]
        checked = client.post("/api/v1/checks", json={"config": REFUSED}).json()
        assert checked["verdict"] == "reject"
        assert [one["message"] for one in checked["findings"]] == [error["message"]]
        assert client.get("/api/v1/jobs").json()["items"] == []
        good = submitted(client)
        assert (good.status_code, good.json()["findings"]) == (201, [])
        allowed = client.post("/api/v1/jobs", json={"config": REFUSED, "allow": ["CFG901"]})
        assert allowed.status_code == 201


def test_one_process_serves_all_submissions_and_none_is_started_before_the_first(
    coordinator: Coordinator,
) -> None:
    assert not workers()
    with coordinator.client() as client:
        submitted(client)
        (first,) = workers()
        submitted(client, REFUSED)
        assert workers() == [first]


def test_a_submission_that_our_rules_refuse_asks_nobody(coordinator: Coordinator) -> None:
    with coordinator.client() as client:
        assert submitted(client, CONFIG.replace("learning_rate", "learning_rat")).status_code == 422
    assert not workers()


def test_the_api_answers_while_submissions_wait(coordinator: Coordinator) -> None:
    """More of them than threads that the store works in."""
    with coordinator.client() as client:
        asking = [threading.Thread(target=submitted, args=(coordinator.client(), HANGING)) for _ in range(40)]
        for one in asking:
            one.start()
        until(workers)
        (worker,) = workers()
        for _ in range(20):
            assert client.get("/healthz").status_code == 200
            assert client.get("/api/v1/jobs").status_code == 200
        assert all(one.is_alive() for one in asking)
        worker.kill()
        for _ in asking:
            for found in workers():
                found.kill()
            time.sleep(0.05)
        for one in asking:
            one.join(PATIENCE_S)
            assert not one.is_alive()


def test_a_process_that_dies_costs_the_submission_nothing_and_is_started_again(
    coordinator: Coordinator,
) -> None:
    with coordinator.client() as client:
        submitted(client)
        (worker,) = workers()
        worker.kill()
        until(lambda: gone(worker))
        answer = submitted(client)
        assert answer.status_code == 201
        assert submitted(client, REFUSED).status_code == 422
        assert workers() != [worker]


def test_one_that_is_slow_is_waited_for_once_and_not_again(
    interpreter: Callable[[str], Path], tmp_path: Path
) -> None:
    interpreter("#!/bin/sh\nexec sleep 600\n")
    with running(tmp_path / "state", axolotl_wait_s=1.0) as service, service.client() as client:
        answers = [submitted(client) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert "within 1 s" in notes(answers[0])[0]
    assert all("still being imported" in notes(answer)[0] for answer in answers[1:])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho '{\"ready\": false, \"absent\": true}'\n", ""),
        ("#!/nonexistent\n", "ended with exit code 1"),
        ("#!/bin/false\n", "ended with exit code 1"),
        ("#!/bin/sh\necho hello\n", "something else than it should"),
        ("#!/bin/sh\necho '{\"ready\": false, \"error\": \"ImportError: torch\"}'\n", "ImportError: torch"),
    ],
)  # fmt: skip
def test_without_an_axolotl_a_submission_is_as_it_was_and_nothing_is_tried_for_every_one(
    text: str, said: str, interpreter: Callable[[str], Path], tmp_path: Path
) -> None:
    path = interpreter(text)
    with running(tmp_path / "state", axolotl_wait_s=20.0) as service, service.client() as client:
        first = submitted(client)
        path.write_text(STAND_IN.format(python=sys.executable))
        second = submitted(client, REFUSED)
    for answer in (first, second):
        assert answer.status_code == 201
        assert {one["severity"] for one in answer.json()["findings"]} <= {"note"}
        assert bool(notes(answer)) == bool(said)
        assert all(said in note for note in notes(answer))


def test_nothing_is_started_where_it_is_switched_off(
    interpreter: Callable[[str], Path], tmp_path: Path
) -> None:
    interpreter(STAND_IN.format(python=sys.executable))
    with running(tmp_path / "state", axolotl_wait_s=0) as service, service.client() as client:
        assert submitted(client, REFUSED).status_code == 201
        assert not workers()


def test_a_process_that_nobody_asks_any_more_gives_its_memory_back(
    interpreter: Callable[[str], Path],
) -> None:
    interpreter(STAND_IN.format(python=sys.executable))
    schema = AxolotlSchema(limits=Limits(idle_s=0.5))
    assert schema.ask({"config": ""}).axolotl == "1"
    (worker,) = workers()
    until(lambda: gone(worker))
    assert schema.ask({"config": ""}).ok
    schema.close()
    assert not workers()


def test_closing_ends_a_question_at_once(interpreter: Callable[[str], Path]) -> None:
    interpreter(STAND_IN.format(python=sys.executable))
    schema = AxolotlSchema()
    heard: list[str] = []

    def ask() -> None:
        try:
            schema.ask({"config": "hang"})
        except Unavailable as why:
            heard.append(str(why))

    asking = threading.Thread(target=ask)
    asking.start()
    until(workers)
    schema.close()
    asking.join(PATIENCE_S)
    assert heard and not workers()


def test_a_coordinator_that_is_killed_leaves_no_process_behind(
    interpreter: Callable[[str], Path],
) -> None:
    """Also while it hangs, and does not look whether anybody is there."""
    interpreter(STAND_IN.format(python=sys.executable))
    code = "from coordinator.checks.axolotl_process import AxolotlSchema; AxolotlSchema().ask({'config': 'hang'})"
    killed = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: any("python" in _argv(one) and one.ppid() == killed.pid for one in workers()))
    (worker,) = workers()
    time.sleep(0.3)  # it may not have read the question yet; nothing depends on that
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    until(lambda: gone(worker), 5.0)
