"""Training logs are understood: real ones from two-machine runs, and lines known from public failures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.logs import (
    Bar,
    Batches,
    ErrorLine,
    Event,
    LogReader,
    Metrics,
    Phase,
    Sizes,
    TotalSteps,
    first_cause,
    records,
)
from coordinator.core.trouble import TROUBLES, trouble_in

DATA = Path(__file__).parent / "data"
COMPLETE = ("h200-zero2.rank0.log", "cpu-zero1.rank0.log")
CRASHED = {"crash-device-map.log": "no-accelerator", "crash-gloo-view.log": "gloo-view"}


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
    assert not [event for event in events if isinstance(event, ErrorLine)]


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


@pytest.mark.parametrize(("name", "kind"), CRASHED.items())
def test_a_crash_is_explained_by_its_cause_and_not_by_its_echo(name: str, kind: str) -> None:
    errors = [event for event in events_of((DATA / name).read_bytes()) if isinstance(event, ErrorLine)]
    cause = first_cause(errors)
    assert cause is not None
    assert cause.name == kind
    assert cause.cause and cause.hint
    assert any(error.name == "child-failed" and error.echo for error in errors)


def test_warnings_of_a_healthy_run_are_no_errors() -> None:
    data = (DATA / "cpu-zero1.rank0.log").read_bytes()
    assert b"[WARNING]" in data
    assert not [event for event in events_of(data) if isinstance(event, ErrorLine)]


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


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out-of-gpu-memory"),
        ("E1130 api.py:1002] failed (exitcode: -9) local_rank: 0 (pid: 123)", "killed"),
        ("RuntimeError: The server socket has failed to bind to 0.0.0.0:29500 (errno: 98)", "address-in-use"),
        (
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is "
            "utilizing it.",
            "address-in-use",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to "
            "connect to (10.0.9.59, 29500).",
            "rendezvous-timeout",
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with Connection refused, remote=[127.0.0.1]:40001",
            "gloo-mesh",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "arch-not-built",
        ),
        (
            "node1:12:12 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
            "nccl-no-interface",
        ),
        (
            "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)",
            "collective-timeout",
        ),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "loss-scale"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("ValueError: Can't find a valid checkpoint at ./outputs/checkpoint-20", "missing-checkpoint"),
        ("[rank0]: KeyError: 'text'", "exception"),
    ],
)
def test_lines_of_known_failures_are_recognised(line: str, name: str) -> None:
    found = trouble_in(line)
    assert found is not None
    assert found.name == name


def test_every_kind_of_trouble_has_a_name_of_its_own_a_cause_and_a_hint() -> None:
    assert len({trouble.name for trouble in TROUBLES}) == len(TROUBLES)
    assert all(trouble.cause.endswith(".") and trouble.hint.endswith(".") for trouble in TROUBLES)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("line", [b" " * 60_000, b"a: " * 20_000, b"{'" * 30_000, b"9%|" * 20_000])
def test_a_line_made_to_stall_the_reader_does_not(line: bytes) -> None:
    events_of(b"Starting trainer...\n" + line + b"\n")
