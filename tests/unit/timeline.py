"""Simulated trainings for the watchdog's tests: what each rank does for how long, turned into samples, words and judgements."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.core.track import Sample, Track, Word
from coordinator.core.watchdog import Judgement, State, judge


@dataclass(frozen=True)
class Span:
    """What a rank does for `seconds`. Rates are per second; `cpu` is in cores.

    `step_s`: it trains, one step each so many seconds. `words_s`: it says each so many seconds that it is further on.
    `lines_s`: its log grows each so many seconds. `away`: its agent says nothing.
    """

    seconds: float
    phase: str | None = None
    cpu: float = 0.01
    io: float = 0.0
    network: float = 200.0
    gpu: float | None = None
    step_s: float | None = None
    words_s: float | None = None
    lines_s: float | None = None
    stopped: bool = False
    disk_wait: bool = False
    away: bool = False
    sockets: dict[str, int] = field(default_factory=dict)


@dataclass
class Rank:
    """One rank on its way through its spans."""

    spans: Sequence[Span]
    rank: int
    skew_s: float = 0.0
    track: Track = field(init=False)
    step: float = 0.0
    cpu_s: float = 3.0
    io: float = 0.0
    network: float = 0.0
    line_s: float = 0.0
    said_s: float = -10.0
    told: int = 0
    phase: str = ""

    def __post_init__(self) -> None:
        self.track = Track(self.rank)

    def at(self, now_s: float) -> Span:
        left_s = now_s
        for span in self.spans:
            if left_s < span.seconds:
                return span
            left_s -= span.seconds
        return self.spans[-1]

    def pass_second(self, now_s: float) -> None:
        span = self.at(now_s)
        self.cpu_s += span.cpu
        self.io += span.io
        self.network += span.network
        if span.lines_s and now_s - self.line_s >= span.lines_s:
            self.line_s = now_s
        if span.phase and span.phase != self.phase:
            self.phase, self.line_s = span.phase, now_s
            self._say(Word(now_s, now_s + self.skew_s, phase=span.phase))
        if span.step_s:
            self.step += 1.0 / span.step_s
            if int(self.step) > self.told:
                self.told, self.line_s = int(self.step), now_s
                self._say(Word(now_s, now_s + self.skew_s, step=self.told))
        if span.words_s and now_s - self.said_s >= span.words_s:
            self._say(Word(now_s, now_s + self.skew_s, phase=self.phase or None))

    def _say(self, word: Word) -> None:
        self.said_s = word.at_s
        self.track = self.track.told(word)

    def sample(self, now_s: float) -> None:
        span = self.at(now_s)
        if span.away:
            return
        self.track = self.track.sampled(
            Sample(
                now_s,
                self.cpu_s,
                int(self.io),
                int(self.network),
                span.gpu,
                now_s - self.line_s,
                span.stopped,
                span.disk_wait,
                span.sockets,
            )
        )


@dataclass(frozen=True)
class Course:
    """When each state was first judged, and the judgement."""

    first: dict[State, tuple[float, Judgement]]

    def at(self, state: State) -> float | None:
        found = self.first.get(state)
        return found[0] if found else None

    def judgement(self, state: State) -> Judgement:
        return self.first[state][1]


def run(*ranks: Sequence[Span], seed: int = 0, until_s: float | None = None) -> Course:
    """The judgements of a training whose ranks go through these spans; each is sampled every two seconds or so."""
    chance = random.Random(seed)
    moving = [Rank(spans, number, chance.uniform(-500, 500)) for number, spans in enumerate(ranks)]
    length_s = until_s or max(sum(span.seconds for span in spans) for spans in ranks)
    next_s = [chance.uniform(0.0, 2.0) for _ in moving]
    first: dict[State, tuple[float, Judgement]] = {}
    now_s = 0.0
    while now_s <= length_s:
        for number, rank in enumerate(moving):
            rank.pass_second(now_s)
            if now_s >= next_s[number]:
                rank.sample(now_s)
                next_s[number] = now_s + chance.uniform(1.5, 2.5)
        judgement = judge([rank.track for rank in moving], now_s)
        first.setdefault(judgement.state, (now_s, judgement))
        now_s += 1.0
    return Course(first)
