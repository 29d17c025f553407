"""Writes to a store without end and says what was acknowledged: the process that `test_store_crash.py` kills.

    python store_scribe.py URL

Each of its writers appends numbered records to a stream of its own, one metric with each, in one operation.
An acknowledged record is a line "<writer> <number>" on standard output.
"""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy import Connection

from coordinator.store import Store, queries, rows, streams

WRITERS = 20
RECORD_BYTES = 1000


def record(writer: int, number: int) -> bytes:
    return (b"%d %d " % (writer, number)).ljust(RECORD_BYTES, b".")


async def write(store: Store, writer: int) -> None:
    replica = f"r-{writer}"
    number = await store.read(lambda c: streams.size(c, "a-1", replica, "s")) // RECORD_BYTES
    while True:

        def operation(c: Connection, number: int = number) -> bool:
            done = streams.append(c, "a-1", replica, "s", number * RECORD_BYTES, record(writer, number))
            queries.insert_metrics(c, [rows.NewMetric("a", "a-1", writer, "log", number, {})])
            return done.accepted

        assert await store.write(operation)
        sys.stdout.write(f"{writer} {number}\n")
        sys.stdout.flush()
        number += 1


async def main(url: str) -> None:
    store = Store.open(url)
    await asyncio.gather(*(write(store, writer) for writer in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
