"""Where the coordinator is, and whether that is here: decided from RANKCALL_URL, RANKCALL_PEERS or nothing.

`coordinator/up.py` asks it for its role, `agent/discovery.py` for the address to register at. The third
way, a lease on a shared folder, is `core/lease.py`. `decide` is pure: names are resolved and addresses
recognised by the two functions it is given.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_PORT = 8000
HIGHEST_ORDINAL = 4095

Resolve = Callable[[str], tuple[str, ...]]
IsOwn = Callable[[str], bool]


class BadHint(ValueError):
    """A RANKCALL_* variable that cannot be understood; its text says which and why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One entry of RANKCALL_PEERS: a name or an address, and a port where one was written."""

    host: str
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """What this replica was told about the others.

    Attributes:
        url: RANKCALL_URL, without a trailing slash; the first, where it names several coordinator processes that share
            a PostgreSQL store, the `others` of which serve as well.
        peers: RANKCALL_PEERS in their order; the first is the master.
        shared_dir: RANKCALL_SHARED_DIR, a folder all replicas see.
        port: RANKCALL_PORT, where the coordinator, or a proxy of its page, listens.
        address: RANKCALL_ADDRESS, the one address that is this replica's (replicas on one machine).
        nodes: RANKCALL_NODES, how many replicas there are to be.
        tls: RANKCALL_TLS_CERT or RANKCALL_TLS_CA is set: addresses that are made here begin with https.
    """

    url: str | None = None
    peers: tuple[Peer, ...] = ()
    shared_dir: Path | None = None
    port: int = DEFAULT_PORT
    address: str | None = None
    nodes: int | None = None
    tls: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where the coordinator is. `here`: this replica runs it. `how` says what that was decided from. `others`: where
    further processes of it are, each as good as the first."""

    url: str
    here: bool
    how: str
    others: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.others)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Not yet known; `why` names what is waited for."""

    why: str


def speaks_tls(environment: Mapping[str, str]) -> bool:
    """Whether the replicas of this deployment speak TLS among themselves (`tls.py`)."""
    return bool(environment.get("RANKCALL_TLS_CERT") or environment.get("RANKCALL_TLS_CA"))


def hints_of(environment: Mapping[str, str]) -> Hints:
    """Reads the RANKCALL_* variables of discovery.

    Raises:
        BadHint: for a port, number, address, folder or URL that is none.
    """
    urls = checked_urls(environment.get("RANKCALL_URL", ""), "RANKCALL_URL")
    shared = environment.get("RANKCALL_SHARED_DIR", "").strip()
    ordinal = environment.get("RANKCALL_ORDINAL", "").strip()
    if ordinal:
        checked_ordinal(ordinal)
    checked_roots(environment.get("RANKCALL_DATA_ROOTS", ""))
    address = environment.get("RANKCALL_ADDRESS", "").strip()
    port = _number(environment, "RANKCALL_PORT")
    if port is not None and port > 65535:
        raise BadHint(f"RANKCALL_PORT is {port}: a port is a number from 1 to 65535")
    return Hints(
        url=urls[0] if urls else None,
        peers=parse_peers(environment.get("RANKCALL_PEERS", "")),
        shared_dir=Path(shared) if shared else None,
        port=port or DEFAULT_PORT,
        address=checked_address(address) if address else None,
        nodes=_number(environment, "RANKCALL_NODES"),
        tls=speaks_tls(environment),
        others=urls[1:],
    )


def without_service_links(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the RANKCALL_PORT that Kubernetes sets in every pod when a Service is called `rankcall`:
    `tcp://10.96.0.7:8000` (so do Docker's old links)."""
    linked = environment.get("RANKCALL_PORT", "").startswith(("tcp://", "udp://"))
    return {name: value for name, value in environment.items() if not (linked and name == "RANKCALL_PORT")}


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise BadHint(f"{name} is {text[:40]!r}: it must be a whole number from 1 on")
    return int(text)


def checked_address(text: str) -> str:
    """RANKCALL_ADDRESS, which peers are given as it stands.

    Raises:
        BadHint: for a name, or what no peer could send to.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        usable = False
    else:
        usable = not (address.is_unspecified or address.is_multicast)
    if not usable:
        raise BadHint(
            f"RANKCALL_ADDRESS is {text[:80]!r}: write the IP address at which the other replicas reach this one, such as "
            "10.0.0.4; leave it out where they reach one that this replica has itself"
        )
    return text


def checked_ordinal(text: str) -> int:
    """RANKCALL_ORDINAL.

    Raises:
        BadHint: for what is no number from 0 on.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) > HIGHEST_ORDINAL:
        raise BadHint(
            f"RANKCALL_ORDINAL is {text[:40]!r}: it must be a whole number from 0 to {HIGHEST_ORDINAL}, which of the "
            "replicas this is; leave it out where the platform says so or nobody does"
        )
    return int(text)


def checked_roots(text: str) -> tuple[str, ...]:
    """The folders of RANKCALL_DATA_ROOTS.

    Raises:
        BadHint: for one that is not absolute: which folder that is would depend on where a process runs.
    """
    roots = tuple(part for part in text.split(":") if part)
    for root in roots:
        if not root.startswith("/"):
            raise BadHint(
                f"RANKCALL_DATA_ROOTS holds {root[:80]!r}: write absolute folders with colons between, such as /data:/mnt/models"
            )
    return roots


def _mistyped(host: str) -> bool:
    """Whether it can be nothing but an address, and is none: `999.1.1.1`. No name ends in a number (RFC 3696)."""
    return bool(re.fullmatch(r"[0-9.]+", host) or ":" in host) and not _is_address(host)


def checked_url(url: str, name: str) -> str:
    """The URL without a trailing slash; `example:8000` is taken as `http://example:8000`."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port_is_number = parts.port is None or parts.port > 0
        mistyped = _mistyped(parts.hostname or "")
    except ValueError:
        port_is_number, mistyped = False, True
    if mistyped or not port_is_number or parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadHint(f"{name} is {url!r}: write it as http://HOST:PORT")
    return text.rstrip("/")


def checked_urls(text: str, name: str) -> tuple[str, ...]:
    """Several of them, blanks or commas between."""
    return tuple(checked_url(url, name) for url in re.split(r"[\s,]+", text) if url)


def next_of(urls: tuple[str, ...], current: str, *, failed: bool) -> str:
    """Which of several coordinator processes to speak to: the present one, or the one after it where that has failed."""
    if current not in urls:
        return urls[0]
    return urls[(urls.index(current) + failed) % len(urls)]


def parse_peers(text: str) -> tuple[Peer, ...]:
    """`10.0.0.4,10.0.0.5`, blanks or commas between, each with a port if need be (`[fd00::4]:8000`)."""
    return tuple(_peer(entry) for entry in re.split(r"[\s,]+", text) if entry)


def _peer(entry: str) -> Peer:
    if (version6 := re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::([0-9]+))?", entry)) is not None:
        host, port = version6[1], version6[2]
    elif entry.count(":") > 1:
        host, port = entry, None
    else:
        host, _, port = entry.partition(":")
    if not host or _mistyped(host) or (port and not re.fullmatch(r"[0-9]{1,9}", port)):
        raise BadHint(f"RANKCALL_PEERS holds {entry!r}: write a name or an address, with :PORT if need be")
    if port and not 1 <= int(port) <= 65535:
        raise BadHint(f"RANKCALL_PEERS holds {entry!r}: a port is a number from 1 to 65535")
    return Peer(host, int(port) if port else None)


def decide(hints: Hints, resolve: Resolve, is_own: IsOwn) -> Place | Undecided:
    """Who runs the coordinator, by the explicit URL, else by the list of peers, else this replica alone.

    Args:
        resolve: a name's addresses, none when it cannot be resolved now.
        is_own: whether an address is one of this replica's.
    """
    if hints.url is not None and hints.others:
        return _by_urls(hints, (hints.url, *hints.others), resolve, is_own)
    if hints.url is not None:
        return _by_url(hints, hints.url, resolve, is_own)
    if hints.peers:
        return _by_peers(hints, resolve, is_own)
    return Place(
        own_url(hints), here=True, how="no RANKCALL_URL, RANKCALL_PEERS or RANKCALL_SHARED_DIR is set"
    )


def _by_url(hints: Hints, url: str, resolve: Resolve, is_own: IsOwn) -> Place | Undecided:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if port != hints.port:
        return Place(url, here=False, how="RANKCALL_URL")
    addresses = resolve(host)
    if not addresses:
        return Undecided(f"{host} of RANKCALL_URL does not resolve yet")
    if any(is_own(address) for address in addresses):
        return Place(own_url(hints), here=True, how="RANKCALL_URL names this replica")
    return Place(url, here=False, how="RANKCALL_URL")


def _by_urls(hints: Hints, urls: tuple[str, ...], resolve: Resolve, is_own: IsOwn) -> Place:
    """Several: whoever owns the address of one of them runs it, and they agree among themselves which is active."""
    for url in urls:
        found = _by_url(hints, url, resolve, is_own)
        if isinstance(found, Place) and found.here:
            return Place(found.url, True, found.how, tuple(other for other in urls if other != url))
    return Place(urls[0], False, "RANKCALL_URL", urls[1:])


def _by_peers(hints: Hints, resolve: Resolve, is_own: IsOwn) -> Place | Undecided:
    first, *others = hints.peers
    if not others and not _is_address(first.host):
        return _by_one_name(hints, first, resolve, is_own)
    addresses = resolve(first.host)
    if any(is_own(address) for address in addresses) and first.port in (None, hints.port):
        return Place(own_url(hints), here=True, how="this replica is the first of RANKCALL_PEERS")
    url = http_url(first.host, first.port or hints.port, tls=hints.tls)
    if addresses:
        return Place(url, here=False, how=f"the first of RANKCALL_PEERS is {first.host}")
    if any(is_own(address) for peer in others for address in resolve(peer.host)):
        return Place(url, here=False, how=f"the first of RANKCALL_PEERS is {first.host}")
    return Undecided(f"{first.host} of RANKCALL_PEERS does not resolve yet")


def _by_one_name(hints: Hints, peer: Peer, resolve: Resolve, is_own: IsOwn) -> Place | Undecided:
    """One name for all replicas (a headless Service, `tasks.NAME`): the numerically first address is master.

    Taken only once all RANKCALL_NODES addresses are there: with fewer, two replicas could see two lists.
    """
    addresses = sorted(resolve(peer.host), key=_numeric)
    wanted = hints.nodes or 1
    if len(addresses) < wanted:
        return Undecided(f"{peer.host} of RANKCALL_PEERS names {len(addresses)} of {wanted} replicas yet")
    how = f"{addresses[0]} is the first address of {peer.host}"
    if is_own(addresses[0]):
        return Place(own_url(hints), here=True, how=how)
    return Place(http_url(addresses[0], peer.port or hints.port, tls=hints.tls), here=False, how=how)


def _numeric(address: str) -> tuple[int, int]:
    parsed = ipaddress.ip_address(address)
    return parsed.version, int(parsed)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def http_url(host: str, port: int, *, tls: bool = False) -> str:
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def own_url(hints: Hints) -> str:
    """How this replica itself reaches the coordinator it runs. RANKCALL_ADDRESS may be a translated address that
    only others reach."""
    return http_url("127.0.0.1", hints.port, tls=hints.tls)


def told_host(environment: Mapping[str, str]) -> str | None:
    """The one address that coordinator and proxy of this replica are to bind; None: their own rule."""
    return environment.get("RANKCALL_HOST") or own_loopback(environment.get("RANKCALL_ADDRESS", "").strip())


def own_loopback(address: str | None) -> str | None:
    """RANKCALL_ADDRESS where only this machine has it: then other replicas are here too, and want the same port at
    theirs. Any other address may be a translated one, which cannot be bound."""
    try:
        return address if address and ipaddress.ip_address(address).is_loopback else None
    except ValueError:
        return None


def resolve(host: str) -> tuple[str, ...]:
    """The addresses of a name, IPv4 ones alone where there are any; empty when it does not resolve now."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    by_family: dict[int, dict[str, None]] = {}
    for family, _, _, _, sockaddr in found:
        by_family.setdefault(family, {})[str(sockaddr[0]).partition("%")[0]] = None
    return tuple(by_family.get(socket.AF_INET) or by_family.get(socket.AF_INET6) or ())


def recogniser(hints: Hints) -> IsOwn:
    """Tells this replica's own addresses: RANKCALL_ADDRESS alone where it is set, else what can be bound."""
    own = hints.address
    if own is None:
        return can_bind
    return lambda address: _same(address, own)


def _same(one: str, other: str) -> bool:
    try:
        return ipaddress.ip_address(one) == ipaddress.ip_address(other)
    except ValueError:
        return one == other


def can_bind(address: str) -> bool:
    """Whether the address belongs to an interface of this machine: the kernel binds no other."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def reachable_address() -> str:
    """The address this machine sends from by its default route; loopback where it has no route at all.

    Connecting a datagram socket sends nothing: the kernel only picks the source. The targets are the
    documentation's own addresses (RFC 5737, RFC 3849).
    """
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return "127.0.0.1"
