"""A training whose plugin was not loaded is shown by its log, once, and one with the plugin is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.log_progress import LogProgress
from coordinator.core.protocol import ProgressRecord

DATA = (Path(__file__).parent / "data" / "h200-zero2.rank0.log").read_bytes()


def of(folder: Path) -> LogProgress:
    return LogProgress(folder / "train.log", folder / "progress.0", folder / "mark")


def told(folder: Path) -> list[ProgressRecord]:
    path = folder / "progress.0"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [ProgressRecord.model_validate_json(line) for line in lines]


def grow(folder: Path, data: bytes) -> None:
    with (folder / "train.log").open("ab") as log:
        log.write(data)


@pytest.mark.parametrize("cut", [100, 2_000, len(DATA) // 2, len(DATA) - 10])
def test_an_agent_that_is_restarted_goes_on_and_says_nothing_twice(tmp_path: Path, cut: int) -> None:
    grow(tmp_path, DATA)
    of(tmp_path).look(0, 1.0)
    whole = told(tmp_path)
    assert [one.loss for one in whole if one.loss is not None][-1] == 11.0
    assert {one.rank for one in whole} == {0}
    for name in ("train.log", "progress.0", "mark"):
        (tmp_path / name).unlink()
    grow(tmp_path, DATA[:cut])
    before = of(tmp_path)
    before.look(0, 1.0)
    before.look(0, 1.0)
    grow(tmp_path, DATA[cut:])
    of(tmp_path).look(0, 1.0)
    assert told(tmp_path) == whole


def test_a_training_with_the_plugin_is_left_alone(tmp_path: Path) -> None:
    own = ProgressRecord(type="phase", at=1.0, rank=0, phase="data")
    (tmp_path / "progress.0").write_text(own.model_dump_json(exclude_none=True) + "\n")
    grow(tmp_path, DATA)
    of(tmp_path).look(0, 2.0)
    assert told(tmp_path) == [own]
    assert not (tmp_path / "mark").exists()


def test_before_the_trainer_starts_nothing_is_said(tmp_path: Path) -> None:
    progress = of(tmp_path)
    progress.look(0, 1.0)
    grow(tmp_path, DATA[: DATA.index(b"Starting trainer")])
    progress.look(0, 1.0)
    assert told(tmp_path) == []
    grow(tmp_path, DATA[DATA.index(b"Starting trainer") :])
    progress.look(0, 1.0)
    assert told(tmp_path)


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    grow(tmp_path, DATA)
    progress = of(tmp_path)
    (tmp_path / "progress.0").mkdir()
    with pytest.raises(OSError):
        progress.look(0, 1.0)
    (tmp_path / "progress.0").rmdir()
    progress.look(0, 1.0)
    assert [one.loss for one in told(tmp_path) if one.loss is not None][-1] == 11.0
