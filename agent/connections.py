"""TCP connections with their states and bytes, by inode, as the kernel's socket diagnosis tells them (netlink, no root needed).

One request gives what thousands of reads under /proc would, byte counts included. Where the kernel or a sandbox does not
answer, `/proc/net/tcp` gives the states alone. Called by `rank_meter.py` for each reading.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent.probes import sockets

STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
    7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING",
}  # fmt: skip

# linux/netlink.h, sock_diag.h, inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2
_INFO = 2  # INET_DIAG_INFO
_WITH_INFO = 1 << (_INFO - 1)
_WANTED_STATES = sum(1 << number for number, name in STATES.items() if name not in ("TIME_WAIT", "LISTEN"))
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_MESSAGE_BYTES = 72  # struct inet_diag_msg
_INODE_AT = 68
_BYTES_AT = 120  # tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info, since Linux 4.1
_ANSWER_BYTES = 128 << 10
_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP connection. Bytes are None where the kernel does not count them for us."""

    inode: int
    state: str
    bytes_out: int | None = None
    bytes_in: int | None = None


def connections(protocol: int = _NETLINK_SOCK_DIAG) -> tuple[Connection, ...]:
    """All of this network namespace that a process holds, but listeners and those in TIME_WAIT.

    `protocol`: of netlink; where the kernel does not speak it, the table is read.
    """
    with contextlib.suppress(OSError, struct.error):
        return tuple(one for family in (socket.AF_INET, socket.AF_INET6) for one in _asked(family, protocol))
    return tuple(_from_table())


def _asked(family: int, protocol: int) -> Iterator[Connection]:
    kind = getattr(socket, "AF_NETLINK", None)
    if kind is None:
        raise OSError("no netlink")
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, _WITH_INFO, 0, _WANTED_STATES)
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0)
    with socket.socket(kind, socket.SOCK_RAW, protocol) as netlink:
        netlink.settimeout(_PATIENCE_S)
        netlink.sendto(header + request, (0, 0))
        while True:
            answer = netlink.recv(_ANSWER_BYTES)
            for kind_of_message, body in _messages(answer):
                if kind_of_message == _DONE:
                    return
                if kind_of_message == _ERROR:
                    raise OSError("socket diagnosis is refused")
                if len(body) >= _MESSAGE_BYTES:
                    yield _connection(body)


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, at)
        if length < _HEADER.size:
            return
        yield kind, answer[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _connection(body: bytes) -> Connection:
    (inode,) = struct.unpack_from("=I", body, _INODE_AT)
    state = STATES.get(body[1], str(body[1]))
    at = _MESSAGE_BYTES
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            break
        if kind == _INFO and length - 4 >= _BYTES_AT + 16:
            sent, received = struct.unpack_from("=QQ", body, at + 4 + _BYTES_AT)
            return Connection(inode, state, sent, received)
        at += (length + 3) & ~3
    return Connection(inode, state)


def _from_table() -> Iterable[Connection]:
    for row in sockets.table():
        name = STATES.get(int(row.state, 16), row.state)
        if name != "LISTEN" and row.inode:
            yield Connection(row.inode, name)
