"""Who gets which rank: a pure function from membership to ordered seats. Called by `stages/gather.py`.

Ranks are stable: a replica keeps the rank it had in the job's attempt before, else the one it had last;
else the coordinator's own replica comes first, then the platform's ordinals, then addresses in numeric
order (10.0.0.9 before 10.0.0.10; host names repeat and sort badly, so they never decide). A replacement
takes the seat of the replica it replaces.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may take a seat: alive, registered and free."""

    replica_id: str
    address: str = ""
    last_rank: int | None = None
    beside_coordinator: bool = False
    ordinal: int | None = None


def address_key(address: str) -> tuple[int, int, str]:
    """Sorts addresses numerically, IPv4 before IPv6 before what is no address at all."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return (9, 0, address)
    return (parsed.version, int(parsed), address)


def _newcomer_key(candidate: Candidate) -> tuple[bool, bool, int, tuple[int, int, str], str]:
    return (
        not candidate.beside_coordinator,
        candidate.ordinal is None,
        candidate.ordinal or 0,
        address_key(candidate.address),
        candidate.replica_id,
    )


def seats(
    candidates: Sequence[Candidate], nodes: int, previous: Sequence[str] = ()
) -> tuple[str, ...] | None:
    """Replica ids in rank order, or None while there are fewer candidates than `nodes`.

    Args:
        candidates: who is free now, in any order.
        nodes: how many seats there are.
        previous: replica ids of the job's attempt before, in rank order.
    """
    if len(candidates) < nodes:
        return None
    known = {candidate.replica_id: candidate for candidate in candidates}
    taken: list[str | None] = [None] * nodes
    placed: set[str] = set()

    def place(rank: int, replica_id: str) -> None:
        taken[rank] = replica_id
        placed.add(replica_id)

    for rank, replica_id in enumerate(previous[:nodes]):
        if replica_id in known:
            place(rank, replica_id)
    newcomers = sorted(candidates, key=_newcomer_key)
    if not previous:
        for candidate in newcomers:
            rank_before = candidate.last_rank
            if rank_before is not None and rank_before < nodes and taken[rank_before] is None:
                place(rank_before, candidate.replica_id)
    waiting = (c.replica_id for c in newcomers if c.replica_id not in placed)
    return tuple(seat if seat is not None else next(waiting) for seat in taken)
