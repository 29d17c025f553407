"""Two loopback machines really train together on what was rendered: accelerate, Axolotl, DeepSpeed, gloo, no GPU."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import machines
import pytest

from coordinator.core.logs import LogReader, Metrics, Phase
from coordinator.demo import data

pytestmark = [pytest.mark.training, pytest.mark.timeout(1200)]

SHORT = ("num_epochs=1", "max_steps=6", "evals_per_epoch=", "saves_per_epoch=", "val_set_size=0")


def tensors(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header: dict[str, Any] = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    return header


def train(
    folder: Path, demo: Path, *overrides: str, address: str = "127.0.0.1", nodes: int = 2
) -> list[machines.Machine]:
    submission = machines.demo_submission(demo, *overrides)
    both = machines.build(folder, submission, nodes, address)
    for stage in ("prepare", "train"):
        codes = machines.together(both, stage)
        assert codes == [0] * nodes, "\n".join(machine.log(f"{stage}.log")[-3000:] for machine in both)
    return both


def assert_trained_together(both: list[machines.Machine], steps: int) -> None:
    for machine in both:
        records = machine.progress()
        (start,) = [record for record in records if record.type == "start"]
        assert (start.rank, start.world_size, start.total_steps) == (machine.rank, len(both), steps)
        assert [record.step for record in records if record.type == "end"] == [steps]
        assert records[-1].phase == "done"
    losses = [[record.loss for record in m.progress() if record.type == "log" and record.loss] for m in both]
    assert len(losses[0]) == steps
    assert losses[0] == losses[1], "the loss is averaged over the ranks, so all see the same"


@pytest.mark.long
def test_a_lora_learns_with_zero_2_and_answers_what_the_base_could_not(tmp_path: Path, demo: Path) -> None:
    prompts = data.prompts()
    submission = machines.demo_submission(demo, prompts=tuple(pair.instruction for pair in prompts))
    both = machines.build(tmp_path, submission)
    for stage in ("prepare", "train"):
        codes = machines.together(both, stage)
        assert codes == [0, 0], both[0].log(f"{stage}.log")[-3000:]

    prepared = [machine.result("prepare-result.json") for machine in both]
    assert prepared[0] == prepared[1]
    assert (prepared[0]["rows"], prepared[0]["eval_rows"]) == (324, 36)

    records = both[0].progress()
    steps = next(record.total_steps for record in records if record.type == "start")
    assert steps is not None
    assert_trained_together(both, steps)
    losses = [record.loss for record in records if record.loss is not None]
    assert losses[-1] < losses[0] / 4
    assert {record.phase for record in records if record.type == "phase"} >= {
        "load",
        "train",
        "evaluate",
        "save",
    }
    evaluated = [record.perplexity for record in records if record.type == "eval"]
    assert evaluated[-1] < evaluated[0]
    start = next(record for record in records if record.type == "start")
    assert 0 < (start.trainable_parameters or 0) < (start.all_parameters or 0)
    assert any(record.tokens_per_s and record.memory_bytes and record.step_s for record in records)

    saved = tensors(both[0].work / "outputs/lora-out/adapter_model.safetensors")
    assert saved and all(0 not in entry["shape"] for entry in saved.values())

    assert machines.together(both[:1], "compare") == [0], both[0].log("compare.log")[-3000:]
    for answer, pair in zip(both[0].result("compare-result.json"), prompts, strict=True):
        assert answer["tuned"] == pair.output
        assert answer["base"] != pair.output

    events = LogReader().feed((both[0].attempt / "streams/train.log").read_bytes())
    read = [event for event in events if isinstance(event, Metrics) and "loss" in event.values]
    assert len(read) == steps, "the log says as much as the plugin"
    assert Phase("saved", "./outputs/lora-out") in events


@pytest.mark.long
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_other_zero_stages_save_whole_tensors(tmp_path: Path, demo: Path, stage: int) -> None:
    both = train(tmp_path, demo, f"deepspeed={{zero_optimization: {{stage: {stage}}}}}", *SHORT)
    assert_trained_together(both, 6)
    saved = tensors(both[0].work / "outputs/lora-out/adapter_model.safetensors")
    assert saved and all(0 not in entry["shape"] for entry in saved.values())


@pytest.mark.long
@pytest.mark.parametrize("stage", [2, 3])
def test_a_full_fine_tune_is_saved_whole(tmp_path: Path, demo: Path, stage: int) -> None:
    full = ("adapter=", f"deepspeed={{zero_optimization: {{stage: {stage}}}}}", "learning_rate=1e-3")
    both = train(tmp_path, demo, *full, *SHORT)
    assert_trained_together(both, 6)
    saved = tensors(both[0].work / "outputs/lora-out/model.safetensors")
    base = tensors(demo / "base/model.safetensors")
    assert {name: entry["shape"] for name, entry in base.items()}.items() <= {
        name: entry["shape"] for name, entry in saved.items()
    }.items()


@pytest.mark.long
def test_without_deepspeed_the_ranks_train_together_too(tmp_path: Path, demo: Path) -> None:
    assert_trained_together(train(tmp_path, demo, "deepspeed=", *SHORT), 6)


@pytest.mark.long
def test_gradients_accumulate_as_asked(tmp_path: Path, demo: Path) -> None:
    assert_trained_together(train(tmp_path, demo, "gradient_accumulation_steps=2", *SHORT), 6)


@pytest.mark.long
def test_the_rendezvous_may_have_an_ipv6_address(tmp_path: Path, demo: Path) -> None:
    assert_trained_together(train(tmp_path, demo, *SHORT, address="::1"), 6)


@pytest.mark.long
@pytest.mark.parametrize("deepspeed", ["{zero_optimization: {stage: 2}}", ""])
def test_one_replica_trains_alone_when_the_job_has_one(tmp_path: Path, demo: Path, deepspeed: str) -> None:
    (alone,) = train(tmp_path, demo, f"deepspeed={deepspeed}", *SHORT, nodes=1)
    (start,) = [record for record in alone.progress() if record.type == "start"]
    assert (start.world_size, start.total_steps) == (1, 6)
