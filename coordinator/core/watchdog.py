"""Does this training go on? Samples and progress of every rank → healthy | slow | stalled | hung, with reasons. Pure.

One idea: a hang is nobody working. Ranks of a training wait for each other all the time, so a rank that does nothing
proves nothing as long as another one computes, reads, writes, downloads or waits for a disk. Only where nobody does, and
no step is made, there is nothing left to wait for. Loading, tokenising, compiling, evaluating and saving are work that
shows in CPU, disk or network, whatever phase the training says it is in.

`track.py` says what one rank does; `judge` looks at all of them. Called by `stages/work.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import Literal

from coordinator.core.track import THRESHOLDS, Doing, RankWatch, Thresholds, Track, watch

State = Literal["healthy", "slow", "stalled", "hung"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state of a training.

    Attributes:
        reason: what is wrong and who does what, in sentences; empty while it is healthy. `why`: the first half of the first.
        behind: the ranks the others wait for, as far as that can be told.
    """

    state: State
    reason: str = ""
    behind: tuple[int, ...] = ()
    ranks: tuple[RankWatch, ...] = ()
    quiet_s: float = 0.0
    why: str = ""


def judge(
    tracks: Sequence[Track], now_s: float, *, since_s: float = 0.0, thresholds: Thresholds = THRESHOLDS
) -> Judgement:
    """What becomes of the training, now. `since_s`: when it was first looked at."""
    ranks = tuple(watch(track, now_s, thresholds) for track in tracks)
    running = [(track, seen) for track, seen in zip(tracks, ranks, strict=True) if seen.doing != "ended"]
    if not running or any(seen.doing == "unknown" for _, seen in running):
        return Judgement("healthy", ranks=ranks)
    if all(seen.doing == "silent" for _, seen in running):  # more likely it is the listener who was away
        return Judgement("healthy", ranks=ranks)
    # Ranks that have never said a word count from when they were first looked at.
    last_s = max((track.word_s for track, _ in running if track.word_s is not None), default=since_s)
    quiet_s = max(0.0, now_s - max(last_s, since_s))
    doing = {seen.doing for _, seen in running}
    if "advancing" in doing:
        return _pace([track for track, _ in running], ranks, now_s, thresholds)
    limit = _limit(running, doing, thresholds)
    behind = _behind([seen for _, seen in running])
    worked_s = max((track.worked_s or since_s for track, _ in running), default=since_s)
    counted_s = min(quiet_s, now_s - worked_s) if limit.since_work else quiet_s
    if doing == {"on-gpu"} and limit.since_work:  # steps whose words do not come show in the log at least
        counted_s = min(counted_s, _silence_s([track for track, _ in running]))
    if counted_s >= limit.seconds:
        said = sentences(limit.why, quiet_s, behind, ranks)
        return Judgement("hung", said, behind, ranks, quiet_s, limit.why)
    stall_s = _stall_limit_s([track for track, _ in running], thresholds)
    if quiet_s >= stall_s:
        why = "No step, although somebody works"
        said = sentences(why, quiet_s, behind, ranks)
        return Judgement("stalled", said, behind, ranks, quiet_s, why)
    return Judgement("healthy", ranks=ranks, quiet_s=quiet_s)


@dataclass(frozen=True, slots=True)
class _Limit:
    """After how long without a word this is a hang, and how to say so.

    `since_work`: counted from the end of other work on, so that a download does not use up the time of a first step.
    """

    seconds: float
    why: str
    since_work: bool = False


def _limit(running: Sequence[tuple[Track, RankWatch]], doing: set[Doing], thresholds: Thresholds) -> _Limit:
    usual_s = max((track.usual_s or 0.0 for track, _ in running), default=0.0)
    gap_s = thresholds.gaps * max((track.gap_s for track, _ in running), default=0.0)
    in_train = all(track.phase == "train" for track, _ in running)
    training = usual_s > 0 and in_train
    if "working" in doing and not training:
        return _Limit(float("inf"), "")
    if "working" in doing:
        livelock_s = max(thresholds.livelock_s, gap_s, thresholds.stalled_steps * usual_s)
        return _Limit(livelock_s, "No step any more, though somebody works")
    if "talking" in doing:
        return _Limit(max(thresholds.talk_s, thresholds.idle_steps * usual_s), "Nobody works any more", True)
    if doing != {"on-gpu"}:
        return _Limit(max(thresholds.window_s, thresholds.idle_steps * usual_s), "Nobody works any more")
    if training:
        why = f"Every GPU is busy, but no step is made where one usually takes {usual_s:.1f} s"
        return _Limit(max(thresholds.window_s, thresholds.steps * usual_s, gap_s), why)
    long_s = thresholds.first_step_s if in_train else thresholds.quiet_phase_s
    return _Limit(long_s, "Every GPU is busy, but nothing comes of it", True)


def _stall_limit_s(tracks: Sequence[Track], thresholds: Thresholds) -> float:
    usual_s = max((track.usual_s or 0.0 for track in tracks), default=0.0)
    gap_s = max((track.gap_s for track in tracks), default=0.0)
    if usual_s > 0 and all(track.phase == "train" for track in tracks):
        return max(thresholds.stalled_s, thresholds.stalled_steps * usual_s, thresholds.gaps * gap_s)
    return thresholds.mute_s if _silence_s(tracks) >= thresholds.mute_s else float("inf")


def _silence_s(tracks: Sequence[Track]) -> float:
    """Seconds since any log grew; for ever, where no log is known."""
    ages_s = [track.samples[-1].line_age_s for track in tracks if track.samples]
    return min((age_s for age_s in ages_s if age_s is not None), default=float("inf"))


# In the order in which they are gone through; who is in an earlier one is behind.
_PHASES = ("start", "data", "load", "train", "evaluate", "save", "done")


def _behind(ranks: Sequence[RankWatch]) -> tuple[int, ...]:
    """Whom the others wait for: who is stopped or gone, else who works, else who idles while others wait on their GPUs,
    else who has made fewer steps or is in an earlier phase. Empty where nothing tells them apart."""
    for kind in ("stopped", "silent"):
        if found := tuple(seen.rank for seen in ranks if seen.doing == kind):
            return found
    busy = tuple(seen.rank for seen in ranks if seen.doing == "working")
    if busy and len(busy) < len(ranks):
        return busy
    idle = tuple(seen.rank for seen in ranks if seen.doing in ("idle", "talking"))
    if idle and len(idle) < len(ranks):
        return idle
    places = {seen.rank: (seen.step or 0, _place(seen.phase)) for seen in ranks}
    last = min(places.values())
    found = tuple(rank for rank, place in places.items() if place == last)
    return found if len(found) < len(ranks) else ()


def _place(phase: str) -> int:
    return _PHASES.index(phase) if phase in _PHASES else 0


def sentences(why: str, quiet_s: float, behind: Sequence[int], ranks: Sequence[RankWatch]) -> str:
    """Why it is judged so, what those do who are behind (all, where nobody is), and who waits."""
    said = f"{why}: no sign of progress for {quiet_s:.0f} s."
    by_rank = {seen.rank: seen for seen in ranks}
    shown = list(behind[:4]) or [seen.rank for seen in ranks if seen.doing != "ended"][:4]
    for rank in shown:
        seen = by_rank[rank]
        where = f" at step {seen.step}" if seen.step is not None else ""
        said += f" Rank {rank} (in {seen.phase}{where}): {seen.says}."
    waiting = [
        str(seen.rank) for seen in ranks if behind and seen.rank not in behind and seen.doing != "ended"
    ]
    if waiting:
        listed = ", ".join(waiting[:8]) + (" …" if len(waiting) > 8 else "")
        said += f" Rank{'s' if len(waiting) > 1 else ''} {listed} wait{'' if len(waiting) > 1 else 's'}."
    return said


def _pace(
    tracks: Sequence[Track], ranks: tuple[RankWatch, ...], now_s: float, thresholds: Thresholds
) -> Judgement:
    """Slow, where steps take several times as long as they did before."""
    begin_s = now_s - thresholds.slow_over_s
    for track in tracks:
        recent = [pace for _, pace in takewhile(lambda point: point[0] >= begin_s, reversed(track.paces))]
        before = track.paces[: len(track.paces) - len(recent)]
        if len(recent) < thresholds.slow_points or len(before) < thresholds.usual_points:
            continue
        pace_s, usual_s = median(recent), median(pace for _, pace in before)
        # the first points may themselves be from before: over the whole time, not for a moment
        if pace_s >= thresholds.slow_times * usual_s:
            said = f"A step takes {pace_s:.2f} s for the last {thresholds.slow_over_s:.0f} s, {pace_s / usual_s:.1f} times "
            said += f"as long as before ({usual_s:.2f} s)."
            return Judgement("slow", said, (), ranks)
    return Judgement("healthy", ranks=ranks)
