"""On a short disk old logs go and nothing else does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from agent import room
from coordinator.core.paths import Layout


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A disk of 100 kB on which each attempt takes 1 kB, and 5 kB are short."""
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

    def usage(_: object) -> Usage:
        used = 92_000 + sum(path.stat().st_size for path in tmp_path.glob("jobs/*/*/streams/*"))
        return Usage(100_000, used, 100_000 - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return layout


def test_the_oldest_logs_that_the_coordinator_has_go_until_there_is_room(layout: Layout) -> None:
    assert room.make_room(layout, kept=()) == ("aaaaaaaa-1",)
    assert not layout.attempt("aaaaaaaa", 1).root.exists()
    assert room.make_room(layout, kept=()) == ()


def test_what_runs_what_is_wanted_and_what_only_this_replica_has_stays(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SHORT_SHARE", 0.99)
    monkeypatch.setattr(room, "SHORT_BYTES", 1 << 40)
    assert room.make_room(layout, kept=("cccccccc-1",)) == ("aaaaaaaa-1", "dddddddd-1")
    assert layout.attempt("bbbbbbbb", 1).streams.exists() and layout.attempt("cccccccc", 1).streams.exists()


def test_no_model_goes_with_its_logs(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SHORT_SHARE", 0.99)
    monkeypatch.setattr(room, "SHORT_BYTES", 1 << 40)
    room.make_room(layout, kept=())
    for job_id in ("aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"):
        assert (layout.work(job_id) / "model.safetensors").read_bytes() == b"the only copy"
