"""accelerate's YAML: topology from rankcall, the rest from the file the user brought. Pure.

Only keys that accelerate 1.x reads: `rdzv_backend`, `same_network` and `enable_cpu_affinity` are ignored in
a file, so they are not written. With a DeepSpeed file, no key that collides with it
(`DeepSpeedPlugin._deepspeed_config_checks`), and always the standard launcher, the only one that needs
neither SSH nor a hostfile.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.render.model import Topology
from coordinator.render.submitted import mapping

# What is taken over from a file of the user's: nothing that says who and where.
_CARRIED = ("downcast_bf16", "dynamo_config", "fp8_config", "parallelism_config", "debug")


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


def _distributed_type(topology: Topology, deepspeed_path: str | None, fsdp: Mapping[str, object]) -> str:
    """On the CPU too it is MULTI_GPU (with `use_cpu`): MULTI_CPU silently runs separate trainings."""
    if deepspeed_path is not None:
        return "DEEPSPEED"
    if topology.world_size == 1:
        return "NO"
    return "FSDP" if fsdp else "MULTI_GPU"
