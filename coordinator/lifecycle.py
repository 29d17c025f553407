"""What should happen next to every job: (jobs, attempts, replicas, now) → changes. Pure; `controller.py` applies them.

Jobs run first come, first served: only the oldest queued one may take replicas, those it does not take
stand by. An attempt goes through the stages in order; the first that fails ends it, its processes are
ended on every replica, and only then is the job said to have failed or tried again.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace

from coordinator.attempt import AttemptState, Job, Observed, Outcome, Snapshot
from coordinator.core.catalogue import finding
from coordinator.core.protocol import CollectResult, Finding, Stage
from coordinator.core.trouble import Kind
from coordinator.retry import may_follow, pause_s
from coordinator.stages import (
    GONE_IN_HANDSHAKE_S,
    REPORT_SLACK_S,
    Verdict,
    as_of_now,
    deadline_s,
    first_round,
    judge_collect,
    judge_collective_stage,
    judge_compare,
    judge_match,
    judge_prepare,
    judge_tcp_stage,
    judge_train,
    overdue,
    round_limit_s,
)
from coordinator.stages.doing import doing, result
from coordinator.stages.gather import Gathered, gather
from coordinator.stages.proof import checks_only, settle

# A replica that went silent while its processes were being ended is not waited for any longer than this.
ENDING_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """What one call of `advance` decided; unchanged jobs and attempts are not in it.

    Attributes:
        findings: (job id, attempt id or None, finding).
        artifacts: (attempt, what its rank 0 collected).
        wake_at: when to look again although nothing was heard, epoch seconds; None: no deadline is open.
    """

    jobs: tuple[Job, ...] = ()
    attempts: tuple[AttemptState, ...] = ()
    findings: tuple[tuple[str, str | None, Finding], ...] = ()
    artifacts: tuple[tuple[AttemptState, CollectResult], ...] = ()
    wake_at: float | None = None


def advance(snapshot: Snapshot) -> Change:
    """One step of every job and attempt. Calling it again with its own result changes nothing."""
    open_of = {a.job_id: a for a in snapshot.attempts if a.state != "ended"}
    last_of = {a.job_id: a for a in sorted(snapshot.attempts, key=lambda a: a.number)}
    jobs: dict[str, Job] = {}
    changed: dict[str, AttemptState] = {}
    findings: list[tuple[str, str | None, Finding]] = []
    artifacts: list[tuple[AttemptState, CollectResult]] = []
    wakes: list[float] = []
    busy = {seat.replica_id for attempt in open_of.values() for seat in attempt.seats}
    head_seen = False

    for job in snapshot.jobs:
        attempt = open_of.get(job.id)
        if attempt is not None:
            moved, found, collected = _advance_or_end(job, attempt, snapshot)
            findings += [(job.id, attempt.id, f) for f in found]
            if collected is not None:
                artifacts.append((moved, collected))
            if moved != attempt:
                changed[moved.id] = moved
            after = _job_after(job, moved, snapshot.now_at)
            wakes += _deadlines(job, moved)
        elif job.cancel_requested:
            after = replace(
                job, state="cancelled", verdict="Cancelled before it started.", ended_at=snapshot.now_at
            )
        elif head_seen:
            after = replace(job, verdict="Waiting for the jobs before it.")
        else:
            head_seen = True
            last = last_of.get(job.id)
            again_at = _again_at(last)
            if again_at is not None and snapshot.now_at < again_at:
                wakes.append(again_at)
                continue
            gathered = _gather_or_fail(job, last, busy, snapshot)
            after, started = gathered.job, gathered.attempt
            findings += [(job.id, started.id if started else None, f) for f in gathered.findings]
            if started is not None:
                after = _job_after(after, started, snapshot.now_at)
                changed[started.id] = started
                busy |= {seat.replica_id for seat in started.seats}
                head_seen = False
            elif gathered.wake_at is not None:
                wakes.append(gathered.wake_at)
        if after != job:
            jobs[job.id] = after
    known = {job.id for job in snapshot.jobs}
    for attempt in open_of.values():
        if attempt.state != "ending" or attempt.job_id in known:
            continue
        # its job has succeeded already; the replicas still have to let go
        if (moved := _ended_when_clean(attempt, snapshot)) != attempt:
            changed[moved.id] = moved
    later = [at for at in wakes if at > snapshot.now_at]
    return Change(
        tuple(jobs.values()),
        tuple(changed.values()),
        tuple(findings),
        tuple(artifacts),
        min(later, default=None),
    )


# --- gather --------------------------------------------------------------------------------------


def _gather_or_fail(job: Job, last: AttemptState | None, busy: set[str], snapshot: Snapshot) -> Gathered:
    """An error of our own fails this job; it must not keep the others waiting."""
    try:
        return gather(job, last, busy, snapshot)
    except Exception as error:
        found = _own_fault(Stage.GATHER, f"{type(error).__name__}: {error}", traceback.format_exc())
        failed = replace(job, state="failed", verdict=found.message, ended_at=snapshot.now_at)
        return Gathered(failed, None, (found,))


def _again_at(last: AttemptState | None) -> float | None:
    """When the next attempt may begin after one that failed; None: at once."""
    if last is None or last.outcome != "failed" or not last.retryable or last.ended_at is None:
        return None
    return last.ended_at + pause_s(last.fault, last.number)


# --- attempts ------------------------------------------------------------------------------------


def _members(attempt: AttemptState, snapshot: Snapshot) -> list[Observed] | None:
    found = [snapshot.replicas.get(seat.replica_id) for seat in attempt.seats]
    return [m for m in found if m is not None] if all(found) else None


def _advance_or_end(
    job: Job, attempt: AttemptState, snapshot: Snapshot
) -> tuple[AttemptState, tuple[Finding, ...], CollectResult | None]:
    """An error of our own ends this attempt; it must not stop the others, nor leave its replicas training."""
    why, where = snapshot.broken.get(attempt.id) if attempt.state == "active" else None, ""
    if why is None:
        try:
            return _advance_attempt(job, attempt, snapshot)
        except Exception as error:
            why, where = f"{type(error).__name__}: {error}", traceback.format_exc()
    found = _own_fault(attempt.stage.stage, why, where)
    return _ending(attempt, "failed", found.message, snapshot.now_at), (found,), None


def _own_fault(stage: Stage, why: str, where: str) -> Finding:
    return finding(
        "SYS032",
        f"rankcall could not go on with {stage.value}: {why}",
        stage=stage,
        evidence={"traceback": [*where.splitlines()[-12:]]} if where else {},
    )


def _advance_attempt(
    job: Job, attempt: AttemptState, snapshot: Snapshot
) -> tuple[AttemptState, tuple[Finding, ...], CollectResult | None]:
    now_at = snapshot.now_at
    if attempt.state == "ending":
        return _ended_when_clean(attempt, snapshot), (), None
    if job.cancel_requested:
        return _ending(attempt, "cancelled", "Cancelled.", now_at), (), None
    members = _members(attempt, snapshot)
    if members is None:
        gone = finding("SYS003", "A replica of this attempt is no longer known.")
        return _ending(attempt, "failed", gone.message, now_at, retryable=True), (gone,), None
    record = attempt.stage
    verdict = _judge(job, attempt, members, record.stage, snapshot)
    if verdict.state == "pending" and verdict.updates:
        return attempt.model_copy(update=dict(verdict.updates)), verdict.findings, None
    if verdict.state == "pending":
        late = overdue(job, attempt, members, record.stage, snapshot.elapsed_s(record.started_at))
        if late is None:
            return attempt, (), None
        verdict = late
        if record.stage is Stage.COMPARE:
            verdict = replace(
                late,
                state="skipped",
                findings=tuple(f.model_copy(update={"severity": "warning"}) for f in late.findings),
            )
    closed = record.model_copy(
        update={
            "state": verdict.state,
            "ended_at": now_at,
            "summary": verdict.summary,
            "figures": dict(verdict.figures),
        }
    )
    settled = attempt.model_copy(update={"stages": attempt.changed(closed), **verdict.updates})
    said = settle(settled, members, record.stage, verdict)
    if said is not None:
        proof, found = said
        settled = settled.model_copy(update={"proof": proof})
        verdict = replace(
            verdict,
            findings=(*verdict.findings, found),
            retryable=verdict.retryable and proof != "reproducible",
        )
        if verdict.state == "failed" or not settled.trains:  # the last words of the attempt, or of the job
            verdict = replace(verdict, summary=found.message)
    if verdict.state == "failed":
        ending = _ending(
            settled, "failed", verdict.summary, now_at, retryable=verdict.retryable, fault=verdict.kind
        )
        return ending, verdict.findings, None
    following = [s for s in settled.stages if s.state == "waiting"]
    if not following and settled.doubt is not None and not settled.trains:
        return _ending(settled, "failed", verdict.summary, now_at), verdict.findings, None
    if not following:
        return _ending(settled, "succeeded", verdict.summary, now_at), verdict.findings, verdict.artifacts
    entered = following[0].model_copy(update={"state": "running", "started_at": now_at})
    update: dict[str, object] = {"stages": settled.changed(entered)}
    if entered.stage in (Stage.TCP, Stage.COLLECTIVE):
        update["seats"] = as_of_now(settled.seats, members)
    if entered.stage is Stage.COLLECTIVE:
        update["rounds"] = (first_round(settled, now_at),)
    return settled.model_copy(update=update), verdict.findings, verdict.artifacts


def _judge(
    job: Job, attempt: AttemptState, members: list[Observed], stage: Stage, snapshot: Snapshot
) -> Verdict:
    if stage is Stage.MATCH:
        return judge_match(job, attempt, members)
    if stage is Stage.TCP:
        since = attempt.probed_since or attempt.stage.started_at
        return judge_tcp_stage(job, attempt, members, snapshot.now_at, snapshot.elapsed_s(since))
    if stage is Stage.COLLECTIVE:
        elapsed_s = snapshot.elapsed_s(attempt.rounds[-1].started_at)
        return judge_collective_stage(job, attempt, members, snapshot.now_at, elapsed_s)
    if stage is Stage.PREPARE:
        return judge_prepare(attempt, members)
    if stage is Stage.TRAIN:
        starts, watched = snapshot.starts.get(attempt.id, ()), snapshot.watched.get(attempt.id)
        spoiled, quiet_s = snapshot.spoiled.get(attempt.id, ()), job.deadlines.train_quiet_s
        return judge_train(attempt, members, starts, snapshot.now_at, watched, quiet_s, spoiled)
    if stage is Stage.COLLECT:
        return judge_collect(attempt, members)
    return judge_compare(job, attempt, members)


def _ending(
    attempt: AttemptState,
    outcome: Outcome,
    reason: str,
    now_at: float,
    *,
    retryable: bool = False,
    fault: Kind = "unknown",
) -> AttemptState:
    """The outcome is known: no stage runs any more, every replica is told to let go."""
    cancelled = outcome == "cancelled"  # nothing failed then: the stage was cut off
    state = "skipped" if cancelled else "failed"
    stages = tuple(
        record.model_copy(
            update={
                "state": state,
                "ended_at": now_at,
                "summary": reason if cancelled else record.summary or reason,
            }
        )
        if record.state == "running"
        else record
        for record in attempt.stages
    )
    return attempt.model_copy(
        update={
            "state": "ending",
            "outcome": outcome,
            "reason": reason,
            "retryable": retryable,
            "fault": fault,
            "ended_at": now_at,
            "stages": stages,
        }
    )


def _ended_when_clean(attempt: AttemptState, snapshot: Snapshot) -> AttemptState:
    """Ended as soon as no replica holds a process of it, or those that do are gone."""
    waited_s = snapshot.now_at - (attempt.ended_at or snapshot.now_at)
    for seat in attempt.seats:
        replica = snapshot.replicas.get(seat.replica_id)
        if replica is None:
            continue
        gone = replica.silent_s > GONE_IN_HANDSHAKE_S
        # One that was gone before has not even heard that it should end: it will when it comes back.
        if gone and (waited_s > ENDING_LIMIT_S or replica.silent_s - waited_s > GONE_IN_HANDSHAKE_S):
            continue
        if attempt.id in replica.holding or replica.attempt_id == attempt.id:
            return attempt
    return attempt.model_copy(update={"state": "ended"})


# --- the job, as its attempt stands --------------------------------------------------------------


def _job_after(job: Job, attempt: AttemptState, now_at: float) -> Job:
    record = attempt.stage
    if attempt.state == "active":
        return replace(job, state="running", stage=record.stage, verdict=doing(record, attempt))
    if attempt.outcome == "succeeded" and job.state == "queued":
        # It was asked to be tried again before its replicas had let go of the attempt that succeeded.
        return job
    if attempt.outcome == "succeeded":
        verdict = "The handshake passed." if job.kind == "preflight" else f"Succeeded: {result(attempt)}"
        return replace(job, state="succeeded", stage=record.stage, verdict=verdict, ended_at=now_at)
    if attempt.state == "ending":
        why = (
            "Cancelling"
            if attempt.outcome == "cancelled"
            else f"Failed in {record.stage.value}: {attempt.reason}"
        )
        verdict = f"{why.rstrip('.')}. Ending its processes on every replica."
        return replace(job, state="running", stage=record.stage, verdict=verdict)
    if attempt.outcome == "cancelled" or job.cancel_requested:
        return replace(job, state="cancelled", verdict="Cancelled.", ended_at=now_at)
    reason = attempt.reason if attempt.reason.endswith((".", "!", "?")) else f"{attempt.reason}."
    further = attempt.retryable and may_follow(attempt.fault, job.attempts, job.attempts_allowed)
    if further or checks_only(job, attempt):
        what = (
            "Trying again." if further else "Testing the links once more, to tell whether that was transient."
        )
        verdict = f"Attempt {attempt.number} failed: {reason} {what}"
        return replace(job, state="queued", stage=Stage.GATHER, gather_since=None, verdict=verdict)
    if attempt.doubt is not None and not attempt.trains:
        verdict = f"Failed in train: {attempt.doubt.reason} {reason}"
        return replace(job, state="failed", stage=Stage.TRAIN, verdict=verdict, ended_at=now_at)
    verdict = f"Failed in {record.stage.value}: {attempt.reason}"
    return replace(job, state="failed", stage=record.stage, verdict=verdict, ended_at=now_at)


def _deadlines(job: Job, attempt: AttemptState) -> Iterable[float]:
    """When a running stage, or a replica's silence, must be looked at again."""
    if attempt.state == "ending":
        return [(attempt.ended_at or 0.0) + ENDING_LIMIT_S + 1.0]
    record = attempt.stage
    since, limit_s = record.started_at, deadline_s(job, record.stage)
    if record.stage is Stage.COLLECTIVE and attempt.rounds:
        since, limit_s = attempt.rounds[-1].started_at, round_limit_s(job, attempt)
    if limit_s is None or since is None:
        return []
    return [since + limit_s + REPORT_SLACK_S + 0.1]
