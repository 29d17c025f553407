"""The collective check on GPUs against a bare script: `python tests/gpu/nccl.py` prints figures as JSON.

Two GPUs of one machine stand for two containers: one process each, sockets only (P2P, shared memory and IB
off). Needs torch and this repository, nothing else: it speaks to the warm process as `agent/probes/warm.py` does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
APART = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "=lo",
    "GLOO_SOCKET_IFNAME": "lo",
}
BARE = """
import json, os, sys, time
import torch, torch.distributed as dist
sys.stdin.readline()
rank, port = int(sys.argv[1]), int(sys.argv[2])
began = time.monotonic()
torch.cuda.set_device(0)
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
dist.init_process_group("nccl", store=store, rank=rank, world_size=2, device_id=torch.device("cuda", 0))
up = time.monotonic()
value = torch.full((1,), float(rank + 1), device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
done = time.monotonic()
assert value.item() == 3.0
print(json.dumps({"init_s": up - began, "all_reduce_s": done - up, "total_s": done - began}))
sys.stdout.flush()
dist.destroy_process_group()
"""


class Warm:
    """A warm process with the GPUs it may see."""

    def __init__(self, gpus: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent.probes.forked"],
            cwd=ROOT,
            env={**os.environ, **environment, "CUDA_VISIBLE_DEVICES": gpus},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.orders = 0
        ready = self.hear()
        assert ready.get("ready"), ready

    def order(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.orders += 1
        self.process.stdin.write(json.dumps({"id": self.orders, **what}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def task(rank: int, world: int, port: int, **more: Any) -> dict[str, Any]:
    return {
        "task_id": f"round-{port}",
        "nonce": "one-machine",
        "rank": rank,
        "world_size": world,
        "master_address": "127.0.0.1",
        "master_port": port,
        "backend": "nccl",
        "interface": "lo",
        "processes": 1,
        "sizes_bytes": [4, 1 << 20, 16 << 20],
        "environment": {},
        **more,
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def together(warm: list[Warm], deadline_s: float = 60.0, **more: Any) -> dict[str, Any]:
    """One round; the results and what it took from the order to the last answer."""
    port = free_port()
    processes = int(more.get("processes", 1))
    began = time.monotonic()
    for rank, one in enumerate(warm):
        one.order(deadline_s=deadline_s, task=task(rank, len(warm) * processes, port, **more))
    results = [one.hear()["result"] for one in warm]
    return {"took_s": time.monotonic() - began, "results": results}


def bare() -> dict[str, Any]:
    """The field report's script: init and first all_reduce, torch already imported."""
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BARE, str(rank), str(port)],
            env={**os.environ, **APART, "CUDA_VISIBLE_DEVICES": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    time.sleep(10)  # both have imported torch
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [json.loads(process.communicate(timeout=90)[0].splitlines()[-1]) for process in started]
    return {name: max(one[name] for one in said) for name in said[0]}


def main() -> None:
    figures: dict[str, Any] = {}
    warm = [Warm("0", APART), Warm("1", APART)]
    began = time.monotonic()
    for one in warm:
        one.order(deadline_s=120)
    figures["facts"] = [one.hear()["result"] for one in warm]
    figures["facts_s"] = time.monotonic() - began
    figures["pairs"] = []
    for _ in range(3):
        checked = together(warm)
        figures["pairs"].append({"bare": bare(), "check": checked})
    began = time.monotonic()
    warm[0].order(deadline_s=8.0, task=task(0, 2, free_port()))
    figures["absent"] = warm[0].hear()["result"]
    figures["absent_s"] = time.monotonic() - began
    for one in warm:
        one.close()
    both = Warm("0,1", {"NCCL_NVLS_ENABLE": "0"})
    figures["two_gpus_of_one_replica"] = together([both], processes=2)
    both.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
