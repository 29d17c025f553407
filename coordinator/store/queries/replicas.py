"""Replicas that ever registered. A thousand register at once, so registration takes the short way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from coordinator.store import driver, rows
from coordinator.store.tables import Replica, columns, table

_UPSERT = (
    "INSERT INTO replica (id, fingerprint, incarnation, token_hash, hostname, registered_at, last_seen_at, "
    "registration) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "fingerprint = excluded.fingerprint, incarnation = excluded.incarnation, "
    "token_hash = excluded.token_hash, hostname = excluded.hostname, "
    "last_seen_at = excluded.last_seen_at, registration = excluded.registration"
)
_RANK = "UPDATE replica SET last_rank = ? WHERE id = ?"


def upsert_replica(
    c: Connection,
    *,
    id: str,
    fingerprint: str,
    incarnation: int,
    token_hash: str,
    hostname: str,
    at: float,
    registration: Mapping[str, Any] | str,
) -> None:
    """A replica has registered, for the first time or again; `registered_at` stays that of the first.

    `registration` is the message as a mapping, or already as JSON text.
    """
    text = registration if isinstance(registration, str) else driver.json_text(registration)
    driver.execute(
        c,
        _UPSERT,
        (id, driver.plain(fingerprint), incarnation, token_hash, driver.plain(hostname), at, at, text),
    )


def replica(c: Connection, replica_id: str) -> rows.Replica | None:
    found = c.execute(
        select(*columns(Replica, rows.Replica)).where(table(Replica).c.id == replica_id)
    ).first()
    return None if found is None else rows.Replica(*found)


def replicas(c: Connection) -> list[rows.Replica]:
    """All replicas, in the order of their first registration."""
    replica = table(Replica).c
    found = c.execute(select(*columns(Replica, rows.Replica)).order_by(replica.registered_at, replica.id))
    return [rows.Replica(*row) for row in found]


def set_facts(c: Connection, replica_id: str, facts: Mapping[str, Any]) -> bool:
    """Keep what the replica says it has (`protocol.Facts`). False: there is no such replica."""
    replica = table(Replica)
    return c.execute(update(replica).where(replica.c.id == replica_id).values(facts=facts)).rowcount == 1


def set_last_ranks(c: Connection, ranks: Sequence[tuple[str, int]]) -> None:
    """The ranks a whole attempt gives out, (id, rank); unknown replicas are passed over."""
    driver.execute_many(c, _RANK, [(rank, replica_id) for replica_id, rank in ranks])
