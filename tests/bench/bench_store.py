"""How fast the store writes: reports of many agents, committed before they are acknowledged.

    .venv/bin/python tests/bench/bench_store.py [--seconds 5] [--postgresql] [--reopen]

A report is what one agent sends in 2 s of training: one append of two progress lines, and their two metrics, in
one operation. Next to it, in the same run, the floor: the same rows put into the same tables by a bare thread
with the driver alone, which knows nothing of operations, offsets or failures. Figures: README.md here.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import queue
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection

from coordinator.store import Store, engine, migrations, queries, rows, streams

LINE = b'{"type":"log","at":1764500000.123,"rank":3,"step":1234,"loss":1.2345,"learning_rate":0.0002,"epoch":0.5}\n'
REPORT = LINE * 2
RECORD = LINE.decode().strip()
AGENTS = 5000
PERIOD_S = 2.0

Send = Callable[[int], Awaitable[object]]


class Agents:
    """What each agent has sent so far."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sizes = [0] * AGENTS

    async def send(self, agent: int) -> None:
        offset = self.sizes[agent]

        def take(c: Connection) -> streams.Appended:
            done = streams.append(c, "job-1", f"r-{agent:010x}", "progress.0", offset, REPORT)
            if done.accepted:
                new = rows.NewMetric("job", "job-1", agent, "log", 1234, RECORD)
                queries.insert_metrics(c, (new, new))
            return done

        done = await self.store.write(take)
        assert done.accepted
        self.sizes[agent] = done.size_bytes


class Bare:
    """The floor: one thread, one `executemany` for each table, one commit for all that waits."""

    def __init__(self, path: Path) -> None:
        self.sizes = [0] * AGENTS
        self.queue: queue.SimpleQueue[tuple[int, int, asyncio.Future[int]] | None] = queue.SimpleQueue()
        self.path = path
        self.loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        c = sqlite3.connect(self.path, isolation_level=None)
        for setting in engine._SQLITE_SETTINGS:
            c.execute(setting)
        while (first := self.queue.get()) is not None:
            group = [first]
            for _ in range(min(self.queue.qsize(), 511)):
                following = self.queue.get()
                if following is None:
                    self.queue.put(None)
                    break
                group.append(following)
            c.execute("BEGIN IMMEDIATE")
            c.executemany("INSERT INTO chunk VALUES (?,?,?)", [(a, o, REPORT) for a, o, _ in group])
            c.executemany(
                "UPDATE stream SET size_bytes = ? WHERE id = ?", [(o + len(REPORT), a) for a, o, _ in group]
            )
            metric = "INSERT INTO metric (job_id, attempt_id, rank, type, step, record) VALUES (?,?,?,?,?,?)"
            c.executemany(
                metric, [("job", "job-1", a, "log", 1234, RECORD) for a, _, _ in group for _ in range(2)]
            )
            c.execute("COMMIT")
            self.loop.call_soon_threadsafe(self.tell, group)
        c.close()

    def tell(self, group: list[tuple[int, int, asyncio.Future[int]]]) -> None:
        for _, offset, future in group:
            future.set_result(offset + len(REPORT))

    async def send(self, agent: int) -> None:
        future: asyncio.Future[int] = self.loop.create_future()
        self.queue.put((agent, self.sizes[agent], future))
        self.sizes[agent] = await future

    def close(self) -> None:
        self.queue.put(None)
        self.thread.join()


async def closed_loop(send: Send, connections: int, seconds: float) -> str:
    """So many agents, each sending its next report as soon as the last is acknowledged."""
    waits: list[float] = []
    end = time.perf_counter() + seconds

    async def one(agent: int) -> None:
        while (start := time.perf_counter()) < end:
            await send(agent)
            waits.append(time.perf_counter() - start)

    cpu = time.process_time()
    await asyncio.gather(*(one(agent) for agent in range(connections)))
    return figures(waits, seconds, time.process_time() - cpu)


async def paced(send: Send, seconds: float) -> str:
    """5,000 agents, one report each 2 s, evenly spread: 2,500 a second in ticks of 4 ms."""
    waits: list[float] = []
    tick_s = 0.004
    each = round(AGENTS / PERIOD_S * tick_s)

    async def one(agent: int) -> None:
        start = time.perf_counter()
        await send(agent)
        waits.append(time.perf_counter() - start)

    cpu, begun, agent = time.process_time(), time.perf_counter(), 0
    running: set[asyncio.Task[None]] = set()
    while (now := time.perf_counter()) < begun + seconds:
        for _ in range(each):
            task = asyncio.create_task(one(agent % AGENTS))
            running.add(task)
            task.add_done_callback(running.discard)
            agent += 1
        await asyncio.sleep(max(0.0, begun + agent / each * tick_s - now))
    await asyncio.gather(*running)
    return figures(waits, seconds, time.process_time() - cpu)


def figures(waits: list[float], seconds: float, cpu_s: float) -> str:
    p99 = statistics.quantiles(waits, n=100)[98] * 1000
    per_report = cpu_s / len(waits) * 1e6
    return (
        f"{len(waits) / seconds:7,.0f} reports/s  p50 {statistics.median(waits) * 1000:6.1f} ms  "
        f"p99 {p99:6.1f} ms  {cpu_s / seconds:4.2f} cores  {per_report:4.0f} µs of CPU a report"
    )


async def reports(url: str, seconds: float) -> None:
    for connections in (1, 32, 256, 2048):
        with opened(url, f"c{connections}") as store:
            print(
                f"  {connections:5} at once   ", await closed_loop(Agents(store).send, connections, seconds)
            )
    with opened(url, "paced") as store:
        agents = Agents(store)
        await asyncio.gather(
            *(agents.send(agent) for agent in range(AGENTS))
        )  # the streams are there already
        print("  5,000 in 2 s    ", await paced(agents.send, seconds))


async def floor(folder: Path, seconds: float) -> None:
    for name, connections in (("a", 32), ("b", 256), ("c", 2048), ("paced", None)):
        path = folder / f"bare-{name}.db"
        with opened(f"sqlite:///{path}", "") as store:
            store.write_now(seed_streams)
        bare = Bare(path)
        try:
            if connections is None:
                print("  floor 5,000 in 2 s", await paced(bare.send, seconds))
            else:
                print(f"  floor {connections:5} at once", await closed_loop(bare.send, connections, seconds))
        finally:
            bare.close()


def seed_streams(c: Connection) -> None:
    c.exec_driver_sql(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) INSERT INTO stream "
        "(id, attempt_id, replica_id, name, size_bytes) SELECT i, 'job-1', 'r-' || i, 'progress.0', 0 FROM n"
    )


def bulk(url: str) -> None:
    """Rows of a thousand to the group, and a log's bytes in appends of 1 MiB."""
    with opened(url, "bulk") as store:
        thousand = [rows.NewMetric("job", "job-1", i % 8, "log", i, RECORD) for i in range(1000)]
        start = time.perf_counter()
        for _ in range(100):
            store.write_now(lambda c: queries.insert_metrics(c, thousand))
        print(f"  metrics, 1,000 a group: {100_000 / (time.perf_counter() - start):,.0f} rows/s")
        block = os.urandom(1 << 20)
        start = time.perf_counter()
        for i in range(128):
            store.write_now(lambda c, i=i: streams.append(c, "job-1", "r", "train.log", i << 20, block))  # type: ignore[misc]
        print(f"  one log, 1 MiB an append: {128 / (time.perf_counter() - start):,.0f} MiB/s")
        start = time.perf_counter()
        for i in range(2000):
            store.read_now(lambda c, i=i: streams.read(c, "job-1", "r", "train.log", i * 65000, 65536))  # type: ignore[misc]
        print(f"  64 KiB of it read: {(time.perf_counter() - start) / 2000 * 1e6:,.0f} µs")
        start = time.perf_counter()
        for _ in range(200):
            store.read_now(lambda c: queries.newest_metrics(c, "job-1"))
        print(
            f"  newest of 8 ranks among 100,000 records: {(time.perf_counter() - start) / 200 * 1e6:,.0f} µs"
        )


def reopen(folder: Path) -> None:
    """A store of 1 GB whose process is killed in the middle of writing: how long until the next one has written."""
    url = f"sqlite:///{folder}/large.db"
    fill = (
        "import os,sys\nfrom coordinator.store import Store,streams\ns=Store.open(sys.argv[1])\nb=os.urandom(1<<20)\n"
        "i=0\nwhile True:\n s.write_now(lambda c: streams.append(c,'a-1','r','log',i<<20,b)); i+=1\n print(i,flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", fill, url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 1024:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    start = time.perf_counter()
    store = Store.open(url)
    store.write_now(lambda c: streams.append(c, "a-2", "r", "log", 0, b"x"))
    print(
        f"  1 GiB store after SIGKILL: open and first write in {(time.perf_counter() - start) * 1000:.0f} ms"
    )
    store.close()


@contextmanager
def opened(url: str, name: str) -> Iterator[Store]:
    """A store that holds nothing yet."""
    if name and url.startswith("sqlite"):
        url += f"-{name}"
    parsed = engine.parsed(url)
    if not url.startswith("sqlite"):
        with engine.writing(parsed).connect() as c:
            if c.dialect.has_table(c, "job"):
                c.rollback()
                migrations.downgrade(c, "base")
    store = Store.open(url)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    try:
        yield store
    finally:
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--reopen", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankcall-bench-") as name:
        folder = Path(name)
        print(f"SQLite, {os.cpu_count()} cores")
        asyncio.run(reports(f"sqlite:///{folder}/store", options.seconds))
        asyncio.run(floor(folder, options.seconds))
        bulk(f"sqlite:///{folder}/store")
        if options.reopen:
            reopen(folder)
    if options.postgresql:
        sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
        from postgresql import Server

        with Server() as server:
            print("PostgreSQL, the server on the same cores")
            url = server.database()
            asyncio.run(reports(url, options.seconds))
            bulk(url)


if __name__ == "__main__":
    main()
