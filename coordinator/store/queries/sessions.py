"""Browser sessions: who is signed in, and until when."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select

from coordinator.store import rows
from coordinator.store.tables import Session, columns, table


def insert_session(c: Connection, new: rows.Session, most: int) -> None:
    """Keep a session; those that are over go, and the oldest ones where there are more than `most`."""
    session = table(Session)
    c.execute(delete(session).where(session.c.until_at <= new.started_at))
    newest = select(session.c.id_sha256).order_by(session.c.started_at.desc()).limit(most - 1)
    c.execute(delete(session).where(session.c.id_sha256.not_in(newest)))
    c.execute(insert(session).values(**asdict(new)))


def session(c: Connection, id_sha256: str) -> rows.Session | None:
    found = c.execute(
        select(*columns(Session, rows.Session)).where(table(Session).c.id_sha256 == id_sha256)
    ).first()
    return None if found is None else rows.Session(*found)


def end_session(c: Connection, id_sha256: str) -> bool:
    """False: there is no such session."""
    session = table(Session)
    return c.execute(delete(session).where(session.c.id_sha256 == id_sha256)).rowcount == 1
