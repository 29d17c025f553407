"""The least that can take the agents' reports: the bare app that `bench_agents.py` measures against.

It takes the same reports into the same kind of tables, commits them in groups, and knows nothing of tokens, incarnations,
offsets, seats or watchdogs.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import queue
import sqlite3
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coordinator.store import engine


class BareAppend(NamedTuple):
    attempt_id: str
    stream: str
    offset: int
    data: bytes


class Groups:
    """One thread that commits whatever waits."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: queue.SimpleQueue[tuple[str, BareAppend, asyncio.Future[int]]] = queue.SimpleQueue()
        self.path = path
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        c = sqlite3.connect(self.path, isolation_level=None)
        for setting in ("PRAGMA journal_mode = WAL", *engine._SQLITE_SETTINGS):
            c.execute(setting)
        c.execute('CREATE TABLE chunk (stream_id, "offset", data, PRIMARY KEY (stream_id, "offset"))')
        c.execute("CREATE TABLE stream (id PRIMARY KEY, size_bytes)")
        c.execute(
            "CREATE TABLE metric (id INTEGER PRIMARY KEY, job_id, attempt_id, rank, type, step, record)"
        )
        c.execute("CREATE INDEX one ON metric (job_id, id)")
        c.execute("CREATE INDEX two ON metric (attempt_id, rank, type, id)")
        while True:
            group = [self.queue.get()]
            group += [self.queue.get() for _ in range(min(self.queue.qsize(), 511))]
            c.execute("BEGIN IMMEDIATE")
            c.executemany(
                "INSERT INTO chunk VALUES (?,?,?)", [(id_, one.offset, one.data) for id_, one, _ in group]
            )
            c.executemany(
                "INSERT INTO stream VALUES (?,?) ON CONFLICT (id) DO UPDATE SET size_bytes = excluded.size_bytes",
                [(id_, one.offset + len(one.data)) for id_, one, _ in group],
            )
            c.executemany(
                "INSERT INTO metric (job_id, attempt_id, rank, type, step, record) VALUES (?,?,?,?,?,?)",
                [
                    (one.attempt_id, one.attempt_id, 0, "log", one.offset, line.decode())
                    for _, one, _ in group
                    for line in one.data.splitlines()
                ],
            )
            c.execute("COMMIT")
            self.loop.call_soon_threadsafe(self.tell, group)

    @staticmethod
    def tell(group: list[tuple[str, BareAppend, asyncio.Future[int]]]) -> None:
        for _, one, future in group:
            if not future.done():
                future.set_result(one.offset + len(one.data))


def serve_bare(port: int, folder: Path) -> None:
    import uvicorn

    groups: list[Groups] = []

    async def report(request: Request) -> Response:
        loop = asyncio.get_running_loop()
        if not groups:
            groups.append(Groups(folder / "bare.db", loop))
        given = json.loads(await request.body())
        sizes = []
        for one in given["appends"]:
            append = BareAppend(
                one["attempt_id"], one["stream"], one["offset"], base64.urlsafe_b64decode(one["data"])
            )
            future: asyncio.Future[int] = loop.create_future()
            groups[0].queue.put((request.path_params["replica_id"], append, future))
            sizes.append({"stream": append.stream, "size_bytes": await future})
        return Response(json.dumps({"acknowledged": sizes}), media_type="application/json")

    app = Starlette(routes=[Route("/api/v1/replicas/{replica_id}/report", report, methods=["POST"])])
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, backlog=8192)


if __name__ == "__main__":
    serve_bare(int(sys.argv[1]), Path(sys.argv[2]))
