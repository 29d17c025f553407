"""How soon a coordinator is back after SIGKILL, with a large store: to its first answer, and to its first acknowledged report.

    .venv/bin/python tests/bench/bench_restart.py [--gib 1] [--agents 64] [--rounds 5]

The store holds jobs in training with their logs and a hundred thousand progress records; agents report while the process
is killed. Back means that /readyz is 200; consistent, that a report of every agent is acknowledged with the size that was
acknowledged before. Figures: README.md here. Must hold: 3 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from answering import answering
from bench_agents import PERIOD_S, TOKEN, Fleet, prepare

from coordinator.store import Store, queries, rows, streams

MIB = 1 << 20
RECORDS = 100_000


def fill(folder: Path, gib: float) -> None:
    """Logs of the first job, and its progress."""
    store = Store.open(f"sqlite:///{folder}/coordinator/rankcall.db")
    block = os.urandom(MIB)
    for number in range(int(gib * 1024)):
        store.write_now(
            lambda c, n=number: streams.append(c, "00000000-1", "r-0000000000", "train.log", n * MIB, block)
        )  # type: ignore[misc]
    record = '{"type":"log","at":1764500000.0,"rank":0,"step":1,"loss":1.5}'
    for first in range(0, RECORDS, 1000):
        new = [
            rows.NewMetric("00000000", "00000000-1", n % 8, "log", n, record)
            for n in range(first, first + 1000)
        ]
        store.write_now(lambda c, new=new: queries.insert_metrics(c, new))  # type: ignore[misc]
    store.close()


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANKCALL_TOKEN": TOKEN,
        "RANKCALL_PORT": str(port),
        "RANKCALL_HOST": "127.0.0.1",
        "RANKCALL_AXOLOTL_WAIT_S": "0",
        "RANKCALL_STATE_DIR": str(folder),
    }
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "coordinator"], env=environment, stdout=log, stderr=log
        )


async def measure(folder: Path, port: int, agents: int, rounds: int) -> list[tuple[float, float]]:
    server = start(folder, port)
    found = []
    try:
        await answering(f"http://127.0.0.1:{port}/readyz")
        fleet = Fleet(port, agents, 8)
        await fleet.connect()
        await fleet.register()
        for _ in range(rounds):
            end_s = time.monotonic() + 2 * PERIOD_S
            while time.monotonic() < end_s:
                await asyncio.gather(*(fleet.report(n, fleet.composed(n)) for n in range(agents)))
            in_the_middle = [asyncio.create_task(fleet.report(n, fleet.composed(n))) for n in range(agents)]
            await asyncio.sleep(0.002)
            server.kill()
            server.wait()
            await asyncio.gather(*in_the_middle, return_exceptions=True)
            begun_s = time.monotonic()
            server = start(folder, port)
            await answering(f"http://127.0.0.1:{port}/readyz")
            back_s = time.monotonic() - begun_s
            fleet.wires = []
            await fleet.connect()
            for n in range(agents):  # what was on its way may have been committed, and not acknowledged
                _, answer = await fleet.wires[n].ask(fleet.composed(n)[0])
                size = json.loads(answer)["acknowledged"][0]["size_bytes"]
                assert size >= fleet.offsets[n], "an acknowledged byte is lost"
                fleet.offsets[n] = size
            found.append((back_s, time.monotonic() - begun_s))
        assert fleet.wrong == 0
    finally:
        server.kill()
        server.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="rankcall-bench-") as name:
        folder = Path(name)
        prepare(folder, options.agents, 8)
        fill(folder, options.gib)
        size = (folder / "coordinator/rankcall.db").stat().st_size / (1 << 30)
        found = asyncio.run(measure(folder, port, options.agents, options.rounds))
    print(
        f"a store of {size:.2f} GiB, {options.agents} agents, {options.rounds} times SIGKILL, {os.cpu_count()} cores"
    )
    for what, column in zip(("ready", "every agent acknowledged"), zip(*found, strict=True), strict=True):
        print(f"  {what:25} median {statistics.median(column):5.2f} s   slowest {max(column):5.2f} s")


if __name__ == "__main__":
    main()
