"""What the watchdog's judgement means for a training: a hang ends the attempt once there is evidence of
it, the rest is said once. Called by `work.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from coordinator.attempt import AttemptState, Observed, Watched
from coordinator.core.catalogue import finding
from coordinator.core.protocol import EVIDENCE, Finding, RunResult, Stage, TaskReport
from coordinator.core.track import THRESHOLDS
from coordinator.core.watchdog import Judgement, judge
from coordinator.stages.proof import hung_alike
from coordinator.stages.verdict import PENDING, Verdict

# Evidence is on disk ten seconds after a hang was found; an agent that is away is not waited for any longer.
EVIDENCE_S = 10.0

# Ranks whose place the message names; the evidence has all of them.
_PLACES_SHOWN = 4

_CODES = {"hung": "RUN030", "stalled": "RUN031", "slow": "RUN032"}


def judge_hang(attempt: AttemptState, members: Sequence[Observed], at: float) -> Verdict:
    """The end of a hung training, once every replica has gathered its evidence or had the time to."""
    assert attempt.hung is not None
    reports = [member.task(attempt.id, EVIDENCE) for member in members]
    gathered = [report is not None and report.state != "running" for report in reports]
    if not all(gathered) and at - (attempt.hung_at or at) <= EVIDENCE_S:
        return PENDING
    hung = _with_places(attempt.hung, _places(reports))
    again = hung_alike(attempt)
    if again is not None:
        proven = {"proof": "reproducible", "hung": hung}
        return Verdict("failed", again.message, (hung, again), kind="configuration", updates=proven)
    updates = {"hung": hung}
    return Verdict("failed", hung.message, (hung,), retryable=True, kind="network", updates=updates)


def _places(reports: Sequence[TaskReport | None]) -> dict[int, str]:
    """Where each rank is, as its own replica's evidence says."""
    found: dict[int, str] = {}
    for report in reports:
        output = report.result.output if report and isinstance(report.result, RunResult) else None
        where = output.get("where") if isinstance(output, dict) else None
        for rank, place in where.items() if isinstance(where, dict) else ():
            if rank.isdigit() and isinstance(place, str):
                found[int(rank)] = place
    return dict(sorted(found.items()))


def _with_places(hung: Finding, places: Mapping[int, str]) -> Finding:
    """The finding with what the stacks say: those that are behind first, a few of the others."""
    if not places:
        return hung
    behind = hung.evidence.get("behind")
    first = [rank for rank in places if isinstance(behind, list) and rank in behind]
    shown = [*first, *(rank for rank in places if rank not in first)][:_PLACES_SHOWN]
    said = "; ".join(f"rank {rank} is {places[rank]}" for rank in shown)
    more = " …" if len(shown) < len(places) else ""
    return hung.model_copy(
        update={
            "message": f"{hung.message} By their stacks, {said}{more}.",
            "evidence": {**hung.evidence, "where": {str(rank): place for rank, place in places.items()}},
        }
    )


def judge_progress(attempt: AttemptState, watched: Watched, at: float, quiet_s: float) -> Verdict:
    """Pending while the training goes on, or while evidence is gathered; `quiet_s` is the job's own measure of a hang."""
    thresholds = replace(THRESHOLDS, window_s=quiet_s)
    judgement = judge(watched.tracks, watched.now_s, since_s=watched.since_s, thresholds=thresholds)
    code = _CODES.get(judgement.state)
    if code is None or code in attempt.warned:
        return PENDING
    found = _finding(code, judgement, attempt)
    if judgement.state == "hung":
        return Verdict("pending", updates={"hung": found, "hung_at": at})
    return Verdict("pending", findings=(found,), updates={"warned": (*attempt.warned, code)})


def _finding(code: str, judgement: Judgement, attempt: AttemptState) -> Finding:
    each = max(1, attempt.gpus_per_node)
    first = judgement.behind[0] if judgement.behind else None
    ranks: dict[str, JsonValue] = {
        str(seen.rank): {
            "host": attempt.seats[seen.rank // each].hostname,
            "doing": seen.doing,
            "says": seen.says,
            "phase": seen.phase,
            "step": seen.step,
            "quiet_s": None if seen.quiet_s is None else round(seen.quiet_s, 1),
        }
        for seen in judgement.ranks
    }
    return finding(
        code,
        judgement.reason,
        stage=Stage.TRAIN,
        replica=None if first is None else attempt.seats[first // each].replica_id,
        evidence={"quiet_s": round(judgement.quiet_s, 1), "behind": list(judgement.behind), "ranks": ranks},
    )
