"""The tiny process that outlives the agent: it runs one command, and keeps its exit code. `python -m agent.shim FOLDER`.

FOLDER is a task's folder: `spec.json` (written by `launcher.py`) says what to run; `shim.json` says who
runs; `exit.json` says how it ended, and appears only when nothing of the command is left. The shim is
the reaper of all its descendants, also of those that made sessions of their own, as torchrun's workers
do. SIGTERM ends them all (SIGTERM, a grace, SIGKILL), however often it is sent; SIGINT ends the grace; a hang-up
is ignored.

Standard library only: it must start in milliseconds and weigh little for as long as training runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from agent.spool import Spool
from coordinator.core import process
from coordinator.core.paths import write_whole
from coordinator.core.process import ProcessId

EXIT_ALREADY_RUN = 75  # EX_TEMPFAIL: this task has a shim, or had one
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LINGER_S = 2.0  # how long helpers of a command that ended may take to end by themselves
_LINGER_GRACE_S = 5.0  # and how long they have once they are asked
_RESERVED_BYTES = 4096  # held on disk from the start, so that a full disk cannot swallow the exit code
_CANNOT_START = 127  # what a shell answers for a command that is not there


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run: `unset` (names, or patterns such as `PET_*`) and then `environment` are applied to the shim's own
    environment; `stream` gets the output.
    """

    argv: tuple[str, ...]
    cwd: Path
    unset: tuple[str, ...]
    environment: dict[str, str]
    stream: Path
    grace_s: float

    @classmethod
    def load(cls, path: Path) -> Spec:
        found = json.loads(path.read_bytes())
        return cls(
            argv=tuple(found["argv"]),
            cwd=Path(found["cwd"]),
            unset=tuple(found["unset"]),
            environment=dict(found["environment"]),
            stream=Path(found["stream"]),
            grace_s=float(found["grace_s"]),
        )

    def child_environment(self) -> dict[str, str]:
        """The container's own environment without anything of rankcall's, and the spec's laid over it."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RANKCALL_") and not self._is_unset(name)
        }
        return {**kept, **self.environment}

    def _is_unset(self, name: str) -> bool:
        """By its name, or by a beginning: `ACCELERATE_*` stands for all that begin so."""
        return any(
            name.startswith(entry[:-1]) if entry.endswith("*") else name == entry for entry in self.unset
        )


@dataclass(slots=True)
class Signals:
    """Notes requests to end, and wakes the waiting loop for those and for children that ended."""

    requested: bool = False
    hurry: bool = False
    _wake: tuple[int, int] = field(default_factory=os.pipe)

    def install(self) -> None:
        for end in self._wake:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        # Functions, not SIG_IGN: an ignored signal would stay ignored in the command as well.
        signal.signal(signal.SIGTERM, self._request)
        signal.signal(signal.SIGINT, self._request)
        for number in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def _request(self, number: int, _frame: object) -> None:
        self.requested = True
        self.hurry = self.hurry or number == signal.SIGINT

    def wait(self, timeout_s: float | None = None) -> None:
        ready, _, _ = select.select([self._wake[0]], [], [], timeout_s)
        if ready:
            os.read(self._wake[0], 512)


@dataclass(slots=True)
class Reaper:
    """Collects the exit status of every descendant; keeps that of the command itself."""

    command: int
    status: int | None = None
    ended_at: float | None = None

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.command:
                self.status, self.ended_at = status, time.time()

    def left(self) -> tuple[ProcessId, ...]:
        """What still runs below the shim."""
        self.reap()
        return tuple(found.id for found in process.descendants(os.getpid()))


def run(folder: Path) -> int:
    """Run the task in `folder` unless it has been run before; returns the shim's own exit code."""
    spec = Spec.load(folder / "spec.json")
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return EXIT_ALREADY_RUN
    if (folder / "shim.json").exists():
        return EXIT_ALREADY_RUN
    reserve = folder / "exit.reserved"
    reserve.write_bytes(b" " * _RESERVED_BYTES)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals = Signals()
    signals.install()
    me = process.identify(os.getpid())
    started_at = time.time()
    # Written before the command starts: whatever happens from here on, it is never started a second time.
    _record(folder, me, None, started_at)
    output = os.open(spec.stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    spool = Spool(output)
    try:
        spool.begin()
        child = process.start(
            spec.argv,
            environment=spec.child_environment(),
            cwd=spec.cwd,
            output=spool.writer,
            own_session=True,
        )
    except OSError as error:
        text = f"cannot start {spec.argv[0]!r} in {spec.cwd}: {error.strerror or error}"[:1000]
        spool.finish()
        with contextlib.suppress(OSError):
            os.write(output, f"rankcall: {text}\n".encode(errors="replace"))
        _finish(folder, {"exit_code": _CANNOT_START, "signal": None, "error": text}, started_at, time.time())
        return 0
    finally:
        spool.handed_over()
    with contextlib.suppress(
        OSError
    ):  # a disk that has just become full: the first record does, without the command's id
        _record(folder, me, process.identify(child.pid), started_at)
    reaper = Reaper(child.pid)
    survivors = _supervise(reaper, signals, spec.grace_s)
    child.returncode = 0  # reaped here and not by Popen, which would complain
    spool.finish()
    outcome = _outcome(reaper.status)
    outcome["dropped_bytes"] = spool.dropped_bytes
    outcome["requested"] = signals.requested
    outcome["survivors"] = [found.pid for found in survivors]
    _finish(folder, outcome, started_at, reaper.ended_at or time.time())
    return 0


def _supervise(reaper: Reaper, signals: Signals, grace_s: float) -> tuple[ProcessId, ...]:
    """Wait until the command ends or somebody asks for its end, then see to it that nothing of it is left."""
    while reaper.status is None and not signals.requested:
        signals.wait()
        reaper.reap()
    if reaper.status is not None:
        until = time.monotonic() + _LINGER_S
        while reaper.left() and not signals.requested and (left_s := until - time.monotonic()) > 0:
            signals.wait(min(left_s, 0.1))
        grace_s = min(grace_s, _LINGER_GRACE_S)
    return process.end(reaper.left, grace_s=grace_s, hurry=lambda: signals.hurry)


def _outcome(status: int | None) -> dict[str, object]:
    if status is None:  # not even SIGKILL ended it
        return {"exit_code": None, "signal": None}
    if os.WIFSIGNALED(status):
        return {"exit_code": None, "signal": os.WTERMSIG(status)}
    return {"exit_code": os.waitstatus_to_exitcode(status), "signal": None}


def _record(folder: Path, me: ProcessId | None, child: ProcessId | None, started_at: float) -> None:
    def plain(who: ProcessId | None) -> dict[str, int] | None:
        return {"pid": who.pid, "start_ticks": who.start_ticks} if who else None

    text = json.dumps({"shim": plain(me), "command": plain(child), "started_at": started_at})
    write_whole(folder / "shim.json", text.encode())


def _finish(folder: Path, outcome: dict[str, object], started_at: float, ended_at: float) -> None:
    """Leave `exit.json`, whole, in the space that was reserved for it."""
    text = json.dumps({**outcome, "started_at": started_at, "ended_at": ended_at}).encode()
    reserve = folder / "exit.reserved"
    with reserve.open("r+b") as file:
        file.write(text[:_RESERVED_BYTES])
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    reserve.replace(folder / "exit.json")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m agent.shim FOLDER", file=sys.stderr)
        return 2
    return run(Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
