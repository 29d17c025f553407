"""On a short disk old logs go and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent import room
from coordinator.core.paths import Layout

# However much is free, it is short.
ALWAYS = room.Short(free_bytes=1 << 60, free_share=1.0)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Four attempts of which each takes 1 kB; of the second one something is only here."""
    layout = Layout(tmp_path)
    for age, (job_id, mirrored) in enumerate(
        [("aaaaaaaa", True), ("bbbbbbbb", False), ("cccccccc", True), ("dddddddd", True)]
    ):
        attempt = layout.attempt(job_id, 1)
        attempt.streams.mkdir(parents=True)
        (attempt.streams / "train.log").write_bytes(bytes(1000))
        layout.work(job_id).mkdir()
        (layout.work(job_id) / "model.safetensors").write_bytes(b"the only copy")
        if mirrored:
            attempt.mirrored.touch()
            os.utime(attempt.mirrored, (1000 + age, 1000 + age))
    return layout


def disk_of_100_kb(root: Path) -> tuple[int, int]:
    """92 kB of it are taken by others: with three attempts there is room, with four it is short."""
    return 100_000, 8_000 - sum(path.stat().st_size for path in root.glob("jobs/*/*/streams/*"))


def test_the_oldest_logs_that_the_coordinator_has_go_until_there_is_room(layout: Layout) -> None:
    assert room.make_room(layout, (), measure=disk_of_100_kb) == ("aaaaaaaa-1",)
    assert not layout.attempt("aaaaaaaa", 1).root.exists()
    assert room.make_room(layout, (), measure=disk_of_100_kb) == ()


def test_what_runs_what_is_wanted_and_what_only_this_replica_has_stays(layout: Layout) -> None:
    assert room.make_room(layout, ("cccccccc-1",), ALWAYS) == ("aaaaaaaa-1", "dddddddd-1")
    assert layout.attempt("bbbbbbbb", 1).streams.exists() and layout.attempt("cccccccc", 1).streams.exists()


def test_no_model_goes_with_its_logs(layout: Layout) -> None:
    assert room.make_room(layout, (), ALWAYS) == ("aaaaaaaa-1", "cccccccc-1", "dddddddd-1")
    for job_id in ("aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"):
        assert (layout.work(job_id) / "model.safetensors").read_bytes() == b"the only copy"
