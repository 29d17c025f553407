"""Which probes each replica makes. Called by `assignment.py` when an attempt is in tcp or collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.core.protocol import Address, Member

_SAMPLE_ALL_UP_TO = (
    8  # replicas; above, only some links carry the whole payload: N×N of them would be a load test
)
_SAMPLED_PEERS = 4  # links sampled from each replica then; every replica is also the target of as many


def tcp_targets(members: Sequence[Member]) -> Mapping[str, tuple[Member, ...]]:
    """For each replica its peers, each beginning with the one after itself.

    So that not all of them knock at rank 0 first.
    """
    return {
        member.replica_id: tuple(
            peer for peer in (*members[at + 1 :], *members[:at]) if peer.replica_id != member.replica_id
        )
        for at, member in enumerate(members)
    }


def with_offers(members: Sequence[Member], offers: Mapping[str, Sequence[Address]]) -> tuple[Member, ...]:
    """`members` with each once for every address it offers: peers try them all, `address.settle` chooses."""
    return tuple(
        member.model_copy(update={"address": offer.address, "interface": offer.interface})
        for member in members
        for offer in offers.get(member.replica_id) or (Address(address=member.address, interface=""),)
    )


def offered_targets(
    members: Sequence[Member], offers: Mapping[str, Sequence[Address]]
) -> Mapping[str, tuple[Member, ...]]:
    """For each replica every address of each peer: all their first offers, then all their second ones …

    So that the addresses that are most likely to be used have had their turn when the time is up.
    """
    place = {
        (member.replica_id, offer.address): at
        for member in members
        for at, offer in enumerate(offers.get(member.replica_id, ()))
    }
    return {
        replica: tuple(sorted(targets, key=lambda target: place.get((target.replica_id, target.address), 0)))
        for replica, targets in tcp_targets(with_offers(members, offers)).items()
    }


def sampled(members: Sequence[Member]) -> Mapping[str, tuple[str, ...] | None]:
    """`TcpTask.sampled` for each replica: peers at distances 1, 2, 4 … in rank order; None: all of them."""
    count = len(members)
    if count <= _SAMPLE_ALL_UP_TO:
        return {member.replica_id: None for member in members}
    steps = [1 << power for power in range(_SAMPLED_PEERS)]
    return {
        member.replica_id: tuple(members[(at + step) % count].replica_id for step in steps)
        for at, member in enumerate(members)
    }
