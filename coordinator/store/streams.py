"""Streams: append-only byte sequences mirrored by offset. Intake appends; the API and the lifecycle read.

An append is taken at exactly the size so far and nowhere else, so that bytes sent twice, late or out of
order change nothing, and it is acknowledged only after the group it was written in is committed.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, func, select

from coordinator.store import driver, pending, rows
from coordinator.store.tables import Stream, columns, table

# A reader takes whole chunks from the database: so much at most for one byte of it.
CHUNK_BYTES = 64 << 10

_FIND = "SELECT id, size_bytes FROM stream WHERE attempt_id = ? AND replica_id = ? AND name = ?"
_MAKE = "INSERT INTO stream (attempt_id, replica_id, name, size_bytes) VALUES (?, ?, ?, 0) RETURNING id"
# From the chunk that holds the offset up to the end of the wanted range.
_READ = (
    'SELECT "offset", data FROM chunk WHERE stream_id = ? AND "offset" < ? AND "offset" >= '
    'COALESCE((SELECT MAX("offset") FROM chunk WHERE stream_id = ? AND "offset" <= ?), 0) ORDER BY "offset"'
)


class Appended(NamedTuple):
    """`accepted`: these bytes are new and are now part of the stream. A duplicate is not accepted, though
    the size reads as if it had been: whoever parses what arrives parses accepted bytes only."""

    size_bytes: int
    accepted: bool


class Tail(NamedTuple):
    """The end of a stream: `data` begins at `offset`, and the stream ends with it."""

    offset: int
    data: bytes


def append(c: Connection, attempt_id: str, replica_id: str, name: str, offset: int, data: bytes) -> Appended:
    """Add `data` at `offset` if that is the size so far; else change nothing and say the size so far.

    An empty append asks for the size, and makes no stream.
    """
    here = pending.of(c)
    key = (attempt_id, replica_id, name)
    stream = here.known.get(key)
    if stream is None or stream.size_bytes != offset:
        # Unknown, or refused by what is known: the database has the last word.
        if stream is not None:
            here.flush(c)
        stream = _find(c, key)
    size = 0 if stream is None else stream.size_bytes
    if offset != size or not data:
        return Appended(size, False)
    if stream is None:
        stream = _make(c, key)
    for start in range(0, len(data), CHUNK_BYTES):
        here.add_chunk(c, stream, data[start : start + CHUNK_BYTES] if len(data) > CHUNK_BYTES else data)
    return Appended(stream.size_bytes, True)


def forget_sizes(c: Connection) -> None:
    """Another process may have appended meanwhile: what is remembered of the streams is looked up anew."""
    pending.of(c).known.clear()


def sizes(c: Connection, attempt_id: str, replica_id: str) -> dict[str, int]:
    """The size of each stream of one replica in one attempt, by name."""
    pending.settle(c)
    stream = table(Stream).c
    found = c.execute(
        select(stream.name, stream.size_bytes).where(
            stream.attempt_id == attempt_id, stream.replica_id == replica_id
        )
    )
    return {name: size for name, size in found}


def size(c: Connection, attempt_id: str, replica_id: str, name: str) -> int:
    """How many bytes of the stream there are; 0 if there is no such stream."""
    known = pending.known(c, (attempt_id, replica_id, name))
    if known is not None:
        return known.size_bytes
    found = _stored(c, (attempt_id, replica_id, name))
    return 0 if found is None else found[1]


def of_attempt(c: Connection, attempt_id: str) -> list[rows.Stream]:
    """All streams of an attempt, by replica and name."""
    pending.settle(c)
    stream = table(Stream).c
    found = c.execute(
        select(*columns(Stream, rows.Stream))
        .where(stream.attempt_id == attempt_id)
        .order_by(stream.replica_id, stream.name)
    )
    return [rows.Stream(*row) for row in found]


def read(c: Connection, attempt_id: str, replica_id: str, name: str, offset: int, limit: int) -> bytes:
    """Up to `limit` bytes from `offset` on; empty at the end of the stream and where there is none."""
    found = _stored(c, (attempt_id, replica_id, name))
    if found is None:
        return b""
    return _bytes(c, found[0], offset, min(offset + limit, found[1]))


def tail(c: Connection, attempt_id: str, replica_id: str, name: str, limit: int) -> Tail:
    """The last `limit` bytes."""
    found = _stored(c, (attempt_id, replica_id, name))
    if found is None:
        return Tail(0, b"")
    start = max(0, found[1] - limit)
    return Tail(start, _bytes(c, found[0], start, found[1]))


def total_bytes(c: Connection) -> int:
    """The size of all streams together (for the service's own figures)."""
    pending.settle(c)
    return int(c.execute(select(func.coalesce(func.sum(table(Stream).c.size_bytes), 0))).scalar_one())


def _bytes(c: Connection, stream_id: int, start: int, end: int) -> bytes:
    if start >= end:
        return b""
    found = driver.execute(c, _READ, (stream_id, end, stream_id, start)).fetchall()
    first = found[0][0]
    return b"".join(bytes(data) for _, data in found)[start - first : end - first]


def _stored(c: Connection, key: pending.StreamKey) -> tuple[int, int] | None:
    pending.settle(c)
    return _looked_up(c, key)


def _looked_up(c: Connection, key: pending.StreamKey) -> tuple[int, int] | None:
    found = driver.execute(c, _FIND, key).fetchone()
    return None if found is None else (int(found[0]), int(found[1]))


def _find(c: Connection, key: pending.StreamKey) -> pending.Known | None:
    # Nothing can be pending for a stream that is not known yet, so there is nothing to flush first.
    found = _looked_up(c, key)
    if found is None:
        return None
    known = pending.of(c).known[key] = pending.Known(*found)
    return known


def _make(c: Connection, key: pending.StreamKey) -> pending.Known:
    # No other writer can have made it since: write transactions exclude each other.
    made = driver.execute(c, _MAKE, key).fetchone()
    assert made is not None
    known = pending.of(c).known[key] = pending.Known(int(made[0]), 0)
    return known
