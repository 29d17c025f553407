"""The collective's gate, in rounds: all at once; then, if that fails, groups that narrow the fault down.

Replicas with several GPUs are tested within themselves before that: what fails there is nobody else's fault.

`preflight/isolate.py` says what to test next and what it means; this turns reports into its history. A
round's silent members are failures of their group: a replica that does not answer is what is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.attempt import AttemptState, Job, Observed, Round
from coordinator.core.catalogue import finding
from coordinator.core.protocol import CollectiveResult, Finding, Stage, TaskReport
from coordinator.core.words import counted
from coordinator.preflight import isolate
from coordinator.preflight.collective_verdict import judge_collective
from coordinator.preflight.isolate_verdict import outcome, tell
from coordinator.stages.handshake import as_of_now, restarted_since
from coordinator.stages.proof import PASSES
from coordinator.stages.verdict import PENDING, REPORT_SLACK_S, Verdict, blocking, first_error, task_id

# A healthy group is up in seconds; a round among suspects need not wait for the whole deadline.
ISOLATION_ROUND_S = 20.0
# Findings that name their cause: no isolation would say more.
SAYS_ITS_CAUSE = frozenset({"COL001", "COL006", "COL007", "COL009"})

# An agent that dies in every round is no accident.
HELD_AGAIN = 3


def first_round(attempt: AttemptState, at: float) -> Round:
    """The round with which the stage begins: among all, or within each replica that has several GPUs."""
    everyone = tuple(seat.replica_id for seat in attempt.seats)
    if attempt.gpus_per_node > 1 and len(everyone) > 1:
        alone = tuple((replica_id,) for replica_id in everyone)
        return Round(task_id=f"{task_id(Stage.COLLECTIVE)}-within", groups=alone, started_at=at, within=True)
    return _among_all(attempt, at)


def _among_all(attempt: AttemptState, at: float, number: int = 1) -> Round:
    """Several of them have to pass where a training has hung."""
    everyone = tuple(seat.replica_id for seat in attempt.seats)
    task = task_id(Stage.COLLECTIVE) + (f"-again-{number}" if number > 1 else "")
    return Round(task_id=task, groups=(everyone,), started_at=at, proving=attempt.doubt is not None)


def round_limit_s(job: Job, attempt: AttemptState) -> float:
    """How long the running round may take."""
    limit_s = job.deadlines.collective_s
    return limit_s if len(_tested(attempt.rounds)) <= 1 else min(limit_s, ISOLATION_ROUND_S)


def _tested(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """The rounds that tested replicas with each other, from the first among all that may have failed."""
    return tuple(
        one
        for one in rounds
        if not one.within and not one.disturbed and not (one.proving and one.passed == (True,))
    )


def judge_collective_stage(
    job: Job, attempt: AttemptState, members: Sequence[Observed], at: float, elapsed_s: float
) -> Verdict:
    """torch.distributed came up among all and every rank saw the right sum; else who or what prevents it."""
    current = attempt.rounds[-1]
    taking_part = {replica_id for group in current.groups for replica_id in group}
    reports = {
        m.replica_id: m.task(attempt.id, current.task_id) for m in members if m.replica_id in taking_part
    }
    if _disturbed(attempt, members, reports):
        return _held_again(attempt, members, at)
    waiting = any(report is None or report.state == "running" for report in reports.values())
    if waiting and elapsed_s <= round_limit_s(job, attempt) + REPORT_SLACK_S:
        return PENDING
    results = {
        replica_id: report.result
        for replica_id, report in reports.items()
        if report is not None and isinstance(report.result, CollectiveResult)
    }
    tests = tuple(outcome(group, results) for group in current.groups)
    closed = current.model_copy(update={"passed": tuple(test.ok for test in tests)})
    rounds = (*attempt.rounds[:-1], closed)
    if current.within:
        return _after_within(job, attempt, rounds, results, at)
    among_all = len(current.groups) == 1 and len(current.groups[0]) == len(members)
    if among_all and tests[0].ok:
        passes = sum(1 for one in rounds if one.proving and not one.disturbed)
        if current.proving and passes < PASSES:
            return Verdict("pending", updates={"rounds": (*rounds, _among_all(attempt, at, passes + 1))})
        return _passed(attempt, rounds, results)
    if len(_tested(rounds)) == 1:
        own = judge_collective([seat.member for seat in attempt.seats], results)
        if not blocking(own, job.allow):
            return _passed(attempt, rounds, results)
        if len(members) == 1 or any(f.code in SAYS_ITS_CAUSE for f in own):
            return Verdict("failed", first_error(own, job.allow), own, retryable=True)
    return _next(job, attempt, members, rounds, at)


def _disturbed(
    attempt: AttemptState, members: Sequence[Observed], reports: Mapping[str, TaskReport | None]
) -> bool:
    """Whether an agent was started anew in the middle of the round: the others wait for what it has forgotten."""
    if sum(one.disturbed for one in attempt.rounds) >= HELD_AGAIN:
        return False
    taking_part = [(s, m) for s, m in zip(attempt.seats, members, strict=True) if m.replica_id in reports]
    if not restarted_since([seat for seat, _ in taking_part], [member for _, member in taking_part]):
        return False
    return not all(
        report is not None and isinstance(report.result, CollectiveResult) and report.result.ok
        for report in reports.values()
    )


def _held_again(attempt: AttemptState, members: Sequence[Observed], at: float) -> Verdict:
    *before, current = attempt.rounds
    task = f"{task_id(Stage.COLLECTIVE)}-{len(attempt.rounds)}"
    again = current.model_copy(update={"task_id": task, "started_at": at})
    rounds = (*before, current.model_copy(update={"disturbed": True}), again)
    return Verdict("pending", updates={"rounds": rounds, "seats": as_of_now(attempt.seats, members)})


def _after_within(
    job: Job,
    attempt: AttemptState,
    rounds: tuple[Round, ...],
    results: Mapping[str, CollectiveResult],
    at: float,
) -> Verdict:
    """Who fails by itself is named; where all pass, the round among all comes next."""
    findings: list[Finding] = []
    for seat, ok in zip(attempt.seats, rounds[-1].passed or (), strict=True):
        if ok:
            continue
        own = judge_collective([seat.member], {r: got for r, got in results.items() if r == seat.replica_id})
        if any(f.code in SAYS_ITS_CAUSE | {"COL008"} for f in own):
            findings += own
            continue
        findings.append(
            finding(
                "COL020",
                f"rank {seat.rank} ({seat.hostname or seat.address}) fails within itself, among its own "
                f"{counted(attempt.gpus_per_node, 'GPU')}: {own[0].message if own else 'no sum was right'}",
                replica=seat.replica_id,
            )
        )
        findings += [_as_note(f) for f in own]
    if blocking(findings, job.allow):
        return Verdict(
            "failed",
            first_error(findings, job.allow),
            tuple(findings),
            updates={"rounds": rounds},
            retryable=True,
        )
    return Verdict(
        "pending", findings=tuple(findings), updates={"rounds": (*rounds, _among_all(attempt, at))}
    )


def _next(
    job: Job, attempt: AttemptState, members: Sequence[Observed], rounds: tuple[Round, ...], at: float
) -> Verdict:
    """Another round, or the verdict of those there were."""
    everyone = tuple(seat.replica_id for seat in attempt.seats)
    history = _history(rounds)
    said = isolate.advance(everyone, history)
    task = f"{task_id(Stage.COLLECTIVE)}-{len(rounds)}"
    if isinstance(said, isolate.NextRound):
        following = Round(task_id=task, groups=said.groups, started_at=at)
        return Verdict("pending", updates={"rounds": (*rounds, following)})
    if said.kind == "transient" and not rounds[-1].confirming:
        again = Round(task_id=task, groups=(everyone,), started_at=at, confirming=True)
        return Verdict("pending", updates={"rounds": (*rounds, again)})
    seated = [seat.member for seat in attempt.seats]
    first = judge_collective(seated, _results(attempt, members, _tested(rounds)[0]))
    findings = (*tell(said, seated, history), *(_as_note(f) for f in first))
    if not blocking(findings, job.allow):
        # it failed among all twice, and in no group: nothing is proven, so nothing may train on it
        findings = (*findings, *judge_collective(seated, _results(attempt, members, rounds[-1])))
    return Verdict(
        "failed",
        first_error(findings, job.allow),
        findings,
        updates={"rounds": rounds},
        retryable=True,
    )


def _results(attempt: AttemptState, members: Sequence[Observed], of: Round) -> dict[str, CollectiveResult]:
    reports = {member.replica_id: member.task(attempt.id, of.task_id) for member in members}
    return {
        replica_id: report.result
        for replica_id, report in reports.items()
        if report is not None and isinstance(report.result, CollectiveResult)
    }


def _history(rounds: Sequence[Round]) -> list[list[isolate.GroupResult]]:
    return [
        [isolate.GroupResult(group, ok) for group, ok in zip(one.groups, one.passed or (), strict=True)]
        for one in _tested(rounds)
    ]


def _as_note(found: Finding) -> Finding:
    """What was seen before the cause was found: shown, but no longer the judgement."""
    return found.model_copy(update={"severity": "note"})


def _passed(
    attempt: AttemptState, rounds: tuple[Round, ...], results: Mapping[str, CollectiveResult]
) -> Verdict:
    seated = [seat.member for seat in attempt.seats]
    findings = judge_collective(seated, results)
    if len(_tested(rounds)) > 1:
        everyone = tuple(seat.replica_id for seat in attempt.seats)
        history = _history(rounds)
        findings = (
            *tell(
                isolate.Verdict("transient", proven=everyone, rounds=len(_tested(rounds)) - 1),
                seated,
                history,
            ),
            *findings,
        )
    inits = [r.init_s for r in results.values() if r.init_s is not None]
    firsts = [r.first_all_reduce_s for r in results.values() if r.first_all_reduce_s is not None]
    rates = [max(r.bytes_per_s.values()) for r in results.values() if r.bytes_per_s]
    backend = next((r.backend for r in results.values()), "nothing")
    world = attempt.world_size
    rate = f", {min(rates) / 1e6:.0f} MB/s" if rates else ""
    return Verdict(
        "passed",
        f"{backend} up in {max(inits, default=0):.1f} s, sums right on {world} of {counted(world, 'rank')}{rate}",
        findings,
        figures={
            "backend": backend,
            "init_s": max(inits, default=None),
            "first_all_reduce_s": max(firsts, default=None),
            "bytes_per_s_min": min(rates, default=None),
            "rounds": len(rounds),
        },
        updates={"rounds": rounds},
    )
