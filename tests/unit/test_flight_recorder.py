"""torch's record of its collectives is asked for and told in lines, and a file that is not one harms nobody."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from agent import flight_recorder, machine_evidence
from coordinator.core.clock import monotonic_s, now_at


def entry(number: int, state: str) -> dict[str, object]:
    return {
        "collective_seq_id": number,
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[1048576]],
        "input_dtypes": ["Float"],
        "state": state,
        "is_p2p": False,
        "frames": [{"name": "train_step", "filename": "train.py", "line": 7}],
    }


def test_what_is_not_finished_is_told_with_its_place_in_the_program(tmp_path: Path) -> None:
    record = {
        "version": "2.4",
        "entries": [entry(n, "completed") for n in range(50)] + [entry(50, "started")],
    }
    (tmp_path / "flight-recorder.3").write_bytes(pickle.dumps(record))
    told = flight_recorder.told(tmp_path)
    said = told.lines
    assert said[0] == "=== rank 3: 51 collectives recorded, 1 not finished"
    assert "collective 50 of group 0 default_pg: nccl:all_reduce [[1048576]] ['Float']: started" in said[-2]
    assert "train_step (train.py:7)" in said[-1] and len(said) == 6
    assert told.waits == {3: "its GPU waits in nccl:all_reduce, collective 50"}


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo harm > harmed",)


@pytest.mark.parametrize(
    "content",
    [b"", b"no pickle", pickle.dumps(Harmful()), pickle.dumps([1, 2]), pickle.dumps({"entries": 5})],
)
def test_a_file_that_is_no_record_runs_nothing_and_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "flight-recorder.0").write_bytes(content)
    told = flight_recorder.told(tmp_path)
    (line,) = told.lines
    assert told.waits == {}
    assert line.startswith("=== rank 0: the record cannot be read")
    assert not Path("harmed").exists()


def test_a_rank_that_listens_is_asked_and_its_record_waited_for(tmp_path: Path) -> None:
    pipe, file = tmp_path / "flight-recorder.0.pipe", tmp_path / "flight-recorder.0"
    os.mkfifo(pipe)
    os.mkfifo(tmp_path / "flight-recorder.1.pipe")  # nobody listens there
    handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def answer() -> None:
        for _ in range(100):
            time.sleep(0.02)
            try:
                if os.read(handle, 10):
                    break
            except BlockingIOError:
                continue
        file.write_bytes(pickle.dumps({"entries": []}))

    listener = threading.Thread(target=answer)
    listener.start()
    since_at = now_at()
    expected = flight_recorder.ask(tmp_path)
    assert expected == (file,)
    flight_recorder.wait(expected, monotonic_s() + 10, since_at)
    told = flight_recorder.told(tmp_path)
    assert told.lines == ("=== rank 0: 0 collectives recorded, 0 not finished",)
    assert told.waits == {0: "its GPU waits in no collective, 0 are done"}
    listener.join()
    os.close(handle)


def test_what_the_machine_does_not_say_is_said(tmp_path: Path) -> None:
    assert "cannot be read here" in next(machine_evidence.kernel_messages(tmp_path / "nothing"))
    assert "does not answer" in next(machine_evidence.nccl_health(1.0, ("localhost", 1)))
    assert list(machine_evidence.gpu_processes({}))
