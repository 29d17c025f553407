"""What the isolation has shown, as findings. `stages/collective.py` calls it when `isolate.advance` gives a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from coordinator.core.catalogue import finding
from coordinator.core.protocol import CollectiveResult, Finding, Member
from coordinator.preflight.isolate import GroupResult, Round, Verdict


def outcome(group: Sequence[str], results: Mapping[str, CollectiveResult]) -> GroupResult:
    """A group passed when every one of its members says so; silence is a failure."""
    ok = all(replica in results and results[replica].ok for replica in group)
    return GroupResult(tuple(group), ok)


def tell(verdict: Verdict, members: Sequence[Member], history: Sequence[Round]) -> tuple[Finding, ...]:
    """The findings; evidence holds every round, so that anyone can follow how the verdict was reached."""
    names = {member.replica_id: f"rank {member.rank} ({member.name or member.address})" for member in members}
    evidence: dict[str, JsonValue] = {
        "rounds": [[{"group": list(test.group), "ok": test.ok} for test in one] for one in history],
        "proven": list(verdict.proven),
    }
    rounds = f"{verdict.rounds} round{'s' if verdict.rounds != 1 else ''} of groups"
    if verdict.kind == "transient":
        return (
            finding(
                "COL023",
                f"the check among all {len(names)} replicas failed, and in {rounds} nothing failed again",
                evidence=evidence,
            ),
        )
    if verdict.kind == "everybody":
        return (
            finding(
                "COL022",
                f"no two of the {len(names)} replicas passed together in {rounds}",
                evidence=evidence,
            ),
        )
    found = [
        finding("COL020", _replica_words(replica, names, history, rounds), replica=replica, evidence=evidence)
        for replica in verdict.replicas
    ]
    found += [
        finding(
            "COL021", _link_words(link, verdict, names, rounds), evidence={**evidence, "link": list(link)}
        )
        for link in verdict.links
    ]
    if verdict.kind == "unfinished":
        left = ", ".join(names[replica] for replica in verdict.suspects[:8])
        found.append(
            finding(
                "COL024",
                f"after {rounds} the fault is still among {left}",
                evidence={**evidence, "suspects": list(verdict.suspects)},
            )
        )
    return tuple(found)


def _replica_words(replica: str, names: Mapping[str, str], history: Sequence[Round], rounds: str) -> str:
    tests = [test for one in history for test in one if replica in test.group]
    if any(len(test.group) == 1 and not test.ok for test in tests):
        return f"{names[replica]} fails within itself, without any peer"
    with_peers = sum(len(test.group) == 2 and not test.ok for test in tests)
    return f"{names[replica]} failed with {with_peers} peers, two by two, that pass without it ({rounds})"


def _link_words(link: tuple[str, str], verdict: Verdict, names: Mapping[str, str], rounds: str) -> str:
    between = f"the link between {names[link[0]]} and {names[link[1]]}"
    if set(link) <= set(verdict.proven):
        return f"{between} fails, while both pass with other peers ({rounds})"
    return f"{between} fails; which of the two is at fault cannot be told without a third replica ({rounds})"
