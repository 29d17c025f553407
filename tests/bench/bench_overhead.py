"""rankcall's own share of a job: start of the replicas to the first step, against the bare script, pair by pair.

    .venv/bin/python tests/bench/bench_overhead.py [--rounds 3]

Both do the same preprocess, launch and training of the demo's model on 127.0.0.1 and 127.0.0.2. rankcall also
starts a coordinator and two agents, gathers, compares, tests the links and a collective, and reports. The
agents' memory and CPU are read while it trains.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 400.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bare(demo: Path, folder: Path) -> float:
    """Seconds to the first step without rankcall."""
    script = REPOSITORY / "tests/training/bare.py"
    code = f"import sys, json; sys.path.insert(0, {str(script.parent)!r}); import bare; from pathlib import Path; "
    code += f"print(json.dumps(bare.run(Path({str(folder)!r}), Path({str(demo)!r}))))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=LIMIT_S)
    return float(json.loads(done.stdout.splitlines()[-1])["first_step_s"])


def ours(demo: Path, folder: Path) -> tuple[float, list[dict[str, float]]]:
    """Seconds from the start of `rankcall up` to the first step, and what each agent used while training."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    replicas = []
    for number in (0, 1):
        own = {
            "RANKCALL_STATE_DIR": str(folder / f"replica-{number}"),
            "RANKCALL_ADDRESS": f"127.0.0.{number + 1}",
            "RANKCALL_HOST": f"127.0.0.{number + 1}",
            "RANKCALL_PORT": str(port),
            "RANKCALL_URL": url,
            "RANKCALL_NODES": "2",
            # its import is no work of the agents' and of the training's
            "RANKCALL_AXOLOTL_WAIT_S": "0",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with (folder / f"up-{number}.log").open("wb") as log:
            replicas.append(
                subprocess.Popen(
                    [sys.executable, "-m", "coordinator.cli", "up"],
                    env=os.environ | own,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        with httpx.Client(base_url=url, timeout=10) as client:
            _until(lambda: _healthy(client))
            submit = [sys.executable, "-m", "coordinator.cli", "submit", str(demo / "demo.yml"), "--json"]
            done = subprocess.run(
                submit, env=os.environ | {"RANKCALL_URL": url}, check=True, capture_output=True, timeout=60
            )
            job = json.loads(done.stdout)["id"]
            _until(lambda: _stepped(client, job))
            first_step_s = time.monotonic() - began
            return first_step_s, _usage(replicas)
    finally:
        for replica in replicas:
            replica.send_signal(signal.SIGTERM)
        for replica in replicas:
            replica.wait(60)


def _until(seen: object) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not seen():  # type: ignore[operator]
        if time.monotonic() > give_up:
            raise SystemExit("it did not come that far")
        time.sleep(0.1)


def _healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _stepped(client: httpx.Client, job: str) -> bool:
    page = client.get(f"/api/v1/jobs/{job}/metrics").json()
    return any(item["type"] == "log" for item in page["items"])


def _usage(replicas: list[subprocess.Popen[bytes]], over_s: float = 5.0) -> list[dict[str, float]]:
    agents = [
        child
        for replica in replicas
        for child in psutil.Process(replica.pid).children(recursive=True)
        if child.cmdline()[-2:] == ["-m", "agent"]
    ]
    before = [sum(agent.cpu_times()[:2]) for agent in agents]
    time.sleep(over_s)
    return [
        {
            "rss_mib": agent.memory_info().rss / 2**20,
            "core": (sum(agent.cpu_times()[:2]) - used) / over_s,
        }
        for agent, used in zip(agents, before, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = folder / "demo"
        subprocess.run(
            [sys.executable, "-m", "coordinator.demo.model", str(demo)], check=True, cwd=REPOSITORY
        )
        for number in range(rounds):
            own = folder / f"round-{number}"
            own.mkdir()
            floor_s = bare(demo, own)
            first_s, usage = ours(demo, own)
            shares.append(first_s - floor_s)
            agents = ", ".join(f"{u['rss_mib']:.0f} MiB at {u['core']:.1%} of a core" for u in usage)
            print(
                f"bare {floor_s:5.1f} s, rankcall {first_s:5.1f} s, own share {shares[-1]:5.1f} s; agents {agents}"
            )
    print(f"own share, median of {rounds}: {statistics.median(shares):.1f} s ({os.cpu_count()} cores)")


if __name__ == "__main__":
    main()
