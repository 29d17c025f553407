"""Starts, adopts and ends the processes of an attempt. Each runs under a shim that outlives this agent.

What is known of a process is on disk, in its task's folder: `spec.json` before it starts, `shim.json` once
it has a shim, `exit.json` when nothing of it is left. So an agent that was killed and started again goes on
where it was: the same calls adopt what runs, and nothing is ever started twice. Called by `run_task.py`, `tasks.py`
(one process) and `main.py` (whatever this replica still holds).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from coordinator.core import process
from coordinator.core.clock import monotonic_s
from coordinator.core.paths import AttemptFolder, Layout, write_whole
from coordinator.core.process import ProcessId
from coordinator.core.protocol import AttemptPlan, Message, RunTask

ATTEMPT_DIR = "RANKCALL_ATTEMPT_DIR"
ATTEMPT_ID = "RANKCALL_ATTEMPT_ID"

_shims: dict[int, subprocess.Popen[bytes]] = {}  # children of this agent; kept only to be reaped


@dataclass(frozen=True, slots=True)
class Times:
    """Judgements, in seconds.

    Attributes:
        grace_s: between SIGTERM and SIGKILL for a process that is ended; with the rest it has to fit into the
            8 s that `rankcall up` gives a replica, and a container runtime 10 s.
        shim_s: how long beyond its grace a shim may take; then its processes are ended without it.
        orphan_grace_s: the grace of processes that have lost their shim.
        look_s: how often idleness and deadline are looked at; an exit is seen at once.
        start_s: how long a shim may take to say that it runs.
    """

    grace_s: float = 5.0
    shim_s: float = 10.0
    orphan_grace_s: float = 3.0
    look_s: float = 1.0
    start_s: float = 20.0


TIMES = Times()


class Shim(Message):
    """What `shim.json` says. `command` is None while the command is being started."""

    shim: ProcessId
    command: ProcessId | None
    started_at: float


class Exit(Message):
    """What `exit.json` says; `requested`: somebody asked for the end; `dropped_bytes`: output that a full disk did not take."""

    exit_code: int | None
    signal: int | None
    started_at: float
    ended_at: float
    requested: bool = False
    error: str = ""
    dropped_bytes: int = 0


class Spec(Message):
    """What of `spec.json` is read back: the task as it was started."""

    task: RunTask


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """One task on disk. Every property reads anew."""

    root: Path

    @property
    def task_id(self) -> str:
        return self.root.name

    @property
    def result_file(self) -> Path:
        """The task's finished report, kept so that it is repeated after a restart of the agent."""
        return self.root / "result.json"

    @property
    def kernel_kills_file(self) -> Path:
        """How many processes of this container the kernel had killed before the task began (`memory_limit.py`)."""
        return self.root / "kernel-kills"

    def shim(self) -> Shim | None:
        return _read(self.root / "shim.json", Shim)

    def exit(self) -> Exit | None:
        return _read(self.root / "exit.json", Exit)

    def task(self) -> RunTask | None:
        """The task as it was started, or None for one that has no process."""
        spec = _read(self.root / "spec.json", Spec)
        return spec.task if spec else None

    def stands(self) -> Literal["new", "running", "exited", "lost"]:
        """`lost`: it was started, and nobody knows how it ended, because its shim was killed."""
        record = self.shim()
        if record is not None and process.is_alive(record.shim):
            return "running"
        # Looked at after the shim, so that one that ends in between is not taken for lost.
        if self.exit() is not None:
            return "exited"
        return "new" if record is None else "lost"


def attempt_folders(layout: Layout) -> Iterator[tuple[str, AttemptFolder]]:
    """Every attempt on this replica's disk, by its id."""
    for folder in sorted(layout.jobs.glob("*/attempt-*")):
        number = folder.name.removeprefix("attempt-")
        if number.isdigit() and folder.is_dir():
            yield f"{folder.parent.name}-{number}", AttemptFolder(folder)


def task_folders(attempt: AttemptFolder) -> Iterator[TaskFolder]:
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(attempt.tasks.iterdir()):
            yield TaskFolder(folder)


def environment_of(task: RunTask, plan: AttemptPlan, attempt: AttemptFolder) -> dict[str, str]:
    """What is laid over the container's own environment, after everything named RANKCALL_* has left it."""
    return {
        **plan.environment,
        **task.environment,
        ATTEMPT_DIR: str(attempt.root),
        ATTEMPT_ID: plan.attempt_id,
    }


def write_spec(folder: TaskFolder, task: RunTask, plan: AttemptPlan, layout: Layout, python: str) -> None:
    """Put down what the shim is to run. A task that was started before keeps what it was started with."""
    if folder.shim() is not None:
        return
    attempt = layout.attempt(plan.job_id, plan.number)
    attempt.streams.mkdir(parents=True, exist_ok=True)
    argv = list(task.argv)
    if argv[:1] == ["python"]:
        argv[0] = python
    spec = {
        "argv": argv,
        "cwd": str(layout.work(plan.job_id)),
        "unset": list(plan.unset),
        "environment": environment_of(task, plan, attempt),
        "stream": str(attempt.streams / task.stream),
        "grace_s": TIMES.grace_s,
        "task": task.model_dump(mode="json"),
    }
    write_whole(folder.root / "spec.json", json.dumps(spec, indent=1).encode())


def start(folder: TaskFolder, plan: AttemptPlan, attempt: AttemptFolder) -> None:
    """Give the task a shim, unless it has one or had one; a second shim for one task ends at once.

    Raises:
        OSError: when no process can be started.
    """
    if folder.shim() is not None:
        return
    # The shim carries the marks too, so that it is found by them in the moment before it writes who it is.
    own = {name: value for name, value in os.environ.items() if not name.startswith("RANKCALL_")}
    marks = {ATTEMPT_DIR: str(attempt.root), ATTEMPT_ID: plan.attempt_id}
    with (folder.root / "shim.log").open("ab") as output:
        shim = process.start(
            [sys.executable, "-m", "agent.shim", str(folder.root)],
            environment={**own, **marks},
            output=output,
        )
    _shims[shim.pid] = shim


def reap() -> None:
    """Collect shims of ours that have ended, so that no zombie is left."""
    for pid, shim in tuple(_shims.items()):
        if shim.poll() is not None:
            del _shims[pid]


async def started(folder: TaskFolder, times: Times = TIMES) -> bool:
    """Wait until the task has its shim's record; False when the shim ended or hung before it wrote one."""
    until = monotonic_s() + times.start_s
    while folder.shim() is None:
        if monotonic_s() > until:
            return False
        reap()
        await asyncio.sleep(0.02)
    return True


async def ended(watched: ProcessId, timeout_s: float) -> bool:
    """Wait for a process that need not be our child; False when it still runs after `timeout_s`."""
    if not process.is_alive(watched):
        return True
    try:
        handle = os.pidfd_open(watched.pid)
    except OSError:  # gone just now, or a kernel without pidfd
        await asyncio.sleep(min(timeout_s, 0.2))
        return not process.is_alive(watched)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    try:
        loop.add_reader(handle, over.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await over.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    reap()
    return not process.is_alive(watched)


def ask_to_end(folder: TaskFolder) -> None:
    """Ask the task's shim to end it; the exit is then seen like any other."""
    record = folder.shim()
    if record is not None:
        process.send(record.shim, signal.SIGTERM)


def marked(layout: Layout) -> dict[str, set[ProcessId]]:
    """All running processes of this replica's attempts, by attempt id, found by what they have in their environment.

    Orphans of a killed shim are among them. The folder tells our attempts from another replica's on the same machine.
    """
    found: dict[str, set[ProcessId]] = {}
    jobs = layout.jobs
    for who, value in process.environment_values(ATTEMPT_DIR):
        folder = Path(value)
        if folder.parent.parent == jobs and folder.name.startswith("attempt-"):
            found.setdefault(f"{folder.parent.name}-{folder.name.removeprefix('attempt-')}", set()).add(who)
    return found


def shims(attempt: AttemptFolder) -> tuple[ProcessId, ...]:
    """The live shims of an attempt."""
    records = (folder.shim() for folder in task_folders(attempt))
    return tuple(record.shim for record in records if record is not None and process.is_alive(record.shim))


def end_attempt(attempt_id: str, layout: Layout, times: Times = TIMES) -> tuple[ProcessId, ...]:
    """End every process of an attempt: through its shims, which keep the exit codes, then whatever is left. Blocks.

    Returns:
        What not even SIGKILL could end.
    """
    job_id, _, number = attempt_id.rpartition("-")
    running = shims(layout.attempt(job_id, int(number)))
    for shim in running:
        process.send(shim, signal.SIGTERM)
    process.wait(running, timeout_s=times.grace_s + times.shim_s)
    return process.end(lambda: _remaining(attempt_id, layout), grace_s=times.orphan_grace_s)


def _remaining(attempt_id: str, layout: Layout) -> set[ProcessId]:
    """Marked processes of the attempt and all below them, which may have dropped the mark."""
    found = set(marked(layout).get(attempt_id, ()))
    for root in tuple(found):
        found.update(process.tree(root))
    return found


RecordT = TypeVar("RecordT", bound=Message)


def _read(path: Path, model: type[RecordT]) -> RecordT | None:
    """A record that was written whole, or None where there is none."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
