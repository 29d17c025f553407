"""The trainings that run are looked at in turn, a few at a time, and the controller is told of those that need it.

A pass of the controller takes everything in one go, and with hundreds of trainings that would hold up every report for
as long as it takes. A look asks of one training what a pass would: does anything follow from what is known now? Nearly
always nothing does. Started by the controller.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

import structlog

from coordinator.attempt import AttemptState, Job, Snapshot, Watched
from coordinator.core.clock import monotonic_s
from coordinator.core.protocol import Stage
from coordinator.core.track import THRESHOLDS
from coordinator.lifecycle import advance
from coordinator.roster import Roster
from coordinator.watch import Heard, Watch

log = structlog.get_logger(__name__)

# Once a second: samples come every two, and the promise is a minute.
LOOK_EVERY_S = 1.0
# While all ranks of a training say that they are further on, nothing can be wrong with it for a whole window; its
# samples must not lie further apart than `Thresholds.gap_s`.
CALM_EVERY_S = 10.0
# And so often it is asked whether a calm training has become slow, which is told by minutes.
PACE_EVERY_S = 30.0
# A window has so many parts: a word that is not older than one is of just now, and so often a calm training is looked at.
_PARTS = 4.0
# How often it is seen whose turn it is.
TICK_S = 0.05


def is_calm(watched: Watched, window_s: float) -> bool:
    """Whether all ranks of a training have just said that they are further on."""
    young_s = window_s / _PARTS
    return all(
        track.ended or (track.word_s is not None and watched.now_s - track.word_s < young_s)
        for track in watched.tracks
    )


def again_after_s(calm: bool, window_s: float) -> float:
    """When a training is to be looked at again."""
    return max(LOOK_EVERY_S, min(CALM_EVERY_S, window_s / _PARTS)) if calm else LOOK_EVERY_S


class Turns:
    """Whose turn it is, on the monotonic clock. No tick has more than its share, so that those that came together are soon
    spread over their whole period."""

    def __init__(self) -> None:
        self._every_s: dict[str, float] = {}
        self._waiting: list[tuple[float, str]] = []

    def due(self, attempt_ids: Set[str], now_s: float) -> list[str]:
        """Who is to be looked at in this tick, who waits for longest first. For each of them `after` has to follow."""
        if attempt_ids != self._every_s.keys():
            for id_ in attempt_ids - self._every_s.keys():
                self.after(id_, now_s, 0.0)
            self._every_s = {id_: self._every_s[id_] for id_ in attempt_ids}
            self._waiting = [turn for turn in self._waiting if turn[1] in self._every_s]
            heapq.heapify(self._waiting)
        share = math.ceil(TICK_S * sum(1 / (every_s or LOOK_EVERY_S) for every_s in self._every_s.values()))
        found: list[str] = []
        while len(found) < share and self._waiting and self._waiting[0][0] <= now_s:
            found.append(heapq.heappop(self._waiting)[1])
        return found

    def after(self, attempt_id: str, now_s: float, every_s: float) -> None:
        """It has been looked at, and is to be again in so long."""
        self._every_s[attempt_id] = every_s
        heapq.heappush(self._waiting, (now_s + every_s, attempt_id))


@dataclass(slots=True)
class Lookout:
    """One for a controller.

    Attributes:
        trainings: attempts whose training runs, by id.
        jobs: open jobs by id, as they were last read.
        snapshot: what a decision about one training alone is made of.
        call: takes what was seen of a training of which something follows.
    """

    watch: Watch
    roster: Roster
    trainings: Mapping[str, AttemptState]
    jobs: Mapping[str, Job]
    snapshot: Callable[[Job, AttemptState, Watched], Snapshot]
    call: Callable[[AttemptState, Watched], None]
    _judged_s: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Look until cancelled. An error in one look is logged, and the others go on."""
        turns = Turns()
        while True:
            await asyncio.sleep(TICK_S)
            for ended in self._judged_s.keys() - self.trainings.keys():
                del self._judged_s[ended]
            for attempt_id in turns.due(self.trainings.keys(), monotonic_s()):
                attempt = self.trainings.get(attempt_id)
                job = self.jobs.get(attempt.job_id) if attempt is not None else None
                every_s = LOOK_EVERY_S
                if attempt is not None and job is not None:
                    try:
                        every_s = self._look(job, attempt)
                    except Exception:
                        log.exception("a training could not be looked at", attempt=attempt_id)
                turns.after(attempt_id, monotonic_s(), every_s)
                await asyncio.sleep(0)  # reports are let in between

    def _look(self, job: Job, attempt: AttemptState) -> float:
        """When to look again, in seconds."""
        now_s = monotonic_s()
        window_s = job.deadlines.train_quiet_s or THRESHOLDS.window_s
        seen = self.watch.look(attempt, self._heard(attempt), now_s, replace(THRESHOLDS, window_s=window_s))
        calm = is_calm(seen, window_s)
        if not calm or now_s - self._judged_s.get(attempt.id, -math.inf) >= PACE_EVERY_S:
            self._judged_s[attempt.id] = now_s
            change = advance(self.snapshot(job, attempt, seen))
            if change.jobs or change.attempts or change.findings or change.artifacts:
                self.call(attempt, seen)
        return again_after_s(calm, window_s)

    def _heard(self, attempt: AttemptState) -> dict[str, Heard]:
        """The last reading of each replica of an attempt; none of one that has registered anew and not yet reported."""
        present = ((seat.replica_id, self.roster.get(seat.replica_id)) for seat in attempt.seats)
        return {
            replica_id: Heard(
                presence.telemetry,
                (task := presence.tasks.get(Stage.TRAIN.value)) is None or task.state == "running",
            )
            for replica_id, presence in present
            if presence is not None and presence.attempt_id == attempt.id
        }
