"""What must suffice on a replica by itself: disks, limits, free GPU memory, and what its environment leads to. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from coordinator.core.catalogue import finding
from coordinator.core.protocol import Facts, Finding, GpuFacts, Severity

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Sufficient:
    """What is enough.

    Attributes:
        disk_bytes: below this a path is worth a warning: a 7B model with its checkpoint is 30 GB, a 1B model 5.
        no_disk_bytes: below this nothing can be saved.
        shm_bytes: Docker's default is 64 MB; NCCL and four data-loader workers pass 1 GiB.
        open_files: NCCL opens some sockets for each peer; PyTorch's data loaders a file for each tensor.
        gpu_free_share: of a GPU's memory before training; a CUDA context of our own probe is long gone.
        clock_s: how far a clock may be off before it is worth a note; nothing of rankcall compares clocks.
    """

    disk_bytes: int = 10 * GIB
    no_disk_bytes: int = 256 << 20
    shm_bytes: int = 1 * GIB
    open_files: int = 4096
    gpu_free_share: float = 0.85
    clock_s: float = 5.0


SUFFICIENT = Sufficient()

_CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE")
_KERNEL_FAILED = "cannot run a kernel"  # as `agent.probes.hardware` words it


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a replica beside its facts: the addresses of its peers, its clock minus the coordinator's."""

    peers: tuple[str, ...] = ()
    clock_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """One replica: its id, the name to show for it, its facts and what is known beside them."""

    replica: str
    name: str
    facts: Facts
    around: Surroundings = Surroundings()

    def each_gpu(self, wanted: int | None) -> Iterable[Finding]:
        """What the job's GPUs say: whether torch runs on them, and how much of their memory is free."""
        for gpu in self.facts.gpus[:wanted]:
            yield from self._architecture(gpu)
            yield from self._memory(gpu)

    def _architecture(self, gpu: GpuFacts) -> Iterable[Finding]:
        if not self.facts.arch_list or gpu.compute_capability is None:
            return
        if not runs_on(self.facts.arch_list, gpu.compute_capability):
            yield finding(
                "ENV012",
                f"{self.name}: GPU {gpu.index} ({gpu.name}) has compute capability "
                f"{gpu.compute_capability}, torch {self.facts.packages.get('torch', '')} was built for "
                f"{', '.join(self.facts.arch_list)}",
                replica=self.replica,
                evidence={"capability": gpu.compute_capability, "arch_list": [*self.facts.arch_list]},
            )

    def _memory(self, gpu: GpuFacts) -> Iterable[Finding]:
        if gpu.free_bytes is None or not gpu.memory_bytes:
            return
        if gpu.free_bytes < gpu.memory_bytes * SUFFICIENT.gpu_free_share:
            used = gpu.memory_bytes - gpu.free_bytes
            yield finding(
                "ENV015",
                f"{self.name}: {used / GIB:.1f} of {gpu.memory_bytes / GIB:.1f} GiB of GPU {gpu.index} "
                f"are in use before training{_holders(gpu)}",
                replica=self.replica,
                evidence={
                    "gpu": gpu.index,
                    "free_bytes": gpu.free_bytes,
                    "memory_bytes": gpu.memory_bytes,
                    "holders": [holder.model_dump(mode="json") for holder in gpu.holders],
                },
            )

    def own(self, *, gpus: bool) -> Iterable[Finding]:
        """What the facts say beside the GPUs'."""
        broken = [problem for problem in self.facts.problems if _KERNEL_FAILED in problem]
        if gpus:
            for problem in broken:
                yield finding("ENV013", f"{self.name}: {problem}", replica=self.replica)
        others = [problem for problem in self.facts.problems if problem not in broken]
        if not self.facts.torch_ready:
            why = next((problem for problem in others if "torch" in problem), "torch could not be imported")
            others = [problem for problem in others if problem != why]
            yield finding(
                "ENV016",
                f"{self.name}: {why}",
                replica=self.replica,
                evidence={"problems": list(self.facts.problems)},
            )
        for problem in others:
            yield finding("ENV028", f"{self.name}: {problem}", replica=self.replica)
        yield from self._disks(gpus=gpus)
        yield from self._limits(gpus=gpus)
        yield from self._environment()

    def _disks(self, *, gpus: bool) -> Iterable[Finding]:
        said: set[tuple[int, int]] = set()  # several paths on one disk are one finding
        for disk in self.facts.disks:
            free = disk.free_bytes
            evidence: dict[str, JsonValue] = {
                "path": disk.path,
                "free_bytes": free,
                "total_bytes": disk.total_bytes,
            }
            if disk.purpose == "shm":
                if gpus and disk.total_bytes < SUFFICIENT.shm_bytes:
                    yield finding(
                        "ENV021",
                        f"{self.name}: /dev/shm has {disk.total_bytes / (1 << 20):.0f} MiB",
                        replica=self.replica,
                        evidence=evidence,
                    )
                continue
            if free >= SUFFICIENT.disk_bytes or (free, disk.total_bytes) in said:
                continue
            said.add((free, disk.total_bytes))
            severity: Severity = "error" if free < SUFFICIENT.no_disk_bytes else "warning"
            yield finding(
                "ENV020",
                f"{self.name}: {free / GIB:.1f} GiB are free under {disk.path} ({disk.purpose})",
                severity=severity,
                replica=self.replica,
                evidence=evidence,
            )

    def _limits(self, *, gpus: bool) -> Iterable[Finding]:
        files = self.facts.limits.get("nofile", -1)
        if 0 <= files < SUFFICIENT.open_files:
            yield finding(
                "ENV023",
                f"{self.name} allows {files} open files",
                replica=self.replica,
                evidence={"nofile": files},
            )
        locked = self.facts.limits.get("memlock", -1)
        if gpus and 0 <= locked < SUFFICIENT.shm_bytes:
            yield finding(
                "ENV022",
                f"{self.name} allows {locked / (1 << 20):.0f} MiB of locked memory",
                replica=self.replica,
                evidence={"memlock": locked},
            )

    def choices(self) -> Iterable[Finding]:
        """What the container tells NCCL and gloo itself."""
        if self.facts.chosen:
            listed = ", ".join(f"{key}={value}" for key, value in sorted(self.facts.chosen.items()))
            yield finding(
                "ENV031",
                f"{self.name} sets {listed} itself; the training gets it as it is",
                replica=self.replica,
                evidence={"chosen": dict(self.facts.chosen)},
            )

    def _environment(self) -> Iterable[Finding]:
        if self.facts.leftovers:
            listed = ", ".join(f"{key}={value}" for key, value in sorted(self.facts.leftovers.items()))
            yield finding(
                "ENV024",
                f"{self.name} has rank variables in its environment: {listed}; the training will not see them",
                replica=self.replica,
                evidence={"leftovers": dict(self.facts.leftovers)},
            )
        home = self.facts.cache_environment.get("HF_HOME")
        elsewhere = {
            key: value
            for key in _CACHES
            if home and (value := self.facts.cache_environment.get(key)) and not _inside(value, home)
        }
        if elsewhere:
            listed = ", ".join(f"{key}={value}" for key, value in elsewhere.items())
            yield finding(
                "ENV025",
                f"{self.name} has HF_HOME={home}, but {listed} wins over it",
                replica=self.replica,
                evidence={"cache_environment": dict(self.facts.cache_environment)},
            )
        yield from self._proxies()
        offset_s = self.around.clock_offset_s
        if offset_s is not None and abs(offset_s) > SUFFICIENT.clock_s:
            yield finding(
                "ENV030",
                f"the clock of {self.name} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} "
                "the coordinator's",
                replica=self.replica,
                evidence={"clock_offset_s": offset_s},
            )

    def _proxies(self) -> Iterable[Finding]:
        """A proxy variable, unless it leaves the peers alone; a warning where it is known not to."""
        proxies = sorted(key for key in self.facts.proxies if key.lower() != "no_proxy")
        if not proxies:
            return
        except_for = ",".join(v for key, v in self.facts.proxies.items() if key.lower() == "no_proxy")
        peers = self.around.peers
        caught = [peer for peer in peers if not _left_alone(peer, except_for)]
        if peers and not caught:
            return
        through = f"; NO_PROXY leaves out {_few(caught)}" if caught else ""
        yield finding(
            "ENV026",
            f"{self.name} has {', '.join(proxies)} set{through}",
            severity="warning" if caught else None,
            replica=self.replica,
            evidence={"proxies": [*proxies], "caught": [*caught]},
        )


def runs_on(arch_list: Sequence[str], capability: str) -> bool:
    """Whether a build for `arch_list` has code for a GPU of `capability` ("12.0").

    Machine code (sm_90) runs on the same major version from its own minor up; PTX (compute_90) is compiled
    at start on any later one; what ends in "a" or "f" runs on that very architecture (family) only.
    """
    major, minor = (int(part) for part in capability.split(".")[:2])
    for arch in arch_list:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if found is None:
            continue
        kind, built = found[1], (int(found[2]), int(found[3]))
        if found[4] and built != (major, minor):
            continue
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return True
        if kind == "compute" and built <= (major, minor):
            return True
    return False


def _holders(gpu: GpuFacts) -> str:
    """Who holds the memory, as far as it is known: "; held by python train.py (pid 4711, 20.1 GiB)"."""
    listed = []
    for holder in gpu.holders[:3]:
        amount = f", {holder.memory_bytes / GIB:.1f} GiB" if holder.memory_bytes else ""
        listed.append(f"{holder.name or 'a process outside this container'} (pid {holder.pid}{amount})")
    more = f" and {len(gpu.holders) - 3} more" if len(gpu.holders) > 3 else ""
    return f"; held by {', '.join(listed)}{more}" if listed else ""


def _left_alone(address: str, no_proxy: str) -> bool:
    """Whether NO_PROXY keeps an address from the proxy: by itself, by its network, or by `*`."""
    try:
        own = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    for entry in (part.strip().strip("[]") for part in no_proxy.split(",")):
        if entry == "*":
            return True
        try:
            if own in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue  # a name: it says nothing about a numeric address
    return False


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _few(listed: Sequence[str]) -> str:
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
