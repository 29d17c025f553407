"""An attempt after one that died goes on from the newest checkpoint that both machines hold whole, as if nothing had been."""

from __future__ import annotations

import json
from pathlib import Path

import machines
import pytest

from agent import checkpoints
from coordinator.attempt import AttemptState, Seat
from coordinator.core.checkpoints import held, mark
from coordinator.core.protocol import BundleFile, ProgressRecord
from coordinator.core.views import Submission
from coordinator.stages.resume import choose

pytestmark = [pytest.mark.training, pytest.mark.timeout(1200)]

SHORT = ("num_epochs=1", "max_steps=8", "evals_per_epoch=", "saves_per_epoch=", "val_set_size=0")
SAVING = ("save_steps=2", "save_total_limit=1", "plugins=[faults.FaultPlugin]")
OUTPUT = "outputs/lora-out"


def dying_at_step_7(demo: Path, *overrides: str) -> Submission:
    submission = machines.demo_submission(demo, *SHORT, *SAVING, *overrides)
    plugin = BundleFile(path="faults.py", data=(Path(__file__).parent / "faults.py").read_bytes())
    fault = {"what": "kill", "rank": 1, "step": 7, "attempt": 1}
    return submission.model_copy(
        update={
            "files": (
                *submission.files,
                plugin,
                BundleFile(path="faults.json", data=json.dumps(fault).encode()),
            )
        }
    )


def logged(machine: machines.Machine) -> dict[int, ProgressRecord]:
    return {one.step: one for one in machine.progress() if one.type == "log" and one.loss and one.step}


# test_failures.py resumes one in the default run.
@pytest.mark.long
@pytest.mark.parametrize(
    "overrides",
    [pytest.param((), id="zero2"), pytest.param(("deepspeed=",), id="ddp")],
)
def test_a_training_goes_on_where_both_machines_had_saved_and_learns_the_same(
    tmp_path: Path, demo: Path, overrides: tuple[str, ...]
) -> None:
    submission = dying_at_step_7(demo, *overrides)
    first = machines.build(tmp_path, submission)
    assert machines.together(first, "prepare") == [0, 0], first[0].log("prepare.log")[-3000:]
    assert all(code != 0 for code in machines.together(first, "train"))
    for machine in first:  # the checkpoint before the last is still there although one was to be kept
        steps = [
            (one.step, one.ranks)
            for one in held(checkpoints.listing(machine.work / OUTPUT, machine.home.name))
        ]
        assert steps == [(6, (machine.rank,)), (4, (machine.rank,))]
    # as if it had died while it saved
    (first[1].work / OUTPUT / "checkpoint-6" / mark(1, 2)).unlink()

    second = machines.build(tmp_path, submission, number=2)
    assert machines.together(second, "prepare") == [0, 0], second[0].log("prepare.log")[-3000:]
    seats = tuple(Seat(replica_id=f"r-{rank}", rank=rank) for rank in range(2))
    attempt = AttemptState(id="j-2", job_id="j", number=2, created_at=0.0, seats=seats)
    chosen = choose(attempt, [machine.result("prepare-result.json") for machine in second])
    assert chosen.checkpoint == "checkpoint-4"

    second = machines.build(tmp_path, submission, number=2, resume=chosen.checkpoint)
    assert machines.together(second, "train") == [0, 0], second[1].log("train.log")[-3000:]
    for before, machine in zip(first, second, strict=True):
        (start,) = [one for one in machine.progress() if one.type == "start"]
        assert (start.step, start.total_steps, start.world_size) == (4, 8, 2)
        again, ever = logged(machine), logged(before)
        assert sorted(again) == [5, 6, 7, 8]
        for step in (5, 6):  # the same weights, optimizer, learning rate and batches
            assert again[step].loss == pytest.approx(ever[step].loss, rel=1e-3)
            assert again[step].learning_rate == pytest.approx(ever[step].learning_rate)
        assert [one.step for one in held(checkpoints.listing(machine.work / OUTPUT, machine.home.name))] == [
            8,
            6,
        ]
    assert (second[0].work / OUTPUT / "before-attempt-2-checkpoint-6").is_dir()
    assert (second[0].work / OUTPUT / "adapter_model.safetensors").is_file()
