"""What the watchdog's judgement means for a training: a hang ends the attempt, the rest is said once. Called by `work.py`."""

from __future__ import annotations

from dataclasses import replace

from pydantic import JsonValue

from coordinator.attempt import AttemptState, Watched
from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, Stage
from coordinator.core.track import THRESHOLDS
from coordinator.core.watchdog import Judgement, judge
from coordinator.stages.verdict import PENDING, Verdict

_CODES = {"hung": "RUN030", "stalled": "RUN031", "slow": "RUN032"}


def judge_progress(attempt: AttemptState, watched: Watched, quiet_s: float) -> Verdict:
    """Pending while the training goes on; `quiet_s` is the job's own measure of a hang."""
    thresholds = replace(THRESHOLDS, window_s=quiet_s)
    judgement = judge(watched.tracks, watched.now_s, since_s=watched.since_s, thresholds=thresholds)
    code = _CODES.get(judgement.state)
    if code is None or code in attempt.warned:
        return PENDING
    found = _finding(code, judgement, attempt)
    if judgement.state == "hung":
        return Verdict("failed", found.message, (found,), retryable=True, kind="network")
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
