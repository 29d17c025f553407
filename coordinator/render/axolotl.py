"""Axolotl's YAML: the user's config with rankcall's plugins, the same DeepSpeed file as accelerate's, and on
CPU replicas without what only a GPU can do. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.render.model import AXOLOTL_FILE, Reason, Topology
from coordinator.render.submitted import mapping

PROGRESS_PLUGIN = "agent.plugin.ProgressPlugin"
CPU_PLUGIN = "agent.cpu_plugin.CpuPlugin"

# Axolotl's own defaults (axolotl/utils/schemas/config.py, axolotl/common/const.py), written down so that
# prepare, train and collect mean the same folders.
DEFAULT_OUTPUT = "./model-out"
DEFAULT_PREPARED = "last_run_prepared"

_PRECISION = ("bf16", "fp16", "tf32")
# Written down for a LoRA even where the user has not: Axolotl turns them on by itself.
_LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
_GPU_ATTENTION = ("flash_attention", "xformers_attention", "sage_attention")
# bitsandbytes' optimizers and their like have GPU code only.
_GPU_OPTIMIZERS = ("8bit", "4bit", "bnb", "paged", "fp8", "apex", "fused")


def axolotl_values(
    config: Mapping[str, object], topology: Topology, *, deepspeed_path: str | None
) -> tuple[dict[str, object], tuple[Reason, ...]]:
    """What Axolotl gets instead of `config`, and why. The same for all ranks."""
    values = dict(config)
    reasons: list[Reason] = []

    def change(key: str, value: object, why: str) -> None:
        if values.get(key) == value and key in values:
            return
        values[key] = value
        reasons.append(Reason(AXOLOTL_FILE, key, str(value), why))

    if not values.get("output_dir"):
        change("output_dir", DEFAULT_OUTPUT, "Axolotl's default, written down")
    if not values.get("dataset_prepared_path"):
        change(
            "dataset_prepared_path", DEFAULT_PREPARED, "where the prepare stage leaves what training reads"
        )
    if deepspeed_path is not None:
        change(
            "deepspeed", deepspeed_path, "the same file as accelerate's: Axolotl chooses how it saves by it"
        )
    else:
        values.pop("deepspeed", None)
    if topology.nodes > 1 and values.get("save_total_limit") == 1:
        change(
            "save_total_limit",
            2,
            "replicas end a save at different times: the one before must still be there",
        )
    plugins = _plugins(values.get("plugins"), topology)
    change("plugins", plugins, "progress is reported from inside the training")
    if topology.on_cpu:
        for key in _PRECISION:
            change(key, False, "the CPU trains in float32")
        for key in _LORA_KERNELS if values.get("adapter") else ():
            change(key, False, "Axolotl turns its GPU kernels on by itself otherwise")
        for key in _GPU_ATTENTION:
            if values.get(key):
                change(key, False, "it needs a GPU")
        if str(values.get("attn_implementation") or "").startswith("flash"):
            change("attn_implementation", "sdpa", "flash attention needs a GPU")
        optimizer = str(values.get("optimizer") or "")
        if any(part in optimizer for part in _GPU_OPTIMIZERS):
            change("optimizer", "adamw_torch", f"{optimizer} needs a GPU")
    return values, tuple(reasons)


def _plugins(written: object, topology: Topology) -> list[str]:
    own = [PROGRESS_PLUGIN, *([CPU_PLUGIN] if topology.on_cpu else [])]
    users = [written] if isinstance(written, str) else list(written) if isinstance(written, list) else []
    return [*(str(plugin) for plugin in users if plugin not in own), *own]


def resumed(
    values: Mapping[str, object], checkpoint: str | None
) -> tuple[dict[str, object], tuple[Reason, ...]]:
    """The same for an attempt that is not the first: all ranks go on from one checkpoint, whatever lies on their disks.

    Left to itself each rank would take the newest on its own disk (`auto_resume_from_checkpoints`), whole or not.
    """
    changed, reasons = dict(values), []
    if values.get("auto_resume_from_checkpoints"):
        changed["auto_resume_from_checkpoints"] = False
        why = "each rank would take the newest on its own disk"
        reasons.append(Reason(AXOLOTL_FILE, "auto_resume_from_checkpoints", "False", why))
    if checkpoint is not None:
        path = f"{output_dir(values).rstrip('/')}/{checkpoint}"
        changed["resume_from_checkpoint"] = path
        why = "the newest checkpoint that is whole on every replica"
        reasons.append(Reason(AXOLOTL_FILE, "resume_from_checkpoint", path, why))
    return changed, tuple(reasons)


def output_dir(values: Mapping[str, object]) -> str:
    return str(values.get("output_dir") or DEFAULT_OUTPUT)


def compare_values(values: Mapping[str, object], prompts: tuple[str, ...]) -> dict[str, object]:
    """The spec of `agent/compare.py`: prompts are laid out as the training data lays them out."""
    style, template = _prompt_style(values)
    return {
        "base_model": str(values.get("base_model") or ""),
        "output_dir": output_dir(values),
        "adapter": bool(values.get("adapter")),
        "prompts": list(prompts),
        "style": style,
        "template": template,
        "max_new_tokens": 128,
        "trust_remote_code": bool(values.get("trust_remote_code")),
    }


def _prompt_style(values: Mapping[str, object]) -> tuple[str, str]:
    datasets = values.get("datasets")
    first = mapping(datasets[0]) if isinstance(datasets, list) and datasets else {}
    kind = first.get("type")
    if isinstance(kind, Mapping):
        layout = mapping(kind)
        template = str(layout.get("no_input_format") or layout.get("format") or "{instruction}")
        return "template", template.replace("{input}", "")
    name = str(kind or "")
    if name == "chat_template" or values.get("chat_template"):
        return "chat", "{instruction}"
    return ("alpaca" if name.split(".", maxsplit=1)[0] == "alpaca" else "raw"), "{instruction}"
