"""A full disk: the command goes on, what is missing of its output is counted and said, and the log goes on with room."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import deployed
from small import disk_of

from agent import progress, spool
from agent.progress import ProgressWriter
from agent.spool import Spool
from coordinator.core.protocol import ProgressRecord

# Prints lines until it is told to stop, and would die of a write that fails.
TALKATIVE = """
import pathlib, sys, time
number = 0
while not pathlib.Path(sys.argv[1]).exists():
    for _ in range(200):
        print(f"{number:08d}", "x" * 90)
        number += 1
    sys.stdout.flush()
    time.sleep(0.005)
print("lines", number)
"""


@pytest.fixture
def disk_of_a_replica(tmp_path: Path) -> Iterator[Path]:
    """The state folder of the second agent of a deployment in `tmp_path`, on a disk of 16 MiB."""
    with disk_of(tmp_path / "agent-1", "16m") as disk:
        yield disk


def test_a_job_outlives_a_full_disk_and_what_was_dropped_is_a_finding(
    disk_of_a_replica: Path, tmp_path: Path
) -> None:
    lines = 300_000
    with deployed(tmp_path) as deployment:
        job_id = deployment.submit({"until": "release", "burst_lines": lines}, allow=["ENV020", "ENV021"])
        deployment.training(job_id)
        for number in (0, 1):
            deployment.eventually(lambda n=number: b"\nwaiting" in deployment.stream(n, job_id))
        assert os.statvfs(disk_of_a_replica).f_bavail > 0, "checkpoints and reports need the rest"
        (deployment.layout(0).work(job_id) / "release").touch()
        (deployment.layout(1).work(job_id) / "release").touch()
        job = deployment.until(job_id, lambda job: job["state"] not in ("queued", "running"))
        assert job["state"] == "succeeded", (job["findings"], deployment.everything_said())
        assert job["attempts"] == 1
        log = deployment.stream(1, job_id)
        deployment.eventually(deployment.layout(1).attempt(job_id, 1).mirrored.exists)
        assert deployment.mirrored(1, job_id, limit=1 << 26) == log
        said = [line for line in log.splitlines() if line.startswith(b"rankcall: the disk was full; ")]
        dropped = sum(int(line.split()[5]) for line in said)
        (found,) = (one for one in job["findings"] if one["code"] == "RUN028")
        assert found["severity"] == "warning" and f" {dropped} bytes of the output" in found["message"]
        assert dropped > lines * 100 - (16 << 20), "more than the disk holds was said"
        assert deployment.stream(0, job_id).count(b"x\n") == lines, "the others have all of theirs"


def carrying(path: Path) -> Spool:
    made = Spool(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    made.begin()
    return made


def test_a_command_outlives_a_full_disk_and_its_log_says_what_is_missing(
    small_disk: Path, tmp_path: Path
) -> None:
    log, ballast, stop = small_disk / "train.log", small_disk / "ballast", tmp_path / "stop"
    ballast.write_bytes(bytes(2 << 20))
    carried = carrying(log)
    command = subprocess.Popen([sys.executable, "-c", TALKATIVE, str(stop)], stdout=carried.writer)
    carried.handed_over()
    until = time.monotonic() + 60
    while carried.dropped_bytes < 1 << 20:
        assert time.monotonic() < until and command.poll() is None
        time.sleep(0.05)
    assert not spool.has_room(carried.stream, 1 << 20)
    assert os.statvfs(small_disk).f_bavail > 0, "checkpoints and reports need the rest"
    size = log.stat().st_size
    ballast.unlink()
    while log.stat().st_size < size + 100_000:
        assert time.monotonic() < until and command.poll() is None
        time.sleep(0.05)
    stop.touch()
    assert command.wait(30) == 0
    carried.finish()
    whole = log.read_bytes()
    assert whole.endswith(b"\n") and b"\nlines " in whole
    said = [line for line in whole.splitlines() if line.startswith(b"rankcall: the disk was full; ")]
    assert said and sum(int(line.split()[5]) for line in said) == carried.dropped_bytes
    printed = int(whole.splitlines()[-1].split()[1]) * 100 + len(whole.splitlines()[-1]) + 1
    spoken = sum(len(line) + 2 for line in said)
    assert len(whole) - spoken + carried.dropped_bytes == printed
    os.close(carried.stream)


def test_every_byte_of_a_burst_arrives_in_its_order(tmp_path: Path) -> None:
    carried = carrying(tmp_path / "log")
    data = os.urandom(20 << 20)

    def write() -> None:
        with os.fdopen(os.dup(carried.writer), "wb") as pipe:
            pipe.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(60)
    carried.finish()
    assert (tmp_path / "log").read_bytes() == data and carried.dropped_bytes == 0
    os.close(carried.stream)


def test_somebody_who_keeps_the_pipe_open_does_not_hold_up_the_end(tmp_path: Path) -> None:
    carried = carrying(tmp_path / "log")
    kept = os.dup(carried.writer)
    os.write(kept, b"last words\n")
    began = time.monotonic()
    carried.finish()
    assert time.monotonic() - began < spool.LAST_WORDS_S + 1
    assert (tmp_path / "log").read_bytes() == b"last words\n"
    os.close(kept)
    os.close(carried.stream)


def test_records_of_progress_go_on_after_a_full_disk(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(progress.ATTEMPT_FOLDER, str(small_disk))
    writer = ProgressWriter(0)
    stream = small_disk / "streams" / "progress.0"

    def say(step: int) -> None:
        writer.write(ProgressRecord(type="log", at=1.0, rank=0, step=step))

    say(1)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    for step in range(2, 500):  # what is left of the last page, then nothing
        say(step)
    ballast.unlink()
    say(500)
    writer.close()
    steps = []
    for line in stream.read_bytes().splitlines():
        try:
            steps.append(ProgressRecord.model_validate_json(line).step)
        except ValueError:
            continue
    assert steps[0] == 1 and steps[-1] == 500 and len(steps) < 500
    assert f"{500 - len(steps)} records of progress were lost" in capsys.readouterr().err
