"""Rendezvous of many simulated replicas: first registration to last rank, against a bare app, in one run.

    .venv/bin/python tests/bench/bench_rendezvous.py [--replicas 1024] [--rounds 5]

The bare app only registers and answers held reads; the coordinator also commits each registration,
issues and checks tokens, and starts the attempt. Server and generator are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import aiohttp
import psutil
from answering import answering
from fastapi import FastAPI
from pydantic import BaseModel


class Registration(BaseModel):
    """What the bare app takes."""

    replica_id: str
    incarnation: int
    hostname: str


TOKEN = "bench-token-of-thirty-two-characters"
CONFIG = "base_model: org/model\ndatasets:\n  - path: org/data\n    type: alpaca\noutput_dir: ./outputs\nlearning_rate: 0.0002\n"


def bare_app(count: int):  # type: ignore[no-untyped-def]
    """A FastAPI app that counts registrations and holds every read until all are there."""
    app = FastAPI()
    ranks: dict[str, int] = {}
    complete = asyncio.Event()

    @app.post("/api/v1/replicas", status_code=201)
    async def register(registration: Registration) -> dict[str, object]:
        ranks[registration.replica_id] = len(ranks)
        if len(ranks) == count:
            complete.set()
        return {"replica_id": registration.replica_id, "token": "none"}

    @app.get("/api/v1/replicas/{replica_id}/desired")
    async def desired(replica_id: str) -> dict[str, object]:
        await complete.wait()
        return {"version": "1", "attempt": {"rank": ranks[replica_id]}}

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


async def replica(session: aiohttp.ClientSession, base: str, number: int) -> int:
    """Register, then hold a read until a rank comes; returns it."""
    body = {
        "replica_id": f"r-{number:010x}",
        "fingerprint": f"f{number}",
        "incarnation": 1,
        "hostname": f"host-{number}",
        "addresses": [{"address": f"10.0.{number >> 8}.{number & 255}", "interface": "eth0"}],
        "echo_port": 40000,
    }
    async with session.post(
        f"{base}/api/v1/replicas", json=body, headers={"Authorization": f"Bearer {TOKEN}"}
    ) as answer:
        assert answer.status in (200, 201), await answer.text()
        token = (await answer.json())["token"]
    headers = {"Authorization": f"Bearer {token}", "Prefer": "wait=20"}
    while True:
        async with session.get(
            f"{base}/api/v1/replicas/{body['replica_id']}/desired", headers=headers
        ) as answer:
            if answer.status == 304:
                continue
            assert answer.status == 200, await answer.text()
            desired = await answer.json()
            headers["If-None-Match"] = answer.headers.get("ETag", "")
        if desired["attempt"] is not None:
            return int(desired["attempt"]["rank"])


async def generate(base: str, count: int, submit: bool) -> float:
    """Seconds from the first registration to the last rank."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        if submit:
            async with session.post(
                f"{base}/api/v1/jobs",
                json={"config": CONFIG, "nodes": count},
                headers={"Authorization": f"Bearer {TOKEN}"},
            ) as answer:
                assert answer.status == 201, await answer.text()
        started = time.perf_counter()
        ranks = await asyncio.gather(*(replica(session, base, n) for n in range(count)))
        elapsed = time.perf_counter() - started
    assert sorted(ranks) == list(range(count))
    return elapsed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_round(kind: str, count: int) -> tuple[float, float]:
    """(seconds of the rendezvous, CPU seconds the server spent on it): a fresh server of `kind` each time."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "RANKCALL_TOKEN": TOKEN,
            "RANKCALL_PORT": str(port),
            "RANKCALL_HOST": "127.0.0.1",
            "RANKCALL_AXOLOTL_WAIT_S": "0",
            "RANKCALL_STATE_DIR": folder,
        }
        if kind == "bare":
            argv = [sys.executable, __file__, "--serve-bare", str(port), "--replicas", str(count)]
        else:
            argv = [sys.executable, "-m", "coordinator"]
        server = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            base = f"http://127.0.0.1:{port}"
            asyncio.run(answering(f"{base}/healthz"))
            before = psutil.Process(server.pid).cpu_times()
            elapsed = asyncio.run(generate(base, count, submit=kind != "bare"))
            after = psutil.Process(server.pid).cpu_times()
            return elapsed, after.user + after.system - before.user - before.system
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve-bare", type=int)
    options = parser.parse_args()
    if options.serve_bare:
        import uvicorn

        uvicorn.run(
            bare_app(options.replicas),
            host="127.0.0.1",
            port=options.serve_bare,
            log_level="error",
        )
        return
    seen: dict[str, list[tuple[float, float]]] = {"bare app": [], "coordinator": []}
    for _ in range(options.rounds):
        for kind, rounds in seen.items():
            rounds.append(one_round("bare" if kind == "bare app" else kind, options.replicas))
    print(f"{options.replicas} replicas, {options.rounds} rounds, {os.cpu_count()} cores")
    for kind, rounds in seen.items():
        wall, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        each = ", ".join(f"{wall * 1000:.0f}" for wall, _ in rounds)
        print(f"{kind:12} {wall * 1000:6.0f} ms, server CPU {cpu * 1000:6.0f} ms   (medians; {each})")
    pairs = list(zip(seen["bare app"], seen["coordinator"], strict=True))
    for which, what in enumerate(("time", "server CPU")):
        print(
            f"ratio of {what:10} {statistics.median(ours[which] / bare[which] for bare, ours in pairs):5.2f}"
        )


if __name__ == "__main__":
    main()
