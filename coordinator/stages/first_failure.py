"""Which rank failed first. The others only lost it, and are often heard of before it. Pure; called by `work.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.attempt import Observed
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, RunResult, Stage, TaskReport
from coordinator.core.trouble import trouble_in

# Silent for so long while the others failed, a replica was probably what they lost. Five missed reports.
SILENT_S = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """How the process of one rank failed.

    Attributes:
        echo: all that its log says is that another rank went away.
        ended_at: when, by the coordinator's clock as far as that is known; None where nobody saw it.
    """

    findings: tuple[Finding, ...]
    echo: bool
    ended_at: float | None = None


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
                    f"rank {rank} ({member.name}) has not been heard of for {member.silent_s:.0f} s during {stage.value}.",
                    stage=stage,
                    replica=member.replica_id,
                ),
            ),
            echo=False,
        )
        for rank, (member, report) in enumerate(zip(members, reports, strict=True))
        if member.silent_s > SILENT_S and (report is None or report.state == "running")
    )


def in_order(found: Sequence[Failure]) -> tuple[Finding, ...]:
    """Findings of all, the first cause first; where there is one, the echoes of it are notes."""
    ordered = sorted(found, key=lambda f: (f.echo, f.ended_at is None, f.ended_at or 0.0))
    if not ordered or ordered[0].echo:
        return tuple(one for failure in ordered for one in failure.findings)
    return tuple(
        one.model_copy(update={"severity": "note"}) if failure.echo else one
        for failure in ordered
        for one in failure.findings
    )


def _failure(rank: int, member: Observed, report: TaskReport, stage: Stage) -> Failure:
    own = tuple(f.model_copy(update={"replica": f.replica or member.replica_id}) for f in report.findings)
    result = report.result if isinstance(report.result, RunResult) else RunResult()
    ended_at = None if result.ended_at is None else result.ended_at - (member.clock_offset_s or 0.0)
    if any(f.severity == "error" for f in own):
        return Failure(own, echo=False, ended_at=ended_at)
    echo = _only_echoes(result.tail)
    how = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    why = ": another rank went away" if echo else ""
    said = finding(
        "RUN001",
        f"{stage.value} failed on rank {rank} ({member.name}) with {how}{why}.",
        stage=stage,
        replica=member.replica_id,
        evidence={"exit_code": result.exit_code, "signal": result.signal, "tail": list(result.tail)},
    )
    return Failure((*own, said), echo, ended_at)


def _only_echoes(tail: Sequence[str]) -> bool:
    """Whether the end of a log tells of somebody else's death and of nothing else."""
    troubles = [trouble for line in tail if (trouble := trouble_in(line)) is not None]
    return bool(troubles) and all(trouble.echo for trouble in troubles)
