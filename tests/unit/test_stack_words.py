"""From a dump of stacks to a few words: the collective that is waited in, and what of the training called it."""

from __future__ import annotations

from pydantic import JsonValue

from agent.stack_words import where
from coordinator.core.catalogue import finding
from coordinator.core.protocol import EVIDENCE, RunResult, Stage, TaskReport
from coordinator.stages.progress import _places, _with_places

BARRIER = """\
Process 4242: python -u -m axolotl.cli.train
Python v3.11.7 (/usr/bin/python3.11)

Thread 4242 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:5012)
    wrapper (torch/distributed/c10d_logger.py:81)
    save_checkpoint (deepspeed/runtime/engine.py:3774)
    _save_optimizer_and_scheduler (transformers/trainer.py:3333)
    main (axolotl/cli/train.py:7)
Thread 4250 (idle): "asyncio_0"
    wait (threading.py:327)
"""
READS = """\
Thread 9 (idle): "Thread-1"
    wait (threading.py:327)
Thread 4242 (active): "MainThread"
    read (/usr/lib/python3.11/ssl.py:1166)
    fetch (/work/loader.py:12)
    __next__ (torch/utils/data/dataloader.py:700)
"""


def test_who_waits_in_a_collective_is_said_with_what_called_it() -> None:
    assert (
        where(BARRIER.splitlines())
        == "in barrier, called from _save_optimizer_and_scheduler (trainer.py:3333)"
    )


def test_who_is_elsewhere_is_said_with_the_training_own_code() -> None:
    assert where(READS.splitlines()) == "in read (ssl.py:1166), called from fetch (loader.py:12)"


def test_without_python_stacks_nothing_is_said() -> None:
    assert (
        where(["(no Python stacks: py-spy is not installed)", "thread 7 (python): state S, waits in futex"])
        == ""
    )
    assert where([]) == ""


def test_the_finding_names_the_places_of_those_behind_first() -> None:
    def gathered(output: JsonValue) -> TaskReport:
        result = RunResult(output=output)
        return TaskReport(task_id=EVIDENCE, stage=Stage.TRAIN, state="succeeded", result=result)

    reports = [
        gathered({"where": {"0": "in barrier"}}),
        gathered({"where": {"1": "in read (ssl.py:1)"}}),
        TaskReport(task_id=EVIDENCE, stage=Stage.TRAIN, state="failed"),
        gathered(["nonsense"]),
        None,
    ]
    hung = finding("RUN030", "Nobody works.", evidence={"behind": [1]})
    told = _with_places(hung, _places(reports))
    assert (
        told.message == "Nobody works. By their stacks, rank 1 is in read (ssl.py:1); rank 0 is in barrier."
    )
    assert told.evidence["where"] == {"0": "in barrier", "1": "in read (ssl.py:1)"}
    assert _with_places(hung, {}) == hung
