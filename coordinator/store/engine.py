"""From a URL to connections: one way to write and one to read, on SQLite and on PostgreSQL. `Store` calls it.

On both a write transaction excludes every other one, also of another coordinator process: SQLite by BEGIN
IMMEDIATE, PostgreSQL by an advisory lock. So ids are handed out in the order in which rows become visible,
and a reader that asks for what comes after the last id it saw misses nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stamina
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from coordinator.store import driver
from coordinator.store.errors import StoreError

# How long a writer waits for another process's transaction: long enough for a coordinator that is just ending.
LOCK_WAIT_S = 30.0
# How long who takes the lease over waits for a transaction of the process it takes it from.
SEIZE_WAIT_S = 1.0
CONNECT_S = 5
# A connection whose other side does not acknowledge for so long is dead, on both sides; between two probes of it.
SILENT_SERVER_S = 5
KEEPALIVE_S = 2
# The writer's statements follow each other at once; below the time after which a lease is stale (`tenure.py`).
IDLE_IN_TRANSACTION_S = 4.0
READERS = 4
# "rank" in ASCII; any number serves, as long as every release takes the same.
_ADVISORY_LOCK = 0x72616E6B
_END_OTHER_WRITERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 0 "
    "AND objid = %(lock)s AND objsubid = 1 AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)

_SQLITE_SETTINGS = (
    # The log is synced at each commit: a group costs one fsync and survives the loss of power.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA cache_size = -16000",
    # What a burst left of the log is given back at the next checkpoint.
    "PRAGMA journal_size_limit = 67108864",
)


def parsed(url: str) -> URL:
    """The URL with the driver this project uses. Raises StoreError for one that names no supported database."""
    try:
        made = make_url(url)
    except ArgumentError:
        raise StoreError(
            "RANKCALL_DATABASE_URL is not a database URL; write sqlite:////path/to/file "
            "or postgresql+psycopg://user:password@host/database"
        ) from None
    backend = made.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        return made.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"RANKCALL_DATABASE_URL names {backend!r}; rankcall stores in SQLite or PostgreSQL")
    if not made.database or made.database == ":memory:":
        raise StoreError("RANKCALL_DATABASE_URL names no file; write sqlite:////path/to/file")
    return made.set(drivername="sqlite+pysqlite")


def writing(url: URL, lock_wait_s: float = LOCK_WAIT_S) -> Engine:
    """An engine whose transactions exclude each other. It keeps no pool: the writer keeps its connection."""
    engine = _engine(url, lock_wait_s, read_only=False, poolclass=NullPool)
    if url.get_backend_name() == "sqlite":
        # Not through SQLAlchemy, which takes as long for it as a group of reports needs.
        event.listen(engine, "begin", lambda c: c.connection.driver_connection.execute("BEGIN IMMEDIATE"))
    else:
        event.listen(
            engine,
            "begin",
            lambda c: c.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"),
        )
    return engine


def end_other_writers(url: URL) -> None:
    """End the connection whose transaction excludes all others, on a PostgreSQL server."""
    with _engine(url, SEIZE_WAIT_S, read_only=False, poolclass=NullPool).connect() as c:
        c.exec_driver_sql(_END_OTHER_WRITERS, {"lock": _ADVISORY_LOCK})


def reading(url: URL, lock_wait_s: float = LOCK_WAIT_S) -> Engine:
    """An engine whose transactions see one unchanging state of the store and cannot write."""
    engine = _engine(
        url, lock_wait_s, read_only=True, pool_size=READERS, max_overflow=0, pool_pre_ping=_is_server(url)
    )
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))
    return engine


def prepare_file(url: URL) -> None:
    """Make the SQLite file and its folder, readable by this user alone: it holds submissions and token hashes."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        reason = f"{path.parent} is not a folder" if in_the_way else error.strerror
        raise StoreError(
            f"the store {path} cannot be opened: {reason}; "
            "check RANKCALL_STATE_DIR, and that this user may write there"
        ) from error


def use_write_ahead_log(url: URL) -> None:
    """Switch an SQLite file to WAL (kept in the file): readers and the writer do not wait for each other."""
    if url.get_backend_name() != "sqlite":
        return
    # The switch needs the file for itself and, unlike a transaction, does not wait for others that open it.
    patience = stamina.retry_context(
        on=_is_locked, attempts=None, timeout=LOCK_WAIT_S, wait_initial=0.01, wait_max=0.2, wait_jitter=0.05
    )
    for attempt in patience:
        with attempt, _sqlite_alone(url) as connection:
            # Of a new file only: room that is used no more can be given back to the disk (`queries/kept.py`).
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"the store {url.database} cannot keep a write-ahead log on its disk (it says {mode}); "
            "put RANKCALL_STATE_DIR on a container-local disk"
        )


def _is_locked(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "is locked" in str(error)


@contextmanager
def _sqlite_alone(url: URL) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(str(url.database), timeout=LOCK_WAIT_S, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def is_server(url: str) -> bool:
    """Whether several processes may share this store. Raises StoreError as `parsed`."""
    return _is_server(parsed(url))


def _is_server(url: URL) -> bool:
    return url.get_backend_name() != "sqlite"


def _engine(url: URL, lock_wait_s: float, *, read_only: bool, **pool: Any) -> Engine:
    if _is_server(url):
        return _postgresql(url, lock_wait_s, read_only=read_only, **pool)
    engine = create_engine(
        url,
        # No implicit transactions: the begin events above start them. Any thread may use a reader.
        connect_args={"timeout": lock_wait_s, "isolation_level": None, "check_same_thread": False},
        json_serializer=driver.json_text,
        **pool,
    )

    @event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _record: object) -> None:
        for setting in _SQLITE_SETTINGS:
            connection.execute(setting)
        if read_only:
            connection.execute("PRAGMA query_only = ON")

    return engine


def _postgresql(url: URL, lock_wait_s: float, *, read_only: bool, **pool: Any) -> Engine:
    settings = {
        "lock_timeout": f"{int(lock_wait_s * 1000)}",
        "application_name": "rankcall",
        # A process that was frozen or cut off in a transaction must not keep the others from writing.
        "idle_in_transaction_session_timeout": f"{int(IDLE_IN_TRANSACTION_S * 1000)}",
        "tcp_keepalives_idle": f"{KEEPALIVE_S}",
        "tcp_keepalives_interval": f"{KEEPALIVE_S}",
        "tcp_keepalives_count": "2",
        "tcp_user_timeout": f"{SILENT_SERVER_S * 1000}",
    }
    if read_only:
        settings |= {
            "default_transaction_read_only": "on",
            "default_transaction_isolation": r"repeatable\ read",
        }
    try:
        return create_engine(
            url,
            connect_args={
                "connect_timeout": CONNECT_S,
                "keepalives_idle": KEEPALIVE_S,
                "keepalives_interval": KEEPALIVE_S,
                "keepalives_count": 2,
                "tcp_user_timeout": SILENT_SERVER_S * 1000,
                "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
            },
            json_serializer=driver.json_text,
            **pool,
        )
    except ModuleNotFoundError as error:
        raise StoreError(
            "RANKCALL_DATABASE_URL names PostgreSQL, whose driver is not installed; "
            "pip install 'rankcall[postgres]'"
        ) from error
