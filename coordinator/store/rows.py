"""What the queries return: one frozen record for each table, free of the database it came from.

The fields are the table's columns (a test holds the two together). The same records go in where a whole
row is written; a field that the store fills itself (`seq`, `id`) may be left out then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coordinator.core.protocol import Finding as FindingMessage

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replica:
    id: str
    fingerprint: str
    incarnation: int
    token_hash: str
    registered_at: float
    last_seen_at: float
    hostname: str = ""
    last_rank: int | None = None
    registration: Json = field(default_factory=dict)
    facts: Json | None = None


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    name: str
    nodes: int
    created_at: float
    submission: Json
    kind: str = "train"
    state: str = "queued"
    stage: str = "gather"
    verdict: str = ""
    gpus_per_node: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int = 0
    attempts_allowed: int = 1
    cancel_requested: bool = False
    retry_requested: bool = False
    actor: str = ""
    idempotency_key: str | None = None
    idempotency_sha256: str | None = None
    bundle_sha256: str | None = None
    dropped_at: float | None = None
    seq: int = 0


@dataclass(frozen=True, slots=True)
class OpenJob:
    """Of a job, what changes while it is queued or runs: without its submission, which may be long."""

    id: str
    seq: int
    name: str
    kind: str
    nodes: int
    created_at: float
    state: str
    stage: str
    verdict: str
    gpus_per_node: int | None
    started_at: float | None
    ended_at: float | None
    attempts: int
    attempts_allowed: int
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    id: str
    job_id: str
    number: int
    created_at: float
    state: str = "active"
    outcome: str | None = None
    ended_at: float | None = None
    record: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    attempt_id: str
    replica_id: str
    task_id: str
    state: str
    incarnation: int
    updated_at: float
    report: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    id: int
    attempt_id: str
    replica_id: str
    name: str
    size_bytes: int


class NewMetric(NamedTuple):
    """A progress record on its way in. `record` is a mapping, or the JSON text of one as it was sent."""

    job_id: str
    attempt_id: str
    rank: int
    type: str
    step: int | None
    record: Json | str


@dataclass(frozen=True, slots=True)
class Metric:
    id: int
    job_id: str
    attempt_id: str
    rank: int
    type: str
    step: int | None
    record: Json


@dataclass(frozen=True, slots=True)
class Finding:
    id: int
    job_id: str | None
    attempt_id: str | None
    at: float
    finding: FindingMessage


@dataclass(frozen=True, slots=True)
class Artifact:
    id: str
    job_id: str
    attempt_id: str
    replica_id: str
    path: str
    kind: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Session:
    id_sha256: str
    role: str
    proof: str
    started_at: float
    until_at: float


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    at: float
    actor: str
    action: str
    job_id: str | None
    replica_id: str | None
    detail: Json


@dataclass(frozen=True, slots=True)
class Lease:
    """Which coordinator process is the active one (see `tenure.py`).

    `url`: where the others reach it; `secret`: proves to it that a request was passed on by one of them.
    """

    epoch: int
    holder: str
    url: str
    secret: str
    beat: int = 0
    released: bool = False
