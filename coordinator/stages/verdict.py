"""What became of a stage, and what the judges of all stages share: deadlines, silence, names, reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from coordinator.attempt import AttemptState, Job, Observed
from coordinator.core.catalogue import finding
from coordinator.core.protocol import CollectResult, Finding, Stage, TaskReport
from coordinator.core.trouble import Kind

# How long after a task's own deadline its report may take to arrive.
REPORT_SLACK_S = 5.0
# A replica this long silent while a handshake or a training runs is gone: an agent reports every 2 s and
# a restarted one is back within seconds, but a paused host or a coordinator's restart must not end a training.
GONE_IN_HANDSHAKE_S = 15.0
GONE_IN_TRAINING_S = 180.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a stage. `updates` are fields of the attempt that it settled, also while it is pending; `kind`: whose
    fault a failure is, for `coordinator/retry.py`."""

    state: Literal["pending", "passed", "failed", "skipped"]
    summary: str = ""
    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, JsonValue] = field(default_factory=dict)
    updates: Mapping[str, Any] = field(default_factory=dict)
    retryable: bool = False
    artifacts: CollectResult | None = None
    kind: Kind = "unknown"


PENDING = Verdict("pending")


def task_id(stage: Stage) -> str:
    """The id of a stage's task in its attempt."""
    return stage.value


def deadline_s(job: Job, stage: Stage) -> float | None:
    """How long a stage may take; None where only the watchdog judges."""
    deadlines = job.deadlines
    return {
        Stage.GATHER: deadlines.gather_s,
        Stage.MATCH: deadlines.match_s,
        Stage.TCP: deadlines.tcp_s,
        Stage.COLLECTIVE: deadlines.collective_s,
        Stage.PREPARE: deadlines.prepare_s,
        Stage.TRAIN: None,
        Stage.COLLECT: deadlines.collect_s,
        Stage.COMPARE: deadlines.compare_s,
    }[stage]


def blocking(findings: Sequence[Finding], allow: frozenset[str]) -> bool:
    """Whether an error is among them that the submission did not allow by its code."""
    return any(f.severity == "error" and f.code not in allow for f in findings)


def reports_of(attempt: AttemptState, members: Sequence[Observed], stage: Stage) -> list[TaskReport | None]:
    return [member.task(attempt.id, task_id(stage)) for member in members]


def names(members: Sequence[Observed], which: Sequence[bool]) -> str:
    return ", ".join(
        f"rank {r} ({m.name})" for r, (m, yes) in enumerate(zip(members, which, strict=True)) if yes
    )


def overdue(
    job: Job, attempt: AttemptState, members: Sequence[Observed], stage: Stage, elapsed_s: float
) -> Verdict | None:
    """A failure, when the stage's time is over or one of its replicas has been silent for too long.

    tcp and collective keep their own time: what did not come in time is evidence there.
    """
    gone_s = GONE_IN_TRAINING_S if stage in (Stage.TRAIN, Stage.PREPARE) else GONE_IN_HANDSHAKE_S
    gone = [member.silent_s > gone_s for member in members]
    if any(gone) and stage not in (Stage.COLLECT, Stage.COMPARE):
        member = members[gone.index(True)]
        lost = finding(
            "SYS003",
            f"{names(members, gone)} has not been heard of for {member.silent_s:.0f} s; {stage.value} cannot go on.",
            stage=stage,
            replica=member.replica_id,
        )
        return Verdict("failed", lost.message, (lost,), retryable=True)
    limit_s = None if stage in (Stage.TCP, Stage.COLLECTIVE) else deadline_s(job, stage)
    if limit_s is None or elapsed_s <= limit_s + REPORT_SLACK_S:
        return None
    if stage is Stage.MATCH:
        missing = [not (m.facts and m.facts.torch_ready) for m in members]
    else:
        missing = [
            report is None or report.state == "running" for report in reports_of(attempt, members, stage)
        ]
    late = finding(
        "SYS004",
        f"{stage.value} was not finished after {limit_s:.0f} s; still waiting for {names(members, missing) or 'nobody'}.",
        stage=stage,
        evidence={"deadline_s": limit_s},
    )
    return Verdict("failed", late.message, (late,), retryable=True)


def first_error(findings: Sequence[Finding], allow: frozenset[str]) -> str:
    errors = [f for f in findings if f.severity == "error" and f.code not in allow]
    return errors[0].message if errors else "the stage failed without a finding"


def carried(reports: Sequence[TaskReport | None]) -> tuple[Finding, ...]:
    return tuple(f for report in reports if report is not None for f in report.findings)
