"""How the store writes: in groups, each operation by itself, and readers see one state; on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection

from coordinator.store import Store, StoreClosed, StoreConflict, StoreError, queries, rows, streams


def job(id: str = "0badcafe", **changes: Any) -> rows.Job:
    return replace(
        rows.Job(id=id, name="a run", nodes=2, created_at=100.25, submission={"config": "x: 1"}), **changes
    )


def adding(id: str, **changes: Any) -> Callable[[Connection], int]:
    return lambda c: queries.insert_job(c, job(id, **changes))


def block(store: Store) -> tuple[threading.Event, threading.Thread]:
    """Hold the writer inside an operation until the event is set: what follows gathers in one group."""
    entered, go = threading.Event(), threading.Event()

    def hold(c: Connection) -> None:
        entered.set()
        go.wait(20)

    waiter = threading.Thread(target=store.write_now, args=(hold,))
    waiter.start()
    entered.wait(20)
    return go, waiter


def test_what_waits_together_is_committed_together(store: Store) -> None:
    async def many() -> list[int]:
        go, waiter = block(store)
        tasks = [asyncio.create_task(store.write(adding(f"{i:08x}"))) for i in range(100)]
        await asyncio.sleep(0)
        go.set()
        made = await asyncio.gather(*tasks)
        waiter.join()
        return made

    before = store.figures()
    assert asyncio.run(many()) == list(range(1, 101))
    after = store.figures()
    assert after.operations - before.operations == 101
    assert after.groups - before.groups == 2
    assert after.largest_group == 100


def test_a_write_is_visible_to_every_read_that_begins_after_it_was_acknowledged(store: Store) -> None:
    async def alternate() -> None:
        for i in range(50):
            await store.write(adding(f"{i:08x}"))
            assert len(await store.read(queries.open_jobs)) == i + 1

    asyncio.run(alternate())


@pytest.mark.parametrize("of", [1, 2, 50])
def test_an_operation_that_fails_fails_alone(store: Store, of: int) -> None:
    def fails(c: Connection) -> None:
        queries.insert_job(c, job("ffffffff"))
        streams.append(c, "a-1", "r-1", "train.log", 0, b"never")
        raise ValueError("no such thing")

    async def group() -> list[object]:
        go, waiter = block(store)
        tasks: list[asyncio.Task[Any]] = []
        for i in range(of):
            if i == of // 2:
                tasks.append(asyncio.create_task(store.write(fails)))
            else:
                tasks.append(asyncio.create_task(store.write(adding(f"{i:08x}"))))
        await asyncio.sleep(0)
        go.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        waiter.join()
        return list(done)

    outcomes = asyncio.run(group())
    failed = [outcome for outcome in outcomes if isinstance(outcome, ValueError)]
    assert [str(error) for error in failed] == ["no such thing"]
    kept = {row.id for row in store.read_now(queries.open_jobs)}
    assert kept == {f"{i:08x}" for i in range(of) if i != of // 2}
    assert store.read_now(lambda c: streams.size(c, "a-1", "r-1", "train.log")) == 0
    # And the stream is taken from its true size afterwards.
    assert store.write_now(lambda c: streams.append(c, "a-1", "r-1", "train.log", 0, b"now")) == (3, True)


def test_a_failing_statement_does_not_take_its_neighbours_with_it(store: Store) -> None:
    store.write_now(lambda c: queries.insert_job(c, job("00000000")))

    async def group() -> list[object]:
        go, waiter = block(store)
        ids = ["00000001", "00000000", "00000002"]
        tasks = [asyncio.create_task(store.write(adding(id))) for id in ids]
        appended = asyncio.create_task(
            store.write(lambda c: streams.append(c, "a-1", "r-1", "train.log", 0, b"kept"))
        )
        await asyncio.sleep(0)
        go.set()
        done = await asyncio.gather(*tasks, appended, return_exceptions=True)
        waiter.join()
        return list(done)

    first, duplicate, last, appended = asyncio.run(group())
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert appended == (4, True)
    assert isinstance(duplicate, StoreConflict)
    assert [row.id for row in store.read_now(queries.open_jobs)] == ["00000000", "00000001", "00000002"]


def test_a_cancelled_caller_harms_nobody(store: Store) -> None:
    async def cancel_one() -> None:
        go, waiter = block(store)
        gone = asyncio.create_task(store.write(lambda c: queries.insert_job(c, job("00000001"))))
        stays = asyncio.create_task(store.write(lambda c: queries.insert_job(c, job("00000002"))))
        await asyncio.sleep(0)
        gone.cancel()
        go.set()
        assert await stays
        waiter.join()
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(cancel_one())


def test_closing_commits_what_waits_and_refuses_what_comes_later(database_url: str) -> None:
    store = Store.open(database_url)

    async def close_in_the_middle() -> None:
        go, waiter = block(store)
        tasks = [asyncio.create_task(store.write(adding(f"{i:08x}"))) for i in range(20)]
        await asyncio.sleep(0)
        closing = threading.Thread(target=store.close)
        closing.start()
        go.set()
        await asyncio.gather(*tasks)
        closing.join()
        waiter.join()
        with pytest.raises(StoreClosed):
            await store.write(lambda c: None)
        with pytest.raises(StoreClosed):
            await store.read(lambda c: None)

    asyncio.run(close_in_the_middle())
    store.close()
    again = Store.open(database_url)
    assert len(again.read_now(queries.open_jobs)) == 20
    again.close()


def test_a_reader_cannot_write(store: Store) -> None:
    store.write_now(lambda c: queries.insert_job(c, job()))
    with pytest.raises(StoreError):
        store.read_now(lambda c: queries.update_job(c, "0badcafe", verdict="changed"))
    with pytest.raises(TypeError, match=r"inside Store\.write only"):
        store.read_now(lambda c: streams.append(c, "a-1", "r-1", "train.log", 0, b"x"))
    found = store.read_now(lambda c: queries.job(c, "0badcafe"))
    assert found is not None
    assert found.verdict == ""


def test_a_reader_sees_one_state_while_others_write(store: Store) -> None:
    def look(c: Connection) -> tuple[int, int]:
        before = len(queries.open_jobs(c))
        store.write_now(lambda w: queries.insert_job(w, job()))
        return before, len(queries.open_jobs(c))

    assert store.read_now(look) == (0, 0)
    assert len(store.read_now(queries.open_jobs)) == 1


def test_two_coordinators_on_one_store_never_double_or_lose_a_byte(database_url: str) -> None:
    """Each keeps the sizes of the streams in memory; the other's appends must not go unnoticed."""
    both = [Store.open(database_url), Store.open(database_url)]

    def append(store: Store, offset: int, data: bytes) -> streams.Appended:
        return store.write_now(lambda c: streams.append(c, "a-1", "r-1", "s", offset, data))

    expected = b""
    for turn in range(24):
        data = bytes([turn]) * (turn + 1)
        writer, other = both if turn // 3 % 2 else both[::-1]
        assert append(writer, len(expected), data) == (len(expected) + len(data), True)
        # The same bytes once more, to the one whose memory says that they are due.
        assert append(other, len(expected), data) == (len(expected) + len(data), False)
        expected += data
    for store in both:
        assert store.read_now(lambda c: streams.read(c, "a-1", "r-1", "s", 0, 1 << 20)) == expected
        store.close()


def test_two_coordinators_write_at_once_and_readers_miss_no_record(database_url: str) -> None:
    """A reader that asks for what comes after the last id it saw gets every record, whoever wrote it."""
    first, second = Store.open(database_url), Store.open(database_url)
    # SQLite lets two processes take turns slowly (it sleeps between tries); PostgreSQL does not.
    each = 20 if database_url.startswith("sqlite") else 150

    def write(store: Store, rank: int) -> None:
        for i in range(each):
            new = rows.NewMetric("j", "j-1", rank, "log", i, {"loss": 1.0})
            store.write_now(partial(queries.insert_metrics, new=[new]))

    threads = [threading.Thread(target=write, args=pair) for pair in ((first, 0), (second, 1))]
    for thread in threads:
        thread.start()
    seen: list[rows.Metric] = []
    deadline = time.monotonic() + 60
    while len(seen) < 2 * each and time.monotonic() < deadline:
        last = seen[-1].id if seen else 0
        seen += first.read_now(partial(queries.metrics_after, job_id="j", after_id=last, limit=7))
    for thread in threads:
        thread.join()
    assert sorted((m.rank, m.step) for m in seen) == sorted((r, i) for r in (0, 1) for i in range(each))
    first.close()
    second.close()
