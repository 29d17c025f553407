"""What accumulates about a job: metrics, findings, artifacts, and the audit's events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text

from coordinator.core.protocol import Finding
from coordinator.store import driver, pending, rows
from coordinator.store.tables import Artifact, Event, FindingRow, Metric, columns, table

# Jumps from one (rank, type) to the next along the index instead of reading every record: the number of
# steps a training has made does not matter. SQLite and PostgreSQL both have no such scan of their own, and
# SQLite seeks by a pair (rank, type) > (…) only to the rank: hence first the next type, then the next rank.
_NEWEST = text(
    """
    WITH RECURSIVE seen (id, rank, type) AS (
        SELECT * FROM (
            SELECT id, rank, type FROM metric WHERE attempt_id = :attempt_id ORDER BY rank, type LIMIT 1
        ) AS first
        UNION ALL
        SELECT following.id, following.rank, following.type
        FROM seen JOIN metric AS following ON following.id = COALESCE(
            (SELECT id FROM metric WHERE attempt_id = :attempt_id
             AND rank = seen.rank AND type > seen.type ORDER BY type LIMIT 1),
            (SELECT id FROM metric WHERE attempt_id = :attempt_id
             AND rank > seen.rank ORDER BY rank, type LIMIT 1)
        )
    )
    SELECT (SELECT max(id) FROM metric WHERE attempt_id = :attempt_id
            AND rank = seen.rank AND type = seen.type) FROM seen
    """
)

_NOTE = (
    "INSERT INTO event (at, actor, action, job_id, replica_id, detail) VALUES (?, ?, ?, ?, ?, ?) RETURNING id"
)


def insert_metrics(c: Connection, new: Sequence[rows.NewMetric]) -> None:
    """Keep progress records. They are written with the others of the group, in the order given.

    A rank that no column can hold is nobody's: such a record is passed over (its bytes are in the stream).
    """
    pending.of(c).metrics.extend(
        (
            m.job_id,
            m.attempt_id,
            m.rank,
            m.type,
            driver.int64(m.step),
            m.record if isinstance(m.record, str) else driver.json_text(m.record),
        )
        for m in new
        if 0 <= m.rank < driver.INT32
    )


def metrics_after(
    c: Connection,
    job_id: str,
    after_id: int = 0,
    limit: int = 1000,
    *,
    rank: int | None = None,
    attempt_id: str | None = None,
) -> list[rows.Metric]:
    """Records with an id beyond `after_id`, in the order of arrival."""
    pending.settle(c)
    metric = table(Metric).c
    wanted = select(*columns(Metric, rows.Metric)).where(metric.job_id == job_id, metric.id > after_id)
    if rank is not None:
        wanted = wanted.where(metric.rank == rank)
    if attempt_id is not None:
        wanted = wanted.where(metric.attempt_id == attempt_id)
    return [rows.Metric(*row) for row in c.execute(wanted.order_by(metric.id).limit(limit))]


def newest_metrics(c: Connection, attempt_id: str) -> list[rows.Metric]:
    """The newest record of each type from each rank, by rank, then by age."""
    pending.settle(c)
    metric = table(Metric).c
    ids = [row[0] for row in c.execute(_NEWEST, {"attempt_id": attempt_id})]
    if not ids:
        return []
    found = c.execute(
        select(*columns(Metric, rows.Metric)).where(metric.id.in_(ids)).order_by(metric.rank, metric.id)
    )
    return [rows.Metric(*row) for row in found]


def logged_ids(c: Connection, attempt_id: str, kind: str) -> list[int]:
    """Ids of the records of one type ("log", "eval"), in their order, from the lowest rank that has any."""
    pending.settle(c)
    metric = table(Metric).c
    lowest = select(func.min(metric.rank)).where(metric.attempt_id == attempt_id, metric.type == kind)
    wanted = select(metric.id).where(
        metric.attempt_id == attempt_id, metric.type == kind, metric.rank == lowest.scalar_subquery()
    )
    return [int(row[0]) for row in c.execute(wanted.order_by(metric.id))]


def metrics_by_id(c: Connection, ids: Sequence[int]) -> list[rows.Metric]:
    """These records, in their order."""
    metric = table(Metric).c
    wanted = select(*columns(Metric, rows.Metric)).where(metric.id.in_(ids)).order_by(metric.id)
    return [rows.Metric(*row) for row in c.execute(wanted)]


def last_metric_id(c: Connection) -> int:
    """The id of the newest record of all; 0 if there is none."""
    pending.settle(c)
    return int(c.execute(select(func.coalesce(func.max(table(Metric).c.id), 0))).scalar_one())


def insert_findings(
    c: Connection, job_id: str | None, attempt_id: str | None, at: float, findings: Iterable[Finding]
) -> None:
    """Keep findings about a job (or about the service, without one)."""
    new = [
        {"job_id": job_id, "attempt_id": attempt_id, "at": at, "finding": f.model_dump(mode="json")}
        for f in findings
    ]
    if new:
        c.execute(insert(table(FindingRow)), new)


def findings_of(c: Connection, job_id: str) -> list[rows.Finding]:
    """The findings about a job, in the order they were made."""
    return findings_after(c, job_id, 0)


def findings_after(c: Connection, job_id: str, after_id: int) -> list[rows.Finding]:
    """The findings about a job with an id beyond `after_id`."""
    finding = table(FindingRow).c
    found = c.execute(
        select(finding.id, finding.job_id, finding.attempt_id, finding.at, finding.finding)
        .where(finding.job_id == job_id, finding.id > after_id)
        .order_by(finding.id)
    )
    return [rows.Finding(*row[:4], Finding.model_validate(row[4])) for row in found]


def replace_artifacts(c: Connection, job_id: str, new: Sequence[rows.Artifact]) -> None:
    """The files of a job's result are these and no others."""
    artifact = table(Artifact)
    c.execute(delete(artifact).where(artifact.c.job_id == job_id))
    if new:
        c.execute(insert(artifact), [asdict(a) | {"path": driver.plain(a.path)} for a in new])


def artifacts_of(c: Connection, job_id: str) -> list[rows.Artifact]:
    """The files of a job's result, by path."""
    artifact = table(Artifact).c
    found = c.execute(
        select(*columns(Artifact, rows.Artifact)).where(artifact.job_id == job_id).order_by(artifact.path)
    )
    return [rows.Artifact(*row) for row in found]


def artifact(c: Connection, artifact_id: str) -> rows.Artifact | None:
    wanted = select(*columns(Artifact, rows.Artifact)).where(table(Artifact).c.id == artifact_id)
    found = c.execute(wanted).first()
    return None if found is None else rows.Artifact(*found)


def insert_event(
    c: Connection,
    *,
    at: float,
    actor: str,
    action: str,
    job_id: str | None = None,
    replica_id: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> int:
    """Note who did what; returns the event's id."""
    said = driver.json_text(dict(detail or {}))
    made = driver.execute(c, _NOTE, (at, driver.plain(actor), action, job_id, replica_id, said)).fetchone()
    assert made is not None
    return int(made[0])


def events_page(c: Connection, before_id: int | None = None, limit: int = 50) -> list[rows.Event]:
    """Events, newest first, older than `before_id`."""
    event = table(Event).c
    wanted = select(*columns(Event, rows.Event)).order_by(event.id.desc()).limit(limit)
    if before_id is not None:
        wanted = wanted.where(event.id < before_id)
    return [rows.Event(*row) for row in c.execute(wanted)]


def last_event_id(c: Connection) -> int:
    """The id of the newest event; 0 if there is none."""
    return int(c.execute(select(func.coalesce(func.max(table(Event).c.id), 0))).scalar_one())
