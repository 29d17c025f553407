"""Which address of each replica its peers shall use. Called when an attempt's members are known.

An address is numeric, IPv4 or IPv6, and comes with the interface that carries it: a host name that resolves
to 127.* never matters. Loopback counts only where all replicas are on one machine, as in the demo.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from coordinator.core.catalogue import finding
from coordinator.core.protocol import Address, Finding, LinkResult, Registration, TcpResult

# Interfaces that carry traffic inside one machine only.
_OFFERS = 8  # addresses of one replica that are tried: each costs a link to every peer
_INSIDE = ("docker", "br-", "veth", "virbr", "cni", "podman", "flannel.", "cali", "kube-ipvs")


def offers(registration: Registration) -> tuple[Address, ...]:
    """The addresses peers may try, best first as registered: no bridges, nothing link-local or malformed.

    Loopback only where it is all there is.
    """
    usable = [
        a for a in registration.addresses if _parsed(a) is not None and not a.interface.startswith(_INSIDE)
    ]
    outside = tuple(a for a in usable if not _is_loopback(a))
    return (outside or tuple(usable))[:_OFFERS]


def choose(registrations: Mapping[str, Registration]) -> Mapping[str, Address]:
    """One address of each replica, all of one family: IPv4 where every replica has it, else IPv6.

    A replica that offers nothing of that family is left out; `judge` says so.
    """
    offered = {replica: offers(registration) for replica, registration in registrations.items()}
    family = _family(offered)
    chosen: dict[str, Address] = {}
    for replica, addresses in offered.items():
        for address in addresses:
            if address.family == family:
                chosen[replica] = address
                break
    return chosen


def settle(
    offered: Mapping[str, Sequence[Address]], results: Mapping[str, TcpResult]
) -> Mapping[str, Address]:
    """Of all addresses that were tried, the one of each replica that most peers reached.

    All of one family, so that the training's processes find each other: the family with which most links
    work, IPv4 where they tie. Among equals the first offered; among equals that not all peers reached, the one
    most like theirs, so that the findings speak of the network the replicas share. A replica that nobody
    reached keeps an offer of that family all the same.
    """
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for result in results.values():
        for link in result.links:
            ok, tried = seen.get((link.replica_id, link.address), (0, 0))
            seen[link.replica_id, link.address] = (ok + link.ok, tried + 1)

    def worth(replica: str, address: Address) -> tuple[int, int]:
        ok, tried = seen.get((replica, address.address), (0, 0))
        return ok, 0 if ok == tried else _kinship(replica, address, offered)

    def best(replica: str, family: str) -> tuple[int, Address | None]:
        mine = [address for address in offered[replica] if address.family == family]
        if not mine:
            return 0, None
        first = max(mine, key=lambda address: worth(replica, address))
        return seen.get((replica, first.address), (0, 0))[0], first

    totals = {family: sum(best(r, family)[0] for r in offered) for family in ("ipv4", "ipv6")}
    usable = {family: sum(best(r, family)[1] is not None for r in offered) for family in totals}
    family = max(totals, key=lambda name: (usable[name] == len(offered), totals[name], name == "ipv4"))
    return {r: chosen for r in offered if (chosen := best(r, family)[1]) is not None}


def _kinship(replica: str, address: Address, offered: Mapping[str, Sequence[Address]]) -> int:
    """Leading bits that an address has in common with the nearest one of each peer, in sum."""
    return sum(
        max((_common_bits(address, other) for other in others), default=0)
        for peer, others in offered.items()
        if peer != replica
    )


def _common_bits(one: Address, other: Address) -> int:
    first, second = _parsed(one), _parsed(other)
    if first is None or second is None or first.version != second.version:
        return 0
    return first.max_prefixlen - (int(first) ^ int(second)).bit_length()


def used(chosen: Mapping[str, Address], results: Mapping[str, TcpResult]) -> Mapping[str, TcpResult]:
    """The results of the links to the addresses that were settled on; what the others gave decides nothing."""

    def counts(link: LinkResult) -> bool:
        address = chosen.get(link.replica_id)
        return address is None or address.address == link.address

    return {
        replica: result.model_copy(update={"links": tuple(filter(counts, result.links))})
        for replica, result in results.items()
    }


def judge_offers(
    offered: Mapping[str, Sequence[Address]],
    chosen: Mapping[str, Address],
    results: Mapping[str, TcpResult],
    names: Mapping[str, str],
) -> tuple[Finding, ...]:
    """A note on addresses that were offered and do not lead to their replica, where another one does."""
    idle: dict[str, list[str]] = {}
    for replica, addresses in offered.items():
        own = chosen.get(replica)
        if own is None or not reached(replica, own, results)[0]:
            continue  # nobody reaches it at all: the links' own findings say more
        for address in addresses:
            peers, tried = reached(replica, address, results)
            if address != own and peers < tried:
                idle.setdefault(replica, []).append(
                    f"{address.address} on {address.interface or 'an unknown interface'} ({peers} of {tried} peers)"
                )
    if not idle:
        return ()
    first = next(iter(idle))
    instead = f"{chosen[first].address} on {chosen[first].interface}"
    others = f", and so do {len(idle) - 1} more" if len(idle) > 1 else ""
    return (
        finding(
            "NET033",
            f"{names[first]} offers {', '.join(idle[first])}, where not all peers reach it{others}; "
            f"{instead} is used instead",
            replica=first if len(idle) == 1 else None,
            evidence={"idle": {replica: list(listed) for replica, listed in idle.items()}},
        ),
    )


def reached(replica: str, address: Address, results: Mapping[str, TcpResult]) -> tuple[int, int]:
    """(peers that reached this address, peers that tried)."""
    tries = [
        link.ok
        for result in results.values()
        for link in result.links
        if (link.replica_id, link.address) == (replica, address.address)
    ]
    return sum(tries), len(tries)


def judge(registrations: Mapping[str, Registration]) -> tuple[Finding, ...]:
    """Findings about addresses before anything is probed."""
    chosen = choose(registrations)
    found = [
        finding(
            "NET041",
            f"{registration.hostname or replica} offers no address that its peers can use "
            f"(it has {_listed(registration)})",
            replica=replica,
            evidence={"addresses": [a.address for a in registration.addresses]},
        )
        for replica, registration in registrations.items()
        if replica not in chosen
    ]
    loopback = sorted(replica for replica, address in chosen.items() if _is_loopback(address))
    if loopback and len(loopback) < len(chosen):
        found += [
            finding(
                "NET041",
                f"{registrations[replica].hostname or replica} has only the loopback address "
                f"{chosen[replica].address}, which leads its peers to themselves",
                replica=replica,
                evidence={"addresses": [a.address for a in registrations[replica].addresses]},
            )
            for replica in loopback
        ]
    return tuple(found)


def _family(offered: Mapping[str, tuple[Address, ...]]) -> str:
    def count(family: str) -> int:
        return sum(any(a.family == family for a in addresses) for addresses in offered.values())

    return "ipv4" if count("ipv4") >= count("ipv6") else "ipv6"


def _listed(registration: Registration) -> str:
    return ", ".join(f"{a.address} on {a.interface}" for a in registration.addresses) or "none at all"


def _parsed(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.address)
    except ValueError:
        return None
    usable = not (parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)
    return parsed if usable else None


def _is_loopback(address: Address) -> bool:
    parsed = _parsed(address)
    return parsed is not None and parsed.is_loopback
