"""Which address of each replica its peers shall use. Called when an attempt's members are known.

An address is numeric, IPv4 or IPv6, and comes with the interface that carries it: a host name that resolves
to 127.* never matters. Loopback counts only where all replicas are on one machine, as in the demo.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from coordinator.core.catalogue import finding
from coordinator.core.protocol import Address, Finding, Registration

# Interfaces that carry traffic inside one machine only.
_INSIDE = ("docker", "br-", "veth", "virbr", "cni", "podman", "flannel.", "cali", "kube-ipvs")


def offers(registration: Registration) -> tuple[Address, ...]:
    """The addresses peers may try, best first as registered: no bridges, nothing link-local or malformed.

    Loopback only where it is all there is.
    """
    usable = [
        a for a in registration.addresses if _parsed(a) is not None and not a.interface.startswith(_INSIDE)
    ]
    outside = tuple(a for a in usable if not _is_loopback(a))
    return outside or tuple(usable)


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
