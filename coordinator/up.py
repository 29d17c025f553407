"""`rankcall up`, a replica's start command: above coordinator, agent and page proxy.

It learns this replica's role (`role.py`), has the processes of that role kept running (`supervisor.py`), and ends everything
of this replica, training included, on SIGTERM or Ctrl-C. It may be pid 1: whatever is orphaned to it is
reaped. Killed itself, it takes its three processes along (they ask the kernel for that), but no training.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import signal
import sys
from collections.abc import Mapping, Sequence

from coordinator.claim import CannotStart, claimed
from coordinator.core import interrupt, paths
from coordinator.core.clock import monotonic_s
from coordinator.core.process import ProcessId
from coordinator.core.whereabouts import BadHint, Hints, Place, Undecided, hints_of, without_service_links
from coordinator.role import RoleWatch
from coordinator.supervisor import Supervisor, UpTimes, say

_PR_SET_CHILD_SUBREAPER = 36


class Signals:
    """SIGTERM, SIGINT and SIGCHLD as something to wait for; a poke from another thread wakes the wait too."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.asked: list[signal.Signals] = []
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a console that closes ends nothing
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def _note(self, number: int, _frame: object) -> None:
        self.asked.append(signal.Signals(number))

    def poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def wait(self, timeout_s: float) -> None:
        """Returns at a signal, a poke, or after the timeout."""
        if select.select([self._read], [], [], max(0.0, timeout_s))[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)

    def asked_twice(self) -> bool:
        return len(self.asked) > 1


def run(environment: Mapping[str, str], times: UpTimes | None = None) -> int:
    """Runs this replica until SIGTERM (returns 0) or Ctrl-C (130). Must be called in the main thread.

    Raises:
        CannotStart: for a state folder, port or RANKCALL_* variable that cannot be used. Training that was running here
            before goes on.
    """
    times = times or UpTimes()
    environment = without_service_links(environment)
    try:
        hints = hints_of(environment)
    except BadHint as error:
        raise CannotStart(str(error)) from None
    state = paths.state_dir(environment.get("RANKCALL_STATE_DIR"))
    adopt_orphans()
    with claimed(state):
        signals = Signals()
        supervisor = Supervisor({**environment, "RANKCALL_STATE_DIR": str(state)}, hints, state, times)
        answers: queue.SimpleQueue[Place | Undecided] = queue.SimpleQueue()

        def tell(place: Place | Undecided) -> None:
            answers.put(place)
            signals.poke()

        warn_of(environment, hints)
        role = RoleWatch(hints, state, tell)
        role.start()
        try:
            _serve(supervisor, answers, signals)
        except CannotStart:
            _close(supervisor.end_own(signals.asked_twice), supervisor, role)
            raise
        except BaseException:
            say("ending this replica's training and everything else of it")
            _close(supervisor.end_all(signals.asked_twice), supervisor, role)
            raise
        say("ending this replica's training and everything else of it")
        _close(supervisor.end_all(signals.asked_twice), supervisor, role)
        return 130 if signals.asked[:1] == [signal.SIGINT] else 0


def _close(left: Sequence[ProcessId], supervisor: Supervisor, role: RoleWatch) -> None:
    role.close(wait_s=1.0)
    supervisor.reap(monotonic_s())
    for process in left:
        say(f"process {process.pid} does not end even by SIGKILL: it hangs in the kernel")


def _serve(supervisor: Supervisor, answers: queue.SimpleQueue[Place | Undecided], signals: Signals) -> None:
    while not signals.asked:
        now_s = monotonic_s()
        with contextlib.suppress(queue.Empty):
            while True:
                supervisor.take_role(answers.get_nowait(), now_s)
        supervisor.reap(now_s)
        signals.wait(supervisor.keep_running(now_s))


def warn_of(environment: Mapping[str, str], hints: Hints) -> None:
    """What will most likely not work, said before anybody waits for it."""
    told = hints.url or hints.peers or hints.shared_dir
    if (hints.nodes or 1) > 1 and not told:
        say(
            f"RANKCALL_NODES is {hints.nodes}, but nothing says where the coordinator is: this replica will be its own. "
            "Give all replicas the same RANKCALL_URL, RANKCALL_PEERS or RANKCALL_SHARED_DIR"
        )
    if told and not environment.get("RANKCALL_TOKEN") and not (hints.address or "").startswith("127."):
        say(
            "RANKCALL_TOKEN is not set: a coordinator here would serve this machine only, and no other replica "
            "could join. Give all replicas the same RANKCALL_TOKEN"
        )


def adopt_orphans() -> None:
    """Become the parent of what loses its own below this process (as pid 1 is without asking)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> int:
    interrupt.leave_at_once()
    try:
        return run(os.environ)
    except CannotStart as error:
        say(str(error))
        return error.code


if __name__ == "__main__":
    sys.exit(main())
