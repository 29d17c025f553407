"""The tcp probe: this replica's half of the N×N mesh. Called by the agent for a `TcpTask`.

Every target is greeted, must answer with its own replica id and our nonce, take a payload and give it back,
each step with a time limit far below the stage's. What went wrong is one word of `Fault`, so that
`coordinator/preflight/verdict.py` can tell a firewall from a sidecar from a lost large packet.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import math
import os
import time
from dataclasses import dataclass
from enum import StrEnum

from agent.probes import echo, sockets
from coordinator.core.protocol import LinkResult, Member, TcpResult, TcpTask


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
    UNTRIED = "untried"  # the task's time was up before this link's turn


@dataclass(frozen=True, slots=True)
class Limits:
    """Judgements about time and load.

    Attributes:
        link_s: one link, one try; a lost first packet of a connection is repeated after 1 and 3 s.
        share: part of the task's deadline this probe uses; the rest is for the report's way.
        at_once: links in work at a time; enough that 64 replicas need two rounds.
        pause_s: before a failed link is tried again.
        large_bytes: payload of a link that is not sampled: several packets even of jumbo size.
    """

    link_s: float = 5.0
    share: float = 0.7
    at_once: int = 32
    pause_s: float = 0.3
    large_bytes: int = 32 * 1024


LIMITS = Limits()
_FINAL = frozenset({Fault.WRONG_REPLICA, Fault.NOT_ECHO})  # a second try says the same
_UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM}
)


async def probe(task: TcpTask, replica_id: str, limits: Limits = LIMITS) -> TcpResult:
    """Probe all targets of `task` as `replica_id`; never raises, never outlasts `task.deadline_s`."""
    until = time.monotonic() + task.deadline_s * limits.share
    targets = [target for target in task.targets if target.replica_id != replica_id]
    rounds = max(1, math.ceil(len(targets) / limits.at_once))
    link_s = min(limits.link_s, task.deadline_s * limits.share / (2 * rounds))  # 2: each may be tried twice
    turn = asyncio.Semaphore(limits.at_once)
    payload = os.urandom(max(task.payload_bytes, limits.large_bytes))

    async def one(target: Member) -> LinkResult:
        sampled = task.sampled is None or target.replica_id in task.sampled
        size_bytes = task.payload_bytes if sampled else min(task.payload_bytes, limits.large_bytes)
        nonce = hashlib.sha256(f"{task.nonce} {replica_id} {target.replica_id}".encode()).digest()[:16]
        async with turn:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return _failed(target, Fault.UNTRIED, "the task's time was up before this link's turn")
            link = await _exchange(target, nonce, payload[:size_bytes], min(link_s, left_s), sampled)
        if link.ok or link.fault in _FINAL:
            return link
        await asyncio.sleep(limits.pause_s)
        async with turn:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return link
            again = await _exchange(target, nonce, payload[:size_bytes], min(link_s, left_s), sampled)
        return again.model_copy(update={"tries": 2})

    links, (port, holders, meshes) = await asyncio.gather(
        asyncio.gather(*(one(target) for target in targets)),
        asyncio.to_thread(_look_around, task.port_candidates),
    )
    return TcpResult(links=tuple(links), rendezvous_port=port, port_holders=holders, sidecars=meshes)


def _look_around(candidates: tuple[int, ...]) -> tuple[int | None, dict[int, str], tuple[str, ...]]:
    rows = sockets.table()
    port, holders = sockets.first_free(candidates, rows)
    return port, holders, sockets.sidecars(rows)


class _Stop(Exception):
    """A link has failed: which fault, and what was seen."""

    def __init__(self, fault: Fault, seen: str, answered_by: str | None = None) -> None:
        super().__init__(seen)
        self.fault = fault
        self.answered_by = answered_by


class _Trace:
    """How far one exchange has come. The fault to report if time runs out or the connection ends now."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.late = Fault.TIMED_OUT
        self.ended = Fault.REFUSED
        self.known: dict[str, float | str] = {}

    def step(self, *, late: Fault, ended: Fault) -> float:
        """Enter the next step and say how long the last one took."""
        now = time.monotonic()
        took_s, self.began = now - self.began, now
        self.late, self.ended = late, ended
        return took_s


async def _exchange(
    target: Member, nonce: bytes, payload: bytes, limit_s: float, sampled: bool
) -> LinkResult:
    trace = _Trace()
    try:
        async with asyncio.timeout(limit_s):
            await _converse(target, nonce, payload, trace)
    except TimeoutError:
        return _failed(target, trace.late, f"{_LATE[trace.late]} within {limit_s:.1f} s", trace)
    except _Stop as stop:
        return _failed(target, stop.fault, str(stop), trace, stop.answered_by)
    except asyncio.IncompleteReadError:
        return _failed(target, trace.ended, f"the connection was closed {_WHEN[trace.ended]}", trace)
    except ConnectionResetError:
        return _failed(target, trace.ended, f"the connection was reset {_WHEN[trace.ended]}", trace)
    except ConnectionRefusedError:
        return _failed(target, Fault.REFUSED, "connection refused", trace)
    except (OSError, ValueError) as problem:
        number = getattr(problem, "errno", None)
        fault = Fault.UNREACHABLE if number in _UNREACHABLE else trace.ended
        seen = os.strerror(number) if number else str(problem)
        return _failed(target, fault, seen.lower(), trace)
    known = (
        trace.known if sampled else {k: v for k, v in trace.known.items() if not k.endswith("bytes_per_s")}
    )
    return LinkResult.model_validate(
        {"replica_id": target.replica_id, "address": target.address, "ok": True, **known}
    )


async def _converse(target: Member, nonce: bytes, payload: bytes, trace: _Trace) -> None:
    reader, writer = await asyncio.open_connection(target.address, target.echo_port)
    try:
        trace.known["connect_s"] = trace.step(late=Fault.SILENT, ended=Fault.CLOSED)
        trace.known["source"] = str(writer.get_extra_info("sockname")[0])
        writer.write(echo.greeting(nonce, len(payload)))
        try:
            answer = await echo.read_answer(reader)
        except echo.NotEcho as other:
            raise _Stop(Fault.NOT_ECHO, f"the answer begins with {other.args[0][:60]!r}") from None
        trace.known["rtt_s"] = trace.step(late=Fault.LOST_OUT, ended=Fault.LOST_OUT)
        trace.known["seen_as"] = answer.seen_as
        if answer.nonce != nonce:
            raise _Stop(Fault.CORRUPT, "the nonce came back changed")
        if answer.replica_id != target.replica_id:
            seen = f"replica {answer.replica_id} answered at {target.address}"
            raise _Stop(Fault.WRONG_REPLICA, seen, answered_by=answer.replica_id)
        if payload:
            await _carry(reader, writer, payload, trace)
    finally:
        writer.transport.abort()  # what is still unsent on a dead link must not linger


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes, trace: _Trace
) -> None:
    writer.write(payload)
    if await reader.readexactly(len(echo.RECEIVED)) != echo.RECEIVED:
        raise _Stop(Fault.CORRUPT, "the payload was not acknowledged in our protocol")
    out_s = trace.step(late=Fault.LOST_BACK, ended=Fault.LOST_BACK)
    if await reader.readexactly(len(payload)) != payload:
        raise _Stop(Fault.CORRUPT, "the payload came back changed")
    back_s = trace.step(late=Fault.LOST_BACK, ended=Fault.LOST_BACK)
    trace.known["bytes_per_s"] = len(payload) / max(out_s, 1e-6)
    trace.known["return_bytes_per_s"] = len(payload) / max(back_s, 1e-6)


_LATE = {
    Fault.TIMED_OUT: "no answer to the connect",
    Fault.SILENT: "the connection was accepted, but no echo came",
    Fault.LOST_OUT: "a small message was echoed, the large payload did not arrive",
    Fault.LOST_BACK: "the large payload arrived and did not come back",
}
_WHEN = {
    Fault.REFUSED: "while connecting",
    Fault.CLOSED: "before any answer",
    Fault.LOST_OUT: "while the payload was on its way out",
    Fault.LOST_BACK: "while the payload was on its way back",
}


def _failed(
    target: Member, fault: Fault, error: str, trace: _Trace | None = None, answered_by: str | None = None
) -> LinkResult:
    known = trace.known if trace else {}
    return LinkResult.model_validate(
        {
            "replica_id": target.replica_id,
            "address": target.address,
            "ok": False,
            "error": error,
            "fault": str(fault),
            "answered_by": answered_by,
            **known,
        }
    )
