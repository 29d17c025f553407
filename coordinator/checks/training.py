"""Adapters, batch, schedule, evaluation and saving: what Axolotl refuses, and what does not do what it says.

Sources: `axolotl/utils/schemas/validation.py` and `peft.py`, PEFT's LoraConfig.
"""

from __future__ import annotations

import math

from coordinator.checks.edits import put
from coordinator.checks.files import nearest
from coordinator.checks.subject import Findings, Subject, items, mapping, number, shown, text, whole

_ADAPTERS = ("lora", "qlora", "llama-adapter")
_LORA_KEYS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear")
_LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")

# Pairs that Axolotl refuses where both are set to something.
_EXCLUSIVE = (
    ("gradient_accumulation_steps", "batch_size"),
    ("warmup_steps", "warmup_ratio"),
    ("saves_per_epoch", "save_steps"),
    ("evals_per_epoch", "eval_steps"),
    ("test_datasets", "val_set_size"),
    ("pretraining_dataset", "val_set_size"),
    ("streaming", "val_set_size"),
    ("noisy_embedding_alpha", "neftune_noise_alpha"),
    ("lr_groups", "loraplus_lr_ratio"),
    ("sample_packing", "rl"),
    ("pretraining_dataset", "include_tokens_per_second"),
    ("do_causal_lm_eval", "eval_sample_packing"),
    ("gptq", "model_revision"),
    ("gptq", "revision_of_model"),
    ("dataset_exact_deduplication", "skip_prepare_dataset"),
    ("dataset_exact_deduplication", "streaming"),
    ("dataset_exact_deduplication", "pretraining_dataset"),
)
# (key, what it needs): Axolotl refuses the one without the other.
_NEEDS = (
    ("pretraining_dataset", "max_steps"),
    ("streaming", "max_steps"),
    ("peft_layers_pattern", "peft_layers_to_transform"),
    ("fp8_config", "fp8"),
    ("activation_offloading", "gradient_checkpointing"),
    ("selective_checkpointing", "gradient_checkpointing"),
    ("torch_compile_options", "torch_compile"),
    ("push_dataset_to_hub", "hf_use_auth_token"),
    ("relora", "jagged_restart_steps"),
)


def exclusive(subject: Subject) -> Findings:
    """CFG505: two keys that exclude each other."""
    for one, other in _EXCLUSIVE:
        if subject.has(one, other):
            yield subject.found("CFG505", f"`{one}` and `{other}` exclude each other", other)


def needs(subject: Subject) -> Findings:
    """CFG506: a key without the one it needs."""
    for key, other in _NEEDS:
        if subject.on(key) and not subject.get(other):
            yield subject.found(
                "CFG506", f"`{key}` needs `{other}`", key, hint=f"set `{other}`, or remove `{key}`"
            )
    if (
        subject.has("batch_size")
        and not subject.get("micro_batch_size")
        and not subject.get("gradient_accumulation_steps")
    ):
        yield subject.found(
            "CFG506",
            "`batch_size` needs `micro_batch_size`",
            "batch_size",
            hint="write `micro_batch_size` and `gradient_accumulation_steps` in its place",
        )


def positive(subject: Subject) -> Findings:
    """CFG502: sizes that must be one at least."""
    for key in (
        "micro_batch_size",
        "gradient_accumulation_steps",
        "sequence_len",
        "lora_r",
        "eval_batch_size",
    ):
        value = whole(subject.get(key))
        counts = key != "lora_r" or bool(subject.get("adapter"))
        if value is not None and value < 1 and counts:
            yield subject.found("CFG502", f"`{key}: {value}` must be 1 or more", key)
    epochs = number(subject.get("num_epochs"))
    if epochs is not None and not epochs > 0 and not subject.get("max_steps"):
        yield subject.found("CFG502", f"`num_epochs: {epochs:g}` must be more than 0", "num_epochs")
    speed = number(subject.get("learning_rate"))
    if speed is not None and not speed > 0:
        yield subject.found(
            "CFG502",
            f"`learning_rate: {speed:g}` must be more than 0",
            "learning_rate",
            severity="warning" if speed == 0 else "error",
        )
    rate = subject.get("learning_rate")
    if isinstance(rate, str) and number(rate) is None:
        yield subject.found(
            "CFG605", f"`learning_rate: {shown(rate)}`: Axolotl wants a number", "learning_rate"
        )


def adapter(subject: Subject) -> Findings:
    """CFG612, CFG615: adapter and quantisation that do not go together."""
    name = subject.get("adapter")
    if not name:
        for key in ("load_in_8bit", "load_in_4bit"):
            if subject.has(key):
                yield subject.found(
                    "CFG612",
                    f"`{key}` without `adapter`: quantised weights cannot be trained themselves",
                    key,
                    hint="write `adapter: qlora` (4-bit) or `adapter: lora` (8-bit)",
                )
        return
    if not subject.get("plugins") and name not in _ADAPTERS:
        near = nearest(text(name), _ADAPTERS, cutoff=0.6)
        yield subject.found(
            "CFG615",
            f"`adapter: {shown(name)}` is none that Axolotl has",
            "adapter",
            hint=f"did you mean `{near}`?" if near else None,
            edits=(put(near, "adapter"),) if near else (),
        )
    if name == "qlora":
        if not subject.get("load_in_4bit"):
            yield subject.found(
                "CFG612",
                "`adapter: qlora` needs `load_in_4bit: true`",
                "adapter",
                hint="write `load_in_4bit: true`",
                edits=(put(True, "load_in_4bit"),),
            )
        for key in ("load_in_8bit", "gptq"):
            if subject.has(key):
                yield subject.found("CFG612", f"`adapter: qlora` takes no `{key}`", key)
    if name == "lora" and subject.has("load_in_8bit"):
        for key in _LORA_KERNELS:
            if subject.has(key):
                yield subject.found("CFG612", f"`{key}` does not work with 8-bit LoRA", key)


def adapter_targets(subject: Subject) -> Findings:
    """CFG611, CFG613, CFG614: LoRA without targets or sizes, or with sizes and no LoRA."""
    name = subject.get("adapter")
    if not name:
        if any(subject.get(key) for key in _LORA_KEYS):
            key = next(key for key in _LORA_KEYS if subject.get(key))
            yield subject.found(
                "CFG613", f"`{key}` is set but `adapter` is not: all weights are trained", key
            )
        return
    if name not in ("lora", "qlora") or subject.get("lora_model_dir"):
        return
    targets = ("lora_target_linear", "lora_target_modules", "lora_target_parameters")
    if not any(subject.get(key) for key in targets) and not subject.get("plugins"):
        yield subject.found("CFG611", f"`adapter: {name}` without anything to adapt", "adapter")
    for key in ("lora_r", "lora_alpha"):
        if subject.get(key) is None:
            yield subject.found(
                "CFG614", f"`adapter: {name}` needs `{key}`", "adapter", hint=f"write `{key}: 16`"
            )


def evaluation(subject: Subject) -> Findings:
    """CFG703: evaluation without data for it, or told twice."""
    validation = number(subject.settings.get("val_set_size"))
    has_data = bool(validation) or bool(subject.get("test_datasets"))
    strategy = subject.get("eval_strategy") or subject.get("evaluation_strategy")
    if strategy is not None and subject.get("eval_steps") and strategy != "steps":
        yield subject.found(
            "CFG703", f"`eval_strategy: {shown(strategy)}` and `eval_steps` do not agree", "eval_strategy"
        )
    if subject.has("evals_per_epoch") and strategy and strategy != "steps":
        yield subject.found(
            "CFG703", f"`evals_per_epoch` takes no `eval_strategy: {shown(strategy)}`", "eval_strategy"
        )
    if not has_data and strategy != "no":
        for key in ("eval_steps", "eval_strategy"):
            if subject.get(key) and validation == 0:
                yield subject.found("CFG703", f"`{key}` is set, and there is nothing to evaluate on", key)
        if subject.has("evals_per_epoch"):
            yield subject.found(
                "CFG703",
                "`evals_per_epoch` is set, and there is nothing to evaluate on: it is not done",
                "evals_per_epoch",
                severity="warning",
            )
    if validation is not None:
        yield from _share(subject, validation)
    if validation is not None and validation < 0:
        yield subject.found("CFG703", f"`val_set_size: {validation:g}` is less than 0", "val_set_size")
    if subject.has("do_bench_eval") and not (subject.get("evals_per_epoch") or subject.get("eval_steps")):
        yield subject.found(
            "CFG506", "`do_bench_eval` needs `evals_per_epoch` or `eval_steps`", "do_bench_eval"
        )


def _share(subject: Subject, validation: float) -> Findings:
    """Axolotl's schema makes a float of it: one of 1 is all rows, and preference training takes no count at all."""
    if not math.isfinite(validation):
        yield subject.found("CFG703", f"`val_set_size: {validation:g}` is no number of rows", "val_set_size")
    elif validation == 1 or (validation > 1 and subject.get("rl")):
        yield subject.found(
            "CFG703",
            f"`val_set_size: {validation:g}` leaves nothing to train on"
            if validation == 1
            else f"`val_set_size: {validation:g}`: `rl: {shown(subject.get('rl'))}` takes a share of the rows only",
            "val_set_size",
            hint="write a share below 1, such as 0.05",
        )
    elif validation > 1 and not validation.is_integer():
        yield subject.found(
            "CFG703",
            f"`val_set_size: {validation:g}` is a count of rows, cut to {int(validation)}",
            "val_set_size",
            hint="write a share below 1, or a whole number",
            severity="warning",
        )


def bounds(subject: Subject) -> Findings:
    """CFG502: figures that torch or the trainer refuse when they begin."""
    dropout = number(subject.get("lora_dropout"))
    if dropout is not None and dropout > 1 and subject.get("adapter"):
        yield subject.found("CFG502", f"`lora_dropout: {dropout:g}` must not be more than 1", "lora_dropout")
    warmup = number(subject.get("warmup_steps"))
    if warmup is not None and warmup < 0:
        yield subject.found("CFG502", f"`warmup_steps: {warmup:g}` must be 0 or more", "warmup_steps")
    if subject.get("dataloader_prefetch_factor") is not None and not subject.get("dataloader_num_workers"):
        yield subject.found(
            "CFG506",
            "`dataloader_prefetch_factor` needs `dataloader_num_workers`",
            "dataloader_prefetch_factor",
            hint="set `dataloader_num_workers`, or remove it",
        )


def saving(subject: Subject) -> Findings:
    """CFG507: when to save, told twice and differently."""
    strategy = subject.get("save_strategy")
    if strategy and subject.get("save_steps") and strategy != "steps":
        yield subject.found(
            "CFG507", f"`save_strategy: {shown(strategy)}` and `save_steps` do not agree", "save_steps"
        )
    if strategy == "best" and not subject.get("metric_for_best_model"):
        yield subject.found("CFG507", "`save_strategy: best` needs `metric_for_best_model`", "save_strategy")
    patience = subject.get("early_stopping_patience")
    if patience:
        save, evaluate = number(subject.get("save_steps")), number(subject.get("eval_steps"))
        if not save or not evaluate or save % evaluate:
            yield subject.found(
                "CFG507",
                "`early_stopping_patience` needs `save_steps` and `eval_steps`, the first a multiple of the second",
                "early_stopping_patience",
            )


def reinforcement(subject: Subject) -> Findings:
    """CFG508: preference and reinforcement training."""
    kind = subject.get("rl")
    if kind == "kto" and subject.get("remove_unused_columns") is not False:
        yield subject.found(
            "CFG508", "`rl: kto` needs `remove_unused_columns: false`", "rl",
            hint="write `remove_unused_columns: false`", edits=(put(False, "remove_unused_columns"),),
        )  # fmt: skip
    if kind != "dpo":
        for key in ("dpo_loss_type", "dpo_loss_weights"):
            if subject.get(key) is not None:
                yield subject.found("CFG508", f"`{key}` is for `rl: dpo` only", key)
    elif subject.get("dpo_loss_weights") is not None:
        losses, weights = items(subject.get("dpo_loss_type")), items(subject.get("dpo_loss_weights"))
        if len(losses) != len(weights):
            yield subject.found(
                "CFG508", "`dpo_loss_type` and `dpo_loss_weights` must be equally long", "dpo_loss_weights"
            )
    if kind == "simpo" and subject.has("warmup_ratio"):
        yield subject.found("CFG508", "`rl: simpo` takes `warmup_steps`, not `warmup_ratio`", "warmup_ratio")
    if kind == "ebft" and not subject.get("ebft"):
        yield subject.found("CFG508", "`rl: ebft` needs an `ebft` section", "rl")
    if kind == "grpo":
        yield from _grpo(subject)


def _grpo(subject: Subject) -> Findings:
    trl = mapping(subject.get("trl"))
    generations = whole(trl.get("num_generations"))
    if generations is None:
        return
    if generations < 2:
        yield subject.found("CFG508", "`rl: grpo` needs two generations at least", "trl", "num_generations")
        return
    given = whole(trl.get("generation_batch_size"))
    micro = whole(subject.settings.get("micro_batch_size")) or 1
    steps = whole(subject.settings.get("gradient_accumulation_steps")) or 1
    batch = given if given is not None else micro * steps
    if batch % generations:
        yield subject.found(
            "CFG508", f"a generation batch of {batch} is no multiple of {generations} generations", "trl",
            "num_generations",
        )  # fmt: skip
    elif subject.world and subject.world > 1 and batch < generations * subject.world:
        yield subject.found(
            "CFG508",
            f"a generation batch of {batch} is less than {generations} generations × {subject.world} processes",
            "trl",
            "num_generations",
            severity="warning",
        )


RULES = (exclusive, needs, positive, adapter, adapter_targets, evaluation, bounds, saving, reinforcement)
