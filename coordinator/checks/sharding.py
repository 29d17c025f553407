"""Sharding against the rest of the config: ZeRO and FSDP together, with adapters, quantisation, optimizers.

Sources: `axolotl/train.py` (how a model is saved), `axolotl/utils/schemas/validation.py`,
`accelerate/utils/launch.py` (what FSDP exports), `axolotl/loaders/model.py`.
"""

from __future__ import annotations

from coordinator.checks.edits import drop, put
from coordinator.checks.subject import Findings, Subject, mapping, shown, text, whole

# Optimizers that Axolotl refuses under DeepSpeed.
_NOT_UNDER_DEEPSPEED = ("muon", "polora", "q_galore_adamw8bit")
_FSDP2_ONLY = ("muon", "polora", "q_galore_adamw8bit")
_EIGHT_BIT_NOT_UNDER_FSDP2 = ("adamw_8bit", "adamw_bnb_8bit")


def _fsdp(subject: Subject) -> str | None:
    """The key by which the Axolotl config asks for FSDP."""
    return next((key for key in ("fsdp_config", "fsdp") if subject.get(key)), None)


def _fsdp_version(subject: Subject) -> int:
    section = mapping(subject.get("fsdp_config"))
    for value in (subject.get("fsdp_version"), section.get("fsdp_version"), section.get("version")):
        if value is not None:
            return whole(value) or 1
    return 1


def _fsdp_setting(subject: Subject, name: str) -> object:
    section = mapping(subject.get("fsdp_config"))
    return section.get(name, section.get(f"fsdp_{name}"))


def _written(subject: Subject, name: str) -> str:
    """A key of `fsdp_config` as the user spells it."""
    return name if name in mapping(subject.get("fsdp_config")) else f"fsdp_{name}"


def both(subject: Subject) -> Findings:
    """CFG301: DeepSpeed and FSDP shard the same weights."""
    key = _fsdp(subject)
    if key is None:
        return
    if subject.get("deepspeed"):
        yield subject.found("CFG301", f"`deepspeed` and `{key}` are both set", key)
    elif any(use.by == "accelerate" for use in subject.deepspeed):
        yield subject.found_in_accelerate(
            "CFG301",
            f"`distributed_type: DEEPSPEED`, but the Axolotl config sets `{key}`",
            "distributed_type",
            hint=f"write `distributed_type: MULTI_GPU`, or remove `{key}` from the Axolotl config",
        )
    if not subject.get("deepspeed") and any(use.by == "brought" for use in subject.deepspeed):
        yield subject.found("CFG301", f"a DeepSpeed file came along, but the config sets `{key}`", key)


def accelerate_fsdp(subject: Subject) -> Findings:
    """CFG302, CFG303: FSDP asked for in the accelerate file."""
    if subject.accelerate is None or subject.accelerate.values.get("distributed_type") != "FSDP":
        return
    standing = subject.purpose == "check"
    if subject.get("deepspeed"):
        yield subject.found_in_accelerate(
            "CFG301",
            "`distributed_type: FSDP`, but the Axolotl config sets `deepspeed`",
            "distributed_type",
            hint="write `distributed_type: DEEPSPEED` or `MULTI_GPU`",
        )
        return
    if not subject.get("fsdp_config"):
        yield subject.found_in_accelerate(
            "CFG303",
            "FSDP stands in the accelerate file only: Axolotl fails when it saves the trained model"
            if standing
            else "FSDP stands in the accelerate file only: rankcall takes it from the Axolotl config, so nothing is sharded",
            "distributed_type",
            severity="error" if standing else "warning",
        )
        return
    if not standing:
        return
    section = mapping(subject.accelerate.values.get("fsdp_config"))
    loading = section.get("fsdp_cpu_ram_efficient_loading", section.get("cpu_ram_efficient_loading", True))
    if subject.has("load_in_4bit") and str(loading).lower() == "true":
        yield subject.found_in_accelerate(
            "CFG302",
            "accelerate exports FSDP_CPU_RAM_EFFICIENT_LOADING=true for `distributed_type: FSDP`, which Axolotl"
            " never switches off, and which deadlocks with 4-bit weights",
            "distributed_type",
            severity="warning",
            edits=(put("MULTI_GPU", "distributed_type"),),
        )
    elif not section:
        yield subject.found_in_accelerate(
            "CFG302",
            "`distributed_type: FSDP` without `fsdp_config` exports the settings of FSDP 1",
            "distributed_type",
            edits=(put("MULTI_GPU", "distributed_type"),),
        )


def fsdp_settings(subject: Subject) -> Findings:
    """CFG305: FSDP settings that Axolotl refuses or that cannot work."""
    if subject.get("fsdp_version") == 2 and subject.get("rl") in ("dpo", "kto", "orpo", "ipo"):
        for quantised in ("load_in_8bit", "load_in_4bit"):
            if subject.has(quantised):
                yield subject.found(
                    "CFG305", f"FSDP 2 takes no `{quantised}` with `rl: {subject.get('rl')}`", quantised
                )
    if _fsdp(subject) is None:
        return
    version = _fsdp_version(subject)
    optimizer = text(subject.get("optimizer"))
    if version == 2 and subject.has("load_in_4bit") and _fsdp_setting(subject, "cpu_ram_efficient_loading"):
        yield subject.found(
            "CFG305",
            "`cpu_ram_efficient_loading` deadlocks with 4-bit weights under FSDP 2",
            "fsdp_config",
            "cpu_ram_efficient_loading",
            hint="write `cpu_ram_efficient_loading: false`",
            edits=(put(False, "fsdp_config", _written(subject, "cpu_ram_efficient_loading")),),
        )
    if version == 2 and optimizer in _EIGHT_BIT_NOT_UNDER_FSDP2:
        yield subject.found(
            "CFG305", f"`optimizer: {optimizer}` does not work under FSDP 2", "optimizer",
            hint="write `optimizer: adamw_torch_8bit`", edits=(put("adamw_torch_8bit", "optimizer"),),
        )  # fmt: skip
    if version != 2 and "8bit" in optimizer and _fsdp_setting(subject, "offload_params"):
        yield subject.found(
            "CFG305", f"`optimizer: {optimizer}` does not work with FSDP offload", "optimizer"
        )
    if version != 2 and (optimizer in _FSDP2_ONLY or optimizer.startswith("flash_")):
        yield subject.found(
            "CFG305",
            f"`optimizer: {optimizer}` works under FSDP 2 only",
            "optimizer",
            hint="write `fsdp_version: 2`",
        )
    if "falcon" in text(subject.get("base_model")).lower() and subject.get("fsdp"):
        yield subject.found("CFG305", "FSDP does not work with Falcon models", "fsdp")
    policy = _fsdp_setting(subject, "auto_wrap_policy")
    if policy == "SIZE_BASED_WRAP" and _fsdp_setting(subject, "min_num_params") is None:
        yield subject.found(
            "CFG305", "`SIZE_BASED_WRAP` needs `min_num_params`", "fsdp_config", "auto_wrap_policy"
        )


def zero3_and_quantisation(subject: Subject) -> Findings:
    """CFG208: quantised weights under ZeRO-3."""
    use = subject.effective_deepspeed
    if use is None or use.stage != 3:
        return
    if subject.has("load_in_8bit"):
        yield subject.found(
            "CFG208",
            "8-bit weights under ZeRO-3: DeepSpeed cannot shard them, each GPU holds the whole model",
            "load_in_8bit",
            severity="warning",
        )
    storage = text(mapping(subject.get("bnb_config_kwargs")).get("bnb_4bit_quant_storage")) or "bfloat16"
    if subject.has("load_in_4bit") and not any(
        name in storage for name in ("bfloat16", "float16", "float32")
    ):
        yield subject.found(
            "CFG208",
            f"4-bit weights stored as {shown(storage)}: ZeRO-3 shards floating-point storage only",
            "bnb_config_kwargs",
            "bnb_4bit_quant_storage",
            severity="error",
            hint="remove it: Axolotl stores them as bfloat16",
            edits=(drop("bnb_config_kwargs", "bnb_4bit_quant_storage"),),
        )
    elif subject.has("load_in_4bit"):
        yield subject.found(
            "CFG208", "4-bit weights under ZeRO-3: each rank loads the whole model first", "load_in_4bit"
        )


def deepspeed_refused(subject: Subject) -> Findings:
    """CFG209: what Axolotl refuses under DeepSpeed."""
    if not subject.get("deepspeed"):
        if subject.has("deepcompile"):
            yield subject.found(
                "CFG209", "`deepcompile` is DeepSpeed's, and `deepspeed` is not set", "deepcompile"
            )
        return
    optimizer = text(subject.get("optimizer"))
    if optimizer in _NOT_UNDER_DEEPSPEED or optimizer.startswith("flash_"):
        yield subject.found("CFG209", f"`optimizer: {optimizer}` does not work under DeepSpeed", "optimizer")
    for key in ("relora", "ple_cpu_offload"):
        if subject.has(key):
            yield subject.found("CFG209", f"`{key}` does not work under DeepSpeed", key)


def device_map(subject: Subject) -> Findings:
    """CFG807: placing a model by hand, which several processes cannot share."""
    several = (subject.world or 1) > 1 or (subject.nodes or 1) > 1
    for key in ("device_map", "device", "local_rank", "world_size"):
        value = subject.get(key)
        if value is not None and several and value != "auto":
            yield subject.found(
                "CFG807", f"`{key}: {shown(value)}` is the same for every process; the launcher sets it", key
            )
    for key in ("max_memory", "gpu_memory_limit"):
        if subject.get(key) is None:
            continue
        use = subject.effective_deepspeed
        if use is not None and use.stage == 3:
            yield subject.found("CFG807", f"`{key}` splits the model by hand, which ZeRO-3 does itself", key)
        elif several:
            yield subject.found("CFG807", f"`{key}` splits the model over the GPUs of one process", key)
    if subject.has("max_memory", "gpu_memory_limit"):
        yield subject.found(
            "CFG505", "`max_memory` and `gpu_memory_limit` exclude each other", "gpu_memory_limit"
        )


RULES = (
    both, accelerate_fsdp, fsdp_settings, zero3_and_quantisation, deepspeed_refused, device_map,
)  # fmt: skip
