"""What must be the same on every replica: versions, GPUs, drivers. Every finding carries the value of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.core.catalogue import finding
from coordinator.core.protocol import Facts, Finding, GpuFacts, Severity
from coordinator.match.each import GIB
from coordinator.match.fabric import LOCKED_BYTES, infiniband

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
# Settings that may well be another on each replica.
_OF_ONE_REPLICA = (
    "_SOCKET_IFNAME",
    "_IB_HCA",
    "_HOSTID",
    "_DEBUG",
    "_DEBUG_SUBSYS",
    "_DEBUG_FILE",
    "_TOPO_FILE",
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Facts of all replicas by id, and the names to show for them."""

    facts: Mapping[str, Facts]
    names: Mapping[str, str]

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

    def choices(self) -> Iterable[Finding]:
        """What the containers tell NCCL and gloo has to be the same, but for what names parts of one replica."""
        names = sorted({name for fact in self.facts.values() for name in fact.chosen})
        for name in names:
            if name.endswith(_OF_ONE_REPLICA):
                continue
            values = {replica: fact.chosen.get(name, "not set") for replica, fact in self.facts.items()}
            if len(set(values.values())) > 1:
                yield self._difference("ENV032", name, values)

    def fabric(self) -> Iterable[Finding]:
        """InfiniBand that some have, and that is not used because not all do."""
        having = [replica for replica, fact in self.facts.items() if fact.infiniband]
        if not having or len(self.facts) < 2 or infiniband(self.facts):
            return
        listed = {
            replica: ", ".join(port.name for port in fact.infiniband) or "none"
            for replica, fact in self.facts.items()
        }
        why = "not every replica has one of the same subnet"
        if len(having) == len(self.facts) and any(
            0 <= fact.limits.get("memlock", -1) < LOCKED_BYTES for fact in self.facts.values()
        ):
            why = "locked memory is limited"
        yield finding(
            "ENV033",
            f"InfiniBand ports are up on {self._some(having)}, but NCCL will use TCP: {why}",
            evidence={"values": {**listed}},
        )

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


def _package(name: str) -> Callable[[Facts], str | None]:
    return lambda fact: fact.packages.get(name)


def _release(version: str | None, numbers: int) -> str | None:
    """The first `numbers` numbers of a version; what is no number counts as it stands."""
    if version is None:
        return None
    return ".".join(re.split(r"[.+-]", version)[:numbers])
