"""DeepSpeed's own settings: which ZeRO, and whether they agree with the Axolotl config.

Sources: `accelerate/utils/dataclasses.py` (DeepSpeedPlugin), `transformers/integrations/deepspeed.py`
(`trainer_config_process`: what is neither "auto" nor equal ends every worker).
"""

from __future__ import annotations

import posixpath

from coordinator.checks.edits import drop, put
from coordinator.checks.subject import (
    DeepSpeedUse,
    Findings,
    Subject,
    mapping,
    number,
    shown,
    text,
    whole,
)
from coordinator.core.words import counted

# Two floats that were written differently are equal (`1e-4` and `0.0001`).
_CLOSE = 1e-12
_FLAGS = ("bf16", "fp16")


def shape(subject: Subject) -> Findings:
    """CFG203, CFG219: a file without ZeRO, or with a stage that is none."""
    for use in files_once(subject):
        if use.values is None:
            continue
        if "zero_optimization" not in use.values:
            yield subject.found_in_deepspeed(
                use,
                "CFG203",
                "there is no `zero_optimization`: accelerate ends with a ValueError",
                hint='write "zero_optimization": {"stage": 2}',
            )
        elif not isinstance(use.values["zero_optimization"], dict):
            yield subject.found_in_deepspeed(
                use, "CFG203", "`zero_optimization` must be a mapping", "zero_optimization"
            )
        elif use.stage not in (0, 1, 2, 3):
            yield subject.found_in_deepspeed(
                use,
                "CFG219",
                f"`stage: {shown(use.zero.get('stage'))}` is no ZeRO stage",
                "zero_optimization",
                "stage",
            )


def inline_stage(subject: Subject) -> Findings:
    """CFG219: a ZeRO stage of accelerate's own that is none."""
    if subject.accelerate is None:
        return
    given = mapping(subject.accelerate.values.get("deepspeed_config")).get("zero_stage")
    if given is not None and whole(given) not in (0, 1, 2, 3):
        yield subject.found_in_accelerate(
            "CFG219", f"`zero_stage: {shown(given)}` is no ZeRO stage", "deepspeed_config", "zero_stage"
        )


def batch_agrees(subject: Subject) -> Findings:
    """CFG205, CFG206: batch sizes said twice and differently."""
    micro = whole(subject.settings.get("micro_batch_size", 1))
    steps = _accumulation(subject, micro)
    wanted: dict[str, int | None] = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
    }
    for use in files_once(subject):
        if use.values is None:
            continue
        for key, own in wanted.items():
            theirs = use.values.get(key)
            if theirs in (None, "auto") or own is None or whole(theirs) == own:
                continue
            yield subject.found_in_deepspeed(
                use,
                "CFG205",
                f"`{key}` is {shown(theirs)} here and {own} in the Axolotl config",
                key,
                edits=(put("auto", key),),
            )
        yield from _total_agrees(subject, use, micro, steps)


def _total_agrees(subject: Subject, use: DeepSpeedUse, micro: int | None, steps: int | None) -> Findings:
    total = (use.values or {}).get("train_batch_size")
    if total in (None, "auto") or micro is None or steps is None:
        return
    each = micro * steps
    given = whole(total)
    if subject.world is not None and given != each * subject.world:
        yield subject.found_in_deepspeed(
            use,
            "CFG206",
            f"`train_batch_size` is {shown(total)}, but {micro} × {steps} × {counted(subject.world, 'process')}"
            f" are {each * subject.world}",
            "train_batch_size",
            edits=(put("auto", "train_batch_size"),),
        )
    elif subject.world is None and each and (given is None or given % each):
        yield subject.found_in_deepspeed(
            use,
            "CFG206",
            f"`train_batch_size` is {shown(total)}, which {micro} × {steps} on any number of processes never gives",
            "train_batch_size",
            edits=(put("auto", "train_batch_size"),),
        )


def _accumulation(subject: Subject, micro: int | None) -> int | None:
    given = whole(subject.get("gradient_accumulation_steps"))
    if given is not None:
        return given
    total = whole(subject.get("batch_size"))
    if total is not None and micro:
        return total // micro
    return 1 if subject.get("gradient_accumulation_steps") is None else None


def inline_agrees(subject: Subject) -> Findings:
    """CFG205, CFG217: figures among accelerate's own DeepSpeed keys, which win without a word."""
    use = next((one for one in subject.deepspeed if one.by == "accelerate" and one.path is None), None)
    if use is None or subject.accelerate is None or subject.purpose != "check":
        return
    section = mapping(subject.accelerate.values.get("deepspeed_config"))
    steps = whole(section.get("gradient_accumulation_steps"))
    own = _accumulation(subject, whole(subject.settings.get("micro_batch_size", 1)))
    if steps is not None and own is not None and steps != own:
        yield subject.found_in_accelerate(
            "CFG205",
            f"`gradient_accumulation_steps` is {steps} here and {own} in the Axolotl config",
            "deepspeed_config",
            "gradient_accumulation_steps",
            hint=f"write {own} here too",
            severity="warning",
            edits=(put(own, "deepspeed_config", "gradient_accumulation_steps"),),
        )
    clipping, norm = number(section.get("gradient_clipping")), number(subject.get("max_grad_norm"))
    if clipping is not None and norm is not None and clipping != norm:
        yield subject.found_in_accelerate(
            "CFG217",
            f"`gradient_clipping` is {clipping:g} here, but `max_grad_norm` is {norm:g} in the Axolotl config",
            "deepspeed_config",
            "gradient_clipping",
            hint=f"write {norm:g} here too",
            severity="warning",
            edits=(put(norm, "deepspeed_config", "gradient_clipping"),),
        )


def precision_agrees(subject: Subject) -> Findings:
    """CFG207: bf16 and fp16 of the JSON against the Axolotl config."""
    for use in files_once(subject):
        enabled = {flag: mapping((use.values or {}).get(flag)).get("enabled") for flag in _FLAGS}
        if enabled["bf16"] is True and enabled["fp16"] is True:
            yield subject.found_in_deepspeed(
                use, "CFG207", "bf16 and fp16 are both enabled: DeepSpeed takes one", "fp16", "enabled"
            )
            continue
        bf16, fp16 = _axolotl_precision(subject)
        for flag, own in (("bf16", bf16), ("fp16", fp16)):
            theirs = enabled[flag]
            if isinstance(theirs, bool) and own is not None and theirs is not own:
                yield subject.found_in_deepspeed(
                    use,
                    "CFG207",
                    f"`{flag}.enabled` is {str(theirs).lower()} here, but the Axolotl config trains"
                    f" {'in' if own else 'without'} {flag}",
                    flag,
                    "enabled",
                    edits=(put("auto", flag, "enabled"),),
                )


def _axolotl_precision(subject: Subject) -> tuple[bool | None, bool | None]:
    """(bf16, fp16) as Axolotl resolves them; None where the GPUs decide (`bf16: auto`, which is its default)."""
    bf16 = subject.settings.get("bf16", "auto")
    fp16 = bool(subject.get("fp16"))
    if bf16 == "auto":
        return (False, True) if fp16 else (None, None)
    wants = bool(bf16) and text(bf16).lower() not in ("false", "no", "off", "0", "n", "f")
    return (True, False) if wants else (False, fp16)


def optimizer_agrees(subject: Subject) -> Findings:
    """CFG217: an optimizer or scheduler of the JSON with figures of its own."""
    pairs = (
        (("optimizer", "params", "lr"), "learning_rate", None),
        (("optimizer", "params", "eps"), "adam_epsilon", 1e-8),
        (("optimizer", "params", "weight_decay"), "weight_decay", 0.0),
        (("scheduler", "params", "warmup_max_lr"), "learning_rate", None),
        (("gradient_clipping",), "max_grad_norm", 1.0),
    )
    for use in files_once(subject):
        for path, own_key, default in pairs:
            theirs: object = use.values or {}
            for part in path:
                theirs = mapping(theirs).get(part)
            given = subject.get(own_key)
            own = number(given if given is not None else default)
            if theirs in (None, "auto") or own is None:
                continue
            value = number(theirs)
            if value is None or abs(value - own) > _CLOSE * max(abs(value), abs(own), 1e-9):
                yield subject.found_in_deepspeed(
                    use,
                    "CFG217",
                    f"`{'.'.join(path)}` is {shown(theirs)} here, but `{own_key}` is {own:g} in the Axolotl config",
                    *path,
                    edits=(put("auto", *path),),
                )


def said_twice(subject: Subject) -> Findings:
    """CFG201, CFG202: accelerate's DeepSpeed against Axolotl's, which wins and chooses how to save."""
    by = {use.by: use for use in subject.deepspeed}
    theirs, own = by.get("accelerate"), by.get("axolotl") or by.get("brought")
    if theirs is None or subject.accelerate is None or subject.purpose != "check":
        return
    path = tuple(theirs.key.split("."))
    if own is None:
        if theirs.stage == 3:
            yield subject.found_in_accelerate(
                "CFG201",
                "ZeRO-3 stands in the accelerate file only: Axolotl saves empty tensors and says success",
                *path,
                hint=f"write `deepspeed: {theirs.path or 'deepspeed_configs/zero3.json'}` in the Axolotl config too",
                edits=(put(theirs.path, "deepspeed", file=subject.document.name),) if theirs.path else (),
            )
        return
    if own.stage is not None and theirs.stage is not None and own.stage != theirs.stage:
        yield subject.found_in_accelerate(
            "CFG202",
            f"ZeRO-{theirs.stage} here, ZeRO-{own.stage} in the Axolotl config, which wins",
            *path,
            severity="error",
        )
    elif own.path != theirs.path and own.values != theirs.values and theirs.path is not None:
        yield subject.found_in_accelerate(
            "CFG202",
            f"{shown(theirs.path)} here, {shown(own.path or 'settings in line')} in the Axolotl config, which wins",
            *path,
        )


def zero3_init(subject: Subject) -> Findings:
    """CFG212: `zero3_init_flag` under another stage does nothing."""
    if subject.accelerate is None:
        return
    section = mapping(subject.accelerate.values.get("deepspeed_config"))
    use = next((one for one in subject.deepspeed if one.by == "accelerate"), None)
    if section.get("zero3_init_flag") is True and use is not None and use.stage in (0, 1, 2):
        yield subject.found_in_accelerate(
            "CFG212",
            f"`zero3_init_flag: true` under ZeRO-{use.stage}: accelerate switches it off",
            "deepspeed_config",
            "zero3_init_flag",
            edits=(put(False, "deepspeed_config", "zero3_init_flag"),),
        )


def files_once(subject: Subject) -> list[DeepSpeedUse]:
    """The uses, a file that two places name once, what is written in accelerate's own keys left out."""
    seen: set[str] = set()
    uses = []
    for use in subject.deepspeed:
        if use.path is None and use.by == "accelerate":
            continue
        name = posixpath.normpath(use.path) if use.path else use.key
        if name not in seen:
            seen.add(name)
            uses.append(use)
    return uses


def gathers(subject: Subject) -> Findings:
    """CFG218: ZeRO-3 that leaves only shards behind."""
    for use in files_once(subject):
        if use.stage != 3:
            continue
        names = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")
        if not any(use.zero.get(name) is True for name in names):
            yield subject.found_in_deepspeed(
                use,
                "CFG218",
                "the weights are not gathered when the model is saved: each rank leaves its shard",
                "zero_optimization",
                edits=(put(True, "zero_optimization", "stage3_gather_16bit_weights_on_model_save"),),
            )


def offload(subject: Subject) -> Findings:
    """CFG211, CFG213, CFG214: what offload needs."""
    for use in files_once(subject):
        if use.offload("param") != "none" and use.stage in (0, 1, 2):
            yield subject.found_in_deepspeed(
                use,
                "CFG213",
                f"parameters are offloaded under ZeRO-3 only; this is ZeRO-{use.stage}",
                "zero_optimization",
                "offload_param",
                edits=(drop("zero_optimization", "offload_param"),),
            )
        for what in ("optimizer", "param"):
            section = mapping(use.zero.get(f"offload_{what}"))
            if section.get("device") == "nvme" and not section.get("nvme_path"):
                yield subject.found_in_deepspeed(
                    use,
                    "CFG214",
                    "offload to NVMe without `nvme_path`",
                    "zero_optimization",
                    f"offload_{what}",
                )
    effective = subject.effective_deepspeed
    if effective is None or effective.offload("optimizer") != "cpu":
        return
    if (effective.values or {}).get("zero_force_ds_cpu_optimizer", True) is not False:
        yield subject.found_in_deepspeed(
            effective,
            "CFG211",
            "the optimizer is offloaded to the CPU: DeepSpeed compiles its CPU Adam at start, and it takes"
            f" the place of `optimizer: {shown(subject.settings.get('optimizer', 'adamw_torch_fused'))}`",
            "zero_optimization",
            "offload_optimizer",
        )


RULES = (
    shape, inline_stage, batch_agrees, inline_agrees, precision_agrees, optimizer_agrees, said_twice,
    zero3_init, gathers, offload,
)  # fmt: skip
