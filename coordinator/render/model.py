"""What goes into rendering and what comes out: topology and site in, files, environment and commands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coordinator.core.protocol import RenderedFile
from coordinator.core.words import counted

ACCELERATE_FILE = "accelerate.yaml"
AXOLOTL_FILE = "axolotl.yaml"
DEEPSPEED_FILE = "deepspeed.json"
COMPARE_FILE = "compare.json"


class RenderError(ValueError):
    """A submission that nothing can be rendered from. `file`, `key` and `line` say where the trouble is."""

    def __init__(
        self, message: str, *, file: str | None = None, key: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.key = key
        self.line = line


@dataclass(frozen=True, slots=True)
class Topology:
    """The same for all ranks of an attempt. `gpus_per_node` 0: one process per replica, on the CPU."""

    nodes: int
    gpus_per_node: int
    master_address: str
    master_port: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 0:
            raise RenderError(
                f"{counted(self.nodes, 'node')} with {counted(self.gpus_per_node, 'GPU')} each cannot train"
            )
        if not self.master_address or not 1 <= self.master_port <= 65535:
            raise RenderError(f"no rendezvous at {self.master_address!r} port {self.master_port}")

    @property
    def on_cpu(self) -> bool:
        return self.gpus_per_node == 0

    @property
    def world_size(self) -> int:
        return self.nodes * max(1, self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class Site:
    """One replica of an attempt.

    Attributes:
        rank: the replica's rank, `machine_rank` in accelerate's words.
        interface: the one that routes to the peers; None leaves the choice to NCCL and gloo.
        gpu_names: as the driver names them.
        host_id: what tells this replica from others on the same kernel (its replica id).
        infiniband: its ports that the peers share a subnet with, as NCCL_IB_HCA names them.
        chosen: variables of rankcall's choice that the container sets itself; they are left as they are.
    """

    rank: int
    interface: str | None = None
    family: Literal["ipv4", "ipv6"] = "ipv4"
    gpu_names: tuple[str, ...] = ()
    host_id: str | None = None
    infiniband: tuple[str, ...] = ()
    chosen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a value is what it is: `file` is a rendered file or "environment"."""

    file: str
    key: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """All that one rank needs. Paths in `files` and argv are relative to the job's work folder.

    Attributes:
        environment, unset: laid over and removed from the container's; a trailing `*` in `unset` stands
            for any ending.
        compare_argv: None where the submission has no prompts.
        output_dir: where the training leaves its result.
    """

    files: tuple[RenderedFile, ...]
    environment: dict[str, str]
    unset: tuple[str, ...]
    prepare_argv: tuple[str, ...]
    train_argv: tuple[str, ...]
    compare_argv: tuple[str, ...] | None
    output_dir: str
    reasons: tuple[Reason, ...] = ()
