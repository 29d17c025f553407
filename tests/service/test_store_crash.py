"""Processes are killed and servers go down in the middle of writing: what was acknowledged is there, and all of it fits."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from postgresql import Server
from sqlalchemy import Connection, text
from store_scribe import RECORD_BYTES, WRITERS, record

from coordinator.store import Store, StoreError, queries, rows, streams

KILLS = 3
SEED = 20
SCRIBE = Path(__file__).with_name("store_scribe.py")


def killed_while_writing(url: str, after_s: float, acknowledgements: Path) -> Counter[int]:
    """Run a scribe, kill it `after_s` after its first acknowledgement; how many each writer was acknowledged."""
    with acknowledgements.open("wb") as out:
        process = subprocess.Popen([sys.executable, str(SCRIBE), url], stdout=out, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while acknowledgements.stat().st_size == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(after_s)
        assert process.poll() is None, process.communicate()[1].decode()
        process.kill()
        process.communicate()
    complete, _, _ = acknowledgements.read_text().rpartition("\n")
    return Counter(int(line.split()[0]) for line in complete.splitlines())


def test_a_process_killed_while_it_writes_leaves_every_acknowledged_byte_and_no_half_of_anything(
    database_url: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    acknowledged: Counter[int] = Counter()
    for kill in range(KILLS):
        acknowledged += killed_while_writing(
            database_url, chance.uniform(0.0, 0.4), tmp_path / f"acknowledged-{kill}"
        )
        started_s = time.monotonic()
        store = Store.open(database_url)
        assert time.monotonic() - started_s < 3
        for writer in range(WRITERS):
            kept = store.read_now(
                partial(
                    streams.read,
                    attempt_id="a-1",
                    replica_id=f"r-{writer}",
                    name="s",
                    offset=0,
                    limit=1 << 30,
                )
            )
            number = len(kept) // RECORD_BYTES
            assert number >= acknowledged[writer]
            assert kept == b"".join(record(writer, n) for n in range(number))
            # The metric came in the same operation as the bytes: both are there, or neither.
            metrics = store.read_now(partial(queries.metrics_after, job_id="a", limit=1_000_000, rank=writer))
            assert [m.step for m in metrics] == list(range(number))
            # Committed, but the kill came before the word of it: the scribe goes on from there.
            acknowledged[writer] = number
        if database_url.startswith("sqlite"):
            assert store.read_now(lambda c: c.execute(text("PRAGMA integrity_check")).scalar_one()) == "ok"
        store.close()
    assert sum(acknowledged.values()) > KILLS * WRITERS


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of one test's own, to be ended in the middle."""
    with Server() as own:
        yield own


def whole(store: Store, writer: int) -> bytes:
    return store.read_now(lambda c: streams.read(c, "a-1", f"r-{writer}", "s", 0, 1 << 30))


def append(store: Store, offset: int, data: bytes) -> streams.Appended:
    return store.write_now(lambda c: streams.append(c, "a-1", "r-1", "s", offset, data))


def test_a_server_that_goes_down_is_named_and_the_store_goes_on_when_it_is_back(server: Server) -> None:
    store = Store.open(server.database())
    assert append(store, 0, b"before") == (6, True)
    server.stop()
    with pytest.raises(StoreError, match="cannot be used"):
        append(store, 6, b"lost")
    with pytest.raises(StoreError, match="no server listens there"):
        append(store, 6, b"lost")
    with pytest.raises(StoreError, match="no server listens there"):
        store.read_now(queries.open_jobs)
    server.start()
    assert append(store, 6, b" after") == (12, True)
    assert store.read_now(lambda c: streams.read(c, "a-1", "r-1", "s", 0, 99)) == b"before after"
    store.close()


def test_a_connection_that_was_cut_while_nobody_wrote_costs_nobody_an_error(server: Server) -> None:
    url = server.database()
    store = Store.open(url)
    assert append(store, 0, b"before") == (6, True)
    assert store.read_now(queries.open_jobs) == []
    server.execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'rankcall' AND pid <> pg_backend_pid()",
    )
    assert append(store, 6, b" after") == (12, True)
    assert store.read_now(queries.open_jobs) == []
    store.close()


def test_a_restart_under_load_loses_and_doubles_nothing(server: Server) -> None:
    """Writers that repeat what failed, as agents do, end with exactly what they meant to write."""
    url = server.database()
    store = Store.open(url)
    each = 150

    async def agent(writer: int) -> int:
        refused, number = 0, 0
        while number < each:

            def operation(c: Connection, number: int = number) -> streams.Appended:
                data = record(writer, number)
                done = streams.append(c, "a-1", f"r-{writer}", "s", number * RECORD_BYTES, data)
                if done.accepted:
                    queries.insert_metrics(c, [rows.NewMetric("a", "a-1", writer, "log", number, {})])
                return done

            try:
                done = await store.write(operation)
            except StoreError:
                refused += 1
                await asyncio.sleep(0.05)
                continue
            number = done.size_bytes // RECORD_BYTES
            await asyncio.sleep(0.005)
        return refused

    async def load() -> list[int]:
        return await asyncio.gather(*(agent(writer) for writer in range(10)))

    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(asyncio.run, load())
        time.sleep(0.3)
        server.stop()
        time.sleep(0.2)
        server.start()
        assert sum(refused.result(60)) > 0
    for writer in range(10):
        kept = whole(store, writer)
        assert kept == b"".join(record(writer, n) for n in range(each))
        metrics = store.read_now(partial(queries.metrics_after, job_id="a", rank=writer))
        assert [m.step for m in metrics] == list(range(each))
    store.close()
