"""`Store`: open it, write to it, read from it, close it. The app makes one; everything else is given it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError

from coordinator.store import engine, migrations
from coordinator.store.errors import StoreClosed, explain, is_lock_timeout, name_of
from coordinator.store.writer import Figures, Waiting, Writer

T = TypeVar("T")


class Store:
    """One database, one writer, a few readers. Use `Store.open`.

    An operation given to `write` is a function of the connection and of nothing else that may change: it
    may run twice (see `writer.py`). What it returns is handed over after the commit. A function given to
    `read` sees one state of the store, at least as new as every write acknowledged before it began.

    All methods raise StoreError in words for a user; an operation's own exceptions pass through.
    """

    def __init__(self, url: URL, writer: Writer, readers: Engine) -> None:
        self.url = url
        self._writer = writer
        self._readers = readers
        self._pool = ThreadPoolExecutor(engine.READERS, thread_name_prefix="store-reader")

    @classmethod
    def open(cls, url: str, *, lock_wait_s: float = engine.LOCK_WAIT_S) -> Store:
        """Open a store, making or migrating it as needed: `sqlite:////abs/path` or `postgresql+psycopg://…`.

        `lock_wait_s` is how long a write waits for a transaction of another process before it fails.
        """
        parsed = engine.parsed(url)
        engine.prepare_file(parsed)
        writing = engine.writing(parsed, lock_wait_s)
        try:
            engine.use_write_ahead_log(parsed)
            with writing.connect() as c:
                migrations.upgrade(c, name_of(parsed))
        except Exception as error:
            writing.dispose()
            raise explain(error, parsed) from error.__cause__
        writer = Writer(writing, lambda error: explain(error, parsed))
        return cls(parsed, writer, engine.reading(parsed, lock_wait_s))

    @property
    def name(self) -> str:
        """The store as a user knows it, without its password."""
        return name_of(self.url)

    def fence(self, check: Callable[[Connection], None]) -> None:
        """From now on `check` looks at each write transaction before its operations do, and may raise."""
        self._writer.fence = check

    def seize(self, operation: Callable[[Connection], T]) -> T:
        """Run the operation in a transaction of its own, in this thread, whatever the fence says, and though another
        process was frozen in the middle of a transaction: its connection is ended. PostgreSQL only.
        """
        seizing = engine.writing(self.url, engine.SEIZE_WAIT_S)
        try:
            try:
                with seizing.connect() as c, c.begin():
                    return operation(c)
            except DBAPIError as error:
                if not is_lock_timeout(error):
                    raise
            engine.end_other_writers(self.url)
            with seizing.connect() as c, c.begin():
                return operation(c)
        except Exception as error:
            told = explain(error, self.url)
            if told is error:
                raise
            raise told from error
        finally:
            seizing.dispose()

    async def write(self, operation: Callable[[Connection], T]) -> T:
        """Run the operation in the writer's next group; returns after its commit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._writer.submit(Waiting(operation, future, loop))
        return await future

    def write_now(self, operation: Callable[[Connection], T]) -> T:
        """`write` for a thread that may wait: start-up and tests."""
        future: Future[T] = Future()
        self._writer.submit(Waiting(operation, future, None))
        return future.result()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run the query in a reader's thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self.read_now, query)
        except RuntimeError as error:
            if "shutdown" in str(error):
                raise StoreClosed("the store is closed") from error
            raise

    def read_now(self, query: Callable[[Connection], T]) -> T:
        """Run the query in this thread."""
        try:
            with self._readers.connect() as c, c.begin():
                return query(c)
        except Exception as error:
            told = explain(error, self.url)
            if told is error:
                raise
            raise told from error

    def figures(self) -> Figures:
        """What the writer has done so far, for /metrics."""
        return replace(self._writer.figures, waiting=self._writer.waiting())

    def close(self) -> None:
        """Commit what waits, then let go of the database. Safe to call twice."""
        self._writer.close()
        self._pool.shutdown(wait=True)
        self._readers.dispose()
        self._writer.engine.dispose()
