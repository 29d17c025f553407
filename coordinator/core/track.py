"""What is known of one rank of a training, folded from what is heard of it, and what it has been doing. Pure.

`Track` keeps the samples of one window, where the rank is, and its pace; `watch` says in a word what it does.
`watchdog.py` looks at all ranks together. All times are of the caller's own monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Literal

Doing = Literal["unknown", "ended", "advancing", "working", "talking", "on-gpu", "idle", "stopped", "silent"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Judgements, each with its reason. Seconds, bytes per second, shares of one core.

    Attributes:
        window_s: how long nobody must have worked. Longer than any pause of a healthy training that shows in no
            counter (a garbage collection, a DNS time-out of 5 to 30 s); with two reports and a pass of the
            controller on top it leaves 10 s of the minute that is promised.
        fresh_s: a sample older than that says nothing about now (five reports missed).
        gap_s: samples further apart than that do not make one window: nobody knows what was in between.
        talk_s: a rank that does nothing but print lines is given longer: it may say that it waits and tries again.
        cpu_cores: below that a process tree idles. torch's and wandb's background threads take 0.01 to 0.03.
        io_bytes_per_s: through read and write, pipes included; idle threads wake each other with single bytes.
        network_bytes_per_s: keep-alives and heartbeats stay below 1 kB/s; a download slower than this is dead.
        gpu_percent: from there on the GPU computes, or waits in a collective: the two cannot be told apart.
        disk_wait_share: share of samples in uninterruptible sleep from which on a rank waits for a disk.
        steps: a step may take so many times the usual one, as long as every GPU is busy.
        idle_steps: and so many, where a rank is idle.
        gaps: a pause may be so many times the longest that there was before.
        first_step_s: all GPUs busy and no step yet: a large accumulation or a warm-up with autotuning is over by then.
        quiet_phase_s: the same outside of training (an evaluation by generation, a save that gathers).
        stalled_s: no step for so long although somebody works, where steps are usual: worth a word.
        stalled_steps: and so many usual steps.
        livelock_s: after that the work of a training whose steps are known leads nowhere (torch gives up then, too).
        mute_s: outside of training, work without any word for so long is worth a word.
        slow_over_s: the pace of now is taken over so long.
        slow_times: so many times the usual pace is slow.
        usual_points: so many points make a pace the usual one, and slow_points the pace of now.
    """

    window_s: float = 40.0
    fresh_s: float = 10.0
    gap_s: float = 15.0
    talk_s: float = 180.0
    cpu_cores: float = 0.08
    io_bytes_per_s: float = 16_384.0
    network_bytes_per_s: float = 8_192.0
    gpu_percent: float = 50.0
    disk_wait_share: float = 0.5
    steps: float = 10.0
    idle_steps: float = 3.0
    gaps: float = 2.0
    first_step_s: float = 600.0
    quiet_phase_s: float = 900.0
    stalled_s: float = 120.0
    stalled_steps: float = 20.0
    livelock_s: float = 1800.0
    mute_s: float = 1800.0
    slow_over_s: float = 60.0
    slow_times: float = 2.0
    usual_points: int = 30
    slow_points: int = 5


THRESHOLDS = Thresholds()

# Points of a rank's pace, one a second at most.
PACES_KEPT = 240


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of a rank's processes. Counters only grow; None: could not be read.

    Attributes:
        at_s: when it was heard.
        cpu_s: of the whole process tree of the rank.
        io_bytes: through read and write calls; network_bytes: both ways over its TCP connections.
        gpu_percent: of the rank's own GPU.
        line_age_s: since its log last grew.
        stopped: a process of it is stopped (SIGSTOP, a debugger).
        disk_wait: one is in uninterruptible sleep.
        sockets: its TCP connections by state, e.g. {"CLOSE_WAIT": 6}.
    """

    at_s: float
    cpu_s: float | None = None
    io_bytes: int | None = None
    network_bytes: int | None = None
    gpu_percent: float | None = None
    line_age_s: float | None = None
    stopped: bool = False
    disk_wait: bool = False
    sockets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Word:
    """What a rank's progress says. `said_at` is on the rank's own clock: only differences of it count."""

    at_s: float
    said_at: float
    phase: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """What is known of one rank.

    Attributes:
        samples: of the last window, oldest first, without a gap.
        word_s: when it last said that it is further on; worked_s: when it was last seen at work that is not its GPU's.
        paces: (when, seconds a step), of training alone; gap_s: the longest pause between two steps.
        ended: its process has ended by itself; it is waited for no more.
    """

    rank: int
    samples: tuple[Sample, ...] = ()
    phase: str = "start"
    step: int | None = None
    word_s: float | None = None
    worked_s: float | None = None
    timed: Word | None = None
    paces: tuple[tuple[float, float], ...] = ()
    gap_s: float = 0.0
    ended: bool = False

    def sampled(self, sample: Sample, thresholds: Thresholds = THRESHOLDS) -> Track:
        """The track with one more sample; those that no window needs any more are dropped."""
        kept = self.samples
        if kept and sample.at_s - kept[-1].at_s > thresholds.gap_s:
            kept = ()
        worked = bool(kept) and _seen((kept[-1], sample), thresholds)[0] == "working"
        oldest_s = sample.at_s - thresholds.window_s - thresholds.gap_s
        samples = (*(s for s in kept if s.at_s >= oldest_s), sample)
        return replace(self, samples=samples, worked_s=sample.at_s if worked else self.worked_s)

    def told(self, word: Word) -> Track:
        """The track with what the rank said of its progress. Words that come twice or too late change nothing."""
        further = word.step is not None and (self.step is None or word.step > self.step)
        step = word.step if further else self.step
        if word.phase is not None and word.phase != self.phase:
            return replace(self, word_s=word.at_s, phase=word.phase, step=step, timed=None)
        if not further:
            return replace(self, word_s=word.at_s)
        timed, paces, gap_s = _timed(self, word)
        return replace(self, word_s=word.at_s, step=step, timed=timed, paces=paces, gap_s=gap_s)

    @property
    def usual_s(self) -> float | None:
        """Seconds a step usually takes; None before two have been timed."""
        return median(pace for _, pace in self.paces) if self.paces else None


def _timed(track: Track, word: Word) -> tuple[Word, tuple[tuple[float, float], ...], float]:
    """`timed`, `paces` and `gap_s` after one more step. A new phase begins a new timing: an evaluation is no step."""
    before = track.timed
    if before is None or before.step is None or word.step is None:
        return word, track.paces, track.gap_s
    took_s = word.said_at - before.said_at
    if took_s < 1.0:  # several a second: they are taken together
        return before, track.paces, track.gap_s
    pace = (word.at_s, took_s / (word.step - before.step))
    # The very first step compiles and warms up: it says nothing about a usual pause.
    gap_s = max(track.gap_s, took_s) if track.paces else track.gap_s
    return word, (*track.paces[1 - PACES_KEPT :], pace), gap_s


@dataclass(frozen=True, slots=True)
class RankWatch:
    """What one rank does, in one word and in one sentence; `quiet_s`: since it last said it was further on."""

    rank: int
    doing: Doing
    says: str
    phase: str
    step: int | None = None
    quiet_s: float | None = None


def watch(track: Track, now_s: float, thresholds: Thresholds = THRESHOLDS) -> RankWatch:
    """What one rank has been doing over the last window."""
    quiet_s = None if track.word_s is None else now_s - track.word_s
    doing, says = _doing(track, now_s, thresholds)
    return RankWatch(track.rank, doing, says, track.phase, track.step, quiet_s)


def _doing(track: Track, now_s: float, thresholds: Thresholds) -> tuple[Doing, str]:
    if track.ended:
        return "ended", "its process has ended"
    if track.word_s is not None and now_s - track.word_s < thresholds.window_s:
        return "advancing", f"said so {now_s - track.word_s:.0f} s ago"
    if not track.samples:
        return "unknown", "nothing is known of its processes"
    newest = track.samples[-1]
    age_s = now_s - newest.at_s
    if age_s >= thresholds.window_s:
        return "silent", f"its replica has not been heard of for {age_s:.0f} s"
    if age_s > thresholds.fresh_s:
        return "unknown", f"its replica has not been heard of for {age_s:.0f} s"
    window = _window(track.samples, thresholds)
    if window is None:
        return "unknown", "not watched for long enough"
    return _seen(window, thresholds)


def _window(samples: Sequence[Sample], thresholds: Thresholds) -> Sequence[Sample] | None:
    """The samples of the last window, with one that began it; None when they do not reach so far back."""
    begin_s = samples[-1].at_s - thresholds.window_s
    before = [index for index, sample in enumerate(samples) if sample.at_s <= begin_s]
    return samples[before[-1] :] if before else None


def _seen(window: Sequence[Sample], thresholds: Thresholds) -> tuple[Doing, str]:
    newest, took_s = window[-1], window[-1].at_s - window[0].at_s
    cpu = _rate([s.cpu_s for s in window], took_s)
    io = _rate([s.io_bytes for s in window], took_s)
    network = _rate([s.network_bytes for s in window], took_s)
    waits = sum(s.disk_wait for s in window) / len(window)
    gpus = [s.gpu_percent for s in window if s.gpu_percent is not None]
    gpu = sum(gpus) / len(gpus) if gpus else 0.0
    if newest.stopped:
        return "stopped", "it is stopped (SIGSTOP, or a debugger)"
    if io is not None and io >= thresholds.io_bytes_per_s:
        return "working", f"reads or writes {io / 1e3:.0f} kB/s"
    if network is not None and network >= thresholds.network_bytes_per_s:
        return "working", f"sends or receives {network / 1e3:.0f} kB/s"
    if waits >= thresholds.disk_wait_share:
        return "working", "waits for a disk"
    if gpu >= thresholds.gpu_percent:
        return "on-gpu", f"its GPU is {gpu:.0f} % busy, or waits in a collective"
    if cpu is None:
        return "unknown", "its CPU time cannot be read"
    if cpu >= thresholds.cpu_cores:
        return "working", f"uses {cpu * 100:.0f} % of a core"
    idle = f"does nothing: {cpu * 100:.1f} % of a core in {took_s:.0f} s{_sockets(newest.sockets)}"
    if newest.line_age_s is not None and newest.line_age_s < thresholds.window_s:
        return "talking", f"{idle}, though its log grew {newest.line_age_s:.0f} s ago"
    return "idle", idle


def _rate(values: Sequence[float | None], took_s: float) -> float | None:
    """Growth a second. A counter that falls (a process of the tree has ended) begins anew."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or took_s <= 0:
        return None
    return sum(max(0.0, after - before) for before, after in pairwise(known)) / took_s


def _sockets(sockets: Mapping[str, int]) -> str:
    closed = sockets.get("CLOSE_WAIT", 0)
    calling = sockets.get("SYN_SENT", 0)
    said = ""
    if closed:
        said += f", {closed} connection{'s' if closed > 1 else ''} closed by the other side and not here (CLOSE-WAIT)"
    if calling:
        said += f", {calling} connect{'s' if calling > 1 else ''} without an answer (SYN-SENT)"
    return said
