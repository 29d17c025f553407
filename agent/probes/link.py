"""One link of the mesh: connect, greet, send the payload and take it back, timed; driven by `tcp.py`'s selector."""

from __future__ import annotations

import errno
import ipaddress
import os
import selectors
import socket
import struct
import time
from enum import StrEnum

from agent.probes import echo
from coordinator.core.protocol import LinkResult, Member

_UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM}
)
_READ_BYTES = 256 * 1024
# In struct tcp_info of linux/tcp.h: tcpi_min_rtt, in microseconds, and tcpi_delivery_rate, in bytes per second.
_MIN_RTT_AT, _DELIVERY_RATE_AT, _TCP_INFO_BYTES = 148, 160, 168
_NO_FAREWELL = struct.pack("ii", 1, 0)


class Fault(StrEnum):
    """How a link failed."""

    REFUSED = "refused"  # something said no at once: nothing listens, or a firewall rejects
    TIMED_OUT = "timed_out"  # no answer to the connect: packets are dropped, or nobody has the address
    UNREACHABLE = "unreachable"  # the network says there is no way
    SILENT = "silent"  # accepted, then not a word: a proxy in between
    CLOSED = "closed"  # accepted, then closed or reset before the answer
    NOT_ECHO = "not_echo"  # something that is not rankcall answered
    WRONG_REPLICA = "wrong_replica"  # another replica of ours answered at this address
    LOST_OUT = "lost_out"  # small messages pass, the payload does not get there
    LOST_BACK = "lost_back"  # the payload got there and does not come back
    CORRUPT = "corrupt"  # what came back is not what was sent
    UNTRIED = "untried"  # the task's time was up before this link had its turn


class Link:
    """One try at one target. `finished` is set once there is a result."""

    def __init__(self, target: Member, nonce: bytes, payload: bytes, *, sampled: bool, tries: int) -> None:
        self.target = target
        self.nonce = nonce
        self.payload = payload
        self.sampled = sampled
        self.tries = tries
        self.finished: LinkResult | None = None
        self.wants = selectors.EVENT_WRITE
        self.began = self.moved = time.monotonic()
        self.sock: socket.socket | None = None
        self._late, self._ended = Fault.TIMED_OUT, Fault.REFUSED
        self._stepped = self.began
        self._sending = memoryview(b"")
        self._received = bytearray()
        self._rate, self._trip_s = 0.0, 0.0  # as the kernel saw them; 0.0: it does not say
        self._known: dict[str, float | str] = {}

    def start(self) -> None:
        """Begin to connect; may already finish, where the network says no at once."""
        try:
            address = ipaddress.ip_address(self.target.address)
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            code = self.sock.connect_ex((str(address), self.target.echo_port))
        except (OSError, ValueError, OverflowError) as problem:
            self._fail(Fault.UNREACHABLE, str(problem))
            return
        if code not in (0, errno.EINPROGRESS):
            self._broken(OSError(code, os.strerror(code)))

    def step(self, events: int) -> None:
        """The socket is ready for `events`: move on."""
        self.moved = time.monotonic()
        try:
            if self._late is Fault.TIMED_OUT:
                self._connected()
            if events & selectors.EVENT_WRITE and self._sending:
                self._sending = self._sending[self._socket.send(self._sending) :]
                self._clock()
            if events & selectors.EVENT_READ:
                self._read()
        except BlockingIOError:
            pass
        except OSError as problem:
            self._broken(problem)
        except echo.NotEcho as other:
            self._fail(Fault.NOT_ECHO, f"the answer begins with {other.args[0][:60]!r}")
        self.wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._sending else 0)

    def stand_still(self, seconds: float) -> None:
        """Nothing moved for too long."""
        self._fail(self._late, f"{_LATE[self._late]} within {seconds:.1f} s")

    def close(self) -> None:
        if self.sock is not None:
            # With a reset instead of a farewell no port of ours stays in TIME_WAIT.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_FAREWELL)
            self.sock.close()

    @property
    def _socket(self) -> socket.socket:
        assert self.sock is not None
        return self.sock

    def _connected(self) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self._known["connect_s"] = self._next(late=Fault.SILENT, ended=Fault.CLOSED)
        self._known["source"] = str(self._socket.getsockname()[0])
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = memoryview(echo.greeting(self.nonce, len(self.payload)))

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            self._fail(self._ended, f"the connection was closed {_WHEN[self._ended]}")
            return
        self._received += data
        if self._late is Fault.SILENT:
            self._greeted()
        if self._late is Fault.LOST_OUT and len(self._received) >= len(echo.RECEIVED):
            self._arrived()
        if self._late is Fault.LOST_BACK and len(self._received) >= len(self.payload):
            self._returned()

    def _greeted(self) -> None:
        parsed = echo.parse_answer(self._received)
        if parsed is None:
            return
        answer, end = parsed
        del self._received[:end]
        self._known["rtt_s"] = self._next(late=Fault.LOST_OUT, ended=Fault.LOST_OUT)
        self._known["seen_as"] = answer.seen_as
        if answer.nonce != self.nonce:
            self._fail(Fault.CORRUPT, "the nonce came back changed")
        elif answer.replica_id != self.target.replica_id:
            self._known["answered_by"] = answer.replica_id
            self._fail(Fault.WRONG_REPLICA, f"replica {answer.replica_id} answered at {self.target.address}")
        elif self.payload:
            self._sending = memoryview(self.payload)
        else:
            self._succeed()

    def _arrived(self) -> None:
        if self._received[: len(echo.RECEIVED)] != echo.RECEIVED:
            self._fail(Fault.CORRUPT, "the payload was not acknowledged in our protocol")
            return
        del self._received[: len(echo.RECEIVED)]
        self._clock()
        out_s = self._next(late=Fault.LOST_BACK, ended=Fault.LOST_BACK)
        if self.sampled:
            self._known["bytes_per_s"] = max(len(self.payload) / max(out_s, 1e-6), self._rate)

    def _returned(self) -> None:
        if self._received != self.payload:
            self._fail(Fault.CORRUPT, "the payload came back changed")
            return
        back_s = self._next(late=Fault.LOST_BACK, ended=Fault.LOST_BACK)
        if self.sampled:
            self._known["return_bytes_per_s"] = len(self.payload) / max(back_s, 1e-6)
        if self._trip_s:
            self._known["rtt_s"] = min(float(self._known["rtt_s"]), self._trip_s)
        self._succeed()

    def _clock(self) -> None:
        """The kernel times packets itself; our own figures include how busy both machines are."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (trip_us,) = struct.unpack_from("I", info, _MIN_RTT_AT)
            (rate,) = struct.unpack_from("Q", info, _DELIVERY_RATE_AT)
        except (OSError, struct.error):  # a sandboxed kernel may not have it
            return
        self._rate = max(self._rate, float(rate))
        if 0 < trip_us < 1 << 31:
            self._trip_s = trip_us / 1e6

    def _next(self, *, late: Fault, ended: Fault) -> float:
        """Enter the next step, with the faults of standing still and of ending in it; the last one's seconds."""
        now = time.monotonic()
        took_s, self._stepped = now - self._stepped, now
        self._late, self._ended = late, ended
        return took_s

    def _broken(self, problem: OSError) -> None:
        number = problem.errno or 0
        if number in _UNREACHABLE:
            self._fail(Fault.UNREACHABLE, os.strerror(number).lower())
        elif number == errno.ETIMEDOUT:
            self._fail(self._late, os.strerror(number).lower())
        elif self._late is Fault.TIMED_OUT:
            self._fail(Fault.REFUSED, os.strerror(number).lower())
        else:
            self._fail(self._ended, f"the connection was reset {_WHEN[self._ended]}")

    def _fail(self, fault: Fault, error: str) -> None:
        self._finish(ok=False, fault=str(fault), error=error)

    def _succeed(self) -> None:
        self._finish(ok=True)

    def _finish(self, **outcome: object) -> None:
        self.finished = LinkResult.model_validate(
            {
                "replica_id": self.target.replica_id,
                "address": self.target.address,
                "tries": self.tries,
                **self._known,
                **outcome,
            }
        )


_LATE = {
    Fault.TIMED_OUT: "no answer to the connect",
    Fault.SILENT: "the connection was accepted, but no echo came",
    Fault.LOST_OUT: "a small message was echoed, the large payload did not arrive",
    Fault.LOST_BACK: "the large payload arrived and did not come back",
}
_WHEN = {
    Fault.CLOSED: "before any answer",
    Fault.LOST_OUT: "while the payload was on its way out",
    Fault.LOST_BACK: "while the payload was on its way back",
}
