"""Jobs and the files that travel with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from coordinator.store import driver, rows
from coordinator.store.tables import Job, JobFile, columns, table

_INSERT_FILE = "INSERT INTO job_file (job_id, path, data) VALUES (?, ?, ?)"


def insert_job(c: Connection, new: rows.Job, files: Mapping[str, bytes] | None = None) -> int:
    """Queue a job with its bundle (path → content); returns its `seq`. `new.seq` is passed over."""
    values = {f.name: getattr(new, f.name) for f in fields(new) if f.name != "seq"}
    values["name"] = driver.plain(new.name)
    values["verdict"] = driver.plain(new.verdict)
    made = c.execute(insert(table(Job)).values(values).returning(table(Job).c.seq)).scalar_one()
    driver.execute_many(
        c, _INSERT_FILE, [(new.id, driver.plain(path), data) for path, data in (files or {}).items()]
    )
    return int(made)


def job(c: Connection, job_id: str) -> rows.Job | None:
    found = c.execute(select(*columns(Job, rows.Job)).where(table(Job).c.id == job_id)).first()
    return None if found is None else rows.Job(*found)


def job_by_idempotency_key(c: Connection, key: str) -> rows.Job | None:
    """The job that an earlier submission with this key made."""
    found = c.execute(select(*columns(Job, rows.Job)).where(table(Job).c.idempotency_key == key)).first()
    return None if found is None else rows.Job(*found)


def jobs_page(
    c: Connection,
    before_seq: int | None = None,
    limit: int = 50,
    state: str | None = None,
    kind: str | None = None,
) -> list[rows.Job]:
    """Jobs, newest first, older than `before_seq`, of one state and kind where these are given."""
    job = table(Job).c
    wanted = select(*columns(Job, rows.Job)).order_by(job.seq.desc()).limit(limit)
    if before_seq is not None:
        wanted = wanted.where(job.seq < before_seq)
    if state is not None:
        wanted = wanted.where(job.state == state)
    if kind is not None:
        wanted = wanted.where(job.kind == kind)
    return [rows.Job(*row) for row in c.execute(wanted)]


def open_jobs(c: Connection, only: Collection[str] | None = None) -> list[rows.OpenJob]:
    """Jobs that are queued or running, first come first; `only`: of these ids."""
    job = table(Job).c
    wanted = select(*columns(Job, rows.OpenJob)).where(job.state.in_(("queued", "running")))
    if only is not None:
        wanted = wanted.where(job.id.in_(only))
    return [rows.OpenJob(*row) for row in c.execute(wanted.order_by(job.seq))]


def update_job(c: Connection, job_id: str, **values: Any) -> bool:
    """Set columns of a job. False: there is no such job."""
    if "verdict" in values:
        values["verdict"] = driver.plain(values["verdict"])
    job = table(Job)
    return c.execute(update(job).where(job.c.id == job_id).values(values)).rowcount == 1


def bundle(c: Connection, job_id: str) -> dict[str, bytes]:
    """The files that came with the submission, path → content."""
    file = table(JobFile).c
    found = c.execute(select(file.path, file.data).where(file.job_id == job_id).order_by(file.path))
    return {path: bytes(data) for path, data in found}


def job_counts(c: Connection) -> dict[str, int]:
    """How many jobs there are of each state."""
    job = table(Job).c
    return {state: n for state, n in c.execute(select(job.state, func.count()).group_by(job.state))}
