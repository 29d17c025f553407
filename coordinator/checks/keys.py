"""Keys of the Axolotl config: known, misspelt, renamed, dropped, of a plugin; and values of the wrong type.

Axolotl drops an unknown key without a word and trains with the default, so a misspelt one is an error. The
authority is Axolotl's own schema, shipped as data (`axolotl_keys.json`, made by `make_axolotl_keys.py`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files as package_files

from coordinator.checks.edits import Edit, drop, put, rename
from coordinator.checks.files import nearest
from coordinator.checks.subject import Findings, Subject, items, mapping, shown
from coordinator.checks.values import Kind, Misfit, misfit
from coordinator.core.protocol import Finding, Severity

# More unknown keys than this are not typing errors but another kind of file; the rest is only counted.
MOST_UNKNOWN = 20
# Shorter, or less alike, and the nearest key is a guess: a warning then.
NEAR = 0.8


@dataclass(frozen=True)
class KeyTable:
    """What one version of Axolotl knows. `plugins`: the keys each of its own plugins adds."""

    axolotl: str
    required: tuple[str, ...]
    keys: Mapping[str, Kind]
    models: Mapping[str, Mapping[str, Kind]]
    plugins: Mapping[str, Mapping[str, Kind]]


@functools.cache
def key_table() -> KeyTable:
    """The shipped table, read once."""
    made = json.loads((package_files("coordinator.checks") / "axolotl_keys.json").read_text("utf-8"))
    return KeyTable(made["axolotl"], tuple(made["required"]), made["keys"], made["models"], made["plugins"])


# Names that other trainers (Hugging Face, TRL, LLaMA-Factory, Unsloth) have for what Axolotl has too.
_FOREIGN: Mapping[str, str] = {
    "per_device_train_batch_size": "micro_batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "train_batch_size": "micro_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "num_train_epochs": "num_epochs",
    "epochs": "num_epochs",
    "max_epochs": "num_epochs",
    "max_seq_length": "sequence_len",
    "max_length": "sequence_len",
    "seq_len": "sequence_len",
    "seq_length": "sequence_len",
    "cutoff_len": "sequence_len",
    "model_name_or_path": "base_model",
    "model_name": "base_model",
    "model": "base_model",
    "lr": "learning_rate",
    "optim": "optimizer",
    "scheduler": "lr_scheduler",
    "lr_scheduler_type": "lr_scheduler",
    "lora_rank": "lora_r",
    "target_modules": "lora_target_modules",
    "lora_targets": "lora_target_modules",
    "finetuning_type": "adapter",
    "quantization_bit": "load_in_4bit",
    "packing": "sample_packing",
    "dataset": "datasets",
    "validation_split": "val_set_size",
    "deepspeed_config": "deepspeed",
    "fsdp_transformer_layer_cls_to_wrap": "fsdp_config",
    "attention": "attn_implementation",
    "attention_implementation": "attn_implementation",
    "clip_grad": "max_grad_norm",
    "gradient_clipping": "max_grad_norm",
    "output": "output_dir",
    "epoch": "num_epochs",
    "mixed_precision": "bf16",
}

# Still there, still working, under another name now.
_RENAMED: Mapping[str, str] = {
    "noisy_embedding_alpha": "neftune_noise_alpha",
    "dpo_beta": "rl_beta",
    "evaluation_strategy": "eval_strategy",
    "eval_table_size": "generate_samples",
    "eval_max_new_tokens": "generation_max_new_tokens",
    "dataset_processes": "dataset_num_proc",
    "sequence_parallel_degree": "context_parallel_size",
    "pretrain_multipack_buffer_size": "streaming_multipack_buffer_size",
    "flash_attention": "attn_implementation: flash_attention_2",
    "sdp_attention": "attn_implementation: sdpa",
    "xformers_attention": "attn_implementation: xformers",
    "flex_attention": "attn_implementation: flex_attention",
    "sage_attention": "attn_implementation: sage",
    "eager_attention": "attn_implementation: eager",
}

# Axolotl refuses these where they are set to something (deprecated.py and validation.py of its schemas).
_DROPPED: Mapping[str, str] = {
    "max_packed_sequence_len": "write `sample_packing: true` and `sequence_len`",
    "rope_scaling": "write it under `overrides_of_model_config: {rope_scaling: …}`",
    "s2_attention": "remove it: shifted-sparse attention is gone",
    "flash_attn_rms_norm": "remove it",
    "unsloth_cross_entropy_loss": "use `plugins` with Axolotl's CutCrossEntropyPlugin",
    "unsloth_lora_mlp": "write `lora_mlp_kernel: true`",
    "unsloth_lora_qkv": "write `lora_qkv_kernel: true`",
    "unsloth_lora_o": "write `lora_o_kernel: true`",
    "unsloth_rms_norm": "remove it",
    "unsloth_rope": "remove it",
}
# These even where they are set to false.
_DROPPED_WHATEVER: Mapping[str, str] = {
    "dpo_use_logits_to_keep": "remove it: TRL has dropped it",
    "dpo_generate_during_eval": "remove it: TRL has dropped it",
    "dpo_norm_loss": "remove it: TRL has dropped it",
    "rpo_alpha": "remove it: TRL has dropped it",
}

# Settings of FSDP 1 that Axolotl's examples still carry, with the value that changes nothing.
_RETIRED: Mapping[str, object] = {
    "fsdp_limit_all_gathers": True,
    "limit_all_gathers": True,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "sharding_strategy": "FULL_SHARD",
    "fsdp_forward_prefetch": False,
    "forward_prefetch": False,
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "backward_prefetch": "BACKWARD_PRE",
}

# `utils/config/__init__.py`: which schema reads a dataset; supervised training's reads all others.
_DATASET_OF_RL: Mapping[str, str] = {
    "dpo": "#DPODataset", "ipo": "#DPODataset", "simpo": "#DPODataset", "kto": "#KTODataset",
}  # fmt: skip

# The Norway problem of YAML 1.1.
_WORDS_READ_AS = {True: "yes, on and true", False: "no, off and false"}

# Sections whose keys are looked at too; the rest are handed on by Axolotl as they are.
_LISTS_OF_DATASETS = ("datasets", "test_datasets", "pretraining_dataset")


def unknown_keys(subject: Subject) -> Findings:
    """CFG601, CFG602, CFG607: keys that Axolotl does not know."""
    table = key_table()
    plugins = [str(name) for name in items(subject.get("plugins"))]
    known = set(table.keys)
    for plugin in plugins:
        known |= set(table.plugins.get(plugin, ()))
    strangers = any(plugin not in table.plugins for plugin in plugins)
    unknown = [key for key in subject.settings if key not in known and key not in _all_dropped()]
    for key in unknown[:MOST_UNKNOWN]:
        owner = next((name for name, keys in table.plugins.items() if key in keys), None)
        if owner is not None:
            yield subject.found(
                "CFG607",
                f"`{key}` is a key of {owner.rpartition('.')[2]}, which is not among `plugins`: Axolotl drops it",
                key,
                hint=f"add `{owner}` to `plugins`, or remove `{key}`",
                edits=(Edit("append", ("plugins",), owner),),
            )
            continue
        yield _unknown(subject, (key,), subject.get(key), known, strangers=strangers)
    if len(unknown) > MOST_UNKNOWN:
        yield subject.found(
            "CFG602", f"{len(unknown) - MOST_UNKNOWN} more keys are unknown: is this an Axolotl config?"
        )


def unknown_nested_keys(subject: Subject) -> Findings:
    """CFG601, CFG602: unknown keys inside the sections that Axolotl's schema describes."""
    left = MOST_UNKNOWN
    for path, value, known in _sections(subject):
        for key in mapping(value):
            if str(key) in known or left == 0:
                continue
            left -= 1
            yield _unknown(subject, (*path, str(key)), mapping(value)[key], known, strangers=False)


def _unknown(
    subject: Subject, path: tuple[str, ...], value: object, known: Iterable[str], *, strangers: bool
) -> Finding:
    key = path[-1]
    foreign = _FOREIGN.get(key.lower()) if len(path) == 1 else None
    near = foreign or nearest(key, known, cutoff=NEAR)
    severity: Severity
    if near is None or key in _RETIRED:
        severity = "note" if value is None or _RETIRED.get(key) == value else "warning"
        return subject.found(
            "CFG602", f"Axolotl does not know the key `{shown(key)}` and drops it", *path, severity=severity
        )
    severity = "warning" if value is None or strangers else "error"
    return subject.found(
        "CFG601",
        f"Axolotl does not know the key `{shown(key)}`: it drops it without a word",
        *path,
        hint=f"did you mean `{near}`?",
        severity=severity,
        edits=(rename(near, *path),),
    )


def _sections(subject: Subject) -> Iterator[tuple[tuple[str, ...], object, frozenset[str]]]:
    table = key_table()
    for key in _LISTS_OF_DATASETS:
        known = _known_in(key)
        for index, item in enumerate(items(subject.get(key))):
            yield (key, str(index)), item, known
    for key in subject.settings:
        if key not in _LISTS_OF_DATASETS and key in table.keys and _known_in(key):
            yield (key,), subject.get(key), _known_in(key)


@functools.cache
def _known_in(key: str) -> frozenset[str]:
    """Keys of every model that may stand at `key`; empty where any key may."""
    table = key_table()
    names: set[str] = set()

    def gather(kind: Kind) -> bool:
        if isinstance(kind, str):
            if kind.startswith("#"):
                names.update(table.models[kind[1:]])
            return kind != "any"
        assert isinstance(kind, list)
        return kind[0] != "{}" and all(gather(part) for part in kind[1:] if isinstance(part, str | list))

    closed = gather(table.keys[key])
    if key == "fsdp_config":
        names |= {f"fsdp_{name}" for name in names}  # the old spelling, which Axolotl still strips
    return frozenset(names) if closed and "*" not in names else frozenset()


def _all_dropped() -> frozenset[str]:
    return frozenset(_DROPPED) | frozenset(_DROPPED_WHATEVER)


def dropped_keys(subject: Subject) -> Findings:
    """CFG603: keys that Axolotl has removed and refuses."""
    for key, advice in _DROPPED.items():
        if subject.on(key):
            yield subject.found("CFG603", f"`{key}` has been removed from Axolotl", key, hint=advice)
    for key, advice in _DROPPED_WHATEVER.items():
        if subject.get(key) is not None:
            yield subject.found("CFG603", f"`{key}` has been removed from Axolotl", key, hint=advice)


def renamed_keys(subject: Subject) -> Findings:
    """CFG604: old names that still work."""
    for key, name in _RENAMED.items():
        if subject.has(key):
            new, _, value = name.partition(": ")
            taken = subject.get(new) is not None
            edits = (drop(key), put(value, new)) if value else (rename(new, key),)
            yield subject.found(
                "CFG604", f"`{key}` is an old name", key, hint=f"write `{name}`", edits=() if taken else edits
            )


def wrong_types(subject: Subject) -> Findings:
    """CFG605, CFG608: values that Axolotl's schema cannot take."""
    table = key_table()
    for key, value in subject.settings.items():
        kind = table.keys.get(key)
        wrong = misfit(kind, value, table.models) if kind is not None else None
        if wrong is None and key == "datasets":
            wrong = _misfit_of_a_dataset(subject)
        if wrong is not None:
            yield _misfit(subject, key, wrong)


def _misfit_of_a_dataset(subject: Subject) -> Misfit | None:
    """Axolotl reads each as the one kind that its `rl` and `type` stand for, once any kind has taken it."""
    table = key_table()
    for index, item in enumerate(items(subject.get("datasets"))):
        kind: str = _DATASET_OF_RL.get(str(subject.get("rl")), "#SFTDataset")
        if kind == "#SFTDataset" and mapping(item).get("type") == "_synthetic":
            kind = "#SyntheticDataset"
        wrong = misfit(kind, item, table.models)
        if wrong is not None and not _taken_out(wrong):
            return Misfit((str(index), *wrong.path), wrong.value, wrong.expected, wrong.choices)
    return None


def _taken_out(wrong: Misfit) -> bool:
    """Validators of the dataset's own take these out where they are set to nothing."""
    if wrong.path == ("chat_template",):
        return wrong.value is False
    return wrong.path in (("message_field_role",), ("message_field_content",)) and not wrong.value


def _misfit(subject: Subject, key: str, wrong: Misfit) -> Finding:
    path = (key, *wrong.path)
    written = f"`{'.'.join(path)}: {shown(wrong.value)}`"
    if wrong.value is None and not wrong.path:
        return subject.found(
            "CFG605",
            f"`{key}` has no value, and Axolotl takes none",
            key,
            hint=f"give {wrong.expected}, or remove it",
        )
    near = nearest(wrong.value, wrong.choices) if isinstance(wrong.value, str) else None
    if isinstance(wrong.value, bool) and (wrong.choices or wrong.expected == "text"):
        hint = (
            f"YAML reads {_WORDS_READ_AS[wrong.value]} without quotes as {shown(wrong.value)}: quote the word"
        )
        code = "CFG608" if wrong.choices else "CFG605"
        return subject.found(code, f"{written}: Axolotl wants {wrong.expected}", *path, hint=hint)
    if wrong.choices:
        hint = f"did you mean `{near}`?" if near else f"write {wrong.expected}"
        edits = (put(near, *path),) if near else ()
        return subject.found(
            "CFG608", f"{written}: Axolotl does not know this value", *path, hint=hint, edits=edits
        )
    quotes = "write the key in quotes" if wrong.expected.startswith("a key that is") else None
    return subject.found("CFG605", f"{written}: Axolotl wants {wrong.expected}", *path, hint=quotes)


def required_keys(subject: Subject) -> Findings:
    """CFG606: what no Axolotl config can do without."""
    for key in key_table().required:
        if key not in subject.settings:
            yield subject.found("CFG606", f"`{key}` is missing", hint=f"write `{key}: …`")
    if subject.get("datasets") is None and subject.get("pretraining_dataset") is None:
        yield subject.found("CFG606", "neither `datasets` nor `pretraining_dataset` is given")


RULES = (required_keys, unknown_keys, unknown_nested_keys, dropped_keys, renamed_keys, wrong_types)
