"""From what is stored and who is here to what users see: rows → views. Pure; called by the API and its feeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from coordinator.attempt import AttemptState, Observed, Seat, StageRecord
from coordinator.core.clock import instant
from coordinator.core.protocol import ProgressRecord
from coordinator.core.views import (
    ArtifactView,
    AttemptView,
    EventView,
    JobSummary,
    JobView,
    MemberView,
    MetricView,
    ProgressView,
    ReplicaPage,
    ReplicaView,
    StageView,
)
from coordinator.roster import ALIVE_WITHIN_S
from coordinator.store import rows

# Fields of a progress record that a metric has as columns of its own.
_COLUMNS = frozenset({"type", "at", "rank", "local_rank", "step"})
# What the page's progress shows, each taken from the newest record that has it.
_FIGURES = (
    "step",
    "total_steps",
    "epoch",
    "phase",
    "loss",
    "eval_loss",
    "perplexity",
    "learning_rate",
    "grad_norm",
    "tokens_per_s",
    "memory_bytes",
    "memory_total_bytes",
    "step_s",
    "train_loss",
    "train_runtime_s",
    "trainable_parameters",
    "all_parameters",
    "world_size",
)


def job_summary(row: rows.Job) -> JobSummary:
    return JobSummary.model_validate(_summary(row))


def job_view(
    row: rows.Job,
    attempts: Sequence[AttemptState],
    progress: ProgressView | None,
    findings: Iterable[rows.Finding],
    artifacts: Iterable[rows.Artifact],
    replicas: Mapping[str, Observed],
) -> JobView:
    """Everything about a job but its logs.

    Args:
        attempts: all of the job's, in their order; the last is the present one.
        replicas: those that are registered, as they are now, by id.
    """
    views = [attempt_view(attempt, replicas) for attempt in attempts]
    hostnames = {seat.replica_id: seat.hostname for attempt in attempts for seat in attempt.seats}
    collected = [attempt for attempt in attempts if attempt.result_folder]
    compared = [attempt for attempt in attempts if attempt.comparison]
    return JobView.model_validate(
        {
            **_summary(row),
            "attempt": views[-1] if views else None,
            "previous": tuple(views[:-1]),
            "progress": progress,
            "findings": tuple(found.finding for found in findings),
            "artifacts": tuple(artifact_view(a, hostnames.get(a.replica_id, "")) for a in artifacts),
            "result_folder": collected[-1].result_folder if collected else None,
            "comparison": compared[-1].comparison if compared else (),
        }
    )


def _summary(row: rows.Job) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "state": row.state,
        "stage": row.stage,
        "verdict": row.verdict,
        "nodes": row.nodes,
        "gpus_per_node": row.gpus_per_node,
        "attempts": row.attempts,
        "created_at": instant(row.created_at),
        "started_at": instant(row.started_at),
        "ended_at": instant(row.ended_at),
    }


def attempt_of(row: rows.Attempt) -> AttemptState:
    """The attempt as the lifecycle knows it."""
    return AttemptState.model_validate(row.record)


def foremost(attempts: Sequence[AttemptState]) -> AttemptState:
    """The attempt that is meant where none is named: the last, but not one that only tested the links after a hang."""
    training = [attempt for attempt in attempts if attempt.trains or attempt.state == "active"]
    return training[-1] if training else attempts[-1]


def attempt_view(attempt: AttemptState, replicas: Mapping[str, Observed]) -> AttemptView:
    return AttemptView(
        id=attempt.id,
        number=attempt.number,
        state=attempt.state,
        outcome=attempt.outcome,
        created_at=_certain(attempt.created_at),
        ended_at=instant(attempt.ended_at),
        rendezvous_port=attempt.rendezvous_port,
        stages=tuple(_stage_view(record) for record in attempt.stages),
        members=tuple(_member_view(seat, attempt, replicas.get(seat.replica_id)) for seat in attempt.seats),
    )


def _stage_view(record: StageRecord) -> StageView:
    return StageView(
        stage=record.stage,
        state=record.state,
        started_at=instant(record.started_at),
        ended_at=instant(record.ended_at),
        summary=record.summary,
        figures=record.figures,
    )


def _member_view(seat: Seat, attempt: AttemptState, replica: Observed | None) -> MemberView:
    """`task_state` is what the replica says of its task of the present stage."""
    task = replica.task(attempt.id, attempt.stage.stage.value) if replica and attempt.stages else None
    return MemberView(
        replica_id=seat.replica_id,
        hostname=seat.hostname,
        rank=seat.rank,
        address=seat.address,
        alive=replica is not None and replica.silent_s <= ALIVE_WITHIN_S,
        task_state=task.state if task else None,
    )


def progress_view(records: Iterable[ProgressRecord]) -> ProgressView | None:
    """Where training is, from the newest records of each rank and type; None before the first one.

    Each figure comes from the lowest rank that has it, and there from its newest record that has it.
    """
    ordered = sorted(records, key=lambda record: (record.rank, -record.at))
    if not ordered:
        return None
    figures: dict[str, object] = {}
    for record in ordered:
        for name in _FIGURES:
            value = getattr(record, name)
            if value is not None and name not in figures:
                figures[name] = value
    steps = [record.step for record in ordered if record.rank == ordered[0].rank and record.step is not None]
    if steps:
        figures["step"] = max(steps)
    view = ProgressView.model_validate(figures)
    newest = max(record.at for record in ordered)
    return view.model_copy(update={"eta_s": _eta_s(view), "updated_at": instant(newest)})


def _eta_s(view: ProgressView) -> float | None:
    if view.total_steps is None or not view.step_s:
        return None
    return round(max(0, view.total_steps - view.step) * view.step_s, 1)


def metric_view(row: rows.Metric) -> MetricView:
    record = row.record
    return MetricView(
        id=row.id,
        attempt=int(row.attempt_id.rpartition("-")[2]),
        rank=row.rank,
        type=row.type,
        step=row.step,
        at=_certain(float(record.get("at", 0.0))),
        values={key: value for key, value in record.items() if key not in _COLUMNS and value is not None},
    )


def artifact_view(row: rows.Artifact, hostname: str) -> ArtifactView:
    return ArtifactView(
        id=row.id,
        path=row.path,
        kind=row.kind,
        size_bytes=row.size_bytes,
        sha256=row.sha256,
        replica_id=row.replica_id,
        hostname=hostname,
    )


def event_view(row: rows.Event) -> EventView:
    return EventView(
        id=row.id,
        at=_certain(row.at),
        actor=row.actor,
        action=row.action,
        job_id=row.job_id,
        replica_id=row.replica_id,
        detail=dict(row.detail),
    )


def replica_page(replicas: tuple[ReplicaView, ...], expected: int | None) -> ReplicaPage:
    return ReplicaPage(items=replicas, expected=expected, message=_attendance(replicas, expected))


def _attendance(replicas: tuple[ReplicaView, ...], expected: int | None) -> str:
    """E.g. "1 of 2 replicas registered, waiting for one more"."""
    here = sum(replica.alive for replica in replicas)
    gone = len(replicas) - here
    lost = f"; {gone} not heard of any more" if gone else ""
    if expected is None:
        return f"{here} {'replica' if here == 1 else 'replicas'} registered{lost}"
    said = f"{here} of {expected} {'replica' if expected == 1 else 'replicas'} registered"
    missing = expected - here
    if missing > 0:
        return f"{said}, waiting for {'one' if missing == 1 else missing} more{lost}"
    spare = f", {-missing} to spare" if missing < 0 else ""
    return f"{said}{spare}{lost}"


def _certain(at: float) -> datetime:
    found = instant(at)
    assert found is not None
    return found
