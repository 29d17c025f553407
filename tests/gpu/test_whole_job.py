"""The whole demo on two GPUs: two replicas of one GPU each, NCCL over sockets as between containers, bf16.

python -m pytest -m gpu tests/gpu      (on a machine with two NVIDIA GPUs)
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from nvidia import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(500)]

# As between containers: no peer-to-peer, no shared memory, no InfiniBand.
SOCKETS_ONLY = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
        return json.load(answer)


def test_the_demo_passes_every_gate_on_two_gpus_with_nccl_and_bf16(tmp_path: Path) -> None:
    if gpus() < 2:
        pytest.skip(f"this machine has {gpus()} NVIDIA GPUs, the test needs two; nothing on GPUs was tested")
    demo = tmp_path / "demo"
    subprocess.run([sys.executable, "-m", "coordinator.demo.model", str(demo)], check=True, timeout=200)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RANKCALL_")}
    environment |= SOCKETS_ONLY | {"HF_HUB_OFFLINE": "1"}
    replicas = []
    for number in (0, 1):
        address = f"127.0.0.{number + 1}"
        own = {
            "RANKCALL_STATE_DIR": str(tmp_path / f"replica-{number}"),
            "RANKCALL_ADDRESS": address,
            "RANKCALL_HOST": address,
            "RANKCALL_PORT": str(port),
            "RANKCALL_URL": url,
            "RANKCALL_NODES": "2",
            "CUDA_VISIBLE_DEVICES": str(number),
        }
        with (tmp_path / f"up-{number}.log").open("wb") as log:
            argv = [sys.executable, "-m", "coordinator.cli", "up"]
            replicas.append(
                subprocess.Popen(argv, env=environment | own, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        _until_healthy(url, tmp_path / "up-0.log")
        submit = [sys.executable, "-m", "coordinator.cli", "submit", str(demo / "demo.yml"), "--watch"]
        submit += ["--gpus-per-node", "1", "--set", "bf16=true", "--prompt", "What is a black hole?"]
        done = subprocess.run(
            submit,
            env=environment | {"RANKCALL_URL": url},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        logs = "\n".join((tmp_path / f"up-{n}.log").read_text()[-2000:] for n in (0, 1))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
        job = ask(url, f"/api/v1/jobs/{ask(url, '/api/v1/jobs')['items'][0]['id']}")
    finally:
        for replica in replicas:
            replica.send_signal(signal.SIGTERM)
        for replica in replicas:
            replica.wait(60)
    stages = {stage["stage"]: stage for stage in job["attempt"]["stages"]}
    print(json.dumps({name: [s["summary"], s["figures"]] for name, s in stages.items()}, indent=1))
    print(json.dumps(job["progress"]))
    assert {name: stage["state"] for name, stage in stages.items()} == dict.fromkeys(stages, "passed")
    assert stages["collective"]["figures"]["backend"] == "nccl"
    assert job["progress"]["memory_bytes"] > 1 << 20
    assert job["progress"]["train_loss"] < 1.0
    assert "black hole" in job["comparison"][0]["tuned"]


def _until_healthy(url: str, log: Path) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            ask(url, "/healthz")
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the coordinator does not answer; its replica says:\n{log.read_text()[-4000:]}")
