"""What a hung training looks like from inside: the stacks of every rank and its sockets, gathered while it still hangs.

Written as streams (`evidence.stacks`, `evidence.native` with the frames of compiled code among Python's, `evidence.sockets`,
`evidence.collectives` from torch's flight recorder, `evidence.machine` with kernel messages, GPU processes and NCCL's own
view), so they are kept here and mirrored like any
log, with nobody watching. Gathering takes a second or two and touches nothing: py-spy reads the memory of a process from
outside. Where it is not installed or not permitted, what /proc says of each thread is there all the same. Called by
`tasks.py`. Blocks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent import flight_recorder, machine_evidence
from agent.rank_meter import place_of
from agent.stack_words import waits, where
from coordinator.core import process
from coordinator.core.clock import monotonic_s, now_at
from coordinator.core.process import ProcessId
from coordinator.core.protocol import Member

STACKS, NATIVE, SOCKETS = "evidence.stacks", "evidence.native", "evidence.sockets"
COLLECTIVES, MACHINE = "evidence.collectives", "evidence.machine"


@dataclass(frozen=True, slots=True)
class Limits:
    """Judgements.

    Attributes:
        all_s: evidence is to be on disk ten seconds after it was asked for; torch takes six to write its record.
        one_s: a dump takes 20 ms; one that takes longer waits for a process that cannot be read.
        processes: ranks and their data loaders; more than that say the same again.
        threads: of one process, in what /proc says.
        native_s: reading the symbols of torch's libraries takes a second; `native_at_once` processes are read side by side.
        frame: characters of one compiled function's name, which templates blow up.
        health_s: NCCL's health service asks all ranks, and waits for those that do not answer.
    """

    all_s: float = 8.0
    one_s: float = 3.0
    processes: int = 32
    threads: int = 64
    native_s: float = 4.0
    native_at_once: int = 4
    frame: int = 160
    health_s: float = 1.5


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Suspect:
    pid: int
    rank: int | None
    state: str
    command: str

    @property
    def title(self) -> str:
        who = "launcher" if self.rank is None else f"rank {self.rank}"
        return f"=== {who}, pid {self.pid}, state {self.state}: {self.command}"


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where each rank is, in words, as far as its stacks say so; `waiting`: those that wait in a collective for others."""

    places: Mapping[int, str]
    waiting: frozenset[int] = frozenset()


def gather(
    roots: Sequence[ProcessId], streams: Path, members: Sequence[Member], limits: Limits = LIMITS
) -> Whereabouts:
    """Append what is to be seen of everything below `roots` to the evidence streams.

    Raises:
        OSError: they cannot be written.
    """
    until_s, since_at = monotonic_s() + limits.all_s, now_at()
    records = flight_recorder.ask(streams.parent)  # written while the rest is looked at
    suspects = sorted(_suspects(roots), key=lambda one: (one.rank is None, one.rank or 0, one.pid))[
        : limits.processes
    ]
    with (streams / SOCKETS).open("a") as file:
        for suspect in suspects:
            file.write("\n".join([suspect.title, *_sockets(suspect.pid, _names(members))]) + "\n\n")
    places: dict[int, str] = {}
    waiting: set[int] = set()
    with (streams / STACKS).open("a") as file:
        for suspect in suspects:
            left_s = min(limits.one_s, until_s - monotonic_s())
            stacks = _stacks(suspect, left_s, limits)
            file.write("\n".join([suspect.title, *stacks]) + "\n\n")
            file.flush()
            # its data loaders are ranks' children and come after it
            if suspect.rank is not None and suspect.rank not in places and (place := where(stacks)):
                places[suspect.rank] = f"stopped, {place}" if suspect.state in "Tt" else place
                if waits(stacks) and suspect.state not in "Tt":
                    waiting.add(suspect.rank)
    _write(streams / NATIVE, _native(suspects, until_s - limits.health_s, limits))
    flight_recorder.wait(records, until_s, since_at)
    recorded = flight_recorder.told(streams.parent)
    _write(streams / COLLECTIVES, recorded.lines)
    for rank, awaited in recorded.waits.items():
        places[rank] = f"{places[rank]}; {awaited}" if rank in places else awaited
    _write(streams / MACHINE, _machine(max(0.1, min(limits.health_s, until_s - monotonic_s()))))
    return Whereabouts(places, frozenset(waiting | recorded.pending))


def _write(path: Path, lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if text:
        with path.open("a") as file:
            file.write(text)


def _machine(health_s: float) -> Iterator[str]:
    yield "=== the kernel"
    yield from machine_evidence.kernel_messages()
    yield "=== GPUs"
    yield from machine_evidence.gpu_processes(os.environ)
    yield "=== NCCL"
    yield from machine_evidence.nccl_health(health_s)


def _suspects(roots: Iterable[ProcessId]) -> Iterator[Suspect]:
    for root in roots:
        for one in process.tree(root):
            found = process.stat(one.pid)
            if found is not None and one != root:  # the root is our own shim
                yield Suspect(one.pid, place_of(one.pid)[0], found.state, _command(one.pid))


def _command(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return "?"
    return " ".join(text.split())[:160] or "?"


def _stacks(suspect: Suspect, left_s: float, limits: Limits) -> list[str]:
    """Python's stacks by py-spy; where that fails, why, and what the kernel says of each thread."""
    found, why = "", "no time was left"
    if left_s > 0:
        # A stopped process cannot be paused, only read.
        ways = (["--nonblocking"],) if suspect.state in "Tt" else ([], ["--nonblocking"])
        for way in ways:
            found, why = _spied(suspect.pid, way, left_s)
            if found:
                return found.splitlines()
    return [f"(no Python stacks: {why})", *_threads(suspect.pid, limits.threads)]


def _native(suspects: Sequence[Suspect], until_s: float, limits: Limits) -> Iterator[str]:
    """Where the compiled code of each rank's first process is: in a wait, in a kernel launch, in a read.

    A stopped process cannot be read so. What takes too long is left out: Python's own stacks are there already.
    """
    first: dict[int, Suspect] = {}
    for one in suspects:
        if one.rank is not None and one.state not in "Tt":
            first.setdefault(one.rank, one)

    def read(one: Suspect) -> list[str]:
        left_s = min(limits.native_s, until_s - monotonic_s())
        found, why = _spied(one.pid, ["--native"], left_s) if left_s > 0 else ("", "no time was left")
        lines = found.splitlines() or [f"(no native stacks: {why})"]
        return [one.title, *(line[: limits.frame] for line in lines), ""]

    with ThreadPoolExecutor(limits.native_at_once) as readers:
        for lines in readers.map(read, first.values()):
            yield from lines


def _spied(pid: int, way: Sequence[str], left_s: float) -> tuple[str, str]:
    """(dump, why there is none)."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        return "", "py-spy is not installed"
    try:
        ran = subprocess.run(
            [spy, "dump", "--pid", str(pid), *way],
            capture_output=True,
            text=True,
            timeout=left_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{type(error).__name__} of py-spy"
    if ran.returncode == 0 and "Thread" in ran.stdout:
        return ran.stdout.rstrip(), ""
    return "", (ran.stderr.strip().splitlines() or ["py-spy found none"])[0][:200]


def _threads(pid: int, most: int) -> Iterator[str]:
    """State and kernel function each thread waits in."""
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda folder: int(folder.name))[:most]
    except OSError:
        return
    for thread in threads:
        try:
            state = thread.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0]
            name = thread.joinpath("comm").read_text().strip()
            waits = thread.joinpath("wchan").read_text().strip()
        except (OSError, IndexError):
            continue
        yield f"thread {thread.name} ({name}): state {state}, waits in {waits or '?'}"


def _names(members: Sequence[Member]) -> Mapping[str, str]:
    return {member.address: f"rank {member.rank} ({member.name or member.replica_id})" for member in members}


def _sockets(pid: int, names: Mapping[str, str]) -> Iterator[str]:
    """The TCP connections of a process, each with the rank on its other side."""
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, OSError) as error:
        yield f"(no sockets: {type(error).__name__})"
        return
    for one in sorted(found, key=lambda connection: (connection.status, connection.laddr)):
        here = f"{one.laddr.ip}:{one.laddr.port}" if one.laddr else "-"
        there = f"{one.raddr.ip}:{one.raddr.port}" if one.raddr else "-"
        whose = names.get(one.raddr.ip.removeprefix("::ffff:"), "") if one.raddr else ""
        yield f"{one.status:<12} {here:<28} {there:<28} {whose}".rstrip()
