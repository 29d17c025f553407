"""torch imported once for all tests: the probe processes of agents in tests are forked from a process that has it.

An agent's first act is to import torch in its probe process: two seconds of a core, a hundred times in a run of the tests,
for the same two hundred megabytes. `interpreter` makes what RANKCALL_PYTHON then names: it hands `-m agent.probes.forked`
to the server, with its own files, environment, folder and namespaces, and lives and dies as that process does. Whatever
else is asked of it goes to the real interpreter, or to a program of the test's. Without a server (`tests/conftest.py` starts
it, for as long as its stdin is open) everything goes to the real one. What is proved about the probe process itself, about
its start and its end, and the whole trainings, are not served from here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOCKET = "TEST_TORCH_AT_HAND"  # where the server is
PROBE = "agent.probes.forked"
_NAMESPACES = ("net", "mnt")
_MESSAGE_BYTES = 1 << 20


def interpreter(folder: Path, program: Path | None = None) -> Path:
    """An executable in `folder` for RANKCALL_PYTHON; what is not the probe goes to `program`, if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    other = f"{sys.executable} {program}" if program else sys.executable
    python.write_text(
        f'#!/bin/sh\n[ "$2" = {PROBE} ] && exec {sys.executable} -S {__file__}\nexec {other} "$@"\n'
    )
    python.chmod(0o755)
    return python


# --- the one that is asked


def ask() -> int:
    """Be the probe process by proxy: the exit status is its status, and whoever kills this kills it."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.connect(os.environ[SOCKET])
    except (KeyError, OSError):
        os.execv(sys.executable, [sys.executable, "-m", PROBE])
    namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
    who = json.dumps({"environment": dict(os.environ), "folder": str(Path.cwd())}).encode()
    socket.send_fds(server, [who], [0, 1, 2, *namespaces])
    for ours in (0, 1, 2):
        os.close(ours)
    said = server.recv(64)
    return os.waitstatus_to_exitcode(int(said)) % 256 if said else 1


# --- the one that has it


class Server:
    """Forks a probe process for each that asks; ends with all of them when its stdin does."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, tuple[int, socket.socket]] = {}  # by pid: its pidfd, who asked
        self._libc = ctypes.CDLL(None, use_errno=True)

    def loop(self) -> None:
        self._selector.register(0, selectors.EVENT_READ, self._end)
        self._selector.register(self._listener, selectors.EVENT_READ, self._serve)
        while True:
            for key, _ in self._selector.select():
                act: Callable[[], None] = key.data
                act()

    def _end(self) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _serve(self) -> None:
        import torch.distributed  # noqa: F401 - by the first who asks, and not where nobody does

        asking, _ = self._listener.accept()
        said, files, _, _ = socket.recv_fds(asking, _MESSAGE_BYTES, 8)
        if not said:
            asking.close()
            return
        pid = os.fork()
        if pid == 0:
            self._be_the_probe(files, json.loads(said))
        for file in files:
            os.close(file)
        watch = os.pidfd_open(pid)
        self._children[pid] = (watch, asking)
        self._selector.register(watch, selectors.EVENT_READ, lambda: self._bury(pid))
        self._selector.register(asking, selectors.EVENT_READ, lambda: self._hung_up(pid))

    def _hung_up(self, pid: int) -> None:
        if pid in self._children:  # else both have ended at once, and it is buried
            self._selector.unregister(self._children[pid][1])
            os.kill(pid, signal.SIGKILL)

    def _bury(self, pid: int) -> None:
        watch, asking = self._children.pop(pid)
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(watch)
        os.close(watch)
        with contextlib.suppress(KeyError):
            self._selector.unregister(asking)
        with contextlib.suppress(OSError):
            asking.send(str(status).encode())
        asking.close()

    def _be_the_probe(self, files: list[int], who: dict[str, Any]) -> None:
        """The child's whole life; never returns."""
        try:
            self._enter(files[3:])
            for ours, theirs in enumerate(files[:3]):
                os.dup2(theirs, ours)
            os.closerange(3, 1024)
            os.setsid()
            os.chdir(who["folder"])
            os.environ.clear()
            os.environ.update(who["environment"])
            from agent.probes import forked

            forked.main()
        except BaseException as problem:  # it would go on as a second server
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    def _enter(self, namespaces: list[int]) -> None:
        for name, file in zip(_NAMESPACES, namespaces, strict=True):
            here = Path(f"/proc/self/ns/{name}").stat().st_ino
            if os.fstat(file).st_ino != here and self._libc.setns(file, 0):
                raise OSError(ctypes.get_errno(), f"cannot enter the {name} namespace")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Server(sys.argv[1]).loop()
    sys.exit(ask())
