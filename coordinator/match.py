"""Do the replicas fit together? Facts of all in, findings out. Called by `stages.py` in the match stage.

What must be equal for a training to work blocks when it is not; what should be equal is a warning; what
must suffice (disk, shared memory, limits) is judged replica by replica. Every finding carries the values of
each replica it compares, so that the page can show the difference.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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

# Code of the finding, and the distribution whose versions are compared.
_PACKAGES = (
    ("ENV001", "torch"),
    ("ENV004", "accelerate"),
    ("ENV005", "deepspeed"),
    ("ENV006", "axolotl"),
    ("ENV007", "transformers"),
    ("ENV008", "rankcall"),
    ("ENV009", "peft"),
    ("ENV009", "datasets"),
)
_NEVER_BLOCKS = frozenset({"ENV009"})
_CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE")
_KERNEL_FAILED = "cannot run a kernel"  # as `agent.probes.hardware` words it


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a replica beside its facts: the addresses of its peers, its clock minus the coordinator's."""

    peers: tuple[str, ...] = ()
    clock_offset_s: float | None = None


def match(
    facts: Mapping[str, Facts],
    *,
    gpus_per_node: int | None,
    names: Mapping[str, str] | None = None,
    surroundings: Mapping[str, Surroundings] | None = None,
) -> tuple[Finding, ...]:
    """Findings about `facts` by replica id; an error among them blocks.

    `gpus_per_node` None: as many as each has; 0: the job trains on CPUs. `names` are shown for the ids.
    """
    look = _Look(
        facts, {replica: (names or {}).get(replica, replica) for replica in facts}, surroundings or {}
    )
    gpus = gpus_per_node != 0 and (gpus_per_node is not None or any(fact.gpus for fact in facts.values()))
    found = [*look.versions()]
    if gpus:
        found += look.cuda_versions()
        found += look.gpu_counts(gpus_per_node)
        found += look.gpu_models(gpus_per_node)
        found += look.each_gpu(gpus_per_node)
    found += look.platforms()
    for replica, fact in facts.items():
        found += look.own(replica, fact, gpus=gpus)
    return tuple(found)


class _Look:
    """The comparisons, over one set of facts."""

    def __init__(
        self, facts: Mapping[str, Facts], names: Mapping[str, str], around: Mapping[str, Surroundings]
    ) -> None:
        self.facts = facts
        self.names = names
        self.around = around

    def versions(self) -> Iterable[Finding]:
        for code, package in _PACKAGES:
            yield from self._compare_versions(code, package, _package(package))
        yield from self._differ("ENV018", "Python", lambda fact: _release(fact.python, 2))

    def cuda_versions(self) -> Iterable[Finding]:
        yield from self._compare_versions("ENV002", "NCCL", lambda fact: fact.nccl)
        yield from self._compare_versions("ENV003", "CUDA", lambda fact: fact.cuda, blocking_numbers=1)
        yield from self._differ("ENV017", "the NVIDIA driver", lambda fact: fact.driver)

    def platforms(self) -> Iterable[Finding]:
        yield from self._differ("ENV019", "the kernel", lambda fact: fact.kernel)

    def gpu_counts(self, wanted: int | None) -> Iterable[Finding]:
        counts = {replica: len(fact.gpus) for replica, fact in self.facts.items()}
        if wanted is None:
            if len(set(counts.values())) > 1:
                yield self._difference(
                    "ENV011", "the number of GPUs", {replica: str(count) for replica, count in counts.items()}
                )
            return
        for replica, count in counts.items():
            if count < wanted:
                yield finding(
                    "ENV014",
                    f"{self.names[replica]} has {count} GPU{'s' if count != 1 else ''}, the job wants {wanted} of each",
                    replica=replica,
                    evidence={"gpus": count, "wanted": wanted},
                )

    def gpu_models(self, wanted: int | None) -> Iterable[Finding]:
        def each(fact: Facts, of: Callable[[GpuFacts], str | None]) -> str | None:
            values = [of(gpu) for gpu in fact.gpus[:wanted]]
            known = [value for value in values if value]
            return " + ".join(dict.fromkeys(known)) or None

        models = list(self._differ("ENV010", "the GPU model", lambda f: each(f, lambda g: g.name)))
        yield from models
        mixed = {r: each(f, lambda g: g.name) for r, f in self.facts.items()}
        for replica, value in mixed.items():
            if value and " + " in value and not models:
                yield finding(
                    "ENV010",
                    f"{self.names[replica]} has GPUs of several models: {value}",
                    replica=replica,
                    evidence={"values": {replica: value}},
                )
        if models:
            return  # capability and memory differ with the model; saying it thrice helps nobody
        yield from self._differ(
            "ENV010", "the compute capability", lambda f: each(f, lambda g: g.compute_capability)
        )
        yield from self._differ(
            "ENV029", "GPU memory", lambda f: each(f, lambda g: f"{round(g.memory_bytes / GIB)} GiB")
        )

    def each_gpu(self, wanted: int | None) -> Iterable[Finding]:
        for replica, fact in self.facts.items():
            for gpu in fact.gpus[:wanted]:
                yield from self._architecture(replica, fact, gpu)
                yield from self._memory(replica, gpu)

    def _architecture(self, replica: str, fact: Facts, gpu: GpuFacts) -> Iterable[Finding]:
        if not fact.arch_list or gpu.compute_capability is None:
            return
        if not runs_on(fact.arch_list, gpu.compute_capability):
            yield finding(
                "ENV012",
                f"{self.names[replica]}: GPU {gpu.index} ({gpu.name}) has compute capability "
                f"{gpu.compute_capability}, torch {fact.packages.get('torch', '')} was built for "
                f"{', '.join(fact.arch_list)}",
                replica=replica,
                evidence={"capability": gpu.compute_capability, "arch_list": [*fact.arch_list]},
            )

    def _memory(self, replica: str, gpu: GpuFacts) -> Iterable[Finding]:
        if gpu.free_bytes is None or not gpu.memory_bytes:
            return
        if gpu.free_bytes < gpu.memory_bytes * SUFFICIENT.gpu_free_share:
            used = gpu.memory_bytes - gpu.free_bytes
            yield finding(
                "ENV015",
                f"{self.names[replica]}: {used / GIB:.1f} of {gpu.memory_bytes / GIB:.1f} GiB of GPU {gpu.index} "
                f"are in use before training{_holders(gpu)}",
                replica=replica,
                evidence={
                    "gpu": gpu.index,
                    "free_bytes": gpu.free_bytes,
                    "memory_bytes": gpu.memory_bytes,
                    "holders": [holder.model_dump(mode="json") for holder in gpu.holders],
                },
            )

    def own(self, replica: str, fact: Facts, *, gpus: bool) -> Iterable[Finding]:
        """What one replica's facts say by themselves."""
        name = self.names[replica]
        broken = [problem for problem in fact.problems if _KERNEL_FAILED in problem]
        if gpus:
            for problem in broken:
                yield finding("ENV013", f"{name}: {problem}", replica=replica)
        others = [problem for problem in fact.problems if problem not in broken]
        if not fact.torch_ready:
            why = next((problem for problem in others if "torch" in problem), "torch could not be imported")
            others = [problem for problem in others if problem != why]
            yield finding(
                "ENV016", f"{name}: {why}", replica=replica, evidence={"problems": list(fact.problems)}
            )
        for problem in others:
            yield finding("ENV028", f"{name}: {problem}", replica=replica)
        yield from self._disks(replica, fact, gpus=gpus)
        yield from self._limits(replica, fact, gpus=gpus)
        yield from self._environment(replica, fact)

    def _disks(self, replica: str, fact: Facts, *, gpus: bool) -> Iterable[Finding]:
        said: set[tuple[int, int]] = set()  # several paths on one disk are one finding
        for disk in fact.disks:
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
                        f"{self.names[replica]}: /dev/shm has {disk.total_bytes / (1 << 20):.0f} MiB",
                        replica=replica,
                        evidence=evidence,
                    )
                continue
            if free >= SUFFICIENT.disk_bytes or (free, disk.total_bytes) in said:
                continue
            said.add((free, disk.total_bytes))
            severity: Severity = "error" if free < SUFFICIENT.no_disk_bytes else "warning"
            yield finding(
                "ENV020",
                f"{self.names[replica]}: {free / GIB:.1f} GiB are free under {disk.path} ({disk.purpose})",
                severity=severity,
                replica=replica,
                evidence=evidence,
            )

    def _limits(self, replica: str, fact: Facts, *, gpus: bool) -> Iterable[Finding]:
        files = fact.limits.get("nofile", -1)
        if 0 <= files < SUFFICIENT.open_files:
            yield finding(
                "ENV023",
                f"{self.names[replica]} allows {files} open files",
                replica=replica,
                evidence={"nofile": files},
            )
        locked = fact.limits.get("memlock", -1)
        if gpus and 0 <= locked < SUFFICIENT.shm_bytes:
            yield finding(
                "ENV022",
                f"{self.names[replica]} allows {locked / (1 << 20):.0f} MiB of locked memory",
                replica=replica,
                evidence={"memlock": locked},
            )

    def _environment(self, replica: str, fact: Facts) -> Iterable[Finding]:
        name = self.names[replica]
        if fact.leftovers:
            listed = ", ".join(f"{key}={value}" for key, value in sorted(fact.leftovers.items()))
            yield finding(
                "ENV024",
                f"{name} has rank variables in its environment: {listed}; the training will not see them",
                replica=replica,
                evidence={"leftovers": dict(fact.leftovers)},
            )
        home = fact.cache_environment.get("HF_HOME")
        elsewhere = {
            key: value
            for key in _CACHES
            if home and (value := fact.cache_environment.get(key)) and not _inside(value, home)
        }
        if elsewhere:
            listed = ", ".join(f"{key}={value}" for key, value in elsewhere.items())
            yield finding(
                "ENV025",
                f"{name} has HF_HOME={home}, but {listed} wins over it",
                replica=replica,
                evidence={"cache_environment": dict(fact.cache_environment)},
            )
        yield from self._proxies(replica, fact)
        offset_s = self.around.get(replica, Surroundings()).clock_offset_s
        if offset_s is not None and abs(offset_s) > SUFFICIENT.clock_s:
            yield finding(
                "ENV030",
                f"the clock of {name} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} "
                "the coordinator's",
                replica=replica,
                evidence={"clock_offset_s": offset_s},
            )

    def _proxies(self, replica: str, fact: Facts) -> Iterable[Finding]:
        """A proxy variable, unless it leaves the peers alone; a warning where it is known not to."""
        proxies = sorted(key for key in fact.proxies if key.lower() != "no_proxy")
        if not proxies:
            return
        except_for = ",".join(v for key, v in fact.proxies.items() if key.lower() == "no_proxy")
        peers = self.around.get(replica, Surroundings()).peers
        caught = [peer for peer in peers if not _left_alone(peer, except_for)]
        if peers and not caught:
            return
        through = f"; NO_PROXY leaves out {self._few(caught)}" if caught else ""
        yield finding(
            "ENV026",
            f"{self.names[replica]} has {', '.join(proxies)} set{through}",
            severity="warning" if caught else None,
            replica=replica,
            evidence={"proxies": [*proxies], "caught": [*caught]},
        )

    @staticmethod
    def _few(listed: Sequence[str]) -> str:
        return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")

    def _compare_versions(
        self, code: str, what: str, of: Callable[[Facts], str | None], *, blocking_numbers: int = 2
    ) -> Iterable[Finding]:
        """A difference in the first `blocking_numbers` numbers blocks, any other is a warning."""
        values = {replica: of(fact) for replica, fact in self.facts.items()}
        present = {replica: value for replica, value in values.items() if value is not None}
        if not present:
            return
        missing = [replica for replica, value in values.items() if value is None]
        if missing and code != "ENV001":  # torch's absence has a finding of its own
            yield self._difference(
                code, what, {r: value or "missing" for r, value in values.items()}, "warning"
            )
            return
        if len(set(present.values())) < 2:
            return
        releases = {_release(value, blocking_numbers) for value in present.values()}
        blocks = len(releases) > 1 and code not in _NEVER_BLOCKS
        yield self._difference(code, what, present, "error" if blocks else "warning")

    def _differ(self, code: str, what: str, of: Callable[[Facts], str | None]) -> Iterable[Finding]:
        values = {replica: value for replica, fact in self.facts.items() if (value := of(fact)) is not None}
        if len(set(values.values())) > 1:
            yield self._difference(code, what, values)

    def _difference(
        self, code: str, what: str, values: Mapping[str, str], severity: Severity | None = None
    ) -> Finding:
        by_value: dict[str, list[str]] = {}
        for replica, value in values.items():
            by_value.setdefault(value, []).append(replica)
        ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
        listed = "; ".join(f"{value} on {self._some(replicas)}" for value, replicas in ordered)
        odd = ordered[-1][1]
        # Only a single one against a majority can be called the odd one out.
        single = len(ordered) == 2 and len(odd) == 1 and len(ordered[0][1]) > 1
        return finding(
            code,
            f"{what} differs: {listed}",
            severity=severity,
            replica=odd[0] if single else None,
            evidence={"values": dict(values)},
        )

    def _some(self, replicas: Sequence[str]) -> str:
        named = [self.names[replica] for replica in replicas]
        return ", ".join(named) if len(named) <= 4 else f"{', '.join(named[:3])} and {len(named) - 3} more"


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


def _package(name: str) -> Callable[[Facts], str | None]:
    return lambda fact: fact.packages.get(name)


def _release(version: str | None, numbers: int) -> str | None:
    """The first `numbers` numbers of a version; what is no number counts as it stands."""
    if version is None:
        return None
    return ".".join(re.split(r"[.+-]", version)[:numbers])


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
