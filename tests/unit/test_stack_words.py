"""From a dump of stacks to a few words: the collective that is waited in, what called it, and who never came to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import JsonValue
from test_first_failure import attempt, member

from agent.stack_words import waits, where
from coordinator.attempt import AttemptState, Observed
from coordinator.core.catalogue import finding
from coordinator.core.protocol import EVIDENCE, Finding, RunResult, Stage, TaskReport
from coordinator.stages.progress import judge_hang

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


GROUP = """\
Thread 7 (idle): "MainThread"
    _new_process_group_helper (torch/distributed/distributed_c10d.py:2169)
    _new_group_with_tag (torch/distributed/distributed_c10d.py:6056)
    new_group (torch/distributed/distributed_c10d.py:5863)
    TorchBackend.new_group (deepspeed/comm/torch.py:378)
    Trainer._prepare_for_training (transformers/trainer.py:1633)
"""
DOWNLOADS = """\
Thread 7 (idle): "MainThread"
    recv (/usr/lib/python3.10/ssl.py:1166)
    send (requests/sessions.py:703)
    snapshot_download (huggingface_hub/_snapshot_download.py:240)
"""


def test_who_makes_a_group_of_ranks_waits_and_who_sends_to_the_hub_does_not() -> None:
    assert where(GROUP.splitlines()).startswith("in new_group, called from") and waits(GROUP.splitlines())
    assert where(DOWNLOADS.splitlines()).startswith("in recv (ssl.py:1166), called from")
    assert not waits(DOWNLOADS.splitlines())


def test_only_who_is_in_a_collective_waits_for_others() -> None:
    assert waits(BARRIER.splitlines()) and not waits(READS.splitlines()) and not waits([])


def gathered(output: JsonValue) -> Observed:
    result = RunResult(output=output)
    report = TaskReport(task_id=EVIDENCE, stage=Stage.TRAIN, state="succeeded", result=result)
    return replace(member(0, None), tasks={EVIDENCE: report})


def hanging(*members: Observed, hung: Finding) -> Finding:
    """What is said of the hang once its evidence is there."""
    state: AttemptState = attempt(members).model_copy(update={"hung": hung, "hung_at": 1.0})
    verdict = judge_hang(state, members, 1000.0)
    assert verdict.state == "failed" and verdict.updates["hung"] == verdict.findings[0]
    return verdict.findings[0]


def seen(step: int, doing: str = "idle") -> JsonValue:
    return {"doing": doing, "says": "does nothing", "phase": "train", "step": step, "quiet_s": 41.0}


def hang(behind: list[JsonValue], ranks: dict[str, JsonValue]) -> Finding:
    evidence: dict[str, JsonValue] = {
        "why": "Nobody works",
        "quiet_s": 41.0,
        "behind": behind,
        "ranks": ranks,
    }
    return finding("RUN030", "Nobody works.", evidence=evidence)


def test_the_finding_names_the_places_of_those_behind_first() -> None:
    told = hanging(
        gathered({"where": {"0": "in barrier"}}),
        gathered({"where": {"1": "in read (ssl.py:1)"}}),
        replace(member(2, None), tasks={}),
        gathered(["nonsense"]),
        gathered({"where": ["nonsense"], "waiting": "nonsense"}),
        hung=hang([1], {}),
    )
    assert (
        told.message == "Nobody works. By their stacks, rank 1 is in read (ssl.py:1); rank 0 is in barrier."
    )
    assert told.evidence["where"] == {"0": "in barrier", "1": "in read (ssl.py:1)"}
    untold = hang([], {})
    assert hanging(gathered({}), gathered({}), hung=untold) == untold


@pytest.mark.parametrize("by_samples", [[], [1]])
def test_who_never_came_to_the_collective_is_the_one_the_others_wait_for(by_samples: list[JsonValue]) -> None:
    """Also where the words of the one that waits are a step older by chance."""
    told = hanging(
        gathered({"where": {"0": "in read (ssl.py:1)"}, "waiting": []}),
        gathered({"where": {"1": "in barrier"}, "waiting": [1]}),
        hung=hang(by_samples, {"0": seen(7), "1": seen(6), "2": "nonsense", "x": seen(1)}),
    )
    assert told.evidence["behind"] == [0] and told.replica == "r-0"
    assert told.message == (
        "Nobody works: no sign of progress for 41 s. Rank 0 (in train at step 7): does nothing. Rank 1 waits. "
        "By their stacks, rank 0 is in read (ssl.py:1); rank 1 is in barrier."
    )


def test_where_all_wait_or_one_is_stopped_the_stacks_change_nobody() -> None:
    told = hanging(
        gathered({"where": {"0": "in all_reduce"}, "waiting": [0]}),
        gathered({"where": {"1": "in all_reduce"}, "waiting": [1]}),
        hung=hang([1], {"0": seen(7), "1": seen(6)}),
    )
    assert told.evidence["behind"] == [1]
    told = hanging(
        gathered({"where": {"0": "in sleep"}, "waiting": []}),
        gathered({"where": {"1": "in all_reduce"}, "waiting": [1]}),
        hung=hang([1], {"0": seen(7), "1": seen(6, "stopped")}),
    )
    assert told.evidence["behind"] == [1]
