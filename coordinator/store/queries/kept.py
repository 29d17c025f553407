"""What ended jobs weigh, and how it is let go: in pieces, so that no report waits for long."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, text, update

from coordinator.retention import Weight
from coordinator.store import driver, pending
from coordinator.store.tables import Artifact, Event, Job, JobFile, TaskRow, table

# What a progress record takes, its indexes included (measured on SQLite with the records of a training).
METRIC_BYTES = 400
# Of one piece: 128 chunks are 8 MiB at most.
PIECE_CHUNKS = 128
PIECE_METRICS = 2000
PIECE_EVENTS = 5000
PIECE_PAGES = 1000

_WEIGHTS = text(
    f"""
    SELECT job.id, CASE WHEN job.state IN ('queued', 'running') THEN NULL ELSE job.ended_at END,
        COALESCE((SELECT SUM(stream.size_bytes) FROM attempt JOIN stream ON stream.attempt_id = attempt.id
                  WHERE attempt.job_id = job.id), 0)
        + {METRIC_BYTES} * (SELECT COUNT(*) FROM metric WHERE metric.job_id = job.id)
        + COALESCE((SELECT SUM(LENGTH(job_file.data)) FROM job_file WHERE job_file.job_id = job.id), 0)
    FROM job
    """  # noqa: S608 - a number of ours
)
_STREAM = "SELECT stream.id FROM attempt JOIN stream ON stream.attempt_id = attempt.id WHERE attempt.job_id = ? LIMIT 1"
_CHUNKS = (
    'DELETE FROM chunk WHERE stream_id = ? AND "offset" IN '
    '(SELECT "offset" FROM chunk WHERE stream_id = ? ORDER BY "offset" LIMIT ?)'
)
_DROP_STREAM = "DELETE FROM stream WHERE id = ?"
_METRICS = "DELETE FROM metric WHERE id IN (SELECT id FROM metric WHERE job_id = ? LIMIT ?)"
_EVENTS = "DELETE FROM event WHERE id IN (SELECT id FROM event WHERE at < ? OR id <= ? ORDER BY id LIMIT ?)"


def weights(c: Connection) -> list[Weight]:
    """What each job weighs in the store."""
    pending.settle(c)
    return [Weight(job_id, ended_at, int(size)) for job_id, ended_at, size in c.execute(_WEIGHTS)]


def mark_dropped(c: Connection, job_id: str, at: float) -> bool:
    """From now on nobody is shown what is left of its logs. False: it runs again, or there is no such job."""
    job = table(Job)
    ended = job.c.state.not_in(("queued", "running"))
    return c.execute(update(job).where(job.c.id == job_id, ended).values(dropped_at=at)).rowcount == 1


def drop_piece(c: Connection, job_id: str) -> bool:
    """Let go of a piece of a job's streams and records. False: there is no more and its bundle is gone too, or it runs."""
    pending.settle(c)
    job = table(Job).c
    if c.execute(select(job.state).where(job.id == job_id)).scalar() in ("queued", "running", None):
        return False
    stream = driver.execute(c, _STREAM, (job_id,)).fetchone()
    if stream is not None:
        gone = driver.execute(c, _CHUNKS, (stream[0], stream[0], PIECE_CHUNKS)).rowcount
        if gone < PIECE_CHUNKS:
            driver.execute(c, _DROP_STREAM, (stream[0],))
            pending.of(c).known.clear()
        return True
    if driver.execute(c, _METRICS, (job_id, PIECE_METRICS)).rowcount == PIECE_METRICS:
        return True
    file = table(JobFile)
    c.execute(delete(file).where(file.c.job_id == job_id))
    return False


def drop_lists(c: Connection, job_id: str) -> None:
    """Let go of the list of a job's result, of what its tasks reported and of its events."""
    for held in (table(Artifact), table(Event)):
        c.execute(delete(held).where(held.c.job_id == job_id))
    attempt_ids = [
        row[0] for row in driver.execute(c, "SELECT id FROM attempt WHERE job_id = ?", (job_id,)).fetchall()
    ]
    task = table(TaskRow)
    c.execute(delete(task).where(task.c.attempt_id.in_(attempt_ids)))


def drop_events(c: Connection, before_at: float, up_to_id: int) -> bool:
    """Let go of a piece of the audit. False: there is no more."""
    return driver.execute(c, _EVENTS, (before_at, up_to_id, PIECE_EVENTS)).rowcount == PIECE_EVENTS


def give_back(c: Connection) -> bool:
    """Return a piece of what the file does not use to the disk. False: there is no more, or the database sees to it."""
    if c.dialect.name != "sqlite":
        return False
    free = driver.execute(c, "PRAGMA freelist_count", ()).fetchone()
    # A file from before this was thought of keeps its pages, and uses them again.
    if not free or not free[0] or driver.execute(c, "PRAGMA auto_vacuum", ()).fetchone() != (2,):
        return False
    for _ in range(
        min(PIECE_PAGES, free[0])
    ):  # Python's driver takes one step of a pragma, and each step is a page
        driver.execute(c, "PRAGMA incremental_vacuum(1)", ())
    return bool(free[0] > PIECE_PAGES)
