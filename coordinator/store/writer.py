"""The one writer: a thread that commits whatever waits as one group. `Store.write` hands operations to it.

A commit costs an fsync whether it holds one row or a thousand. While a group is being committed the next
one gathers by itself, so groups grow with the load and a lone operation waits for nobody. On a fast disk they would
stay small, and thousands of agents cost a core in commits: while operations keep coming, the next group is given a moment.

An operation that raises fails alone. The group is first tried without any guard, because failures are rare;
if one fails, all is rolled back and the same operations run once more, each under a savepoint. Hence
operations may run twice and must depend on nothing but the connection.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from sqlalchemy import Connection, Engine

from coordinator.core.clock import monotonic_s
from coordinator.store import pending
from coordinator.store.errors import StoreClosed, is_database_error

Operation = Callable[[Connection], Any]

# Bounds how long a group can make its members wait; at 20 µs an operation, some 10 ms.
GROUP_OPERATIONS = 512
# How long the next group gathers after one that had company, unless so many wait already.
GATHER_S = 0.002
ENOUGH = 16


@dataclass(slots=True)
class Waiting:
    """An operation in the queue, and who waits for it: a future of `loop`, or of a thread if that is None."""

    operation: Operation
    future: asyncio.Future[Any] | Future[Any]
    loop: asyncio.AbstractEventLoop | None


@dataclass(frozen=True, slots=True)
class Outcome:
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Figures:
    """What the writer has done since it started; `waiting` is how many operations are in its queue now."""

    groups: int = 0
    operations: int = 0
    failures: int = 0
    busy_s: float = 0.0
    largest_group: int = 0
    waiting: int = 0


@dataclass
class Writer:
    """Attributes:
    engine: whose connections exclude other writers.
    explain: turns a database's exception into one for the caller.
    fence: looks at each transaction before its operations do, and raises where nothing may be written.
    """

    engine: Engine
    explain: Callable[[BaseException], BaseException]
    figures: Figures = field(default_factory=Figures)
    fence: Callable[[Connection], None] | None = None

    def __post_init__(self) -> None:
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, waiting: Waiting) -> None:
        """Queue an operation. Raises StoreClosed once the writer is closing."""
        with self._closing:
            if self._closed:
                raise StoreClosed("the store is closed")
            self._queue.put(waiting)

    def waiting(self) -> int:
        return self._queue.qsize()

    def close(self) -> None:
        """Commit what is queued, then end the thread."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        group: list[Waiting] = []
        while (first := self._queue.get()) is not None:
            if len(group) > 1 and self._queue.qsize() < ENOUGH:
                time.sleep(GATHER_S)
            group = [first]
            last = False
            for _ in range(min(self._queue.qsize(), GROUP_OPERATIONS - 1)):
                following = self._queue.get()
                if following is None:
                    last = True
                    break
                group.append(following)
            _settle(group, self._write(group))
            if last:
                break
        if self._connection is not None:
            self._connection.close()

    def _write(self, group: Sequence[Waiting]) -> list[Outcome]:
        started_s = monotonic_s()
        try:
            outcomes = self._tried(group)
        except Exception as error:  # the thread outlives whatever a database does; every caller is told
            cause = error.cause if isinstance(error, _Transaction) else error
            outcomes = [Outcome(error=self.explain(cause)) for _ in group]
        figures = self.figures
        figures.groups += 1
        figures.operations += len(group)
        figures.failures += sum(1 for outcome in outcomes if outcome.error is not None)
        figures.largest_group = max(figures.largest_group, len(group))
        figures.busy_s += monotonic_s() - started_s
        return outcomes

    def _tried(self, group: Sequence[Waiting]) -> list[Outcome]:
        try:
            return self._together(group)
        except _Commit:
            # If the connection broke just now, nobody knows whether it is committed: the callers must look.
            raise
        except _Transaction:
            if self._connection is not None:
                raise  # no operation is to blame: there is no transaction to be had
            return self._together(group)  # the idle connection had been cut; the server may well be there
        except Exception as error:  # an operation's own fault, or the database's: told apart here
            if self._connection is None and is_database_error(error):
                return self._together(group)
            if len(group) == 1 and not is_database_error(error):
                return [Outcome(error=self.explain(error))]
            # Also a lone one: what it believed of a stream may have been out of date (see pending.py).
            return self._one_by_one(group)

    def _together(self, group: Sequence[Waiting]) -> list[Outcome]:
        c, gathered = self._begun()
        try:
            outcomes = [Outcome(waiting.operation(c)) for waiting in group]
            gathered.flush(c)
        except BaseException:
            self._roll_back(c, gathered)
            raise
        self._commit(c, gathered)
        return outcomes

    def _one_by_one(self, group: Sequence[Waiting]) -> list[Outcome]:
        c, gathered = self._begun()
        try:
            outcomes = [self._guarded(c, gathered, waiting.operation) for waiting in group]
        except BaseException:
            self._roll_back(c, gathered)
            raise
        self._commit(c, gathered)
        return outcomes

    def _guarded(self, c: Connection, gathered: pending.Pending, operation: Operation) -> Outcome:
        savepoint = c.begin_nested()
        try:
            value = operation(c)
            gathered.flush(c)
        except Exception as error:
            gathered.forget()
            # Raises, and so fails the whole group, if the database has given up on the transaction.
            savepoint.rollback()
            return Outcome(error=self.explain(error))
        savepoint.commit()
        return Outcome(value)

    def _begun(self) -> tuple[Connection, pending.Pending]:
        try:
            if self._connection is None:
                self._connection = self.engine.connect()
                pending.attach(self._connection)
            c = self._connection
            gathered = pending.of(c)
        except Exception as error:
            raise _Transaction(error) from error
        try:
            c.begin()
            if self.fence is not None:
                self.fence(c)
        except Exception as error:
            self._roll_back(c, gathered)
            raise _Transaction(error) from error
        return c, gathered

    def _commit(self, c: Connection, gathered: pending.Pending) -> None:
        try:
            c.commit()
        except Exception as error:
            self._roll_back(c, gathered)
            raise _Commit(error) from error
        gathered.committed()

    def _roll_back(self, c: Connection, gathered: pending.Pending) -> None:
        gathered.forget()
        try:
            c.rollback()
        except Exception:  # a connection that cannot roll back is of no use, whatever its driver says
            self._drop(c)
            return
        if c.invalidated or c.closed or _is_broken(c):
            self._drop(c)

    def _drop(self, c: Connection) -> None:
        self._connection = None
        try:
            c.invalidate()
            c.close()
        except Exception:  # a connection that cannot even be closed is given up; the next group opens another
            return


class _Transaction(Exception):
    """No transaction could be begun: no connection, another process would not end its own, or the fence is shut."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Commit(_Transaction):
    """The transaction could not be committed."""


def _is_broken(c: Connection) -> bool:
    """Whether the driver's own connection has ended (psycopg says so; SQLite's never does)."""
    return bool(getattr(c.connection.driver_connection, "closed", False))


def _settle(group: Sequence[Waiting], outcomes: Sequence[Outcome]) -> None:
    """Tell those who wait, each event loop by one wake-up."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = {}
    for waiting, outcome in zip(group, outcomes, strict=True):
        if isinstance(waiting.future, Future):
            if outcome.error is None:
                waiting.future.set_result(outcome.value)
            else:
                waiting.future.set_exception(outcome.error)
        elif waiting.loop is not None:
            by_loop.setdefault(waiting.loop, []).append((waiting.future, outcome))
    for loop, told in by_loop.items():
        try:
            loop.call_soon_threadsafe(_tell, told)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            continue


def _tell(told: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, outcome in told:
        if future.done():
            continue
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)
