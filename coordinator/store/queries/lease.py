"""The lease of the active coordinator process, in a deployment where several share a store (`tenure.py`, `office.py`)."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select

from coordinator.store import driver, pending, rows
from coordinator.store.errors import Fenced
from coordinator.store.tables import LeaseRow, columns, table

_EPOCH = "SELECT epoch, url FROM lease"
_BEAT = "UPDATE lease SET beat = ? WHERE epoch = ?"
_RELEASE = "UPDATE lease SET released = TRUE WHERE epoch = ?"


def lease(c: Connection) -> rows.Lease | None:
    """The lease as it is; None: nobody ever held it."""
    found = c.execute(select(*columns(LeaseRow, rows.Lease))).first()
    return None if found is None else rows.Lease(*found)


def take_lease(c: Connection, seen: rows.Lease | None, new: rows.Lease) -> bool:
    """Change hands. False: the lease does not look like `seen` any more, and nothing was changed."""
    if lease(c) != seen:
        return False
    c.execute(delete(table(LeaseRow)))
    c.execute(insert(table(LeaseRow)).values(id=1, **asdict(new)))
    return True


def beat_lease(c: Connection, epoch: int, beat: int) -> None:
    """The holder lives."""
    driver.execute(c, _BEAT, (beat, epoch))


def release_lease(c: Connection, epoch: int) -> None:
    """The next may take it without waiting."""
    driver.execute(c, _RELEASE, (epoch,))


def check_epoch(c: Connection, epoch: int) -> None:
    """Nothing is written in the name of an epoch that is over. Called at the start of every write transaction, which
    excludes all others: whoever passes here is the only one who writes until it commits.

    Raises:
        Fenced: the lease is another's.
    """
    found = driver.execute(c, _EPOCH, ()).fetchone()
    if found is None or found[0] != epoch:
        pending.of(c).known.clear()  # whoever has the lease appends to the streams now
        raise Fenced(str(found[1]) if found is not None else "")
