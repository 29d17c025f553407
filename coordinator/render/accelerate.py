"""accelerate's YAML: topology from rankcall, the rest from the file the user brought. Pure.

Only keys that accelerate 1.x reads: `rdzv_backend`, `same_network` and `enable_cpu_affinity` are ignored in
a file, so they are not written. With a DeepSpeed file, no key that collides with it
(`DeepSpeedPlugin._deepspeed_config_checks`), and always the standard launcher, the only one that needs
neither SSH nor a hostfile.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.render.model import ACCELERATE_FILE, Reason, Topology
from coordinator.render.submitted import mapping

# What is taken over from a file of the user's: nothing that says who and where.
_CARRIED = ("downcast_bf16", "dynamo_config", "fp8_config", "parallelism_config", "debug")

_WHY = {
    "compute_environment": "the launcher runs here, not at a cloud's own service",
    "machine_rank": "the replica's rank; it keeps it over restarts and attempts",
    "num_machines": "the replicas of the attempt",
    "num_processes": "the total: replicas × GPUs of each (on the CPU one process a replica)",
    "main_process_ip": "rank 0's address, which all replicas reach",
    "main_process_port": "free on rank 0",
    "main_training_function": "accelerate's default, written down",
    "use_cpu": "false on GPUs; true where the job asked for the CPU",
    "deepspeed_config.deepspeed_config_file": "the same file as Axolotl's `deepspeed`",
    "deepspeed_config.deepspeed_multinode_launcher": "the only one that needs neither SSH nor a hostfile",
    "deepspeed_config.zero3_init_flag": "true under ZeRO-3 and nowhere else",
}
_WHY_TYPE = {
    "DEEPSPEED": "the Axolotl config or the accelerate file names DeepSpeed settings",
    "NO": "a single process",
    "FSDP": "the accelerate file says so",
    "MULTI_GPU": "several processes without DeepSpeed; on the CPU too, where MULTI_CPU would train N times alone",
}
_BROUGHT = "from the accelerate file that came along"


def accelerate_values(
    topology: Topology,
    rank: int,
    *,
    deepspeed_path: str | None,
    zero_stage: int | None,
    brought: Mapping[str, object],
) -> dict[str, object]:
    """The values of one rank's file; ranks differ in `machine_rank` and nothing else."""
    fsdp = mapping(brought.get("fsdp_config")) if brought.get("distributed_type") == "FSDP" else {}
    values: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(topology, deepspeed_path, fsdp),
        "machine_rank": rank,
        "num_machines": topology.nodes,
        "num_processes": topology.world_size,
        "main_process_ip": topology.master_address,
        "main_process_port": topology.master_port,
        "main_training_function": "main",
        "use_cpu": topology.on_cpu,
    }
    if deepspeed_path is not None:
        values["deepspeed_config"] = {
            "deepspeed_config_file": deepspeed_path,
            "deepspeed_multinode_launcher": "standard",
            "zero3_init_flag": zero_stage == 3,
        }
    else:
        if fsdp:
            values["fsdp_config"] = fsdp
        precision = brought.get("mixed_precision")
        if not topology.on_cpu and precision is not None:
            # Unquoted `no` is False in YAML, and accelerate crashes on it.
            values["mixed_precision"] = "no" if precision is False else str(precision)
    for key in _CARRIED:
        if brought.get(key) is not None:
            value = brought[key]
            values[key] = "no" if key == "downcast_bf16" and value is False else value
    return values


def accelerate_reasons(values: Mapping[str, object]) -> tuple[Reason, ...]:
    """Why each of `accelerate_values` is what it is."""
    reasons = []
    for section, value in values.items():
        named = mapping(value) if section == "deepspeed_config" else None
        for key, one in (
            {f"{section}.{key}": one for key, one in named.items()} if named else {section: value}
        ).items():
            why = _WHY_TYPE[str(one)] if key == "distributed_type" else _WHY.get(key, _BROUGHT)
            reasons.append(Reason(ACCELERATE_FILE, key, str(one), why))
    return tuple(reasons)


def _distributed_type(topology: Topology, deepspeed_path: str | None, fsdp: Mapping[str, object]) -> str:
    """On the CPU too it is MULTI_GPU (with `use_cpu`): MULTI_CPU silently runs separate trainings."""
    if deepspeed_path is not None:
        return "DEEPSPEED"
    if topology.world_size == 1:
        return "NO"
    return "FSDP" if fsdp else "MULTI_GPU"
