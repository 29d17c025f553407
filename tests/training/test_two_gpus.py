"""Two replicas of one GPU each train together over NCCL's sockets, as two containers would; and are compared there."""

from __future__ import annotations

from pathlib import Path

import machines
import pytest
from test_two_machines import SHORT, assert_trained_together, tensors

from coordinator.demo import data

pytestmark = [pytest.mark.training, pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    import torch

    assert torch.cuda.device_count() >= 2, "these tests are asked for by `-m gpu`, on a machine with two GPUs"


def test_a_lora_learns_over_nccl_and_both_models_answer_on_the_gpu(tmp_path: Path, demo: Path) -> None:
    prompts = data.prompts()
    submission = machines.demo_submission(demo, prompts=tuple(pair.instruction for pair in prompts))
    both = machines.build(tmp_path, submission, gpus=1)
    for stage in ("prepare", "train"):
        codes = machines.together(both, stage)
        assert codes == [0, 0], "\n".join(machine.log(f"{stage}.log")[-3000:] for machine in both)
    records = both[0].progress()
    steps = next(record.total_steps for record in records if record.type == "start")
    assert_trained_together(both, steps or 0)
    log = next(record for record in reversed(records) if record.type == "log" and record.loss is not None)
    assert (log.memory_total_bytes or 0) > (log.memory_bytes or 0) > 1 << 20
    assert machines.together(both[:1], "compare") == [0], both[0].log("compare.log")[-3000:]
    answers = both[0].result("compare-result.json")
    assert sum(answer["tuned"] == pair.output for answer, pair in zip(answers, prompts, strict=True)) >= 3
    assert all(answer["base"] != pair.output for answer, pair in zip(answers, prompts, strict=True))


@pytest.mark.parametrize("preset", ["zero1", "zero2", "zero3_bf16", "zero1_torch_compile"])
def test_presets_of_axolotl_train_and_save_whole_tensors(tmp_path: Path, demo: Path, preset: str) -> None:
    submission = machines.demo_submission(demo, f"deepspeed=deepspeed_configs/{preset}.json", *SHORT)
    both = machines.build(tmp_path, submission, gpus=1)
    for stage in ("prepare", "train"):
        codes = machines.together(both, stage)
        assert codes == [0, 0], "\n".join(machine.log(f"{stage}.log")[-3000:] for machine in both)
    assert_trained_together(both, 6)
    saved = tensors(both[0].work / "outputs/lora-out/adapter_model.safetensors")
    assert saved and all(0 not in entry["shape"] for entry in saved.values())
