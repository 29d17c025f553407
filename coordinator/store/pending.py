"""Rows of the group that is being written, gathered so that a thousand appends cost one `executemany`.

A `Pending` lives on the writer's connection (`Connection.info`) and nowhere else. `streams` and `queries`
add to it; the writer flushes it before it commits and forgets it after a rollback.

The known sizes are a cache, and cannot lie for long: if another process has appended to a stream, it has
written a chunk at the very offset this one would write next, the primary key refuses the second, the
group is rolled back, and the rerun starts from what the database says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection

from coordinator.store import driver

_INFO_KEY = "rankcall.pending"
# A bound for memory, not for the transaction: so much unwritten data is handed to the database at once.
FLUSH_BYTES = 8 << 20
# Streams whose size is kept in memory (some 300 bytes each); beyond that the cache starts anew.
KNOWN_STREAMS = 100_000

StreamKey = tuple[str, str, str]

_INSERT_CHUNK = 'INSERT INTO chunk (stream_id, "offset", data) VALUES (?, ?, ?)'
_UPDATE_SIZE = "UPDATE stream SET size_bytes = ? WHERE id = ?"
_INSERT_METRIC = "INSERT INTO metric (job_id, attempt_id, rank, type, step, record) VALUES (?, ?, ?, ?, ?, ?)"


@dataclass(slots=True)
class Known:
    """A stream's id and its size with what is pending."""

    id: int
    size_bytes: int


@dataclass(slots=True)
class Pending:
    """Attributes:
    known: streams met so far, committed or pending.
    chunks: (stream_id, offset, data); sizes: stream_id → new size; metrics: rows of `metric`.
    """

    known: dict[StreamKey, Known] = field(default_factory=dict)
    chunks: list[tuple[int, int, bytes]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    metrics: list[tuple[str, str, int, str, int | None, str]] = field(default_factory=list)
    unwritten_bytes: int = 0

    def add_chunk(self, c: Connection, stream: Known, data: bytes) -> None:
        self.chunks.append((stream.id, stream.size_bytes, data))
        stream.size_bytes += len(data)
        self.sizes[stream.id] = stream.size_bytes
        self.unwritten_bytes += len(data)
        if self.unwritten_bytes > FLUSH_BYTES:
            self.flush(c)

    def flush(self, c: Connection) -> None:
        """Hand everything to the database; the transaction stays open."""
        if self.chunks:
            driver.insert_many(c, _INSERT_CHUNK, self.chunks)
            driver.execute_many(c, _UPDATE_SIZE, [(size, id_) for id_, size in self.sizes.items()])
            self.chunks = []
            self.sizes = {}
            self.unwritten_bytes = 0
        if self.metrics:
            driver.insert_many(c, _INSERT_METRIC, self.metrics)
            self.metrics = []

    def committed(self) -> None:
        """The group is durable: what is known stays, within its bound."""
        if len(self.known) > KNOWN_STREAMS:
            self.known.clear()

    def forget(self) -> None:
        """The group was rolled back: nothing that was gathered or learned in it holds."""
        self.known.clear()
        self.chunks.clear()
        self.sizes.clear()
        self.metrics.clear()
        self.unwritten_bytes = 0


def attach(c: Connection) -> Pending:
    """Make a connection the writer's: only on such a one can streams and metrics be written."""
    made = Pending()
    c.info[_INFO_KEY] = made
    return made


def of(c: Connection) -> Pending:
    """The gathered rows of the writer's connection."""
    found = c.info.get(_INFO_KEY)
    if not isinstance(found, Pending):
        raise TypeError("streams and metrics are written inside Store.write only")
    return found


def settle(c: Connection) -> None:
    """Before a read of streams or metrics: let it see what its own group has gathered. Cheap on a reader."""
    found = c.info.get(_INFO_KEY)
    if isinstance(found, Pending):
        found.flush(c)


def known(c: Connection, key: StreamKey) -> Known | None:
    """What the writer's connection knows of a stream; None on a reader, and for a stream not met so far."""
    found = c.info.get(_INFO_KEY)
    return found.known.get(key) if isinstance(found, Pending) else None
