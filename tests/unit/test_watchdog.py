"""A hang is found within a minute and the rank behind it is named; a quiet training is never taken for a hang."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline import Span, run

from coordinator.core.track import THRESHOLDS, Sample, Track, Word
from coordinator.core.watchdog import judge

# What a report, the controller's second and the sampling may add; the promise is a minute in all.
FOUND_WITHIN_S = 55.0

IMPORTING = Span(25, cpu=0.9, io=2e6)
LOADING = Span(20, "load", cpu=0.8, io=5e7)
STEPS = Span(120, "train", cpu=1.1, network=5e6, step_s=0.5)
GPU_STEPS = Span(120, "train", cpu=1.0, network=5e6, gpu=95, step_s=0.5)
NOTHING = Span(300, cpu=0.01)
IDLE_GPU = Span(300, cpu=0.01, gpu=0)
SPINNING = Span(300, cpu=1.0, gpu=100)


# --- hangs ---------------------------------------------------------------------------------------


def hang_s(spans: tuple[Span, ...]) -> float:
    """When the last span begins."""
    return sum(span.seconds for span in spans[:-1])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rank0", "rank1", "behind"),
    [
        # the field report: rank 1 at a barrier on its GPU, rank 0 does nothing
        ((IMPORTING, LOADING, NOTHING), (IMPORTING, LOADING, SPINNING), (0,)),
        # the same over gloo: both are flat, rank 0 is one phase behind
        ((IMPORTING, NOTHING), (IMPORTING, Span(0.5, "data"), NOTHING), (0,)),
        # before any of them said a word
        ((IMPORTING, NOTHING), (IMPORTING, NOTHING), ()),
        # a link dropped in mid-training, over gloo: everybody waits for everybody
        ((IMPORTING, LOADING, STEPS, NOTHING), (IMPORTING, LOADING, STEPS, NOTHING), ()),
        # the same over NCCL: all spin
        ((IMPORTING, LOADING, GPU_STEPS, SPINNING), (IMPORTING, LOADING, GPU_STEPS, SPINNING), ()),
        # a data loader that blocks, on one rank of a GPU training
        ((IMPORTING, LOADING, GPU_STEPS, SPINNING), (IMPORTING, LOADING, GPU_STEPS, IDLE_GPU), (1,)),
        # a rank that was stopped; its GPU kernel goes on spinning
        (
            (IMPORTING, LOADING, GPU_STEPS, SPINNING),
            (IMPORTING, LOADING, GPU_STEPS, Span(300, cpu=0.0, gpu=100, stopped=True)),
            (1,),
        ),
        ((IMPORTING, LOADING, STEPS, NOTHING), (IMPORTING, LOADING, STEPS, Span(300, cpu=0, stopped=True)), (1,)),
        # the replica vanished together with its agent
        ((IMPORTING, LOADING, STEPS, NOTHING), (IMPORTING, LOADING, STEPS, Span(300, away=True)), (1,)),
        # a hang inside an evaluation, and inside a save
        ((LOADING, STEPS, Span(5, "evaluate", cpu=1), NOTHING), (LOADING, STEPS, Span(5, "evaluate", cpu=1), NOTHING), ()),
        ((LOADING, STEPS, Span(5, "save", io=1e8), NOTHING), (LOADING, STEPS, Span(5, "save"), NOTHING), ()),
    ],
)  # fmt: skip
def test_a_hang_is_found_within_a_minute_and_names_who_is_behind(
    rank0: tuple[Span, ...], rank1: tuple[Span, ...], behind: tuple[int, ...], seed: int
) -> None:
    course = run(rank0, rank1, seed=seed)
    found_s = course.at("hung")
    assert found_s is not None
    assert 20 < found_s - hang_s(rank0) <= FOUND_WITHIN_S
    judgement = course.judgement("hung")
    assert judgement.behind == behind
    assert "no sign of progress" in judgement.reason


def test_the_reason_says_what_was_seen_of_each_rank() -> None:
    closed = Span(300, cpu=0.002, sockets={"CLOSE_WAIT": 6, "ESTABLISHED": 2})
    judgement = run((IMPORTING, LOADING, closed), (IMPORTING, LOADING, SPINNING)).judgement("hung")
    assert judgement.reason.startswith("Nobody works any more: no sign of progress for")
    assert "Rank 0 (in load): does nothing: 0.2 % of a core" in judgement.reason
    assert "6 connections closed by the other side and not here (CLOSE-WAIT)" in judgement.reason
    assert judgement.reason.endswith("Rank 1 waits.")


def test_a_rank_that_only_prints_that_it_waits_is_given_longer() -> None:
    talking = Span(400, cpu=0.01, lines_s=10)
    found_s = run((IMPORTING, LOADING, talking), (IMPORTING, LOADING, NOTHING)).at("hung")
    assert found_s is not None
    assert THRESHOLDS.talk_s <= found_s - 45 <= THRESHOLDS.talk_s + 30


def test_long_steps_are_given_their_own_measure() -> None:
    long_steps = Span(900, "train", cpu=1.0, gpu=99, step_s=45.0)
    course = run(
        (LOADING, long_steps, Span(900, cpu=1, gpu=100)), (LOADING, long_steps, Span(900, cpu=1, gpu=100))
    )
    found_s = course.at("hung")
    assert found_s is not None
    assert 400 <= found_s - 920 <= 500


def test_a_pace_that_breaks_in_is_slow_and_says_by_how_much() -> None:
    slower = Span(200, "train", cpu=1.1, network=5e6, step_s=2.0)
    course = run((STEPS, slower), (STEPS, slower))
    found_s = course.at("slow")
    assert found_s is not None
    assert 120 < found_s <= 200
    assert "times as long as before" in course.judgement("slow").reason
    assert course.at("hung") is course.at("stalled") is None


def test_work_that_leads_to_no_step_is_stalled_long_before_it_is_a_hang() -> None:
    busy = Span(2500, cpu=1.0)
    course = run((LOADING, STEPS, busy), (LOADING, STEPS, NOTHING), until_s=2600)
    stalled_s, hung_s = course.at("stalled"), course.at("hung")
    assert stalled_s is not None
    assert hung_s is not None
    assert 110 <= stalled_s - 140 <= 135
    assert hung_s - 140 >= THRESHOLDS.livelock_s - 10
    assert course.judgement("stalled").behind == (0,)


# --- healthy quiet phases ------------------------------------------------------------------------

WAITS = Span(5000, cpu=0.012)
QUIET: dict[str, tuple[tuple[Span, ...], tuple[Span, ...]]] = {
    "tokenising on one rank while the others wait": (
        (IMPORTING, Span(900, "data", cpu=3.5, lines_s=200)),
        (IMPORTING, Span(900, "data", cpu=0.01)),
    ),
    "tokenising on a starved machine": (
        (IMPORTING, Span(900, "data", cpu=0.15, network=0)),
        (IMPORTING, Span(900, "data", cpu=0.0, network=0)),
    ),
    "loading a model from a cold disk": (
        (IMPORTING, Span(600, "load", cpu=0.03, disk_wait=True, network=0)),
        (IMPORTING, Span(600, "load", cpu=0.02, io=3e7)),
    ),
    "mapping a model from a network file system": (
        (IMPORTING, Span(600, "load", cpu=0.02, disk_wait=True)),
        (IMPORTING, Span(600, "load", cpu=0.01)),
    ),
    "downloading the model on rank 0": (
        (IMPORTING, Span(1200, "load", cpu=0.04, network=40_000)),
        (IMPORTING, Span(1200, "load", cpu=1.0, gpu=100)),
    ),
    "downloading on every rank": (
        (IMPORTING, Span(1200, "load", cpu=0.2, network=2e6)),
        (IMPORTING, Span(300, "load", cpu=0.2, network=2e6), Span(900, cpu=0.01)),
    ),
    "compiling the model": (
        (LOADING, Span(1000, "train", cpu=1.9)),
        (LOADING, Span(1000, "train", cpu=1.9)),
    ),
    "compiling on one rank longer than on the other": (
        (LOADING, Span(1000, "train", cpu=1.0)),
        (LOADING, Span(200, "train", cpu=1.0), Span(800, cpu=1.0, gpu=100)),
    ),
    "building a DeepSpeed operator": (
        (LOADING, Span(300, cpu=4.0, io=1e6)),
        (LOADING, Span(300, cpu=0.01)),
    ),
    "a first step with a large accumulation": (
        (LOADING, Span(40, "train", cpu=1.0, gpu=98), Span(1100, step_s=500, cpu=1.0, gpu=98)),
        (LOADING, Span(40, "train", cpu=1.0, gpu=98), Span(1100, step_s=500, cpu=1.0, gpu=98)),
    ),
    "a first step after a long download": (
        (IMPORTING, Span(1200, "load", cpu=0.2, network=2e6), Span(400, cpu=1.0, gpu=100)),
        (IMPORTING, Span(1200, "load", cpu=1.0, gpu=100), Span(400, cpu=1.0, gpu=100)),
    ),
    "a training on GPUs of which only the log tells": (
        (IMPORTING, LOADING, Span(2500, cpu=1.0, gpu=97, lines_s=20)),
        (IMPORTING, LOADING, Span(2500, cpu=1.0, gpu=97)),
    ),
    "steps of two minutes": (
        (LOADING, Span(1800, "train", cpu=1.0, gpu=99, step_s=120)),
        (LOADING, Span(1800, "train", cpu=1.0, gpu=99, step_s=120)),
    ),
    "steps of a minute on the CPU": (
        (LOADING, Span(1200, "train", cpu=1.0, step_s=60)),
        (LOADING, Span(1200, "train", cpu=0.7, step_s=60)),
    ),
    "a long evaluation that tells of each batch": (
        (STEPS, Span(1500, "evaluate", cpu=0.9, words_s=1)),
        (STEPS, Span(1500, "evaluate", cpu=0.9, words_s=1)),
    ),
    "an evaluation that generates and says nothing": (
        (GPU_STEPS, Span(700, "evaluate", cpu=1.0, gpu=80)),
        (GPU_STEPS, Span(700, "evaluate", cpu=1.0, gpu=80)),
    ),
    "an evaluation on rank 0 alone": (
        (STEPS, Span(1500, "evaluate", cpu=1.0)),
        (STEPS, Span(1500, "evaluate", cpu=0.01)),
    ),
    "saving to a slow disk while the others wait": (
        (STEPS, Span(900, "save", cpu=0.03, io=2e6)),
        (STEPS, Span(900, "save", cpu=0.01)),
    ),
    "saving to a network disk that stands still for minutes": (
        (STEPS, Span(400, "save", cpu=0.0, disk_wait=True, network=0)),
        (GPU_STEPS, Span(400, "save", cpu=1.0, gpu=100)),
    ),
    "uploading the model": (
        (STEPS, Span(900, "save", cpu=0.05, network=300_000)),
        (STEPS, Span(900, "save", cpu=0.01)),
    ),
    "recompiling in mid-training": (
        (GPU_STEPS, Span(100, cpu=2.0, gpu=0), GPU_STEPS),
        (GPU_STEPS, Span(100, cpu=2.0, gpu=0), GPU_STEPS),
    ),
    "a dataset streamed over a slow line": (
        (STEPS, Span(100, cpu=0.05, network=30_000), STEPS),
        (STEPS, Span(100, cpu=0.05, network=30_000), STEPS),
    ),
    "pauses of thirty seconds between steps": (
        (STEPS, Span(30, cpu=0.01), STEPS, Span(30, cpu=0.01), STEPS),
        (STEPS, Span(30, cpu=0.01), STEPS, Span(30, cpu=0.01), STEPS),
    ),
    "waiting to try again after a refusal of the hub": (
        (IMPORTING, Span(150, "load", lines_s=30), LOADING, STEPS),
        (IMPORTING, Span(150, "load"), LOADING, STEPS),
    ),
    "an agent that is away while the training goes on": (
        (STEPS, Span(300, cpu=1.0, network=5e6, step_s=0.5)),
        (STEPS, Span(300, cpu=1.0, network=5e6, step_s=0.5, away=True)),
    ),
    "merging the adapter at the end": (
        (STEPS, Span(900, "save", cpu=1.0, io=1e6), Span(10, "done")),
        (STEPS, Span(900, "save", cpu=0.01), Span(10, "done")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", QUIET)
def test_a_quiet_phase_is_not_a_hang(name: str, seed: int) -> None:
    rank0, rank1 = QUIET[name]
    assert run(rank0, rank1, seed=seed).at("hung") is None


@pytest.mark.parametrize("name", QUIET)
def test_a_hang_after_a_quiet_phase_is_found_all_the_same(name: str) -> None:
    rank0, rank1 = QUIET[name]
    length_s = sum(span.seconds for span in rank0)
    found_s = run((*rank0, NOTHING), (*rank1, NOTHING), until_s=length_s + 1600).at("hung")
    if "only the log tells" in name:
        limit_s = THRESHOLDS.talk_s
    elif "steps of" in name or "accumulation" in name:  # a rank that idles is given three of its steps
        limit_s = 3 * (500 if "accumulation" in name else 120) + 20.0
    else:
        limit_s = FOUND_WITHIN_S
    assert found_s is not None
    assert found_s - length_s <= limit_s


activity = st.builds(
    Span,
    seconds=st.floats(5, 300),
    phase=st.sampled_from([None, "data", "load", "train", "evaluate", "save"]),
    cpu=st.floats(0.12, 8),
    io=st.floats(0, 1e8),
    network=st.floats(0, 1e8),
    gpu=st.none() | st.floats(0, 40),
)
anything = st.builds(
    Span,
    seconds=st.floats(5, 200),
    phase=st.sampled_from([None, "data", "load", "train", "evaluate", "save"]),
    cpu=st.floats(0, 8),
    io=st.floats(0, 1e6),
    network=st.floats(0, 1e6),
    gpu=st.none() | st.floats(0, 100),
    step_s=st.none() | st.floats(0.05, 20),
    stopped=st.booleans(),
    disk_wait=st.booleans(),
    away=st.booleans(),
    lines_s=st.none() | st.floats(1, 100),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(activity, min_size=1, max_size=5), st.lists(anything, min_size=1, max_size=5), st.integers(0, 99)
)
def test_as_long_as_one_rank_works_nothing_is_a_hang(
    working: list[Span], other: list[Span], seed: int
) -> None:
    rest = Span(2000, cpu=1.0)
    length_s = min(1500.0, sum(span.seconds for span in working))
    assert run((*working, rest), other, seed=seed, until_s=length_s).at("hung") is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(anything, min_size=0, max_size=4), st.lists(anything, min_size=0, max_size=4), st.integers(0, 99)
)
def test_where_nobody_does_anything_any_more_it_is_a_hang_whatever_was_before(
    before0: list[Span], before1: list[Span], seed: int
) -> None:
    length_s = max(sum(s.seconds for s in before0), sum(s.seconds for s in before1))
    # three of the longest steps that there were, and a window
    assert (
        run((*before0, NOTHING), (*before1, NOTHING), seed=seed, until_s=length_s + 300).at("hung")
        is not None
    )


def test_nothing_is_said_of_a_training_that_has_only_just_been_looked_at() -> None:
    tracks = [Track(rank).sampled(Sample(1000.0, 5.0, 0, 0)) for rank in range(2)]
    assert judge(tracks, 1001.0, since_s=1000.0).state == "healthy"
    assert judge([], 1001.0).state == "healthy"
    assert judge([Track(0), Track(1)], 1e6, since_s=1000.0).state == "healthy"


def test_after_a_pause_of_the_coordinator_the_window_begins_anew() -> None:
    tracks = [Track(rank) for rank in range(2)]
    for at_s in range(0, 30, 2):
        tracks = [track.sampled(Sample(float(at_s), 5.0, 0, 0)) for track in tracks]
    tracks = [track.sampled(Sample(400.0, 5.0, 0, 0)) for track in tracks]
    assert judge(tracks, 400.0).state == "healthy"
    assert judge(tracks, 460.0).state == "healthy"  # nobody is heard: the listener was away


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    ended = Track(1, ended=True)
    working = Track(0)
    for at_s in range(0, 200, 2):
        working = working.sampled(Sample(float(at_s), float(at_s), 0, 0))
    assert judge([working, ended], 199.0).state == "healthy"
    assert judge([ended], 199.0).state == "healthy"


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1e4)), max_size=40))
def test_words_out_of_order_or_twice_do_no_harm(words: list[tuple[int, float]]) -> None:
    track = Track(0).told(Word(0.0, 0.0, phase="train"))
    for number, (step, said_at) in enumerate(words):
        track = track.told(Word(float(number), said_at, step=step)).told(
            Word(float(number), said_at, step=step)
        )
    assert track.step == max((step for step, _ in words), default=None)
    assert all(pace > 0 for _, pace in track.paces)


def test_a_track_stays_small_however_long_the_training_is() -> None:
    track = Track(0)
    for second in range(20_000):
        track = track.told(Word(float(second), float(second), "train", second))
        track = track.sampled(Sample(float(second), float(second)))
    assert len(track.samples) <= 60
    assert len(track.paces) == 240
    assert track.usual_s == 1.0
