"""Which rank failed first. The others only lost it, and are often heard of before it. Pure; called by `work.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.attempt import Observed
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, RunResult, Stage, TaskReport
from coordinator.core.trouble import Kind
from coordinator.diagnosis import cause_of, explain, kind_of

# Silent for so long while the others failed, a replica was probably what they lost. Five missed reports.
SILENT_S = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """How the process of one rank failed.

    Attributes:
        echo: all that its log says is that another rank went away.
        ended_at: when, by the coordinator's clock as far as that is known; None where nobody saw it.
        kind: whose fault it is.
    """

    findings: tuple[Finding, ...]
    echo: bool
    ended_at: float | None = None
    kind: Kind = "unknown"

    @property
    def weak(self) -> bool:
        """What it says may be the consequence of another rank's fault: others did not answer, or not in time."""
        return self.kind == "network"


def failures(
    members: Sequence[Observed], reports: Sequence[TaskReport | None], stage: Stage
) -> tuple[Failure, ...]:
    """One for each rank whose process failed, in rank order; what the agent found itself comes first."""
    return tuple(
        _failure(rank, member, report, stage)
        for rank, (member, report) in enumerate(zip(members, reports, strict=True))
        if report is not None and report.state == "failed"
    )


def lost(
    members: Sequence[Observed], reports: Sequence[TaskReport | None], stage: Stage
) -> tuple[Failure, ...]:
    """One for each replica that has not said how it ended, and says nothing else either."""
    return tuple(
        Failure(
            (
                finding(
                    "SYS003",
                    f"rank {rank} ({member.name}) has not been heard of for {member.silent_s:.0f} s; {stage.value} cannot go on.",
                    stage=stage,
                    replica=member.replica_id,
                ),
            ),
            echo=False,
            kind="replica",
        )
        for rank, (member, report) in enumerate(zip(members, reports, strict=True))
        if member.silent_s > SILENT_S and (report is None or report.state == "running")
    )


def in_order(found: Sequence[Failure]) -> tuple[Finding, ...]:
    """Findings of all, the first cause first; what it may have caused elsewhere are notes."""
    ordered = _ordered(found)
    if not ordered or ordered[0].echo:
        return tuple(one for failure in ordered for one in failure.findings)
    first = ordered[0]
    return tuple(
        one.model_copy(update={"severity": "note"}) if failure.echo or failure.weak > first.weak else one
        for failure in ordered
        for one in failure.findings
    )


def first_kind(found: Sequence[Failure]) -> Kind:
    """Whose fault the first cause is."""
    ordered = _ordered(found)
    return ordered[0].kind if ordered else "unknown"


def _ordered(found: Sequence[Failure]) -> list[Failure]:
    """An echo comes last; what may be a consequence, behind faults of their own; then by the time they ended."""
    return sorted(found, key=lambda f: (f.echo, f.weak, f.ended_at is None, f.ended_at or 0.0))


def _failure(rank: int, member: Observed, report: TaskReport, stage: Stage) -> Failure:
    own = tuple(f.model_copy(update={"replica": f.replica or member.replica_id}) for f in report.findings)
    result = report.result if isinstance(report.result, RunResult) else RunResult()
    ended_at = None if result.ended_at is None else result.ended_at - (member.clock_offset_s or 0.0)
    if any(f.severity == "error" for f in own):
        return Failure(own, echo=False, ended_at=ended_at, kind=kind_of(own))
    cause = cause_of(result)
    said = explain(cause, result, rank=rank, name=member.name, replica=member.replica_id, stage=stage)
    return Failure((*own, said), cause.echo, ended_at, cause.kind)
