"""Axolotl's own word on a submission, over HTTP: the real coordinator and the real Axolotl in its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from serving import Coordinator, running

from coordinator.checks.axolotl_process import AxolotlSchema, Limits, Unavailable
from coordinator.core import yaml
from coordinator.core.protocol import Facts, GpuFacts

pytestmark = pytest.mark.training

CONFIG: dict[str, object] = {
    "base_model": "org/model",
    "datasets": [{"path": "org/data", "type": "alpaca"}],
    "learning_rate": 0.0002,
    "output_dir": "./outputs",
    "adapter": "lora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_linear": True,
}
# What no rule of ours knows: a validator of DeepSpeed's own.
UNASKED = {
    "deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}
}


def workers() -> list[psutil.Process]:
    """Axolotl's processes below this one."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if any(part.endswith("axolotl_worker.py") for part in _argv(one))]


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: object, within_s: float = 30.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Patient, because other work may be going on beside the tests."""
    with running(tmp_path_factory.mktemp("state"), axolotl_wait_s=20.0) as service:
        yield service
    assert not workers(), "it ends with the coordinator"


@pytest.fixture(scope="module")
def warm(coordinator: Coordinator) -> httpx.Client:
    """The process runs: the first submission has started it, and the import may take longer than that waits."""
    client = coordinator.client()
    end_s = time.monotonic() + 200
    while True:
        said = client.post("/api/v1/checks", json={"config": yaml.dump(CONFIG)}).json()
        assert said["verdict"] == "accept"
        if "CFG902" not in {one["code"] for one in said["findings"]}:
            return client
        assert time.monotonic() < end_s, said
        time.sleep(1)


def submitted(client: httpx.Client, **more: object) -> httpx.Response:
    return client.post("/api/v1/jobs", json={"config": yaml.dump({**CONFIG, **more})})


def test_a_submission_that_only_axolotl_or_deepspeed_refuses_is_refused_and_queues_nothing(
    warm: httpx.Client,
) -> None:
    before = len(warm.get("/api/v1/jobs").json()["items"])
    answer = submitted(warm, **UNASKED)
    assert answer.status_code == 422
    (error,) = [one for one in answer.json()["findings"] if one["severity"] == "error"]
    assert (error["code"], error["key"]) == ("CFG904", "deepspeed.zero_optimization")
    assert len(warm.get("/api/v1/jobs").json()["items"]) == before
    good = submitted(warm)
    assert good.status_code == 201
    assert not good.json()["findings"], "what Axolotl only remarks upon is left to the log"


def test_one_process_serves_all_submissions_and_stands_back_behind_the_training(warm: httpx.Client) -> None:
    (first,) = workers()
    assert submitted(warm).status_code == 201
    assert workers() == [first]
    assert first.nice() >= 10
    assert Path(f"/proc/{first.pid}/oom_score_adj").read_text().strip() == "1000"


def test_the_api_answers_while_axolotl_is_asked(coordinator: Coordinator, warm: httpx.Client) -> None:
    (worker,) = workers()
    worker.suspend()
    try:
        asking = threading.Thread(target=lambda: submitted(coordinator.client()))
        asking.start()
        waits = []
        while asking.is_alive() and len(waits) < 100:
            began = time.monotonic()
            assert warm.get("/healthz").status_code == 200
            assert warm.get("/api/v1/jobs").status_code == 200
            waits.append(time.monotonic() - began)
        assert asking.is_alive(), "the submission waits, and nobody else does"
    finally:
        worker.resume()
    asking.join(30)
    assert sorted(waits)[len(waits) // 2] < 1.0


def test_a_process_that_dies_costs_the_submission_nothing_and_is_started_again(warm: httpx.Client) -> None:
    (worker,) = workers()
    worker.kill()
    worker.wait(10)
    assert submitted(warm).status_code == 201
    until(workers)


def test_the_gpus_of_the_replicas_count() -> None:
    """Of an older GPU than the coordinator's own; Axolotl says of it that the training will fail."""
    from coordinator.checks import BundleFiles, examine
    from coordinator.checks.deep import axolotls_word
    from coordinator.core.views import Submission

    schema = AxolotlSchema(limits=Limits(import_s=280))
    old = Facts(
        gpus=(GpuFacts(index=0, name="Tesla T4", compute_capability="7.5"),), packages={"axolotl": "0.0.1"}
    )
    given = Submission(config=yaml.dump({**CONFIG, "fp8": True}))
    try:
        for facts, severity in (((old,), "warning"), ((), None)):
            subject, found = examine(given, files=BundleFiles(given), facts=facts)
            assert subject is not None
            quiet = [one for one in found if one.code != "CFG404"]
            said = {one.severity for one in axolotls_word(subject, quiet, schema) if one.code == "CFG901"}
            assert said == ({severity} if severity else set()), (
                "another Axolotl than the replicas' only warns"
            )
    finally:
        schema.close()


def test_a_process_that_nobody_asks_any_more_gives_its_memory_back() -> None:
    schema = AxolotlSchema(limits=Limits(import_s=280, idle_s=0.5))
    try:
        schema.ask({"config": yaml.dump(CONFIG), "capabilities": {}, "deepspeed": None})
        (worker,) = [one for one in workers() if one.ppid() == os.getpid()][-1:]
        until(lambda: _gone(worker))
    finally:
        schema.close()


def test_closing_ends_a_question_at_once() -> None:
    schema = AxolotlSchema()
    heard: list[str] = []

    def ask() -> None:
        try:
            schema.ask({"config": yaml.dump(CONFIG), "capabilities": {}, "deepspeed": None})
        except Unavailable as why:
            heard.append(str(why))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: schema._process is not None)
    schema.close()
    asking.join(5)
    assert not asking.is_alive() and heard


KILLED = """
import os, signal, sys
from coordinator.checks.axolotl_process import AxolotlSchema
import threading
schema = AxolotlSchema()
threading.Thread(target=lambda: schema.ask({"config": "a: 1"}), daemon=True).start()
while schema._process is None:
    pass
print(schema._process.pid, flush=True)
signal.pause()
"""


def test_a_coordinator_that_is_killed_leaves_no_process_behind() -> None:
    started = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    worker = psutil.Process(int(started.stdout.readline()))
    time.sleep(1.0)  # until it has tied itself
    started.send_signal(signal.SIGKILL)
    started.wait(10)
    until(lambda: _gone(worker), 5.0)


def test_nothing_is_asked_and_started_where_it_is_switched_off(tmp_path: Path) -> None:
    before = workers()
    with running(tmp_path, axolotl_wait_s=0) as service, service.client() as client:
        assert submitted(client, **UNASKED).status_code == 201
        assert workers() == before


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false", "/usr/bin/env"])
def test_without_an_axolotl_beside_the_coordinator_a_submission_is_as_it_was(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKCALL_PYTHON", python)
    with running(tmp_path, axolotl_wait_s=10.0) as service, service.client() as client:
        for _ in range(2):
            began = time.monotonic()
            answer = submitted(client)
            assert answer.status_code == 201
            assert all(one["severity"] == "note" for one in answer.json()["findings"])
            assert time.monotonic() - began < 8.0


def test_one_that_is_slow_is_waited_for_once_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("RANKCALL_PYTHON", str(slow))
    with running(tmp_path / "state", axolotl_wait_s=1.0) as service, service.client() as client:
        codes = []
        for _ in range(3):
            answer = submitted(client)
            assert answer.status_code == 201
            codes.append([one["message"] for one in answer.json()["findings"] if one["code"] == "CFG902"])
        assert "within 1 s" in codes[0][0]
        assert all("still being imported" in said[0] for said in codes[1:])
