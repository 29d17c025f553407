"""What the results of the tcp mesh mean, as findings. `stages/handshake.py` calls it when all have reported or time is up.

`mesh.py` says who is at fault; this says how it failed (`agent.probes.link.Fault`), picks the code, and puts
it into words with the figures. The collective's half is `collective_verdict.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from coordinator.core.catalogue import finding
from coordinator.core.protocol import Finding, LinkResult, Member, TcpResult
from coordinator.preflight.collective_verdict import judge_collective
from coordinator.preflight.mesh import Link, Scope, Trouble, explain

__all__ = ["judge_collective", "judge_tcp"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a link that works is worth a warning.

    Attributes:
        compared: links needed before one can be called slower than the others.
        slower: times below the median throughput, or above the median round trip.
        fast_bytes_per_s: what is this fast (a gigabit) is never called slow: short transfers vary.
        quick_s: nor is what is this quick.
        shown: links listed in one finding's evidence.
    """

    compared: int = 4
    slower: float = 8.0
    fast_bytes_per_s: float = 125e6
    quick_s: float = 0.02
    shown: int = 24


THRESHOLDS = Thresholds()

_SCOPE_CODES = {
    Scope.CUT_OFF: "NET001",
    Scope.UNREACHED: "NET002",
    Scope.UNREACHING: "NET003",
    Scope.LINK: "NET004",
    Scope.DIRECTION: "NET005",
    Scope.EVERYBODY: "NET006",
    Scope.SPLIT: "NET007",
}
# Faults that say more than who is concerned. Where links of one trouble differ the first in this order counts.
_FAULT_CODES = {
    "wrong_replica": "NET012",
    "silent": "NET010",
    "not_echo": "NET013",
    "corrupt": "NET013",
    "closed": "NET014",
    "lost_out": "NET011",
    "lost_back": "NET011",
}
_UNKNOWN = ("untried",)  # no evidence either way


def judge_tcp(members: Sequence[Member], results: Mapping[str, TcpResult]) -> tuple[Finding, ...]:
    """Findings of the tcp stage; an error among them blocks. `results` lacks who did not report."""
    names = {member.replica_id: name_of(member) for member in members}
    replicas = [member.replica_id for member in members]
    links, bad = mesh_of(replicas, results)
    found = [
        finding(
            "NET040",
            f"{names[replica]} did not finish its tcp check in time",
            replica=replica,
            evidence={"untried": _untried(results.get(replica))},
        )
        for replica in replicas
        if replica not in results or _untried(results[replica])
    ]
    for trouble in explain(replicas, bad):
        found.append(_put(trouble, links, names, results))
    found += _port(members, results, names)
    found += _notes(replicas, links, names, results, troubled={r for link in bad for r in link})
    return tuple(found)


def mesh_of(
    replicas: Sequence[str], results: Mapping[str, TcpResult]
) -> tuple[Mapping[Link, LinkResult], frozenset[Link]]:
    """Every link as it was seen, and those that are at fault themselves."""
    links = _links(replicas, results)
    bad = {link for link, seen in links.items() if not seen.ok and seen.fault not in _UNKNOWN}
    return links, frozenset(_directed(bad, links))


def name_of(member: Member) -> str:
    """A replica as findings call it: its rank first, because that is what the training's log calls it."""
    detail = ", ".join(part for part in (member.name, member.address) if part)
    return f"rank {member.rank} ({detail or member.replica_id})"


def _links(replicas: Sequence[str], results: Mapping[str, TcpResult]) -> dict[Link, LinkResult]:
    """The mesh as it was seen; of several addresses of one target the one that worked."""
    known = set(replicas)
    links: dict[Link, LinkResult] = {}
    for source in replicas:
        for seen in results[source].links if source in results else ():
            link = (source, seen.replica_id)
            if seen.replica_id in known and (link not in links or seen.ok):
                links[link] = seen
    return links


def _directed(bad: set[Link], links: Mapping[Link, LinkResult]) -> set[Link]:
    """The failing links that are at fault themselves.

    One direction that loses packets makes both fail: a payload "lost on its way back", or an answer to a
    connect, went the other way. Where that can be told, the innocent direction is left out.
    """
    innocent: set[Link] = set()
    for source, target in bad:
        seen, back = links[(source, target)], links.get((target, source))
        if back is None or (target, source) not in bad:
            continue
        lost_there = seen.fault == "lost_back" and back.fault == "lost_out"
        answer_lost = seen.fault == back.fault == "timed_out" and back.half_open and not seen.half_open
        if lost_there or answer_lost:
            innocent.add((source, target))
    return bad - innocent


def _untried(result: TcpResult | None) -> int:
    return 0 if result is None else sum(link.fault in _UNKNOWN for link in result.links)


def _put(
    trouble: Trouble,
    links: Mapping[Link, LinkResult],
    names: Mapping[str, str],
    results: Mapping[str, TcpResult],
) -> Finding:
    seen = [links[link] for link in trouble.links if link in links]
    faults = {one.fault for one in seen}
    code = next((c for fault, c in _FAULT_CODES.items() if fault in faults and faults <= _kin(fault)), None)
    if "wrong_replica" in faults:
        code = "NET012"
    alone = trouble.scope in (Scope.CUT_OFF, Scope.UNREACHED, Scope.UNREACHING)
    evidence: dict[str, JsonValue] = {
        "scope": str(trouble.scope),
        "replicas": list(trouble.replicas),
        "links": _evidence(trouble.links, links),
    }
    if trouble.groups:
        evidence["groups"] = [list(group) for group in trouble.groups]
    meshes = sorted({mesh for replica in trouble.replicas for mesh in _sidecars(results, replica)})
    if meshes:
        evidence["sidecars"] = list(meshes)
    message = f"{_scope_words(trouble, names)}: {_fault_words(seen, names)}"
    if meshes and code in ("NET010", "NET013", "NET014"):
        message += f"; {meshes[0]}"
    return finding(
        code or _SCOPE_CODES[trouble.scope],
        message,
        replica=trouble.replicas[0] if alone else None,
        evidence=evidence,
    )


def _kin(fault: str) -> frozenset[str]:
    """Faults that are one cause seen from its two ends."""
    if fault in ("lost_out", "lost_back"):
        return frozenset({"lost_out", "lost_back"})
    if fault == "silent":  # some connections of a sidecar are closed, some just stay open
        return frozenset({"silent", "closed"})
    return frozenset({fault})


def _scope_words(trouble: Trouble, names: Mapping[str, str]) -> str:
    who = [names[replica] for replica in trouble.replicas]
    match trouble.scope:
        case Scope.CUT_OFF:
            return f"{who[0]} has no working link to any peer, while the peers reach each other"
        case Scope.UNREACHED:
            return f"no peer reaches {who[0]}, though it reaches them"
        case Scope.UNREACHING:
            return f"{who[0]} reaches no peer, though they reach it"
        case Scope.LINK:
            return f"the link between {who[0]} and {who[1]} fails both ways"
        case Scope.DIRECTION:
            return f"packets from {who[0]} do not reach {who[1]}, while the other direction works"
        case Scope.EVERYBODY:
            return f"no two of the {len(who)} replicas reach each other"
        case Scope.SPLIT:
            groups = [", ".join(names[replica] for replica in group) for group in trouble.groups]
            return f"the replicas fall into {len(groups)} groups that do not reach each other: {' | '.join(groups)}"


def _fault_words(seen: Sequence[LinkResult], names: Mapping[str, str]) -> str:
    counts: dict[str, int] = {}
    for one in seen:
        text = one.error
        if one.answered_by:
            text = f"{names.get(one.answered_by, one.answered_by)} answers at {one.address}"
        counts[text] = counts.get(text, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return "; ".join(text if count == 1 else f"{text} ({count} links)" for text, count in ordered[:3])


def _evidence(chosen: Iterable[Link], links: Mapping[Link, LinkResult]) -> list[JsonValue]:
    shown: list[JsonValue] = []
    for link in list(chosen)[: THRESHOLDS.shown]:
        seen = links[link]
        shown.append(
            {
                "from": link[0],
                "to": link[1],
                "address": seen.address,
                "fault": seen.fault,
                "error": seen.error,
                "tries": seen.tries,
            }
        )
    return shown


def _sidecars(results: Mapping[str, TcpResult], replica: str) -> tuple[str, ...]:
    return results[replica].sidecars if replica in results else ()


def _port(
    members: Sequence[Member], results: Mapping[str, TcpResult], names: Mapping[str, str]
) -> Iterable[Finding]:
    master = members[0].replica_id if members else ""
    result = results.get(master)
    if result is None or not result.port_holders:
        return
    held = "; ".join(f"{port} by {holder}" for port, holder in result.port_holders.items())
    evidence: dict[str, JsonValue] = {"holders": {str(k): v for k, v in result.port_holders.items()}}
    if result.rendezvous_port is None:
        yield finding(
            "NET021",
            f"every candidate for the rendezvous port is taken on {names[master]}: {held}",
            replica=master,
            evidence=evidence,
        )
        return
    yield finding(
        "NET020",
        f"on {names[master]} port {held}: all ranks use {result.rendezvous_port} instead",
        replica=master,
        evidence={**evidence, "port": result.rendezvous_port},
    )


def _notes(
    replicas: Sequence[str],
    links: Mapping[Link, LinkResult],
    names: Mapping[str, str],
    results: Mapping[str, TcpResult],
    *,
    troubled: set[str],
) -> Iterable[Finding]:
    """What works and is still worth a word."""
    good = {link: seen for link, seen in links.items() if seen.ok}
    yield from _slow(good, names)
    shaky = [link for link, seen in good.items() if seen.tries > 1]
    if shaky:
        first = shaky[0]
        yield finding(
            "NET031",
            f"{len(shaky)} link{'s' if len(shaky) > 1 else ''} passed only at the second try, "
            f"e.g. from {names[first[0]]} to {names[first[1]]}",
            evidence={"links": _evidence(shaky, links)},
        )
    translated = {
        link[0]: seen.seen_as for link, seen in good.items() if seen.seen_as and seen.seen_as != seen.source
    }
    if translated:
        replica, seen_as = next(iter(translated.items()))
        yield finding(
            "NET032",
            f"{len(translated)} of {len(replicas)} replicas are seen from another address than their own, "
            f"e.g. {names[replica]} as {seen_as}",
            evidence={"seen_as": dict(translated)},
        )
    meshes = {r: _sidecars(results, r) for r in replicas if r not in troubled and _sidecars(results, r)}
    if meshes:
        replica, found = next(iter(meshes.items()))
        yield finding(
            "NET015",
            f"a service mesh is present on {len(meshes)} of {len(replicas)} replicas: {found[0]}",
            evidence={"sidecars": {r: list(listed) for r, listed in meshes.items()}},
        )


def _slow(good: Mapping[Link, LinkResult], names: Mapping[str, str]) -> Iterable[Finding]:
    speeds = {link: speed for link in good if (speed := _speed(link, good)) is not None}
    if len(speeds) >= THRESHOLDS.compared:
        usual = statistics.median(speeds.values())
        limit = min(usual / THRESHOLDS.slower, THRESHOLDS.fast_bytes_per_s)
        for link, speed in speeds.items():
            if speed < limit:
                yield finding(
                    "NET030",
                    f"from {names[link[0]]} to {names[link[1]]} go {speed / 1e6:.1f} MB/s, "
                    f"while the median link carries {usual / 1e6:.1f} MB/s",
                    evidence={
                        "from": link[0],
                        "to": link[1],
                        "bytes_per_s": speed,
                        "median_bytes_per_s": usual,
                    },
                )
    trips = {link: seen.rtt_s for link, seen in good.items() if seen.rtt_s is not None}
    if len(trips) >= THRESHOLDS.compared:
        usual = statistics.median(trips.values())
        limit = max(usual * THRESHOLDS.slower, THRESHOLDS.quick_s)
        for link, trip in trips.items():
            if trip > limit:
                yield finding(
                    "NET030",
                    f"a round trip from {names[link[0]]} to {names[link[1]]} takes {trip * 1e3:.0f} ms, "
                    f"while the median is {usual * 1e3:.1f} ms",
                    evidence={"from": link[0], "to": link[1], "rtt_s": trip, "median_rtt_s": usual},
                )


def _speed(link: Link, good: Mapping[Link, LinkResult]) -> float | None:
    """Bytes per second in one direction: the better of what its two ends measured.

    A busy moment of one end spoils its own figure only; a slow link spoils both.
    """
    there, back = good[link], good.get((link[1], link[0]))
    known = [there.bytes_per_s, back.return_bytes_per_s if back is not None else None]
    return max((speed for speed in known if speed is not None), default=None)
