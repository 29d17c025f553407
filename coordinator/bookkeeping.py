"""The controller's side of the store: its rows as the values that decisions are made of, and decisions as rows.

Called by `controller.py`. What takes a connection runs in the store's own threads and touches nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sqlalchemy import Connection

from coordinator.attempt import AttemptState, Job
from coordinator.core.catalogue import finding
from coordinator.core.clock import monotonic_s
from coordinator.core.protocol import Finding, ProgressRecord, Stage, TaskReport
from coordinator.core.views import JobState, Submission
from coordinator.lifecycle import Change
from coordinator.roster import Presence, as_known
from coordinator.store import queries, rows


@dataclass(frozen=True, slots=True)
class Known:
    """What the store knows when a coordinator starts: open attempts, replicas as they were last heard of, and the last
    words of the trainings of those attempts: (id of the attempt, record)."""

    attempts: tuple[AttemptState, ...]
    presences: tuple[Presence, ...]
    said: tuple[tuple[str, ProgressRecord], ...]


def known_of(connection: Connection) -> Known:
    """Read what a coordinator starts from; a replica with a seat counts as silent from now on, for nobody could reach
    a coordinator that was not there."""
    present = {row.id: as_known(row) for row in queries.replicas(connection)}
    attempts = tuple(AttemptState.model_validate(row.record) for row in queries.open_attempts(connection))
    said: list[tuple[str, ProgressRecord]] = []
    for attempt in attempts:
        for task in queries.tasks_of(connection, attempt.id):
            if (presence := present.get(task.replica_id)) is not None:
                presence.attempt_id = attempt.id
                presence.tasks[task.task_id] = TaskReport.model_validate(task.report)
        for seat in attempt.seats:
            if (presence := present.get(seat.replica_id)) is not None:
                presence.heard_s = monotonic_s()
                presence.holding = frozenset({attempt.id})
        records = (
            ProgressRecord.model_validate(one.record)
            for one in queries.newest_metrics(connection, attempt.id)
        )
        said += [(attempt.id, record) for record in records]
    return Known(attempts, tuple(present.values()), tuple(said))


def job_of(row: rows.Job | rows.OpenJob, submission: Submission) -> Job:
    """A job as decisions see it."""
    return Job(
        id=row.id,
        seq=row.seq,
        nodes=row.nodes,
        created_at=row.created_at,
        name=row.name,
        kind="preflight" if row.kind == "preflight" else "train",
        state=cast(JobState, row.state),
        stage=Stage(row.stage),
        verdict=row.verdict,
        gpus_per_node=row.gpus_per_node,
        gather_since=row.started_at,
        ended_at=row.ended_at,
        cancel_requested=row.cancel_requested,
        attempts=row.attempts,
        attempts_allowed=row.attempts_allowed,
        deadlines=submission.deadlines,
        has_prompts=bool(submission.prompts),
        allow=frozenset(submission.allow),
    )


def apply(connection: Connection, change: Change, noted: Sequence[Finding], at: float) -> None:
    """Store one pass's changes, and what was noted since the last."""
    for job in change.jobs:
        queries.update_job(
            connection,
            job.id,
            state=job.state,
            stage=job.stage.value,
            verdict=job.verdict,
            started_at=job.gather_since,
            ended_at=job.ended_at,
            attempts=job.attempts,
        )
        queries.insert_event(
            connection,
            at=at,
            actor="coordinator",
            action=f"job.{job.state}",
            job_id=job.id,
            detail={"stage": job.stage.value, "verdict": job.verdict},
        )
    for attempt in change.attempts:
        _keep_attempt(connection, attempt)
    for job_id, attempt_id, found in change.findings:
        queries.insert_findings(connection, job_id, attempt_id, at, [found])
    queries.insert_findings(connection, None, None, at, noted)
    for attempt, collected in change.artifacts:
        master = attempt.seats[0].replica_id
        queries.replace_artifacts(
            connection,
            attempt.job_id,
            [
                rows.Artifact(
                    secrets.token_hex(8),
                    attempt.job_id,
                    attempt.id,
                    master,
                    artifact.path,
                    artifact.kind,
                    artifact.size_bytes,
                    artifact.sha256,
                )
                for artifact in collected.artifacts
            ],
        )


def _keep_attempt(connection: Connection, attempt: AttemptState) -> None:
    record = attempt.model_dump(mode="json")
    known = queries.update_attempt(
        connection,
        attempt.id,
        state=attempt.state,
        outcome=attempt.outcome,
        ended_at=attempt.ended_at,
        record=record,
    )
    if known:
        return
    queries.insert_attempt(
        connection,
        rows.Attempt(
            id=attempt.id,
            job_id=attempt.job_id,
            number=attempt.number,
            created_at=attempt.created_at,
            state=attempt.state,
            record=record,
        ),
    )
    queries.set_last_ranks(connection, [(seat.replica_id, seat.rank) for seat in attempt.seats])


def put_back(connection: Connection, job: rows.Job, attempt: AttemptState, at: float) -> bool:
    """A job and its attempt from a replica's snapshot, as if they had always been here; False: the attempt is here."""
    if queries.attempt(connection, attempt.id) is not None:
        return False
    if queries.job(connection, job.id) is None:
        queries.insert_job(connection, job)
    else:
        queries.update_job(connection, job.id, state=job.state, stage=job.stage, attempts=attempt.number)
    record = attempt.model_dump(mode="json")
    queries.insert_attempt(
        connection, rows.Attempt(attempt.id, job.id, attempt.number, attempt.created_at, record=record)
    )
    holder = attempt.seats[0].hostname or "a replica"
    noted = finding("SYS030", f"Job {job.id} was taken up again from what {holder} holds.")
    queries.insert_findings(connection, job.id, attempt.id, at, [noted])
    queries.insert_event(
        connection,
        at=at,
        actor="coordinator",
        action="job.taken_up",
        job_id=job.id,
        detail={"attempt": attempt.id},
    )
    return True
