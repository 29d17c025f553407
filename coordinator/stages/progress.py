"""What the watchdog's judgement means for a training: a hang ends the attempt once there is evidence of
it, the rest is said once. Called by `work.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue, TypeAdapter, ValidationError

from coordinator.attempt import AttemptState, Observed, Watched
from coordinator.core.catalogue import finding
from coordinator.core.protocol import EVIDENCE, Finding, RunResult, Stage, TaskReport
from coordinator.core.track import THRESHOLDS, RankWatch
from coordinator.core.watchdog import Judgement, judge, sentences
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
    hung = _told(attempt.hung, _whereabouts(reports), attempt)
    again = hung_alike(attempt.model_copy(update={"hung": hung}))
    if again is not None:
        proven = {"proof": "reproducible", "hung": hung}
        return Verdict("failed", again.message, (hung, again), kind="configuration", updates=proven)
    updates = {"hung": hung}
    return Verdict("failed", hung.message, (hung,), retryable=True, kind="network", updates=updates)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where each rank is by its own replica's evidence, and which of them wait in a collective."""

    places: Mapping[int, str]
    waiting: frozenset[int] = frozenset()

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """Those who never came to the collective in which others wait; nobody where all wait, or none does."""
        return tuple(rank for rank in self.places if rank not in self.waiting) if self.waiting else ()


def _whereabouts(reports: Sequence[TaskReport | None]) -> Whereabouts:
    places: dict[int, str] = {}
    waiting: set[int] = set()
    for report in reports:
        output = report.result.output if report and isinstance(report.result, RunResult) else None
        where = output.get("where") if isinstance(output, dict) else None
        if not isinstance(output, dict) or not isinstance(where, dict):
            continue
        for rank, place in where.items():
            if rank.isdigit() and isinstance(place, str):
                places[int(rank)] = place
        waits = output.get("waiting")
        waiting.update(rank for rank in (waits if isinstance(waits, list) else ()) if isinstance(rank, int))
    return Whereabouts(dict(sorted(places.items())), frozenset(waiting & places.keys()))


def _told(hung: Finding, seen: Whereabouts, attempt: AttemptState) -> Finding:
    """The finding with what the stacks say: those that are behind first, a few of the others.

    Whom the others wait for is told more surely by where they are than by how many steps each has reported.
    """
    if not seen.places:
        return hung
    by_samples = [rank for rank in _list(hung, "behind") if isinstance(rank, int)]
    behind = by_samples
    if seen.elsewhere and not any(_doing(hung, rank) in ("stopped", "silent") for rank in by_samples):
        behind = list(seen.elsewhere)
    message, replica = hung.message, hung.replica
    if behind != by_samples:
        each = max(1, attempt.gpus_per_node)
        replica = attempt.seats[behind[0] // each].replica_id if behind else None
        message = sentences(str(hung.evidence.get("why")), _quiet_s(hung), behind, _ranks(hung))
    shown = [*(rank for rank in behind if rank in seen.places)]
    shown += [rank for rank in seen.places if rank not in shown]
    said = "; ".join(f"rank {rank} is {seen.places[rank]}" for rank in shown[:_PLACES_SHOWN])
    more = " …" if len(shown) > _PLACES_SHOWN else ""
    where: dict[str, JsonValue] = {str(rank): place for rank, place in seen.places.items()}
    return hung.model_copy(
        update={
            "message": f"{message} By their stacks, {said}{more}.",
            "replica": replica,
            "evidence": {**hung.evidence, "behind": [*behind], "where": where},
        }
    )


def _list(hung: Finding, name: str) -> list[JsonValue]:
    found = hung.evidence.get(name)
    return found if isinstance(found, list) else []


def _doing(hung: Finding, rank: int) -> str:
    return next((seen.doing for seen in _ranks(hung) if seen.rank == rank), "unknown")


def _quiet_s(hung: Finding) -> float:
    found = hung.evidence.get("quiet_s")
    return float(found) if isinstance(found, int | float) else 0.0


_SEEN = TypeAdapter(RankWatch)


def _ranks(hung: Finding) -> list[RankWatch]:
    """What each rank did when the hang was found; nothing where an earlier version has kept it otherwise."""
    kept = hung.evidence.get("ranks")
    found = []
    for rank, seen in kept.items() if isinstance(kept, dict) else ():
        with contextlib.suppress(ValidationError):
            found.append(_SEEN.validate_python({"rank": rank, **(seen if isinstance(seen, dict) else {})}))
    return found


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
        evidence={
            "why": judgement.why or judgement.state,
            "quiet_s": round(judgement.quiet_s, 1),
            "behind": list(judgement.behind),
            "ranks": ranks,
        },
    )
