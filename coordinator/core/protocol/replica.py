"""What a replica is: its facts, and how it registers. Sent by an agent when it starts and when the coordinator asks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from coordinator.core.protocol.message import LARGEST_COUNT, PROTOCOL_VERSION, Finding, Message


class Address(Message):
    """One address of a replica, with the interface that carries it."""

    address: str
    interface: str
    family: Literal["ipv4", "ipv6"] = "ipv4"


class GpuHolder(Message):
    """A process that holds memory of a GPU. `name` is empty where it cannot be seen from here (another container's)."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None


class GpuFacts(Message):
    index: int
    name: str
    memory_bytes: int = 0
    free_bytes: int | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    holders: tuple[GpuHolder, ...] = ()


class InfinibandPort(Message):
    """An active port that the container may open: `name` as in NCCL_IB_HCA (mlx5_0:1), `subnet` the same for all it reaches."""

    name: str
    subnet: str


class DiskFacts(Message):
    """Free space under a path that matters. `purpose`: state, hf_home, hub_cache, datasets_cache, shm."""

    purpose: str
    path: str
    free_bytes: int
    total_bytes: int
    filesystem: str | None = None


class Facts(Message):
    """What a replica has. A fact that could not be learned is None, and `problems` says why.

    `packages` maps a distribution's name to its version (torch, accelerate, deepspeed, axolotl,
    transformers, peft, datasets, rankcall). `leftovers` are rank variables found in the container's
    environment (WORLD_SIZE, RANK, MASTER_ADDR …), which the launcher scrubs; `proxies` are its HTTP proxy
    variables; `chosen` what the container itself tells NCCL and gloo (NCCL_*, GLOO_*), which is left as it is.
    `torch_asked`: torch was tried, so that `torch_ready` False means it cannot be used. `limits` are
    soft limits by name (nofile, memlock); -1 is unlimited.
    """

    python: str | None = None
    platform: str | None = None
    kernel: str | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    packages: dict[str, str] = {}
    cuda: str | None = None
    nccl: str | None = None
    driver: str | None = None
    arch_list: tuple[str, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    disks: tuple[DiskFacts, ...] = ()
    cache_environment: dict[str, str] = {}
    leftovers: dict[str, str] = {}
    proxies: dict[str, str] = {}
    chosen: dict[str, str] = {}
    infiniband: tuple[InfinibandPort, ...] = ()
    limits: dict[str, int] = {}
    torch_ready: bool = False
    torch_asked: bool = False
    problems: tuple[str, ...] = ()


class JobSnapshot(Message):
    """A job and one of its attempts as the coordinator knew them, for one that has lost its store to start from.

    `job` and `attempt` are the coordinator's own records; an agent keeps them on its disk and does not read them.
    """

    job: dict[str, JsonValue]
    attempt: dict[str, JsonValue]


class HeldAttempt(Message):
    """An attempt that a replica still has processes of, with its snapshot where this replica keeps one."""

    attempt_id: str = Field(max_length=128)
    snapshot: JobSnapshot | None = None


class Registration(Message):
    """`POST /replicas`: an agent introduces its replica.

    Attributes:
        replica_id: random, made once, kept on container-local disk.
        fingerprint: boot id, container id and start time of pid 1, hashed: tells a clone from a restart.
        incarnation: grows each time the agent starts.
        addresses: every address a peer might reach, best first; loopback only where there is no other.
        ordinal: the platform's ordinal, where it has one.
        beside_coordinator: this agent runs in the coordinator's own replica.
        gpu_count: GPUs this replica offers; 0 trains on the CPU.
        echo_port: where its echo server listens for the peers' tcp probes.
        held: attempts that run here: a coordinator that does not know them must not take them for leftovers.
    """

    protocol: int = PROTOCOL_VERSION
    replica_id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{3,63}$")
    fingerprint: str = Field(max_length=128)
    incarnation: int = Field(ge=1, le=LARGEST_COUNT)
    version: str = ""
    hostname: str = Field(default="", max_length=255)
    addresses: tuple[Address, ...] = Field(default=(), max_length=64)
    ordinal: int | None = None
    beside_coordinator: bool = False
    gpu_count: int = Field(default=0, ge=0)
    echo_port: int = Field(default=0, ge=0, le=65535)
    data_roots: tuple[str, ...] = ()
    held: tuple[HeldAttempt, ...] = Field(default=(), max_length=64)


class Registered(Message):
    """The answer: the replica's own token, and the id it is to use from now on (a clone gets a new one)."""

    replica_id: str
    token: str
    incarnation: int
    findings: tuple[Finding, ...] = ()
