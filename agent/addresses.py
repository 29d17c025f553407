"""The addresses this replica offers to its peers, best first. Read off the interfaces; nothing is typed by anybody.

Every address of an interface that is up, but for loopback, link-local ones and bridges of container engines;
the one the kernel would use towards the coordinator comes first. RANKCALL_ADDRESS replaces them all, and is the only
way to offer a loopback address where there are others. Called by `main.py` before each registration.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from coordinator.core.protocol import Address

# Interfaces on which an engine on this machine keeps its own containers: no peer elsewhere reaches those.
_ENGINE_INTERFACES = (
    "docker",
    "br-",
    "virbr",
    "cni",
    "lxcbr",
    "lxdbr",
    "podman",
    "nerdctl",
    "flannel",
    "cali",
    "kube-",
)
_ELSEWHERE = ("192.0.2.1", 9)  # a documentation address (RFC 5737): asks for the default route, sends nothing


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface: its addresses, and whether it is up and one of an engine's bridges."""

    name: str
    addresses: tuple[str, ...]
    up: bool = True
    bridge: bool = False


def offered(override: str | None, coordinator_url: str) -> tuple[Address, ...]:
    """The addresses to register with. Looks up names, so it may block."""
    interfaces = tuple(_interfaces())
    route = _route_towards(coordinator_url)
    if override:
        return (_overridden(override, interfaces, route),)
    return choose(interfaces, route)


def choose(interfaces: Iterable[Interface], route: str | None) -> tuple[Address, ...]:
    """The usable addresses, the one of `route` first, then IPv4 before IPv6; loopback only where there is no other."""
    usable: list[Address] = []
    loopback: list[Address] = []
    for interface in interfaces:
        for text in interface.addresses:
            address = ipaddress.ip_address(text)
            found = Address(
                address=text, interface=interface.name, family="ipv4" if address.version == 4 else "ipv6"
            )
            if address.is_loopback:
                loopback.append(found)
            elif (
                interface.up
                and not _is_engines(interface)
                and not address.is_link_local
                and not address.is_unspecified
            ):
                usable.append(found)
    usable.sort(key=lambda found: (found.address != route, found.family != "ipv4"))
    return tuple(usable or loopback[:1])


def _is_engines(interface: Interface) -> bool:
    return interface.bridge or interface.name.startswith(_ENGINE_INTERFACES)


def _overridden(override: str, interfaces: Iterable[Interface], route: str | None) -> Address:
    """The given address, with the interface that has it. All of 127.0.0.0/8 belongs to the loopback interface."""
    text = override
    with contextlib.suppress(OSError):
        text = str(socket.getaddrinfo(override, None, type=socket.SOCK_STREAM)[0][4][0])
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return Address(address=override, interface="")
    owner = ""
    for interface in interfaces:
        own = [ipaddress.ip_address(one) for one in interface.addresses]
        if address in own or (address.is_loopback and any(one.is_loopback for one in own)):
            owner = interface.name
            break
        if route in interface.addresses:
            owner = (
                interface.name
            )  # an address translated on its way here arrives at the interface of the route
    return Address(address=text, interface=owner, family="ipv4" if address.version == 4 else "ipv6")


def _interfaces() -> Iterable[Interface]:
    states = psutil.net_if_stats()
    for name, rows in sorted(psutil.net_if_addrs().items()):
        texts = [row.address for row in rows if row.family in (socket.AF_INET, socket.AF_INET6)]
        plain = tuple(text.partition("%")[0] for text in texts)
        state = states.get(name)
        bridge = Path("/sys/class/net", name, "bridge").exists()
        yield Interface(name, plain, up=state is None or state.isup, bridge=bridge)


def _route_towards(url: str) -> str | None:
    """The address of ours that packets to the coordinator leave from; that of the default route where it is here."""
    parts = urlsplit(url)
    targets: list[Mapping[str, object]] = []
    with contextlib.suppress(OSError, ValueError):
        for family, _, _, _, where in socket.getaddrinfo(
            parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
        ):
            targets.append({"family": family, "where": where})
    targets.append({"family": socket.AF_INET, "where": _ELSEWHERE})
    for target in targets:
        with contextlib.suppress(OSError), socket.socket(target["family"], socket.SOCK_DGRAM) as probe:  # type: ignore[arg-type]
            probe.connect(target["where"])  # type: ignore[arg-type]
            own = str(probe.getsockname()[0])
            if not ipaddress.ip_address(own.partition("%")[0]).is_loopback:
                return own
    return None
