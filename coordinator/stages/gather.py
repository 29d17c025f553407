"""Who takes part in the next attempt, and for whom it waits. Pure; called by `lifecycle.py`.

A job's first attempt takes whoever is free. A later one waits for those who had the ranks before: their disks hold the
checkpoints. One that does not come back is replaced by a spare after a while, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from coordinator.attempt import AttemptState, Job, Observed, Seat, Snapshot, StageRecord
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, Stage
from coordinator.core.words import counted
from coordinator.preflight.address import choose, offers
from coordinator.rendezvous import Candidate, seats
from coordinator.stages.proof import checks_only, doubt_of, unproven

# Silent for so long, a replica counts as not here: it gets no seat. Five missed reports.
ABSENT_S = 10.0
# From then on a waiting job names who is missing.
NAME_MISSING_AFTER_S = 30.0
# How long a replica that was lost has to come back before a spare takes its rank: a container restarts in half a minute.
REPLACE_AFTER_S = 30.0
# Where nothing but the links is to be tested again, after a job that has failed: nobody waits any longer for that.
CHECK_WAIT_S = 30.0

TRAIN_STAGES = tuple(Stage)
PREFLIGHT_STAGES = (Stage.GATHER, Stage.MATCH, Stage.TCP, Stage.COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The job as it stands now, the attempt that begins if there are enough, and what is to be said."""

    job: Job
    attempt: AttemptState | None = None
    findings: tuple[Finding, ...] = ()
    wake_at: float | None = None


def gather(job: Job, last: AttemptState | None, busy: Set[str], snapshot: Snapshot) -> Gathered:
    """Start an attempt when enough replicas are here; else say for whom it waits, until the deadline.

    Args:
        last: the job's attempt before.
        busy: replicas that sit in an attempt of any job.
    """
    now_at = snapshot.now_at
    since = job.gather_since if job.gather_since is not None else now_at
    waited_s = now_at - since
    here = [r for r in snapshot.replicas.values() if r.silent_s <= ABSENT_S]
    free = [r for r in here if r.replica_id not in busy and not r.holding]
    previous = last.seats[: job.nodes] if last is not None else ()
    lost = _lost(previous, free)
    waiting = replace(job, stage=Stage.GATHER, gather_since=since)
    if last is not None and lost and checks_only(job, last):
        return _check_given_up(waiting, last, lost, snapshot)
    order = seats([_candidate(r) for r in free], job.nodes, [seat.replica_id for seat in previous])
    if order is not None and lost and last is not None and last.outcome == "failed":
        left_s = REPLACE_AFTER_S - waited_s
        if left_s > 0:
            verdict = f"{_again(last)}Waiting for {_named(lost, snapshot)} to come back; a spare is ready to take over."
            return Gathered(replace(waiting, verdict=verdict), wake_at=now_at + left_s)
    if order is not None:
        attempt = _new_attempt(job, last, [snapshot.replicas[r] for r in order], since, now_at)
        running = replace(waiting, state="running", attempts=attempt.number)
        return Gathered(running, attempt, _replaced(previous, attempt, snapshot))
    missing = job.nodes - len(free)
    if lost and last is not None:
        verdict = f"{_again(last)}Waiting for {_named(lost, snapshot)} to come back, or for a spare."
    else:
        verdict = f"{len(free)} of {counted(job.nodes, 'replica')} {'registered' if len(free) == len(here) else 'free'}, "
        verdict += "waiting for one more." if missing == 1 else f"waiting for {missing} more."
    if waited_s >= NAME_MISSING_AFTER_S:
        verdict += _who_is_missing(snapshot, busy)
    # Those who were here before a restart of the coordinator need a moment to say so.
    back_s = snapshot.now_at - snapshot.listening_since
    if job.deadlines.gather_s <= waited_s and back_s < ABSENT_S:
        return Gathered(replace(waiting, verdict=verdict), wake_at=snapshot.listening_since + ABSENT_S)
    if waited_s < job.deadlines.gather_s:
        wake_at = since + min(
            (at for at in (NAME_MISSING_AFTER_S, job.deadlines.gather_s) if at > waited_s),
            default=job.deadlines.gather_s,
        )
        return Gathered(replace(waiting, verdict=verdict), wake_at=wake_at)
    late = finding(
        "SYS001",
        f"Only {len(free)} of {counted(job.nodes, 'replica')} were there after {job.deadlines.gather_s:.0f} s: {missing} missing."
        + _who_is_missing(snapshot, busy),
        stage=Stage.GATHER,
        evidence={
            "registered": [*sorted(r.replica_id for r in here)],
            "wanted": job.nodes,
            "missing": missing,
        },
    )
    failed = replace(waiting, state="failed", verdict=late.message, ended_at=now_at)
    return Gathered(failed, None, (late,))


def _check_given_up(waiting: Job, last: AttemptState, lost: Sequence[Seat], snapshot: Snapshot) -> Gathered:
    """The job has failed for good; only its verdict waits for the replicas it happened among, and not for long."""
    left_s = CHECK_WAIT_S - (snapshot.now_at - (waiting.gather_since or snapshot.now_at))
    who = _named(lost, snapshot)
    if left_s > 0:
        verdict = f"{_again(last)}Waiting for {who} to test the links once more."
        return Gathered(replace(waiting, verdict=verdict), wake_at=snapshot.now_at + left_s)
    found = unproven(last, f"{who} did not come back")
    verdict = f"Failed in {last.stage.stage.value}: {last.reason} {found.message}"
    failed = replace(
        waiting, state="failed", stage=last.stage.stage, verdict=verdict, ended_at=snapshot.now_at
    )
    return Gathered(failed, None, (found,))


def _again(last: AttemptState) -> str:
    """Why another attempt is made at all, as the beginning of a verdict."""
    if last.outcome != "failed":
        return ""
    reason = last.reason if last.reason.endswith((".", "!", "?")) else f"{last.reason}."
    return f"Attempt {last.number} failed: {reason} "


def _lost(previous: Sequence[Seat], free: Sequence[Observed]) -> tuple[Seat, ...]:
    """Seats of the attempt before whose replicas are not to be had now."""
    there = {replica.replica_id for replica in free}
    return tuple(seat for seat in previous if seat.replica_id not in there)


def _named(lost: Sequence[Seat], snapshot: Snapshot) -> str:
    said = []
    for seat in lost[:8]:
        replica = snapshot.replicas.get(seat.replica_id)
        gone = replica is None or replica.silent_s > ABSENT_S
        said.append(f"rank {seat.rank} ({seat.hostname or seat.replica_id}, {'gone' if gone else 'busy'})")
    return ", ".join(said) + (" …" if len(lost) > 8 else "")


def _replaced(previous: Sequence[Seat], attempt: AttemptState, snapshot: Snapshot) -> tuple[Finding, ...]:
    """Who sits where another sat in the attempt before."""
    return tuple(
        finding(
            "RUN037",
            f"{now.hostname or now.replica_id} takes rank {now.rank} from {before.hostname or before.replica_id}, "
            "which did not come back.",
            stage=Stage.GATHER,
            replica=now.replica_id,
            evidence={"rank": now.rank, "before": before.replica_id, "now": now.replica_id},
        )
        for before, now in zip(previous, attempt.seats, strict=False)
        if before.replica_id != now.replica_id and _is_gone(before, snapshot)
    )


def _is_gone(seat: Seat, snapshot: Snapshot) -> bool:
    replica = snapshot.replicas.get(seat.replica_id)
    return replica is None or replica.silent_s > ABSENT_S


def _candidate(replica: Observed) -> Candidate:
    registration = replica.registration
    return Candidate(
        replica.replica_id,
        registration.addresses[0].address if registration.addresses else "",
        replica.last_rank,
        registration.beside_coordinator,
        registration.ordinal,
    )


def _who_is_missing(snapshot: Snapshot, busy: Set[str]) -> str:
    """Names of replicas that are known but not to be had, as a sentence; empty when none is known."""
    gone = [
        f"{r.name} (silent for {_rounded(r.silent_s)})"
        for r in snapshot.replicas.values()
        if r.silent_s > ABSENT_S
    ]
    held = [f"{r.name} (busy)" for r in snapshot.replicas.values() if r.replica_id in busy or r.holding]
    named = gone + held
    return f" Not to be had: {', '.join(named[:8])}{' …' if len(named) > 8 else ''}." if named else ""


def _rounded(seconds: float) -> str:
    """Coarse: a verdict that counted every second would be stored every second."""
    if seconds < 60:
        return f"{seconds // 10 * 10:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 7200 else f"{seconds // 3600:.0f} h"


def _new_attempt(
    job: Job, last: AttemptState | None, members: Sequence[Observed], since: float, now_at: float
) -> AttemptState:
    number = job.attempts + 1
    counts = [m.registration.gpu_count for m in members]
    gpus = job.gpus_per_node if job.gpus_per_node is not None else min(counts)
    chosen = choose({m.replica_id: m.registration for m in members})
    taken = []
    for rank, member in enumerate(members):
        address = chosen.get(member.replica_id)
        taken.append(
            Seat(
                replica_id=member.replica_id,
                rank=rank,
                hostname=member.registration.hostname,
                address=address.address if address else "",
                interface=(address.interface or None) if address else None,
                family=address.family if address else "ipv4",
                echo_port=member.registration.echo_port,
                gpu_count=member.registration.gpu_count,
                offers=offers(member.registration),
                incarnation=member.incarnation,
            )
        )
    only_links = job.kind == "preflight" or (last is not None and checks_only(job, last))
    order = PREFLIGHT_STAGES if only_links else TRAIN_STAGES
    stages = [StageRecord(stage=stage) for stage in order]
    stages[0] = StageRecord(
        stage=Stage.GATHER,
        state="passed",
        started_at=since,
        ended_at=now_at,
        summary=f"{len(members)} of {counted(job.nodes, 'replica')}",
    )
    stages[1] = StageRecord(stage=stages[1].stage, state="running", started_at=now_at)
    return AttemptState(
        id=f"{job.id}-{number}",
        job_id=job.id,
        number=number,
        created_at=now_at,
        gpus_per_node=gpus,
        seats=tuple(taken),
        stages=tuple(stages),
        doubt=doubt_of(last) if job.kind == "train" else None,
    )
