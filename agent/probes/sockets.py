"""The kernel's table of TCP sockets: who listens on a port, and which known proxies listen at all.

Read from `/proc/net/tcp*`, never by binding: a probe that binds the rendezvous port is itself what makes it
busy. Sockets of other containers in the same network namespace (sidecars in a pod) are in the table too.
"""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ESTABLISHED, _SYN_SENT, _SYN_RECEIVED, _TIME_WAIT, _LISTEN = "01", "02", "03", "06", "0A"

# Ports that only a service mesh's proxy uses (Istio and Linkerd, from their documentation); each pair is
# enough evidence together, because one alone may be anybody's.
_MESHES: dict[str, tuple[int, ...]] = {
    "Istio's Envoy": (15001, 15006),
    "Istio's Envoy (inbound only)": (15006, 15021),
    "Istio's Envoy (agent)": (15020, 15021),
    "Linkerd's proxy": (4140, 4143),
}


@dataclass(frozen=True, slots=True)
class Socket:
    """One row of the kernel's table. `inode` is 0 for a socket that no process holds any more."""

    port: int
    state: str
    uid: int
    inode: int
    peer: str = ""  # the other side's address, as the kernel writes it in hexadecimal


def table(root: Path = Path("/proc/net")) -> tuple[Socket, ...]:
    """TCP sockets of this network namespace but those in TIME_WAIT; empty where the table cannot be read."""
    rows: list[Socket] = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows.extend(_parse((root / name).read_text().splitlines()[1:]))
    return tuple(rows)


def _parse(lines: Iterable[str]) -> Iterable[Socket]:
    for line in lines:
        # Closed connections are most of a busy machine's table, and nobody's.
        if line.split(None, 4)[3:4] == [_TIME_WAIT]:
            continue
        field = line.split()
        if len(field) > 9:
            port = int(field[1].rsplit(":", 1)[1], 16)
            yield Socket(port, field[3], int(field[7]), int(field[9]), field[2].rsplit(":", 1)[0])


def occupied(rows: Iterable[Socket]) -> dict[int, Socket]:
    """Ports that a server could not bind: those listened on, and those an outgoing connection was given.

    The latter happens where the kernel's range for outgoing connections reaches down to the rendezvous
    port; binding it then fails although nobody listens.
    """
    low, high = _outgoing_range()
    found: dict[int, Socket] = {}
    for row in rows:
        outgoing = row.state in (_ESTABLISHED, _SYN_SENT) and low <= row.port <= high
        if row.state == _LISTEN or outgoing:
            found.setdefault(row.port, row)
    return found


def listening(rows: Iterable[Socket]) -> frozenset[int]:
    return frozenset(row.port for row in rows if row.state == _LISTEN)


def half_open(rows: Iterable[Socket]) -> frozenset[str]:
    """Addresses whose connect reached us while our answer does not reach them.

    Seen at a moment when such a peer still tries, it tells in which direction packets are lost.
    """
    return frozenset(_address(row.peer) for row in rows if row.state == _SYN_RECEIVED)


def _address(written: str) -> str:
    """The kernel writes addresses as 32-bit words in the machine's byte order."""
    words = [int(written[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(written), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def sidecars(rows: Iterable[Socket]) -> tuple[str, ...]:
    """Service-mesh proxies that listen in this network namespace, each with its ports."""
    ports = listening(rows)
    for name, marks in _MESHES.items():
        if ports.issuperset(marks):
            return (f"{name} listens on {' and '.join(map(str, marks))}",)
    return ()


def holder(socket: Socket) -> str:
    """Who holds a socket, in words: command and pid, or what else is known of it."""
    wanted = f"socket:[{socket.inode}]"
    for process in _processes():
        if any(_link(entry) == wanted for entry in _entries(process / "fd")):
            return f"{_command(process)} (pid {process.name})"
    if socket.uid == 1337:
        return "a process of user 1337, which is Istio's sidecar"
    return f"a process of user {socket.uid} outside this container"


def first_free(
    candidates: Iterable[int],
    rows: Iterable[Socket],
    name: Callable[[Socket], str] = holder,
) -> tuple[int | None, dict[int, str]]:
    """The first candidate that can be bound, and who holds those before it."""
    taken = occupied(rows)
    holders: dict[int, str] = {}
    for port in candidates:
        if port not in taken:
            return port, holders
        holders[port] = name(taken[port])
    return None, holders


def _outgoing_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 32768, 60999
    return int(low), int(high)


def _processes() -> Iterable[Path]:
    return (entry for entry in _entries(Path("/proc")) if entry.name.isdigit())


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return tuple(folder.iterdir())
    except OSError:  # it ended, or belongs to another user
        return ()


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def _command(process: Path) -> str:
    try:
        program, *rest = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "a process"
    # The program without its folder: a long one would leave no room for what tells this process from others.
    words = " ".join([PurePosixPath(program).name, *rest]).split()
    return " ".join(words)[:80] or "a process"
