"""Training logs tell of progress: real ones from two-machine runs, cut anywhere, and rubbish."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.logs import (
    Bar,
    Batches,
    Event,
    LogReader,
    Metrics,
    Phase,
    Sizes,
    TotalSteps,
    records,
)

DATA = Path(__file__).parent / "data"
COMPLETE = ("h200-zero2.rank0.log", "cpu-zero1.rank0.log")


def events_of(data: bytes, *cuts: int) -> list[Event]:
    reader = LogReader()
    edges = [0, *sorted(cuts), len(data)]
    events: list[Event] = []
    for begin, end in pairwise(edges):
        events += reader.feed(data[begin:end])
    return [*events, *reader.end()]


def test_a_complete_log_tells_sizes_steps_batches_and_where_the_model_is() -> None:
    events = events_of((DATA / "h200-zero2.rank0.log").read_bytes())
    assert Sizes(trainable=11_272_192, all=1_247_086_592) in events
    assert TotalSteps(28) in events
    assert Batches((114, 114)) in events
    assert Phase("saving", "/workspace/out") in events
    assert Phase("saved", "/workspace/out") in events


def test_metrics_are_numbers_with_their_step() -> None:
    metrics = [
        event
        for event in events_of((DATA / "h200-zero2.rank0.log").read_bytes())
        if isinstance(event, Metrics)
    ]
    assert metrics[0].step == 1
    assert metrics[0].values["loss"] == 12.24
    assert metrics[0].values["learning_rate"] == 0
    assert metrics[-2].step == 28
    assert metrics[-1].values["train_loss"] == 11.38
    assert metrics[-1].values["train_runtime"] == 19.65


def test_steps_are_counted_where_the_bar_lags_behind() -> None:
    metrics = [
        event
        for event in events_of((DATA / "cpu-zero1.rank0.log").read_bytes())
        if isinstance(event, Metrics)
    ]
    assert [event.step for event in metrics if "loss" in event.values] == list(range(1, 46))


def test_a_bar_gives_seconds_per_step_in_either_unit() -> None:
    fast, slow = (
        events_of(b"Starting trainer...\n 50%%|\xe2\x96\x88\xe2\x96\x88 | 14/28 [00:10<00:04,  %s]\r" % rate)[
            -1
        ]
        for rate in (b"4.00it/s", b"3.27s/it")
    )
    assert fast == Bar(14, 28, 0.25)
    assert slow == Bar(14, 28, 3.27)


def test_other_progress_bars_are_not_the_training() -> None:
    text = (
        "Maximum number of steps set at 28\nStarting trainer...\n"
        "Loading weights:  49%|████▉     | 72/146 [00:00<00:00, 384.18it/s]\r"
        " 20%|██        | 1/5 [00:00<00:00, 10.00it/s]\r"
    )
    assert not [event for event in events_of(text.encode()) if isinstance(event, Bar)]


@given(st.sampled_from(COMPLETE), st.lists(st.integers(0, 25_000), max_size=8))
def test_where_the_bytes_are_cut_makes_no_difference(name: str, cuts: list[int]) -> None:
    data = (DATA / name).read_bytes()
    assert events_of(data, *(min(cut, len(data)) for cut in cuts)) == events_of(data)


@given(st.binary(max_size=2000))
def test_rubbish_in_a_log_is_survived(data: bytes) -> None:
    events_of(data)
    events_of(b"Starting trainer...\n" + data + b"\r\n")


def test_records_are_what_the_plugin_would_have_written() -> None:
    events = events_of((DATA / "h200-zero2.rank0.log").read_bytes())
    made = records(events, at=1.0, rank=0)
    last = [record for record in made if record.type == "log" and record.loss is not None][-1]
    assert (last.step, last.loss, last.perplexity) == (28, 11.0, 59640.0)
    assert last.memory_bytes == round(9.85 * 2**30)
    end = [record for record in made if record.type == "end"]
    assert [(record.train_loss, record.train_runtime_s) for record in end] == [(11.38, 19.65)]
    assert {record.phase for record in made if record.type == "phase"} == {"train", "save", "done"}
    assert {(record.batches, record.world_size) for record in made if record.batches} == {(6, 2), (114, 2)}


def test_unequal_batches_are_seen() -> None:
    (event,) = events_of(b"[INFO] gather_len_batches: [232, 231]\n")
    assert isinstance(event, Batches)
    assert not event.equal


@pytest.mark.timeout(20)
@pytest.mark.parametrize("line", [b" " * 60_000, b"a: " * 20_000, b"{'" * 30_000, b"9%|" * 20_000])
def test_a_line_made_to_stall_the_reader_does_not(line: bytes) -> None:
    events_of(b"Starting trainer...\n" + line + b"\n")
