"""What is heard of the trainings that run, kept in memory: what they say of themselves, and the readings of every rank.

Words come with the reports that bring them, in their order, and nothing is read from the store for it: thousands of ranks
speak every two seconds, and what the watchdog needs is the last of it. They are folded into tracks when a training is
looked at. After a restart of the coordinator it begins anew with the last words that are stored, and nothing is judged
before a whole window has been seen. Filled by the controller; `lookout.py` looks, `stages/work.py` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coordinator.attempt import AttemptState, Watched
from coordinator.core.protocol import ProgressRecord, Stage, Telemetry
from coordinator.core.readings import gpu_of, of_each_rank, ranks_of, sample
from coordinator.core.straggler import Own, kept
from coordinator.core.track import THRESHOLDS, Thresholds, Track, Word


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of one replica of the attempt; `running`: its training has not ended by itself."""

    telemetry: Telemetry | None
    running: bool


@dataclass(slots=True)
class _Training:
    """`newest`: the last word of each rank that is not folded yet, and when it was heard. `since_s`: first looked at."""

    since_s: float | None = None
    tracks: dict[int, Track] = field(default_factory=dict)
    newest: dict[int, tuple[float, ProgressRecord]] = field(default_factory=dict)
    starts: dict[int, ProgressRecord] = field(default_factory=dict)
    spoiled: dict[int, ProgressRecord] = field(default_factory=dict)
    read_at: dict[str, float] = field(default_factory=dict)
    own: dict[int, tuple[Own, ...]] = field(default_factory=dict)
    readings: dict[str, Telemetry] = field(default_factory=dict)


class Watch:
    """All that is heard of trainings, by attempt."""

    def __init__(self) -> None:
        self._trainings: dict[str, _Training] = {}

    def forget(self, attempt_id: str) -> None:
        self._trainings.pop(attempt_id, None)

    def starts(self, attempt_id: str) -> tuple[ProgressRecord, ...]:
        """What the ranks said of themselves when they started."""
        training = self._trainings.get(attempt_id)
        return tuple(training.starts.values()) if training is not None else ()

    def spoiled(self, attempt_id: str) -> tuple[ProgressRecord, ...]:
        """The newest record of each rank whose losses were not all numbers."""
        training = self._trainings.get(attempt_id)
        return tuple(training.spoiled.values()) if training is not None else ()

    def hear(self, attempt_id: str, record: ProgressRecord, now_s: float) -> bool:
        """A rank said something. True where it may decide something at once: what world it sees, a loss that is no number.

        Several steps between two looks are one: only the last of them waits to be folded. Where the kind of work changes,
        all is folded as it comes.
        """
        training = self._trainings.get(attempt_id)
        if training is None:
            training = self._trainings[attempt_id] = _Training()
        rank = record.rank
        if record.type not in ("log", "eval"):
            self._fold(training, rank)
            training.newest[rank] = (now_s, record)
            self._fold(training, rank)
        else:
            training.newest[rank] = (now_s, record)
        if record.type == "start":
            training.starts[rank] = record
            return True
        if record.losses_not_finite:
            training.spoiled[rank] = record
            return True
        return False

    @staticmethod
    def _fold(training: _Training, rank: int) -> None:
        said = training.newest.pop(rank, None)
        if said is None:
            return
        heard_s, record = said
        # after the last step come loading the best model and gathering: no step is to be expected any more
        phase = {"phase": record.phase, "end": "save"}.get(record.type)
        before = training.tracks.get(rank) or Track(rank)
        training.tracks[rank] = before.told(Word(heard_s, record.at, phase, record.step))
        if record.forward_s is not None:
            own = Own(heard_s, record.forward_s, record.data_s or 0.0, record.step_s)
            training.own[rank] = kept(training.own.get(rank, ()), own)

    def look(
        self,
        attempt: AttemptState,
        heard: Mapping[str, Heard],
        now_s: float,
        thresholds: Thresholds = THRESHOLDS,
    ) -> Watched:
        """Take in what is new, and return what is known now.

        Args:
            heard: by replica.
            now_s: of the monotonic clock.
        """
        training = self._trainings.get(attempt.id)
        if training is None:
            training = self._trainings[attempt.id] = _Training()
        if training.since_s is None:
            training.since_s = now_s
        for rank in tuple(training.newest):
            self._fold(training, rank)
        tracks = training.tracks
        for seat in attempt.seats:
            found = heard.get(seat.replica_id)
            ranks = ranks_of(seat.rank, attempt.gpus_per_node)
            for rank in ranks:
                if rank not in tracks:
                    tracks[rank] = Track(rank)
            if found is None:
                continue
            for rank in ranks:
                if tracks[rank].ended == found.running:
                    tracks[rank] = replace(tracks[rank], ended=not found.running)
            reading = found.telemetry
            if reading is None or training.read_at.get(seat.replica_id) == reading.at:
                continue
            training.read_at[seat.replica_id] = reading.at
            training.readings[seat.replica_id] = reading
            for rank, used in of_each_rank(reading.ranks, ranks):
                gpu = gpu_of(reading.gpus, rank - ranks[0]) if attempt.gpus_per_node else None
                tracks[rank] = tracks[rank].sampled(sample(used, now_s, gpu), thresholds)
        return Watched(
            tuple(tracks[rank] for rank in range(attempt.world_size)),
            now_s,
            training.since_s,
            {rank: points for rank, points in training.own.items() if rank < attempt.world_size},
            dict(training.readings),
        )


def is_training(attempt: AttemptState) -> bool:
    return (
        attempt.state == "active" and attempt.stage.stage is Stage.TRAIN and attempt.stage.state == "running"
    )
