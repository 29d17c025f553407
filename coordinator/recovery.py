"""What a coordinator that lost its store gets back from the agents: a job and its attempt, as they were handed out.

The first few ranks of an attempt keep a snapshot of it beside the training. An agent that registers says which
attempts it holds and brings their snapshots; what the store does not know is put back from there, and its
streams follow by themselves, since the agents are asked for every byte anew. Pure; called by `controller.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import structlog
from pydantic import JsonValue, ValidationError

from coordinator.assignment import Work, rendered
from coordinator.attempt import AttemptState
from coordinator.core.protocol import HeldAttempt, JobSnapshot
from coordinator.core.views import Submission
from coordinator.render import RenderError
from coordinator.store import rows

log = structlog.get_logger(__name__)

# Ranks that keep a snapshot: rank 0 is usually the coordinator's own replica, so not that one alone.
KEEPERS = 3
# Of a job's row, what a snapshot leaves out: where it stands follows from its attempt, the rest is another store's.
_NOT_KEPT = frozenset(
    {"dropped_at", "seq", "state", "stage", "verdict", "attempts", "cancel_requested", "retry_requested"}
)


def snapshot_of(job: rows.Job, attempt: AttemptState) -> JobSnapshot:
    kept: dict[str, JsonValue] = {
        field.name: getattr(job, field.name) for field in fields(job) if field.name not in _NOT_KEPT
    }
    return JobSnapshot(job=kept, attempt=attempt.model_dump(mode="json"))


def put_together(held: HeldAttempt, replica_id: str) -> tuple[rows.Job, AttemptState] | None:
    """The job and the attempt of a snapshot; None where it is missing, damaged, or not of this replica's attempt."""
    if held.snapshot is None:
        return None
    try:
        attempt = AttemptState.model_validate(held.snapshot.attempt)
        seat = attempt.seat_of(replica_id)
        named = f"{attempt.job_id}-{attempt.number}"
        if seat is None or not attempt.stages or attempt.state != "active":
            return None
        job = _row(held.snapshot.job, attempt)
        if not attempt.id == named == held.attempt_id or attempt.job_id != job.id:
            return None
        if job.kind == "train":  # what cannot be handed out again would fail in every pass
            rendered(Work(Submission.model_validate(job.submission), job.bundle_sha256), attempt, seat)
    except (ValidationError, RenderError, TypeError, ValueError, LookupError) as error:
        log.warning("a snapshot is damaged", attempt=held.attempt_id, why=type(error).__name__)
        return None
    return job, attempt


def _row(kept: Mapping[str, JsonValue], attempt: AttemptState) -> rows.Job:
    known = {field.name for field in fields(rows.Job)} - _NOT_KEPT
    values = {name: value for name, value in kept.items() if name in known}
    return rows.Job(
        **values,  # type: ignore[arg-type]  # a wrong type is found by the checks of the caller
        state="running",
        stage=attempt.stage.stage.value,
        verdict="Taken up again from what the replicas hold.",
        attempts=attempt.number,
    )
