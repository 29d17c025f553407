"""The short way to the database for the few statements that run thousands of times a second.

SQLAlchemy Core spends 50–100 µs on a statement, the driver itself 3–5 µs. `queries` and `streams` use this for
what every report of every agent causes, and Core for everything else. The statements run in the
connection's own transaction, written with `?` and in the SQL that SQLite and PostgreSQL share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from sqlalchemy import Connection

_SQLITE_STYLE = "qmark"
_BLOCKS = (128, 32, 8, 2, 1)
INT32 = 1 << 31
INT64 = 1 << 63


class Cursor(Protocol):
    rowcount: int

    def fetchone(self) -> tuple[Any, ...] | None: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...
    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> object: ...


class Driver(Protocol):
    """What `sqlite3.Connection` and `psycopg.Connection` have in common."""

    def execute(self, sql: str, parameters: Sequence[Any], /, **psycopg_only: bool) -> Cursor: ...
    def cursor(self) -> Cursor: ...


def execute(c: Connection, sql: str, parameters: Sequence[Any]) -> Cursor:
    """Run one statement."""
    if c.dialect.paramstyle == _SQLITE_STYLE:
        return _driver(c).execute(sql, parameters)
    # As text, psycopg would be sent bytes in hexadecimal.
    return _driver(c).execute(_spelled(sql), parameters, binary=True)


def execute_many(c: Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run one statement for each row; with psycopg in one round trip."""
    if rows:
        spelled = sql if c.dialect.paramstyle == _SQLITE_STYLE else _spelled(sql)
        _driver(c).cursor().executemany(spelled, rows)


def insert_many(c: Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run one `INSERT ... VALUES (?, ...)` for many rows at a time.

    Python's sqlite3 lets go of the interpreter's lock for each step of a statement, and with a busy event loop each costs a
    wait to get it back: a statement of many rows has one.
    """
    if c.dialect.paramstyle != _SQLITE_STYLE:
        execute_many(c, sql, rows)
        return
    driver, begin = _driver(c), 0
    for size in _BLOCKS:  # few sizes, so that each statement stays compiled
        while len(rows) - begin >= size:
            block = rows[begin : begin + size]
            driver.execute(_repeated(sql, size), [value for row in block for value in row])
            begin += size


def json_text(value: object) -> str:
    """JSON that both databases take: ASCII, and what is not a finite number as a string that pydantic reads."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def plain(text: str) -> str:
    """Text that both databases take: no NUL, no lone surrogate (file names and host names may hold either)."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def int64(number: int | None) -> int | None:
    """The number, or None if no database column can hold it."""
    return number if number is not None and -INT64 <= number < INT64 else None


def _driver(c: Connection) -> Driver:
    return cast(Driver, c.connection.driver_connection)


@lru_cache(maxsize=256)
def _repeated(sql: str, times: int) -> str:
    values = sql[sql.rindex("(") :]
    return sql + f", {values}" * (times - 1)


@lru_cache(maxsize=256)
def _spelled(sql: str) -> str:
    return sql.replace("?", "%s")


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
