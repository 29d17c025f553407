"""What the watchdog is to look at: the readings and words of every rank of the trainings that run now, kept in memory.

Folded once a second from what lies here anyway: the last telemetry of each replica and the newest progress records. After a
restart of the coordinator it begins anew, and nothing is judged before a whole window has been seen. Called by the controller;
`stages/work.py` judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.attempt import AttemptState, Watched
from coordinator.core.protocol import ProgressRecord, Stage, Telemetry
from coordinator.core.readings import gpu_of, of_each_rank, ranks_of, sample
from coordinator.core.straggler import Own, kept
from coordinator.core.track import THRESHOLDS, Thresholds, Track, Word

# Once a second: samples come every two, and the promise is a minute.
LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of one replica of the attempt; `running`: its training has not ended by itself."""

    telemetry: Telemetry | None
    running: bool


@dataclass(slots=True)
class _Training:
    since_s: float
    tracks: dict[int, Track]
    read_at: dict[str, float] = field(default_factory=dict)
    last_word: dict[int, int] = field(default_factory=dict)
    own: dict[int, tuple[Own, ...]] = field(default_factory=dict)
    readings: dict[str, Telemetry] = field(default_factory=dict)


class Watch:
    """The tracks of all trainings that run now."""

    def __init__(self) -> None:
        self._trainings: dict[str, _Training] = {}

    def keep(self, attempt_ids: Iterable[str]) -> None:
        """Forget every training but these."""
        wanted = set(attempt_ids)
        for attempt_id in self._trainings.keys() - wanted:
            del self._trainings[attempt_id]

    def heard_up_to(self, attempt_id: str) -> int:
        """The id of the last word that was taken in: what has a lower one need not be read again."""
        training = self._trainings.get(attempt_id)
        return max(training.last_word.values(), default=0) if training is not None else 0

    def look(
        self,
        attempt: AttemptState,
        heard: Mapping[str, Heard],
        words: Sequence[tuple[int, ProgressRecord]],
        now_s: float,
        thresholds: Thresholds = THRESHOLDS,
    ) -> Watched:
        """Take in what is new, and return what is known now.

        Args:
            heard: by replica.
            words: the newest records with their ids, which grow.
            now_s: of the monotonic clock.
        """
        training = self._trainings.get(attempt.id)
        if training is None:
            tracks = {rank: Track(rank) for rank in range(attempt.world_size)}
            training = self._trainings[attempt.id] = _Training(now_s, tracks)
        self._take_words(training, words, now_s)
        for seat in attempt.seats:
            found = heard.get(seat.replica_id)
            ranks = tuple(ranks_of(seat.rank, attempt.gpus_per_node))
            if found is None:
                continue
            for rank in ranks:
                training.tracks[rank] = replace(training.tracks[rank], ended=not found.running)
            reading = found.telemetry
            if reading is None or training.read_at.get(seat.replica_id) == reading.at:
                continue
            training.read_at[seat.replica_id] = reading.at
            training.readings[seat.replica_id] = reading
            for rank, used in of_each_rank(reading.ranks, ranks):
                gpu = gpu_of(reading.gpus, rank - ranks[0]) if attempt.gpus_per_node else None
                track = training.tracks[rank]
                training.tracks[rank] = track.sampled(sample(used, now_s, gpu), thresholds)
        return Watched(
            tuple(training.tracks.values()),
            now_s,
            training.since_s,
            dict(training.own),
            dict(training.readings),
        )

    @staticmethod
    def _take_words(training: _Training, words: Sequence[tuple[int, ProgressRecord]], now_s: float) -> None:
        for word_id, record in sorted(words, key=lambda word: word[0]):
            track = training.tracks.get(record.rank)
            if track is None or word_id <= training.last_word.get(record.rank, -1):
                continue
            training.last_word[record.rank] = word_id
            # after the last step come loading the best model and gathering: no step is to be expected any more
            phase = {"phase": record.phase, "end": "save"}.get(record.type)
            word = Word(now_s, record.at, phase, record.step)
            training.tracks[record.rank] = track.told(word)
            if record.forward_s is not None:
                own = Own(now_s, record.forward_s, record.data_s or 0.0, record.step_s)
                training.own[record.rank] = kept(training.own.get(record.rank, ()), own)


def is_training(attempt: AttemptState) -> bool:
    return (
        attempt.state == "active" and attempt.stage.stage is Stage.TRAIN and attempt.stage.state == "running"
    )
