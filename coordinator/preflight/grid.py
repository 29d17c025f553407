"""The N×N grid of links as users see it: an attempt and its replicas' tcp results in, a `LinkGrid` out. Pure.

Called by `api/preflights.py`. Every ordered pair of ranks has a cell; what was not tested, or not reported yet, is
"unknown". Cells come rank by rank, or the worst first where somebody asks for only so many.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from coordinator.attempt import AttemptState, Round, Seat
from coordinator.core.protocol import Address, LinkResult, Stage, TcpResult
from coordinator.core.views import (
    GroupView,
    LinkEndView,
    LinkGrid,
    LinkView,
    OfferView,
    RoundView,
)
from coordinator.preflight.address import reached, used
from coordinator.preflight.verdict import mesh_of

_UNTRIED = "untried"  # `agent.probes.link.Fault`: no evidence either way


def grid(attempt: AttemptState, results: Mapping[str, TcpResult], *, worst: int | None = None) -> LinkGrid:
    """The grid of one attempt.

    Args:
        results: what the replicas reported of their tcp probes, by replica id.
        worst: only so many links, the worst first; None: all of them.
    """
    cells = _cells(attempt, results)
    states = Counter(cell.state for cell in cells)
    if worst is not None:
        cells = worst_first(cells)[:worst]
    tcp = next((record for record in attempt.stages if record.stage is Stage.TCP), None)
    failed = any(r.stage is Stage.COLLECTIVE and r.state == "failed" for r in attempt.stages)
    return LinkGrid(
        attempt=attempt.number,
        state="failed" if failed else tcp.state if tcp else "waiting",
        replicas=tuple(_end(seat, results) for seat in attempt.seats),
        links=tuple(cells),
        good=states["ok"],
        failed=states["failed"],
        untested=states["unknown"],
        rounds=tuple(_round(one, at, attempt) for at, one in enumerate(attempt.rounds)),
    )


def worst_first(links: Iterable[LinkView]) -> list[LinkView]:
    """Those at fault, those that fail because of them, those without a result, then by how slow they are."""
    listed = list(links)
    trips = [link.rtt_s for link in listed if link.rtt_s]
    speeds = [link.bytes_per_s for link in listed if link.bytes_per_s]
    trip = statistics.median(trips) if trips else 1.0
    speed = statistics.median(speeds) if speeds else 1.0

    def slowness(link: LinkView) -> float:
        return max(
            link.rtt_s / trip if link.rtt_s else 0.0,
            speed / link.bytes_per_s if link.bytes_per_s else 0.0,
        )

    def place(link: LinkView) -> tuple[int, int, float, int, int]:
        grade = {"failed": 0 if link.at_fault else 1, "unknown": 2, "ok": 3}[link.state]
        return grade, -link.tries, -slowness(link), link.source, link.target

    return sorted(listed, key=place)


def _cells(attempt: AttemptState, results: Mapping[str, TcpResult]) -> list[LinkView]:
    if not results:
        return []
    chosen = {
        seat.replica_id: Address(address=seat.address, interface=seat.interface or "", family=seat.family)
        for seat in attempt.seats
    }
    replicas = [seat.replica_id for seat in attempt.seats]
    links, bad = mesh_of(replicas, used(chosen, results))
    return [
        _cell(source, target, links.get((source.replica_id, target.replica_id)), bad)
        for source in attempt.seats
        for target in attempt.seats
        if source is not target
    ]


def _cell(source: Seat, target: Seat, seen: LinkResult | None, bad: frozenset[tuple[str, str]]) -> LinkView:
    if seen is None or seen.fault == _UNTRIED:
        return LinkView(source=source.rank, target=target.rank, error=seen.error if seen else "")
    return LinkView(
        source=source.rank,
        target=target.rank,
        state="ok" if seen.ok else "failed",
        fault=seen.fault,
        error=seen.error,
        at_fault=(source.replica_id, target.replica_id) in bad,
        rtt_s=seen.rtt_s,
        bytes_per_s=seen.bytes_per_s,
        return_bytes_per_s=seen.return_bytes_per_s,
        tries=seen.tries,
    )


def _end(seat: Seat, results: Mapping[str, TcpResult]) -> LinkEndView:
    offers = []
    for offer in seat.offers:
        peers, tried = reached(seat.replica_id, offer, results)
        offers.append(
            OfferView(
                address=offer.address,
                interface=offer.interface,
                used=offer.address == seat.address,
                reached_by=peers,
                tried_by=tried,
            )
        )
    return LinkEndView(
        rank=seat.rank,
        replica_id=seat.replica_id,
        hostname=seat.hostname,
        address=seat.address,
        interface=seat.interface,
        offers=tuple(offers),
        clock_offset_s=seat.clock_offset_s,
    )


def _round(one: Round, at: int, attempt: AttemptState) -> RoundView:
    ranks = {seat.replica_id: seat.rank for seat in attempt.seats}
    words: Sequence[bool | None] = one.passed or (None,) * len(one.groups)
    everyone = len(one.groups) == 1 and len(one.groups[0]) == len(attempt.seats)
    kind = "confirming" if one.confirming else "within" if one.within else "all" if everyone else "groups"
    return RoundView.model_validate(
        {
            "number": at + 1,
            "kind": kind,
            "groups": tuple(
                GroupView(ranks=tuple(ranks[replica] for replica in group), passed=ok)
                for group, ok in zip(one.groups, words, strict=True)
            ),
        }
    )
