"""Progress records are whole lines, appended in one write, and never trouble the training that writes them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agent.progress import ProgressWriter
from coordinator.core.protocol import ProgressRecord


def record(**values: object) -> ProgressRecord:
    return ProgressRecord.model_validate({"type": "log", "at": 1.0, "rank": 3, **values})


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKCALL_ATTEMPT_DIR", str(tmp_path))
    return tmp_path


def test_a_record_is_a_line_that_reads_back(attempt: Path) -> None:
    writer = ProgressWriter(local_rank=2)
    written = [record(step=1, loss=0.5), record(type="end", step=2)]
    for each in written:
        writer.write(each)
    lines = (attempt / "streams/progress.2").read_text().splitlines()
    assert [ProgressRecord.model_validate_json(line) for line in lines] == written


def test_a_number_that_is_not_finite_is_no_bad_json(attempt: Path) -> None:
    ProgressWriter(0).write(record(step=1, loss=float("nan"), grad_norm=float("inf")))
    (line,) = (attempt / "streams/progress.0").read_text().splitlines()
    read = ProgressRecord.model_validate_json(line)
    assert (read.step, read.loss, read.grad_norm) == (1, None, None)


def test_a_second_attempt_at_writing_goes_on_behind_the_first(attempt: Path) -> None:
    ProgressWriter(0).write(record(step=1))
    ProgressWriter(0).write(record(step=2))
    assert len((attempt / "streams/progress.0").read_text().splitlines()) == 2


def test_lines_of_several_writers_are_never_mixed(attempt: Path) -> None:
    def many(rank: int) -> None:
        writer = ProgressWriter(0)
        for step in range(200):
            writer.write(record(rank=rank, step=step, loss=1.0))

    threads = [threading.Thread(target=many, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (attempt / "streams/progress.0").read_text().splitlines()
    assert len([ProgressRecord.model_validate_json(line) for line in lines]) == 800


def test_a_full_disk_silences_progress_and_nothing_else(
    attempt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (attempt / "streams").mkdir()
    (attempt / "streams/progress.0").symlink_to("/dev/full")
    writer = ProgressWriter(0)
    for step in range(3):
        writer.write(record(step=step))
    assert capsys.readouterr().err.count("progress is not recorded") == 1


def test_outside_of_rankcall_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKCALL_ATTEMPT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    ProgressWriter(0).write(record(step=1))
    assert list(tmp_path.iterdir()) == []
