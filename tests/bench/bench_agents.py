"""Thousands of agents in the middle of training: what their reports cost, against a bare app, in one run.

    .venv/bin/python tests/bench/bench_agents.py [--agents 5000] [--seconds 20] [--nodes 8]

Each agent sends one combined report every 2 s: state, a reading of its load, and one append of two progress events,
which is committed before it is acknowledged. The bare app takes the same reports into the same kind of tables, commits
them in groups, and knows nothing of tokens, incarnations, offsets, seats or watchdogs. Server and generator are
processes of their own; the generator writes bytes that were prepared before. Figures: README.md here.

Must hold: at most 1.4 times the core and twice the p99 of the bare app.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
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

import bare_reports
import psutil

from coordinator.attempt import AttemptState, Seat, StageRecord
from coordinator.core.protocol import Address, Append, Registration, Report, Stage, TaskReport, Telemetry
from coordinator.core.protocol.observed import RankTelemetry
from coordinator.store import Store, queries, rows

TOKEN = "bench-token-of-thirty-two-characters"
PERIOD_S = 2.0
# Reports of the first minute are not counted: streams are made, connections and windows of the watchdog are filled.
WARM_S = 60.0
CONFIG = "base_model: org/model\ndatasets:\n  - path: org/data\n    type: alpaca\noutput_dir: ./outputs\nlearning_rate: 0.0002\n"


def replica_of(number: int) -> str:
    return f"r-{number:010x}"


def address_of(number: int) -> str:
    return f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}"


def events_of(rank: int, step: int) -> bytes:
    at = 1_764_500_000.0 + step
    return b"".join(
        b'{"type":"log","at":%.3f,"rank":%d,"step":%d,"loss":1.2345,"learning_rate":0.0002,"step_s":1.0}\n'
        % (at + n, rank, step + n)
        for n in range(2)
    )


def registration(number: int) -> str:
    offer = Address(address=address_of(number), interface="eth0")
    return Registration(
        replica_id=replica_of(number), fingerprint=f"f{number}", incarnation=1, hostname=f"host-{number}",
        addresses=(offer,), echo_port=40000,
    ).model_dump_json()  # fmt: skip


# --- the coordinator's store, in the middle of training


def prepare(folder: Path, agents: int, nodes: int) -> None:
    """Jobs of `nodes` replicas each, all of them in training."""
    (folder / "coordinator").mkdir()
    store = Store.open(f"sqlite:///{folder}/coordinator/rankcall.db")
    at = time.time() - 600
    submission = {"config": CONFIG, "nodes": nodes, "gpus_per_node": 0}
    for first in range(0, agents, nodes):
        job_id = f"{first:08x}"
        numbers = range(first, min(first + nodes, agents))
        attempt = AttemptState(
            id=f"{job_id}-1",
            job_id=job_id,
            number=1,
            created_at=at,
            rendezvous_port=29500,
            seats=tuple(
                Seat(
                    replica_id=replica_of(n), rank=n - first, hostname=f"host-{n}", address=address_of(n),
                    interface="eth0", echo_port=40000,
                )
                for n in numbers
            ),
            stages=(StageRecord(stage=Stage.TRAIN, state="running", started_at=at),),
        )  # fmt: skip

        def put(c, attempt=attempt, job_id=job_id):  # type: ignore[no-untyped-def]
            for seat in attempt.seats:
                n = int(seat.replica_id[2:], 16)
                queries.upsert_replica(
                    c,
                    id=seat.replica_id,
                    fingerprint=f"f{n}",
                    incarnation=1,
                    token_hash="",
                    hostname=seat.hostname,
                    at=at,
                    registration=registration(n),
                )
            queries.insert_job(
                c,
                rows.Job(
                    job_id, "bench", len(attempt.seats), at, submission, state="running", stage="train",
                    gpus_per_node=0, started_at=at, attempts=1,
                ),
            )  # fmt: skip
            record = attempt.model_dump(mode="json")
            queries.insert_attempt(c, rows.Attempt(attempt.id, job_id, 1, at, record=record))

        store.write_now(put)
    store.close()


def must_be_training(folder: Path) -> None:
    """A coordinator whose jobs have ended has less to do than one that watches them."""
    store = Store.open(f"sqlite:///{folder}/coordinator/rankcall.db")
    states = store.read_now(lambda c: c.exec_driver_sql("SELECT state, count(*) FROM job GROUP BY 1").all())
    store.close()
    if {state for state, _ in states} != {"running"}:
        raise SystemExit(f"the jobs did not stay in training: {states}")


# --- the generator


class Wire(asyncio.Protocol):
    """One agent's connection: a prepared request out, an answer of known length in."""

    def __init__(self) -> None:
        self.received = b""
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        length = int(lower[at:].split(b"\r\n", 1)[0])
        if len(body) >= length and self.answer is not None and not self.answer.done():
            self.received = b""
            self.answer.set_result((int(head[9:12]), body))

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error or ConnectionResetError())

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)  # type: ignore[attr-defined]
        return await self.answer


def request(path: str, token: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Fleet:
    """All agents, evenly spread over the period."""

    def __init__(self, port: int, agents: int, nodes: int) -> None:
        self.port, self.agents, self.nodes = port, agents, nodes
        self.wires: list[Wire] = []
        self.tokens = [""] * agents
        self.offsets = [0] * agents
        self.steps = [0] * agents
        self.waits: list[float] = []
        self.counting = False
        self.wrong = 0

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self.agents):
            _, wire = await loop.create_connection(Wire, "127.0.0.1", self.port)
            self.wires.append(wire)

    async def register(self) -> None:
        gate = asyncio.Semaphore(128)

        async def one(n: int) -> None:
            async with gate:
                status, answer = await self.wires[n].ask(
                    request("/api/v1/replicas", TOKEN, registration(n).encode())
                )
            assert status == 201, answer
            self.tokens[n] = json.loads(answer)["token"]

        await asyncio.gather(*(one(n) for n in range(self.agents)))

    def composed(self, n: int) -> tuple[bytes, int]:
        """The agent's next report, and the size it leads to."""
        attempt_id = f"{n - n % self.nodes:08x}-1"
        data = events_of(n % self.nodes, self.steps[n])
        reading = Telemetry(
            at=time.time(), cpu_percent=50.0, memory_used_bytes=1 << 30, disk_free_bytes=1 << 40,
            ranks=(RankTelemetry(rank=n % self.nodes, pid=7, processes=3, cpu_s=1.5 * self.steps[n], line_age_s=0.5),),
        )  # fmt: skip
        report = Report(
            incarnation=1,
            holding=(attempt_id,),
            attempt_id=attempt_id,
            tasks=(TaskReport(task_id="train", stage=Stage.TRAIN, state="running"),),
            appends=(Append(attempt_id=attempt_id, stream="progress.0", offset=self.offsets[n], data=data),),
            telemetry=reading,
        )
        body = report.model_dump_json().encode()
        return request(f"/api/v1/replicas/{replica_of(n)}/report", self.tokens[n], body), len(data)

    async def report(self, n: int, prepared: tuple[bytes, int]) -> None:
        wire, (bytes_, size) = self.wires[n], prepared
        began_s = time.perf_counter()
        status, answer = await wire.ask(bytes_)
        if self.counting:
            self.waits.append(time.perf_counter() - began_s)
        if status != 200 or json.loads(answer)["acknowledged"][0]["size_bytes"] != self.offsets[n] + size:
            self.wrong += 1
            return
        self.offsets[n] += size
        self.steps[n] += 2

    async def live(self, seconds: float, server: psutil.Process) -> float:
        """Reports for so long; the server's CPU seconds of the counted part."""
        begun_s = time.perf_counter()
        before = None
        running: set[asyncio.Task[None]] = set()
        number = 0
        while (now_s := time.perf_counter()) < begun_s + WARM_S + seconds:
            if before is None and now_s >= begun_s + WARM_S:
                before, self.counting = server.cpu_times(), True
            due = int((now_s - begun_s) * self.agents / PERIOD_S)
            for _ in range(min(due - number, 50)):
                n = number % self.agents
                task = asyncio.create_task(self.report(n, self.composed(n)))
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
            await asyncio.sleep(0.002)
        after = server.cpu_times()
        await asyncio.gather(*running)
        assert before is not None
        return after.user + after.system - before.user - before.system


def one_run(kind: str, options: argparse.Namespace) -> tuple[float, float, float, int]:
    """(cores, p50 ms, p99 ms, reports not acknowledged as they should be)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        environment = os.environ | {
            "RANKCALL_TOKEN": TOKEN,
            "RANKCALL_PORT": str(port),
            "RANKCALL_HOST": "127.0.0.1",
            "RANKCALL_AXOLOTL_WAIT_S": "0",
            "RANKCALL_STATE_DIR": name,
        }
        argv = [sys.executable, "-m", "coordinator"]
        if kind == "bare app":
            argv = [sys.executable, bare_reports.__file__, str(port), name]
        else:
            prepare(folder, options.agents, options.nodes)
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        try:
            figures = asyncio.run(generate(kind, port, server.pid, options))
        finally:
            server.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            server.kill()
        if kind != "bare app":
            must_be_training(folder)
        return figures


async def generate(
    kind: str, port: int, pid: int, options: argparse.Namespace
) -> tuple[float, float, float, int]:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except OSError:
            await asyncio.sleep(0.1)
    fleet = Fleet(port, options.agents, options.nodes)
    await fleet.connect()
    if kind != "bare app":
        await fleet.register()
    gc.collect()
    gc.freeze()
    cpu_s = await fleet.live(options.seconds, psutil.Process(pid))
    for wire in fleet.wires:  # the next round needs as many
        wire.transport.abort()  # type: ignore[attr-defined]
    p99 = statistics.quantiles(fleet.waits, n=100)[98]
    return cpu_s / options.seconds, statistics.median(fleet.waits) * 1000, p99 * 1000, fleet.wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=8, help="replicas of a job")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", help="where the stores are put")
    options = parser.parse_args()
    print(
        f"{options.agents} agents in jobs of {options.nodes}, a report each {PERIOD_S:.0f} s, {os.cpu_count()} cores"
    )
    for _ in range(options.rounds):
        figures = {kind: one_run(kind, options) for kind in ("bare app", "coordinator")}
        for kind, (cores, p50, p99, wrong) in figures.items():
            print(
                f"  {kind:12} {cores:5.2f} cores   p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   {wrong} not acknowledged"
            )
        bare, ours = figures["bare app"], figures["coordinator"]
        print(f"  ratio        {ours[0] / bare[0]:5.2f}                          {ours[2] / bare[2]:6.2f}")


if __name__ == "__main__":
    main()
