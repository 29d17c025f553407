"""What can go wrong with the store, in one sentence a user can act on. Raised by `Store`, shown by the shells.

A driver's exception is translated here and nowhere else; it stays attached as `__cause__`.
"""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

# (part of the driver's message, what it means, what to do); the first that is found counts.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "disk is full",
        "the disk is full",
        "free some space there; what was not acknowledged will be sent again",
    ),
    (
        "No space left",
        "the disk is full",
        "free some space there; what was not acknowledged will be sent again",
    ),
    (
        "unable to open",
        "it cannot be opened",
        "check that the folder exists and that this user may write there",
    ),
    (
        "readonly database",
        "it may only be read",
        "check who owns the file and whether the disk is mounted read-only",
    ),
    (
        "not a database",
        "the file is not a rankcall store",
        "move it away or point RANKCALL_STATE_DIR elsewhere",
    ),
    (
        "malformed",
        "the file is damaged",
        "move it away: a new store is rebuilt from what the agents still hold",
    ),
    ("locking protocol", "its disk cannot lock files", "put RANKCALL_STATE_DIR on a container-local disk"),
    ("is locked", "another process is writing to it", "end the other coordinator that uses this file"),
    (
        "lock timeout",
        "another process is writing to it",
        "look for a coordinator that hangs in a transaction",
    ),
    ("disk I/O error", "its disk does not work", "put RANKCALL_STATE_DIR on a container-local disk"),
    ("password authentication failed", "the password is wrong", "correct RANKCALL_DATABASE_URL"),
    ("no password supplied", "it wants a password", "put one into RANKCALL_DATABASE_URL"),
    ("Name or service not known", "its host name is unknown", "correct RANKCALL_DATABASE_URL"),
    ("does not exist", "it has no such database or user", "create it, or correct RANKCALL_DATABASE_URL"),
    ("Connection refused", "no server listens there", "start it, or correct RANKCALL_DATABASE_URL"),
    ("the database system is", "the server is just starting or ending", "rankcall connects again"),
    ("timeout expired", "no server answers there", "correct RANKCALL_DATABASE_URL, or let this host through"),
    ("server closed the connection", "the connection broke", "see the server's log; rankcall connects again"),
    ("terminating connection", "the connection was ended", "see the server's log; rankcall connects again"),
    ("permission denied", "this user may not do that", "grant the rights, or use another user"),
)


class StoreError(Exception):
    """The store cannot do what it was asked; the text says which store, why, and what to do."""


class StoreConflict(StoreError):
    """A row with the same key is already there. Only the operation that tried it has failed."""


class Fenced(StoreError):
    """Another coordinator process has become the active one: this one writes no more."""

    def __init__(self, url: str) -> None:
        by = f"; the one at {url} is" if url else ""
        super().__init__(f"this coordinator process is not the active one any more{by}")


class StoreClosed(StoreError):
    """The store was closed while, or before, the operation waited for its turn."""


def name_of(url: URL) -> str:
    """The store as a user knows it: a path, or an address without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.render_as_string(hide_password=True)


def is_database_error(error: BaseException) -> bool:
    """Whether a database or its driver raised this, rather than the operation's own code."""
    # A driver's own classes are known by their module: psycopg may not be installed.
    return isinstance(error, SQLAlchemyError | sqlite3.Error) or type(error).__module__.startswith("psycopg")


def is_lock_timeout(error: DBAPIError) -> bool:
    """Whether PostgreSQL has waited long enough for another transaction (its code for that is 55P03)."""
    return getattr(error.orig, "sqlstate", None) == "55P03"


def explain(error: BaseException, url: URL) -> BaseException:
    """A database's exception as a `StoreError`; any other exception as it is."""
    if not is_database_error(error):
        return error
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    said = re.sub(r"\s+", " ", str(origin)).strip()
    if isinstance(error, IntegrityError) or any("IntegrityError" in c.__name__ for c in type(origin).__mro__):
        return _caused(StoreConflict(f"the store already has such a row: {said}"), error)
    where = f"the store {name_of(url)}"
    for part, meaning, way_out in _KNOWN:
        if part.lower() in said.lower():
            return _caused(StoreError(f"{where} cannot be used: {meaning} ({said}); {way_out}"), error)
    return _caused(StoreError(f"{where} cannot be used: {said or type(origin).__name__}"), error)


def _caused(made: StoreError, by: BaseException) -> StoreError:
    made.__cause__ = by
    return made
