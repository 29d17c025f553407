"""The gates of the work itself: every replica has prepared the same data, all ranks trained together."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from coordinator.attempt import AttemptState, Observed, Watched
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, ProgressRecord, RunResult, Stage, TaskReport
from coordinator.core.track import THRESHOLDS
from coordinator.core.words import counted
from coordinator.stages.first_failure import failures, first_kind, in_order, lost
from coordinator.stages.numbers import judge_numbers
from coordinator.stages.pace import judge_pace
from coordinator.stages.progress import judge_hang, judge_progress
from coordinator.stages.resume import choose
from coordinator.stages.verdict import PENDING, Verdict, carried, reports_of

# A training that ended while the coordinator was away reports its end before its progress has been mirrored.
UNHEARD_S = 60.0
# Where a rank failed only because another went away, how long that one has to say what befell it: an agent that
# was killed together with its rank is back in a second or two, and in some more on a busy machine.
LAST_WORDS_S = 15.0


def judge_prepare(attempt: AttemptState, members: Sequence[Observed]) -> Verdict:
    """Every replica has the same prepared data."""
    reports = reports_of(attempt, members, Stage.PREPARE)
    failed = failures(members, reports, Stage.PREPARE)
    if failed:
        findings, kind = in_order(failed), first_kind(failed)
        retryable = kind in ("network", "replica")
        return Verdict("failed", findings[0].message, findings, retryable=retryable, kind=kind)
    if any(report is None or report.state == "running" for report in reports):
        return PENDING
    outputs = [_output(report) for report in reports]
    digests = {str(output.get("digest")) for output in outputs}
    samples = [output.get("rows") for output in outputs]
    if len(digests) > 1:
        rows = ", ".join(f"rank {r}: {counted(n, 'sample')}" for r, n in enumerate(samples))
        differ = finding(
            "RUN002",
            f"The replicas prepared different data ({rows}); they would take different numbers of steps and hang.",
            stage=Stage.PREPARE,
            evidence={"prepared": {m.replica_id: o for m, o in zip(members, outputs, strict=True)}},
        )
        return Verdict("failed", differ.message, (differ,))
    count = samples[0] if samples else None
    same = (
        f"{counted(count, 'sample')}, the same on every rank"
        if count is not None
        else "prepared on every rank"
    )
    resume = choose(attempt, outputs)
    if resume.checkpoint is not None:
        same += f"; goes on from {resume.checkpoint}"
    return Verdict(
        "passed",
        same,
        (*carried(reports), *resume.findings),
        figures={"samples": count},
        updates={"resume": resume.checkpoint},
    )


def judge_train(
    attempt: AttemptState,
    members: Sequence[Observed],
    starts: Sequence[ProgressRecord],
    at: float,
    watched: Watched | None = None,
    quiet_s: float = THRESHOLDS.window_s,
    spoiled: Sequence[ProgressRecord] = (),
) -> Verdict:
    """All ranks trained together to the end: one world, the same steps, exit 0 everywhere."""
    reports = reports_of(attempt, members, Stage.TRAIN)
    failed = failures(members, reports, Stage.TRAIN)
    apart = _training_apart(attempt, starts)
    under_way = any(report is None or report.state == "running" for report in reports)
    if attempt.hung is not None and under_way:
        return judge_hang(attempt, members, at)
    if failed and not apart and under_way and all(failure.echo for failure in failed):
        if attempt.echo_since is None:
            return Verdict("pending", updates={"echo_since": at})
        if at - attempt.echo_since <= LAST_WORDS_S:
            return PENDING
        failed = (*lost(members, reports, Stage.TRAIN), *failed)
    if failed or apart:
        findings, kind = (*apart, *in_order(failed)), first_kind(failed)
        retryable = not apart and kind != "configuration"
        return Verdict("failed", findings[0].message, findings, retryable=retryable, kind=kind)
    numbers = judge_numbers(attempt, spoiled)
    if numbers is not None:
        return numbers
    if under_way:
        going_on = judge_progress(attempt, watched, at, quiet_s) if watched and quiet_s > 0 else PENDING
        if going_on is not PENDING or watched is None:
            return going_on
        return judge_pace(attempt, watched) or PENDING
    silent = sorted(set(range(attempt.world_size)) - {start.rank for start in starts})
    if silent and attempt.unheard_since is None:
        return Verdict("pending", updates={"unheard_since": at})
    if silent and at - (attempt.unheard_since or at) <= UNHEARD_S:
        return PENDING
    if silent:
        unseen = finding(
            "RUN004",
            f"Training ended with exit code 0, but rank {', '.join(map(str, silent))} never said that it trained.",
            evidence={"heard_of": [*sorted(start.rank for start in starts)]},
        )
        return Verdict("failed", unseen.message, (unseen,))
    steps = starts[0].total_steps
    return Verdict(
        "passed",
        f"{counted(steps, 'step')} on {counted(attempt.world_size, 'rank')}",
        carried(reports),
        figures={"total_steps": steps, "world_size": attempt.world_size},
        # one that ended well while evidence of a hang was gathered did not hang
        updates={"hung": None, "hung_at": None} if attempt.hung else {},
    )


def _raw_output(report: TaskReport | None) -> JsonValue:
    return report.result.output if report is not None and isinstance(report.result, RunResult) else None


def _output(report: TaskReport | None) -> dict[str, JsonValue]:
    output = _raw_output(report)
    return output if isinstance(output, dict) else {}


def _training_apart(attempt: AttemptState, starts: Sequence[ProgressRecord]) -> tuple[Finding, ...]:
    """Machines that train alone, or disagree on how long, are a failure even where every one exits 0."""
    found: list[Finding] = []
    alone = [s for s in starts if s.world_size is not None and s.world_size != attempt.world_size]
    if alone:
        worlds = {str(s.rank): s.world_size for s in alone}
        found.append(
            finding(
                "RUN003",
                f"The training's world has {counted(alone[0].world_size, 'rank')} where it must have {attempt.world_size}: "
                "a machine trains alone.",
                evidence={"world_sizes": dict(worlds)},
            )
        )
    for what in ("total_steps", "batches", "step"):
        said = {s.rank: getattr(s, what) for s in starts if getattr(s, what) is not None}
        if len(set(said.values())) > 1:
            each = ", ".join(f"rank {rank}: {value}" for rank, value in sorted(said.items()))
            found.append(
                finding(
                    "RUN002",
                    f"The ranks disagree on {what.replace('_', ' ')} ({each}); the run would hang at the shorter one's end.",
                    stage=Stage.TRAIN,
                    evidence={what: {str(rank): value for rank, value in said.items()}},
                )
            )
    return tuple(found)
