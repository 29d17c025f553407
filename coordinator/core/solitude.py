"""What an agent makes of its own ranks while the coordinator does not answer. Pure; `agent/vigil.py` acts on it.

One replica sees only its own ranks, and a rank that waits for one elsewhere looks like one that hangs. So what it sees
after the usual while is reason to gather evidence, which harms nothing; the attempt is ended only where steps were usual,
none was made for five minutes alone, and nobody here has worked in all that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from coordinator.core.protocol import ProgressRecord, Telemetry
from coordinator.core.readings import gpu_of, of_each_rank, sample
from coordinator.core.track import Track, Word
from coordinator.core.watchdog import Judgement, judge

# A coordinator that is started again answers within seconds; one that is moved, within a minute or two.
ALONE_S = 15.0
END_AFTER_S = 300.0

Decision = Literal["watch", "evidence", "end"]


@dataclass(frozen=True, slots=True)
class Solitude:
    """What is known of the ranks of this replica since it has been alone.

    Attributes:
        since_s: alone since then, on the monotonic clock.
        hung_s: without a break, it has looked like a hang since then.
    """

    ranks: tuple[int, ...]
    since_s: float
    began_s: float
    tracks: dict[int, Track] = field(default_factory=dict)
    hung_s: float | None = None
    judgement: Judgement | None = None

    def told(self, records: Sequence[ProgressRecord], now_s: float) -> Solitude:
        """With what the ranks have said."""
        tracks = self._known()
        for record in records:
            if record.rank in tracks:
                phase = {"phase": record.phase, "end": "save"}.get(record.type)
                tracks[record.rank] = tracks[record.rank].told(Word(now_s, record.at, phase, record.step))
        return replace(self, tracks=tracks)

    def read(self, reading: Telemetry, now_s: float, *, gpus: bool) -> Solitude:
        """With a reading of their processes, and what is to be made of it all now."""
        tracks = self._known()
        for rank, used in of_each_rank(reading.ranks, self.ranks):
            gpu = gpu_of(reading.gpus, rank - self.ranks[0]) if gpus else None
            tracks[rank] = tracks[rank].sampled(sample(used, now_s, gpu))
        judgement = judge(tuple(tracks.values()), now_s, since_s=self.began_s)
        hung_s = None
        if judgement.state == "hung":
            hung_s = now_s if self.hung_s is None else self.hung_s
        return replace(self, tracks=tracks, hung_s=hung_s, judgement=judgement)

    def decide(self, now_s: float) -> Decision:
        if self.hung_s is None:
            return "watch"
        trains = all(track.usual_s is not None and track.phase == "train" for track in self.tracks.values())
        quiet_s = self.judgement.quiet_s if self.judgement else 0.0
        long_enough = now_s - self.since_s >= END_AFTER_S and quiet_s >= END_AFTER_S
        return "end" if trains and long_enough else "evidence"

    def _known(self) -> dict[int, Track]:
        return {rank: self.tracks.get(rank, Track(rank)) for rank in self.ranks}
