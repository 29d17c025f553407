"""Keys and values of an accelerate file, as accelerate 1.x itself reads them.

accelerate's launcher accepts nearly every fault; the errors come from the workers half a minute later, or
never. Sources: `accelerate/commands/config/config_args.py` (ClusterConfig: an unknown key is refused),
`commands/launch.py` (sub-keys become arguments of the launcher, unchecked), `utils/dataclasses.py`.
"""

from __future__ import annotations

from coordinator.checks.edits import Edit, drop, put, rename
from coordinator.checks.files import nearest
from coordinator.checks.subject import Findings, Subject, mapping, shown, text
from coordinator.core.protocol import Severity

# ClusterConfig of accelerate 1.13.0, and the two old keys that it still converts.
KEYS = frozenset(
    """
    compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank
    num_machines gpu_ids main_process_ip main_process_port rdzv_backend same_network
    main_training_function enable_cpu_affinity fp8_config deepspeed_config fsdp_config parallelism_config
    megatron_lm_config mpirun_config downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo
    command_file commands tpu_vm tpu_env dynamo_config fp16 dynamo_backend
    """.split()  # noqa: SIM905 - a table, not a list of thirty lines
)
DEEPSPEED_KEYS = frozenset(
    """
    deepspeed_config_file deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
    deepspeed_multinode_launcher deepspeed_moe_layer_cls_names zero_stage offload_optimizer_device
    offload_param_device offload_optimizer_nvme_path offload_param_nvme_path gradient_accumulation_steps
    gradient_clipping zero3_init_flag zero3_save_16bit_model
    """.split()  # noqa: SIM905 - a table, not a list of thirty lines
)
# Written with or without the prefix `fsdp_`.
FSDP_KEYS = frozenset(
    """
    version offload_params min_num_params sharding_strategy reshard_after_forward auto_wrap_policy
    transformer_layer_cls_to_wrap backward_prefetch backward_prefetch_policy state_dict_type
    forward_prefetch use_orig_params cpu_ram_efficient_loading sync_module_states
    activation_checkpointing ignored_modules
    """.split()  # noqa: SIM905 - a table, not a list of thirty lines
)
# `DeepSpeedPlugin._deepspeed_config_checks`: each of these beside `deepspeed_config_file` ends every worker.
COLLIDING = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    "mixed_precision",
)
DISTRIBUTED_TYPES = (
    "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU",
    "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM", "MULTI_HPU", "MULTI_NEURON",
)  # fmt: skip
MIXED_PRECISIONS = ("no", "fp16", "bf16", "fp8")
# What a key takes, in any case of letters.
CHOICES = {
    ("dynamo_config", "dynamo_backend"): (
        "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT",
        "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM", "HPU_BACKEND",
    ),
    ("dynamo_config", "dynamo_mode"): ("default", "reduce-overhead", "max-autotune"),
    ("deepspeed_config", "offload_optimizer_device"): ("none", "cpu", "nvme"),
    ("deepspeed_config", "offload_param_device"): ("none", "cpu", "nvme"),
    ("fsdp_config", "fsdp_auto_wrap_policy"): ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    ("fsdp_config", "fsdp_sharding_strategy"): (
        "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2",
    ),
    ("fsdp_config", "fsdp_backward_prefetch"): ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    ("fsdp_config", "fsdp_state_dict_type"): ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
}  # fmt: skip
_WRITTEN_AS_TEXT = ("mixed_precision", "distributed_type", "downcast_bf16", "compute_environment")


def unknown_keys(subject: Subject) -> Findings:
    """CFG103, CFG104: keys that accelerate refuses, and children that have lost their indentation."""
    if subject.accelerate is None:
        return
    values = subject.accelerate.values
    for key in values:
        if key in KEYS:
            continue
        section = _section_of(key)
        if section is not None:
            yield subject.found_in_accelerate(
                "CFG104",
                f"`{key}` belongs under `{section}` and stands at the top level",
                key,
                hint=f"indent it by two spaces under `{section}:`",
                edits=(Edit("indent", (key,), section),),
            )
            continue
        near = nearest(key, KEYS, cutoff=0.6)
        yield subject.found_in_accelerate(
            "CFG103",
            f"accelerate does not know the key `{shown(key)}`",
            key,
            hint=f"did you mean `{near}`?" if near else "remove it",
            edits=(rename(near, key),) if near else (),
        )


def _section_of(key: str) -> str | None:
    if key in DEEPSPEED_KEYS:
        return "deepspeed_config"
    if key.startswith("fsdp_") and key.removeprefix("fsdp_") in FSDP_KEYS:
        return "fsdp_config"
    return None


def unknown_sub_keys(subject: Subject) -> Findings:
    """CFG113: accelerate looks at no key below `deepspeed_config` and `fsdp_config`; a wrong one does nothing."""
    if subject.accelerate is None:
        return
    for section, known in (("deepspeed_config", DEEPSPEED_KEYS), ("fsdp_config", FSDP_KEYS)):
        for key in mapping(subject.accelerate.values.get(section)):
            plain = str(key).removeprefix("fsdp_") if section == "fsdp_config" else str(key)
            if plain in known:
                continue
            near = nearest(plain, known)
            severity: Severity = "error" if near else "warning"
            prefix = "fsdp_" if section == "fsdp_config" else ""
            yield subject.found_in_accelerate(
                "CFG113",
                f"accelerate does not know `{shown(str(key))}` and takes no notice of it",
                section,
                str(key),
                hint=f"did you mean `{prefix}{near}`?" if near else "remove it",
                severity=severity,
                edits=(rename(prefix + near, section, str(key)),) if near else (),
            )


def collisions(subject: Subject) -> Findings:
    """CFG102: what may not stand beside `deepspeed_config_file`; each ends every worker."""
    if subject.accelerate is None or subject.accelerate.values.get("distributed_type") != "DEEPSPEED":
        return
    section = mapping(subject.accelerate.values.get("deepspeed_config"))
    if not section.get("deepspeed_config_file"):
        return
    for key in COLLIDING:
        top = key == "mixed_precision"
        if subject.accelerate.values.get(key) is None if top else key not in section:
            continue
        path = (key,) if top else ("deepspeed_config", key)
        yield subject.found_in_accelerate(
            "CFG102",
            f"`{key}` may not stand beside `deepspeed_config_file`: every worker ends with a ValueError",
            *path,
            hint=f"remove it; it belongs {_place_of(key)}",
            edits=(drop(*path),),
        )


def _place_of(key: str) -> str:
    if key == "mixed_precision":
        return "in the Axolotl config (bf16, fp16)"
    if key == "gradient_accumulation_steps":
        return 'in the Axolotl config, and reads "auto" in the DeepSpeed JSON'
    if key == "gradient_clipping":
        return 'in the Axolotl config (max_grad_norm), and reads "auto" in the DeepSpeed JSON'
    return "in the DeepSpeed JSON"


def distributed_type(subject: Subject) -> Findings:
    """CFG105: without a distributed type that it knows, accelerate does not start."""
    if subject.accelerate is None:
        return
    kind = subject.accelerate.values.get("distributed_type")
    if isinstance(kind, bool):
        return  # CFG011 says it
    if kind is None:
        yield subject.found_in_accelerate(
            "CFG105", "`distributed_type` is missing: accelerate does not start"
        )
    elif kind not in DISTRIBUTED_TYPES:
        near = nearest(str(kind), DISTRIBUTED_TYPES, cutoff=0.6)
        yield subject.found_in_accelerate(
            "CFG105",
            f"`distributed_type: {shown(kind)}` is none that accelerate knows",
            "distributed_type",
            hint=f"did you mean `{near}`?" if near else None,
            edits=(put(near, "distributed_type"),) if near else (),
        )


def mixed_precision(subject: Subject) -> Findings:
    """CFG115: a precision that accelerate does not know."""
    if subject.accelerate is None:
        return
    value = subject.accelerate.values.get("mixed_precision")
    if value is None or isinstance(value, bool):
        return
    if not isinstance(value, str) or value.lower() not in MIXED_PRECISIONS:
        near = nearest(text(value), MIXED_PRECISIONS, cutoff=0.5)
        yield subject.found_in_accelerate(
            "CFG115",
            f"`mixed_precision: {shown(value)}` is none that accelerate knows",
            "mixed_precision",
            hint=f"did you mean `{near}`?" if near else None,
            edits=(put(near, "mixed_precision"),) if near else (),
        )


def choices(subject: Subject) -> Findings:
    """CFG120: a name below a section that accelerate, its workers or DeepSpeed do not know."""
    if subject.accelerate is None:
        return
    for (section, key), names in CHOICES.items():
        written = mapping(subject.accelerate.values.get(section))
        value = written.get(key)
        if not isinstance(value, str) or value.lower() in {name.lower() for name in names}:
            continue
        near = nearest(value, names, cutoff=0.6)
        device = key.endswith("_device")  # DeepSpeed has had these three from the beginning
        yield subject.found_in_accelerate(
            "CFG120",
            f"`{key}: {shown(value)}` is none that accelerate knows",
            section,
            key,
            hint=f"did you mean `{near}`?" if near else f"one of {', '.join(names)}",
            severity="error" if near or device else "warning",
            edits=(put(near, section, key),) if near else (),
        )


def norway(subject: Subject) -> Findings:
    """CFG011: `no` without quotes is false in YAML 1.1, and accelerate calls `.lower()` on it."""
    if subject.accelerate is None:
        return
    for key in _WRITTEN_AS_TEXT:
        value = subject.accelerate.values.get(key)
        if not isinstance(value, bool) or key == "downcast_bf16":
            continue
        quoted = "'NO'" if key == "distributed_type" else "'no'"
        yield subject.found_in_accelerate(
            "CFG011",
            f"`{key}` is read as {str(value).lower()}: YAML 1.1 takes no, off, yes and on without quotes as such",
            key,
            hint=f"write `{key}: {quoted}`, or remove the key"
            if not value
            else f"write the name of the {key}",
            edits=() if value else (put(quoted.strip("'"), key),),
        )


def other_environment(subject: Subject) -> Findings:
    """CFG116: an accelerate file for another kind of machine."""
    if subject.accelerate is None:
        return
    values = subject.accelerate.values
    environment = values.get("compute_environment", "LOCAL_MACHINE")
    if environment != "LOCAL_MACHINE":
        yield subject.found_in_accelerate(
            "CFG116",
            f"`compute_environment: {shown(environment)}` is launched elsewhere",
            "compute_environment",
        )
    for key in ("megatron_lm_config", "mpirun_config"):
        if values.get(key):
            yield subject.found_in_accelerate(
                "CFG117", f"`{key}` has no part in an Axolotl run", key, hint="remove it"
            )
    if values.get("use_cpu") is True and subject.gpus_per_node not in (None, 0):
        yield subject.found_in_accelerate(
            "CFG117", "`use_cpu: true`: the GPUs stay idle", "use_cpu", hint="write `use_cpu: false`"
        )


def without_effect(subject: Subject) -> Findings:
    """CFG112: keys that accelerate reads and then does not use."""
    if subject.accelerate is None:
        return
    values = subject.accelerate.values
    for key in ("rdzv_backend", "same_network", "enable_cpu_affinity"):
        if values.get(key):
            yield subject.found_in_accelerate(
                "CFG112",
                f"`{key}` in the file has no effect: the launcher's own default wins",
                key,
                edits=(drop(key),),
            )
    kind = values.get("distributed_type")
    if kind in DISTRIBUTED_TYPES and kind != "DEEPSPEED" and mapping(values.get("deepspeed_config")):
        yield subject.found_in_accelerate(
            "CFG122",
            f"`deepspeed_config` counts for nothing under `distributed_type: {shown(kind)}`",
            "deepspeed_config",
            hint="write `distributed_type: DEEPSPEED`, or remove `deepspeed_config`",
        )
    if kind in DISTRIBUTED_TYPES and kind != "FSDP" and mapping(values.get("fsdp_config")):
        yield subject.found_in_accelerate(
            "CFG122",
            f"`fsdp_config` counts for nothing under `distributed_type: {shown(kind)}`",
            "fsdp_config",
            hint="remove it from the accelerate file",
        )


RULES = (
    unknown_keys, unknown_sub_keys, collisions, distributed_type, mixed_precision, choices, norway, other_environment,
    without_effect,
)  # fmt: skip
