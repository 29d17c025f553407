"""The DeepSpeed JSON: the user's settings, and the few changes without which they cannot work here. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from coordinator.render.model import DEEPSPEED_FILE, Reason
from coordinator.render.submitted import mapping

# Axolotl's zero1_torch_compile and zero2_torch_compile still have them; DeepSpeed from 0.15 on refuses them.
_FORMER_COMPILE_KEYS = ("disable", "backend", "kwargs")
_GATHER = "stage3_gather_16bit_weights_on_model_save"


def deepspeed_values(
    values: Mapping[str, object], *, on_cpu: bool
) -> tuple[dict[str, object], tuple[Reason, ...]]:
    """What DeepSpeed gets instead of `values`, and why."""
    result = copy.deepcopy(dict(values))
    reasons: list[Reason] = []

    def note(key: str, value: object, why: str) -> None:
        reasons.append(Reason(DEEPSPEED_FILE, key, str(value), why))

    zero = mapping(result.get("zero_optimization"))
    if zero.get("stage") == 3 and zero.get(_GATHER) is not True:
        zero[_GATHER] = True
        note(f"zero_optimization.{_GATHER}", True, "without it ZeRO-3 saves no weights that can be loaded")
    compiled = mapping(result.get("compile"))
    former = [key for key in _FORMER_COMPILE_KEYS if compiled.pop(key, None) is not None]
    if former:
        result.pop("compile")
        if compiled:
            result["compile"] = compiled
        note("compile", f"without {', '.join(former)}", "DeepSpeed refuses keys it no longer has")
    if on_cpu:
        for which in ("offload_optimizer", "offload_param"):
            if zero.pop(which, None) is not None:
                note(f"zero_optimization.{which}", "removed", "there is no GPU to offload from")
        for precision in ("bf16", "fp16", "amp"):
            section = mapping(result.get(precision))
            if section.get("enabled", False) is not False:
                result[precision] = {"enabled": False}
                note(f"{precision}.enabled", False, "the CPU trains in float32")
        if result.pop("train_batch_size", None) is not None:
            note("train_batch_size", "removed", "DeepSpeed derives it from the micro batch and the world")
        result["zero_force_ds_cpu_optimizer"] = False
        note("zero_force_ds_cpu_optimizer", False, "DeepSpeed's own CPU optimizer would have to be compiled")
    if "train_batch_size" not in result and "train_micro_batch_size_per_gpu" not in result:
        result["train_micro_batch_size_per_gpu"] = "auto"
        note("train_micro_batch_size_per_gpu", "auto", "DeepSpeed wants a batch size; Axolotl's is filled in")
        if "gradient_accumulation_steps" not in result:
            result["gradient_accumulation_steps"] = "auto"
            note("gradient_accumulation_steps", "auto", "Axolotl's is filled in")
    if zero:
        result["zero_optimization"] = zero
    return result, tuple(reasons)


def zero_stage(values: Mapping[str, object] | None) -> int | None:
    """The ZeRO stage of DeepSpeed settings; None where it cannot be known."""
    if values is None:
        return None
    stage = mapping(values.get("zero_optimization")).get("stage", 0)
    return stage if isinstance(stage, int) else None
