"""Attempts at jobs, and where each replica's tasks in them stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, insert, select, update

from coordinator.store import driver, rows
from coordinator.store.tables import Attempt, TaskRow, columns, table

_UPSERT_TASK = (
    "INSERT INTO task (attempt_id, replica_id, task_id, state, incarnation, updated_at, report) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (attempt_id, replica_id, task_id) DO UPDATE SET "
    "state = excluded.state, incarnation = excluded.incarnation, updated_at = excluded.updated_at, "
    "report = excluded.report"
)


def insert_attempt(c: Connection, new: rows.Attempt) -> None:
    c.execute(insert(table(Attempt)).values(asdict(new)))


def update_attempt(c: Connection, attempt_id: str, **values: Any) -> bool:
    """Set columns of an attempt. False: there is no such attempt."""
    attempt = table(Attempt)
    return c.execute(update(attempt).where(attempt.c.id == attempt_id).values(values)).rowcount == 1


def attempt(c: Connection, attempt_id: str) -> rows.Attempt | None:
    found = c.execute(
        select(*columns(Attempt, rows.Attempt)).where(table(Attempt).c.id == attempt_id)
    ).first()
    return None if found is None else rows.Attempt(*found)


def attempts_of(c: Connection, job_id: str) -> list[rows.Attempt]:
    """The attempts at a job, first to last."""
    attempt = table(Attempt).c
    found = c.execute(
        select(*columns(Attempt, rows.Attempt)).where(attempt.job_id == job_id).order_by(attempt.number)
    )
    return [rows.Attempt(*row) for row in found]


def open_attempts(c: Connection) -> list[rows.Attempt]:
    """Attempts that have not ended, oldest first."""
    attempt = table(Attempt).c
    found = c.execute(
        select(*columns(Attempt, rows.Attempt))
        .where(attempt.state != "ended")
        .order_by(attempt.created_at, attempt.id)
    )
    return [rows.Attempt(*row) for row in found]


def upsert_task(
    c: Connection,
    *,
    attempt_id: str,
    replica_id: str,
    task_id: str,
    state: str,
    incarnation: int,
    at: float,
    report: Mapping[str, Any] | str,
) -> None:
    """The newest word of one replica about one task. `report` is a mapping, or already JSON text."""
    text = report if isinstance(report, str) else driver.json_text(report)
    driver.execute(
        c, _UPSERT_TASK, (attempt_id, replica_id, driver.plain(task_id), state, incarnation, at, text)
    )


def tasks_of(c: Connection, attempt_id: str) -> list[rows.Task]:
    """The tasks of an attempt as last reported, by replica and task."""
    task = table(TaskRow).c
    found = c.execute(
        select(*columns(TaskRow, rows.Task))
        .where(task.attempt_id == attempt_id)
        .order_by(task.replica_id, task.task_id)
    )
    return [rows.Task(*row) for row in found]
