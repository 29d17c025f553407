"""The one place that starts a process, and the one that lists and ends a process tree (Linux, standard library).

A process is named by `ProcessId`: its pid and the tick it was started at, so that a pid which the kernel
has given to somebody else is never signalled. Called by the agent's launcher and its shim (which imports
nothing but the standard library and this), and by `rankcall up`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_LIST_EVERY_S = 0.05  # how often a tree that is being ended is listed again: it ends in tens of milliseconds
_PIECE_BYTES = 64 << 10
_UNKILLABLE_S = 5.0  # how long SIGKILL is given; what outlasts it hangs in the kernel (a dead network disk)
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process that cannot be mistaken for another: `start_ticks` is field 22 of /proc/<pid>/stat."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/<pid>/stat says. `cpu_s` is user and system time, that of reaped children included."""

    id: ProcessId
    parent: int
    session: int
    state: str
    cpu_s: float

    @property
    def running(self) -> bool:
        return self.state not in {"Z", "X"}


def stat(pid: int) -> ProcessStat | None:
    """The kernel's word on `pid`, or None where there is no such process."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name in brackets may itself hold spaces and brackets; what follows the last one is regular.
    fields = text[text.rindex(b")") + 2 :].split()
    ticks = sum(int(field) for field in fields[11:15])
    return ProcessStat(
        id=ProcessId(pid, int(fields[19])),
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0].decode(),
        cpu_s=ticks / CLOCK_TICKS_PER_S,
    )


def identify(pid: int) -> ProcessId | None:
    found = stat(pid)
    return found.id if found else None


def is_alive(process: ProcessId) -> bool:
    """Whether that very process still runs; a zombie does not."""
    found = stat(process.pid)
    return found is not None and found.id == process and found.running


def age_s(process: ProcessId) -> float:
    """Seconds since the process was started, on the kernel's clock, which never jumps."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_ticks / CLOCK_TICKS_PER_S)


def start(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path | None = None,
    output: int | IO[bytes] | None = subprocess.DEVNULL,
    own_session: bool = True,
) -> subprocess.Popen[bytes]:
    """Start `argv` with stdin closed and both outputs going to `output` (None: inherited).

    With `own_session` no terminal's Ctrl-C or hang-up reaches it.

    Raises:
        OSError: when it cannot be started.
    """
    return subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=own_session,
    )


def every_process() -> Iterator[ProcessStat]:
    for pid in _pids():
        if (found := stat(pid)) is not None:
            yield found


def _read(path: str) -> bytes:
    """A file of /proc, or nothing where there is none to read. System calls alone: this is done for every process."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces = []
        while piece := os.read(handle, _PIECE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)
    except OSError:  # it ended while it was read
        return b""
    finally:
        os.close(handle)


def _pids() -> list[int]:
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def descendants(root: int) -> tuple[ProcessStat, ...]:
    """Every running process below `root`, children before grandchildren, `root` left out."""
    children: dict[int, list[ProcessStat]] = {}
    for found in every_process():
        children.setdefault(found.parent, []).append(found)
    order: list[ProcessStat] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child.id.pid)
            if child.running:
                order.append(child)
    return tuple(order)


def environment_values(name: str) -> Iterator[tuple[ProcessId, str]]:
    """Every running process that was started with `name` in its environment, with the value it has there."""
    needle = name.encode() + b"="
    for pid in _pids():
        environment = _read(f"/proc/{pid}/environ")
        at = 0 if environment.startswith(needle) else environment.find(b"\0" + needle) + 1
        if at == 0 and not environment.startswith(needle):
            continue
        found = stat(pid)
        if found is not None and found.running:
            yield (
                found.id,
                environment[at + len(needle) :].split(b"\0", 1)[0].decode(errors="surrogateescape"),
            )


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal that very process; False when it is gone. A pidfd closes the gap in which a pid could be reused."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel or sandbox without pidfd: the gap stays, and is microseconds wide
        return _send_by_pid(process, number)
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _send_by_pid(process: ProcessId, number: signal.Signals) -> bool:
    if not is_alive(process):
        return False
    with contextlib.suppress(OSError):
        os.kill(process.pid, number)
        return True
    return False


def end(
    listing: Callable[[], Iterable[ProcessId]],
    *,
    grace_s: float,
    hurry: Callable[[], bool] = lambda: False,
) -> tuple[ProcessId, ...]:
    """End every process that `listing` names: SIGTERM, `grace_s` later SIGKILL, until it names none.

    `listing` is asked again and again, so that what is started meanwhile goes too. A stopped process is
    continued, for SIGTERM waits where it lies. `hurry` cuts the grace short once it says True. Blocks.

    Returns:
        What not even SIGKILL could end.
    """
    asked: set[ProcessId] = set()
    kill_at = time.monotonic() + grace_s
    give_up_at = kill_at + _UNKILLABLE_S
    while left := tuple(listing()):
        now = time.monotonic()
        if now < kill_at and hurry():
            kill_at, give_up_at = now, now + _UNKILLABLE_S
        if now >= give_up_at:
            return left
        for process in left:
            if now >= kill_at:
                send(process, signal.SIGKILL)
            elif process not in asked:
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)
                asked.add(process)
        time.sleep(_LIST_EVERY_S)
    return ()


def wait(processes: Iterable[ProcessId], *, timeout_s: float) -> tuple[ProcessId, ...]:
    """Wait until the processes are gone; returns those that are still there after `timeout_s`. Blocks."""
    until = time.monotonic() + timeout_s
    left = tuple(processes)
    while (left := tuple(one for one in left if is_alive(one))) and time.monotonic() < until:
        time.sleep(_LIST_EVERY_S)
    return left


def tree(root: ProcessId) -> tuple[ProcessId, ...]:
    """`root` and all that runs below it; nothing when `root` is gone (its orphans have another parent then)."""
    if not is_alive(root):
        return ()
    return (root, *(found.id for found in descendants(root.pid)))
