"""The tables. Who writes them: `queries` and `streams.py`, always inside the one `Writer`.

JSON columns hold messages of `core/protocol/` as they were sent; what is searched or joined has a
column of its own. Instants are seconds since the epoch (the coordinator's clock) as float.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    UniqueConstraint,
)
from sqlmodel import Field, SQLModel

# Alembic needs every constraint to have a name that is the same on SQLite and PostgreSQL.
NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# A key the database counts up. 64 bits everywhere; SQLite counts only a column whose type is spelt INTEGER.
COUNTED = BigInteger().with_variant(Integer(), "sqlite")

Json = dict[str, Any]

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Table(SQLModel):
    metadata = MetaData(naming_convention=NAMING)


def table(cls: type[Table]) -> sqlalchemy.Table:
    """The Core table behind a class."""
    return cast(sqlalchemy.Table, cls.__table__)  # type: ignore[attr-defined]


def columns(cls: type[Table], row: type[DataclassInstance]) -> list[sqlalchemy.Column[Any]]:
    """The columns to select for `row(*selected)`: those of the record's fields, in their order."""
    return [table(cls).c[field.name] for field in fields(row)]


class Replica(Table, table=True):
    """A replica that ever registered. Whether it is here now is the roster's knowledge, not the store's."""

    id: str = Field(primary_key=True)
    fingerprint: str
    incarnation: int = Field(sa_type=BigInteger)
    token_hash: str = Field(index=True)
    hostname: str = ""
    registered_at: float
    last_seen_at: float
    last_rank: int | None = None
    registration: Json = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    facts: Json | None = Field(default=None, sa_column=Column(JSON, nullable=True))


class Job(Table, table=True):
    """A submission and where it stands. `seq` orders first come, first served, and is the page cursor.

    `state`: queued, running, succeeded, failed, cancelled. `kind`: train, preflight.
    `verdict`: one sentence for a human about the state. `dropped_at`: its logs and figures are kept no more since then.
    """

    seq: int | None = Field(default=None, sa_column=Column(COUNTED, primary_key=True))
    id: str = Field(unique=True, index=True)
    kind: str = "train"
    name: str
    state: str = Field(default="queued", index=True)
    stage: str = "gather"
    verdict: str = ""
    nodes: int
    gpus_per_node: int | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int = 0
    attempts_allowed: int = 1
    cancel_requested: bool = False
    retry_requested: bool = False
    actor: str = ""
    idempotency_key: str | None = Field(default=None, unique=True)
    idempotency_sha256: str | None = None
    bundle_sha256: str | None = None
    dropped_at: float | None = None
    submission: Json = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class JobFile(Table, table=True):
    """A file of a job's bundle."""

    __tablename__ = "job_file"
    __table_args__ = (PrimaryKeyConstraint("job_id", "path"),)

    job_id: str
    path: str
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class Attempt(Table, table=True):
    """One try at a job. `state`: active, ending (processes are being ended), ended.

    `members` (list of `lifecycle.Seat`), `stages` (list of `lifecycle.StageRecord`) and `outcome` are the
    lifecycle's own records, kept so that a coordinator can be killed at any moment.
    """

    id: str = Field(primary_key=True)
    job_id: str = Field(index=True)
    number: int
    state: str = Field(default="active", index=True)
    outcome: str | None = None
    created_at: float
    ended_at: float | None = None
    record: Json = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class TaskRow(Table, table=True):
    """The last report of one task by one replica (`protocol.TaskReport` in `report`)."""

    __tablename__ = "task"
    __table_args__ = (PrimaryKeyConstraint("attempt_id", "replica_id", "task_id"),)

    attempt_id: str
    replica_id: str
    task_id: str
    state: str
    incarnation: int = Field(sa_type=BigInteger)
    updated_at: float
    report: Json = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class Stream(Table, table=True):
    """An append-only byte sequence of one replica in one attempt, mirrored by offset."""

    __table_args__ = (UniqueConstraint("attempt_id", "replica_id", "name"),)

    id: int | None = Field(default=None, sa_column=Column(COUNTED, primary_key=True))
    attempt_id: str = Field(index=True)
    replica_id: str
    name: str
    size_bytes: int = Field(default=0, sa_type=BigInteger)


class Chunk(Table, table=True):
    """Bytes of a stream from `offset` on."""

    __table_args__ = (PrimaryKeyConstraint("stream_id", "offset"),)

    stream_id: int = Field(sa_type=BigInteger)
    offset: int = Field(sa_type=BigInteger)
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class Metric(Table, table=True):
    """One `protocol.ProgressRecord`, in the order of arrival; `id` is the cursor of live readers."""

    __table_args__ = (
        Index("ix_metric_job_id_id", "job_id", "id"),
        # The newest record of each kind from each rank, without reading the others.
        Index("ix_metric_attempt_id_rank_type_id", "attempt_id", "rank", "type", "id"),
    )

    id: int | None = Field(default=None, sa_column=Column(COUNTED, primary_key=True))
    job_id: str
    attempt_id: str
    rank: int
    type: str
    step: int | None = Field(default=None, sa_type=BigInteger)
    record: Json = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class FindingRow(Table, table=True):
    """A finding about a job (`protocol.Finding` in `finding`)."""

    __tablename__ = "finding"

    id: int | None = Field(default=None, sa_column=Column(COUNTED, primary_key=True))
    job_id: str | None = Field(default=None, index=True)
    attempt_id: str | None = None
    at: float
    finding: Json = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class Artifact(Table, table=True):
    """A file of a job's result; it lies on the replica, `path` relative to the job's work folder."""

    id: str = Field(primary_key=True)
    job_id: str = Field(index=True)
    attempt_id: str
    replica_id: str
    path: str
    kind: str
    size_bytes: int = Field(sa_type=BigInteger)
    sha256: str


class Session(Table, table=True):
    """A browser that is signed in. `proof` binds the session to the token it was made with (see `sessions.py`)."""

    id_sha256: str = Field(primary_key=True)
    role: str
    proof: str
    started_at: float
    until_at: float


class Event(Table, table=True):
    """Who did what, when, from where (audit), and each change of a job's stage or state."""

    id: int | None = Field(default=None, sa_column=Column(COUNTED, primary_key=True))
    at: float
    actor: str
    action: str
    job_id: str | None = Field(default=None, index=True)
    replica_id: str | None = None
    detail: Json = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class LeaseRow(Table, table=True):
    """Which coordinator process is the active one: one row (see `tenure.py`)."""

    __tablename__ = "lease"

    id: int = Field(default=1, primary_key=True)
    epoch: int = Field(sa_type=BigInteger)
    holder: str
    url: str
    secret: str
    beat: int = Field(sa_type=BigInteger)
    released: bool
