"""What a config expects around it: folders, other machines' disks, hubs, accounts, GPUs of equal number."""

from __future__ import annotations

import posixpath
import re

from coordinator.checks.subject import Findings, Subject, items, mapping, number, shown, text, whole
from coordinator.core.words import counted

# Organisations whose models ask for an accepted licence and a token.
_GATED = ("meta-llama/", "google/gemma", "mistralai/", "CohereForAI/", "CohereLabs/", "bigcode/starcoder")
_PATH_KEYS = (
    "base_model",
    "base_model_config",
    "output_dir",
    "tokenizer_config",
    "dataset_prepared_path",
    "lora_model_dir",
    "resume_from_checkpoint",
)
_SECRETS = re.compile(r"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|ghp_[A-Za-z0-9]{30,})\b")
# A rank that tokenises or saves makes the others wait; less than this cuts ordinary waits off.
SHORTEST_DDP_TIMEOUT_S = 120


def _several(subject: Subject) -> bool:
    return (subject.nodes or 1) > 1


def absolute_paths(subject: Subject) -> Findings:
    """CFG024, CFG025: paths that the replicas may not have, or may not use."""
    named: list[tuple[tuple[str, ...], str]] = [((key,), text(subject.get(key))) for key in _PATH_KEYS]
    for section in ("datasets", "test_datasets", "pretraining_dataset"):
        for index, item in enumerate(items(subject.get(section))):
            named.append(((section, str(index), "path"), text(mapping(item).get("path"))))
            files = mapping(item).get("data_files")
            for file in files if isinstance(files, list) else [files]:
                named.append(((section, str(index), "data_files"), text(file)))
    for keys, path in named:
        if path.startswith(("/", "~")) and subject.data_roots and not _under(path, subject.data_roots):
            yield subject.found(
                "CFG024",
                f"{shown(path)} is not under a folder that the replicas allow ({', '.join(subject.data_roots)})",
                *keys,
            )
        elif posixpath.normpath(path).startswith("../"):
            yield subject.found(
                "CFG025",
                f"{shown(path)} lies outside the config's folder and does not travel with it",
                *keys,
                severity="error" if subject.complete else "warning",
            )


def _under(path: str, roots: tuple[str, ...]) -> bool:
    normal = posixpath.normpath(path)
    return any(
        normal == root or normal.startswith(root.rstrip("/") + "/") for root in map(posixpath.normpath, roots)
    )


def output(subject: Subject) -> Findings:
    """CFG803: an output folder outside the job's own."""
    path = text(subject.get("output_dir"))
    if path.startswith("/") or posixpath.normpath(path).startswith(".."):
        yield subject.found(
            "CFG803",
            f"`output_dir: {shown(path)}` lies outside the job's folder",
            "output_dir",
            severity="note",
        )


def resume(subject: Subject) -> Findings:
    """CFG801: a checkpoint that only one machine has."""
    if not _several(subject):
        return
    path = subject.get("resume_from_checkpoint")
    if path:
        yield subject.found(
            "CFG801",
            f"`resume_from_checkpoint: {shown(path)}` must be on every machine",
            "resume_from_checkpoint",
            severity="warning" if text(path).startswith("/") else "error",
        )
    if subject.has("auto_resume_from_checkpoints"):
        yield subject.found(
            "CFG801",
            "`auto_resume_from_checkpoints` resumes only where the checkpoint lies: on rank 0 without a shared disk",
            "auto_resume_from_checkpoints",
            severity="warning",
        )


def accounts(subject: Subject) -> Findings:
    """CFG804, CFG805, CFG806: hubs and trackers that want a token."""
    model = text(subject.get("base_model"))
    if model.startswith(_GATED):
        yield subject.found(
            "CFG804", f"{shown(model)} is gated: HF_TOKEN must be set on the replicas", "base_model"
        )
    if subject.has("wandb_project") and subject.get("wandb_mode") not in ("offline", "disabled"):
        yield subject.found("CFG805", "Weights & Biases needs WANDB_API_KEY on the replicas", "wandb_project")
    if subject.has("hub_model_id"):
        yield subject.found(
            "CFG806",
            f"pushing to {shown(subject.get('hub_model_id'))} needs HF_TOKEN on the replicas",
            "hub_model_id",
        )


def secrets(subject: Subject) -> Findings:
    """CFG813: a key or token written into the config."""
    for key, value in subject.settings.items():
        if (key == "comet_api_key" and value) or (isinstance(value, str) and _SECRETS.search(value)):
            yield subject.found(
                "CFG813", f"`{shown(key)}` holds a secret, which travels and is logged with the config", key
            )


def other_launchers(subject: Subject) -> Findings:
    """CFG808: Ray starts its own processes."""
    if subject.has("use_ray"):
        yield subject.found(
            "CFG808", "`use_ray: true` starts the processes itself, beside rankcall", "use_ray"
        )


def timeout(subject: Subject) -> Findings:
    """CFG809: a collective's deadline shorter than ordinary waits."""
    value = number(subject.get("ddp_timeout"))
    if value is not None and 0 <= value < SHORTEST_DDP_TIMEOUT_S:
        yield subject.found(
            "CFG809", f"`ddp_timeout: {value:g}` seconds is shorter than a save may take", "ddp_timeout"
        )


def parallel_sizes(subject: Subject) -> Findings:
    """CFG811: parallel sizes that do not divide the processes."""
    if subject.world is None:
        return
    product = 1
    for key in (
        "tensor_parallel_size",
        "context_parallel_size",
        "sequence_parallel_degree",
        "dp_replicate_size",
    ):
        size = whole(subject.get(key))
        if (
            size is None
            or size < 2
            or (key == "sequence_parallel_degree" and subject.get("context_parallel_size"))
        ):
            continue
        product *= size
        if subject.world % product:
            yield subject.found(
                "CFG811", f"`{key}: {size}` does not divide {counted(subject.world, 'process')}", key
            )
            return


def unequal_gpus(subject: Subject) -> Findings:
    """CFG810: replicas with different numbers of GPUs, or fewer than asked for."""
    counts = sorted(len(facts.gpus) for facts in subject.facts)
    asked = subject.asked_gpus_per_node
    if not counts:
        return
    if asked is None and counts[0] != counts[-1]:
        alike = max(counts.count(count) for count in counts)
        yield subject.found(
            "CFG810",
            f"the replicas have {', '.join(map(str, sorted(set(counts))))} GPUs, and every machine must start equally"
            " many processes",
            hint=f"ask for `--gpus-per-node {max(1, counts[0])}`",
            severity="warning" if subject.nodes is None or alike >= subject.nodes else "error",
        )
    elif asked and counts[-1] < asked:
        yield subject.found(
            "CFG810",
            f"{counted(asked, 'GPU')} per node asked for, but no replica has more than {counts[-1]}",
        )


RULES = (
    absolute_paths, output, resume, accounts, secrets, other_launchers, timeout, parallel_sizes, unequal_gpus,
)  # fmt: skip
