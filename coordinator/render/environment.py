"""The environment of the training on one replica, variable by variable, each with its reason. Pure."""

from __future__ import annotations

from coordinator.render.model import Reason, Site, Topology

# What decides ranks and rendezvous and may be left over in a container's environment: torchrun's (also as
# PET_*, which torchrun reads as defaults of its flags), accelerate's, DeepSpeed's, MPI's.
UNSET: tuple[str, ...] = (
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CROSS_RANK",
    "CROSS_SIZE",
    "TORCHELASTIC_*",
    "PET_*",
    "ACCELERATE_*",
    "FSDP_*",
    "PARALLELISM_CONFIG_*",
    "DEEPSPEED_*",
    "DS_ACCELERATOR",
    "DLTS_*",
    "PMI_*",
    "OMPI_COMM_WORLD_*",
    "MV2_COMM_WORLD_*",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
)

_NO_INFINIBAND = (
    "no InfiniBand port that is up, may be opened and shares a subnet with every peer; NCCL_IB_DISABLE=0 in the containers "
    "has NCCL look by itself"
)
_INFINIBAND = (
    "these ports are up on every replica and share a subnet; NCCL_IB_DISABLE=1 in the containers keeps to TCP"
)
_REMOVED = "removed"
_LEFT_OVER = "a leftover of another launcher would decide ranks or rendezvous"

# How many collectives the flight recorder remembers per rank: enough for several steps, 2 MB at most.
_FLIGHT_RECORDS = "2000"


def environment(
    topology: Topology, site: Site, attempt_folder: str
) -> tuple[dict[str, str], tuple[Reason, ...]]:
    """Variables for prepare, train and compare. What the container chose itself (`site.chosen`) stays."""
    wanted = [*_always(), *_sockets(topology, site)]
    wanted += _cpu() if topology.on_cpu else _gpu(topology, site, attempt_folder)
    values: dict[str, str] = {}
    reasons = []
    for name, value, why in wanted:
        if name in site.chosen:
            reasons.append(Reason("environment", name, site.chosen[name], "the container sets it"))
            continue
        values[name] = value
        reasons.append(Reason("environment", name, value, why))
    reasons += [Reason("environment", name, _REMOVED, _LEFT_OVER) for name in UNSET if name not in values]
    return values, tuple(reasons)


def _always() -> list[tuple[str, str, str]]:
    return [
        ("AXOLOTL_DO_NOT_TRACK", "1", "no telemetry is sent from a user's training"),
        ("PYTHONUNBUFFERED", "1", "log lines arrive when they are written"),
    ]


def _sockets(topology: Topology, site: Site) -> list[tuple[str, str, str]]:
    """One interface for gloo and NCCL, also where NCCL carries the training: Axolotl's barriers use gloo."""
    if site.interface is None or topology.world_size == 1:
        return []
    why = "the interface that routes to the peers"
    wanted = [
        ("GLOO_SOCKET_IFNAME", site.interface, f"{why}; else gloo takes what the host's name resolves to")
    ]
    if not topology.on_cpu:
        wanted.append(("NCCL_SOCKET_IFNAME", f"={site.interface}", f"{why}; `=` for exactly this one"))
        family = "AF_INET6" if site.family == "ipv6" else "AF_INET"
        wanted.append(("NCCL_SOCKET_FAMILY", family, f"the peers are reached by {site.family}"))
    return wanted


def _cpu() -> list[tuple[str, str, str]]:
    return [
        ("DS_ACCELERATOR", "cpu", "DeepSpeed looks for a GPU otherwise"),
        ("CUDA_VISIBLE_DEVICES", "", "the job asked for the CPU"),
        ("OMP_NUM_THREADS", "1", "one thread per rank: ranks on one machine would fight for its cores"),
    ]


def _gpu(topology: Topology, site: Site, attempt_folder: str) -> list[tuple[str, str, str]]:
    flight = f"{attempt_folder}/flight-recorder."
    wanted = [
        ("NCCL_DEBUG", "WARN", "NCCL says in the log what went wrong"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a hang leaves the record of its collectives"),
        ("TORCH_FR_BUFFER_SIZE", _FLIGHT_RECORDS, "the flight recorder's length"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", _FLIGHT_RECORDS, "the same by its older name"),
        ("TORCH_FR_DUMP_TEMP_FILE", flight, "where the flight recorder writes, the rank appended"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", flight, "the same by its older name"),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", flight, "a word to it, `.pipe` appended, has it written at once"),
    ]
    if topology.nodes > 1:
        if site.infiniband and site.chosen.get("NCCL_IB_DISABLE", "0") == "0":
            wanted.append(("NCCL_IB_HCA", f"={','.join(site.infiniband)}", _INFINIBAND))
        elif not site.infiniband:
            wanted.append(("NCCL_IB_DISABLE", "1", _NO_INFINIBAND))
        if site.host_id is not None:
            wanted.append(
                ("NCCL_HOSTID", site.host_id, "containers on one kernel look like one host to NCCL")
            )
    consumer = [name for name in site.gpu_names if "GeForce" in name]
    if topology.gpus_per_node > 1 and consumer:
        wanted.append(("NCCL_P2P_DISABLE", "1", f"{consumer[0]}s cannot read each other's memory"))
    return wanted
