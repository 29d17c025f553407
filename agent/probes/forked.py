"""The warm process: imports torch once and forks a child for each round, so that a round costs what it costs.

Started as `python -m agent.probes.forked` by `warm.py`, in the training's interpreter, so it knows the
standard library and torch only. Orders come as JSON lines on stdin, answers leave on what was stdout; a child
tells its phases through a pipe. It ends, with all children, when stdin ends, that is when the agent does.
CUDA is never initialised here: a process that has done so can no longer fork.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from agent.probes import sockets
from agent.probes.collective import PHASES, explain, run

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_FELLOWS_S = 2.0  # after one process of a replica has failed, the others have so long to say something too
_PORT_FREE_S = 2.0  # the kernel needs a moment to take a listener away
_LOG_BYTES = 8192
_LOG_LINES = 40
_STACK = ("frame #", "Exception raised from", "<omitting")  # torch's C++ stacks say nothing to a user


@dataclass
class Child:
    """One forked process of a round; `outcome` is None until it has said it."""

    pid: int
    pipe: int
    local_rank: int
    phase: str = "start"
    outcome: dict[str, Any] | None = None
    buffer: bytes = b""
    status: int | None = None
    ended_s: float = 0.0


@dataclass
class Round:
    """One order that is being carried out by children."""

    order: int
    task: dict[str, Any] | None
    until: float
    began: float
    log: int
    children: list[Child] = field(default_factory=list)

    @property
    def running(self) -> list[Child]:
        return [child for child in self.children if child.status is None]


class Forker:
    """The loop: orders in, children watched, answers out."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders = orders
        self._answers = answers
        self._selector = selectors.DefaultSelector()
        self._rounds: list[Round] = []
        self._libc = ctypes.CDLL(None, use_errno=True)

    def loop(self) -> None:
        """Serve until the orders end; then end every child."""
        self._selector.register(self._orders, selectors.EVENT_READ)
        buffer = b""
        while True:
            for key, _ in self._selector.select(self._patience_s()):
                if key.data is not None:
                    self._hear(*key.data)
                    continue
                read = os.read(self._orders, 65536)
                if not read:
                    self._end_all()
                    return
                *lines, buffer = (buffer + read).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            self._judge()

    def say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]

    def _obey(self, order: dict[str, Any]) -> None:
        if "cancel" in order:
            for there in self._rounds:
                if there.order == order["cancel"]:
                    there.until = 0.0
            self._judge()  # the next order may need the port
            return
        now = time.monotonic()
        task = order.get("task")
        log = os.memfd_create("round")
        new = Round(order["id"], task, now + order["deadline_s"], now, log)
        self._rounds.append(new)
        if task is None:
            self._fork(new, 0, _tell_facts)
            return
        for local_rank in range(task["processes"]):

            def part(tell: Callable[[dict[str, Any]], None], local_rank: int = local_rank) -> None:
                left_s = new.until - time.monotonic()
                outcome = run(task, local_rank, left_s, lambda phase: tell({"phase": phase}))
                tell({"outcome": asdict(outcome)})

            self._fork(new, local_rank, part)

    def _fork(
        self, new: Round, local_rank: int, work: Callable[[Callable[[dict[str, Any]], None]], None]
    ) -> None:
        reading, writing = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_child(parent, new.log, writing, work)
        os.close(writing)
        child = Child(pid, reading, local_rank)
        new.children.append(child)
        self._selector.register(reading, selectors.EVENT_READ, (new, child))

    def _be_child(
        self, parent: int, log: int, pipe: int, work: Callable[[Callable[[dict[str, Any]], None]], None]
    ) -> None:
        """The child's whole life; never returns."""
        code = 1
        try:
            self._libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self._selector.close()
            os.close(self._answers)
            for other in self._rounds:
                for child in other.running:
                    os.close(child.pipe)
            work(lambda message: _write_line(pipe, message))
            code = 0
        except BaseException as problem:  # a child that came through here would go on as a second parent
            _write_line(pipe, {"outcome": {"ok": False, "error": explain(problem)}})
        finally:
            os._exit(code)  # no atexit handlers: they are the parent's

    def _hear(self, where: Round, child: Child) -> None:
        read = os.read(child.pipe, 65536)
        *lines, child.buffer = (child.buffer + read).split(b"\n")
        for line in lines:
            message = json.loads(line)
            child.phase = message.get("phase", child.phase)
            child.outcome = message.get("outcome", child.outcome)
        if not read:
            self._bury(where, child)

    def _bury(self, where: Round, child: Child) -> None:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        _, child.status = os.waitpid(child.pid, 0)
        child.ended_s = time.monotonic() - where.began
        if child.outcome is None or not child.outcome.get("ok", True):
            where.until = min(where.until, time.monotonic() + _FELLOWS_S)

    def _patience_s(self) -> float | None:
        if not self._rounds:
            return None
        return max(0.0, min(there.until for there in self._rounds) - time.monotonic())

    def _judge(self) -> None:
        """Answer the rounds whose children have ended, or whose time is up."""
        for there in tuple(self._rounds):
            late = there.running
            if late and time.monotonic() < there.until:
                continue
            for child in late:
                os.kill(child.pid, signal.SIGKILL)
            for child in late:
                self._bury(there, child)
                child.outcome = child.outcome or _overdue(there, child)
            self._rounds.remove(there)
            result = _facts_result(there) if there.task is None else _collective_result(there)
            os.close(there.log)
            self.say({"id": there.order, "result": result})

    def _end_all(self) -> None:
        for there in self._rounds:
            for child in there.running:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def _overdue(there: Round, child: Child) -> dict[str, Any]:
    waited_s = time.monotonic() - there.began
    return {"ok": False, "phase": child.phase, "error": f"not done after {waited_s:.1f} s", "overdue": True}


def _died(child: Child) -> dict[str, Any]:
    assert child.status is not None
    if os.WIFSIGNALED(child.status):
        number = os.WTERMSIG(child.status)
        return {"ok": False, "phase": child.phase, "error": f"the process was ended by {_name(number)}"}
    code = os.waitstatus_to_exitcode(child.status)
    return {"ok": False, "phase": child.phase, "error": f"the process ended by itself with exit code {code}"}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _facts_result(there: Round) -> dict[str, Any]:
    child = there.children[0]
    outcome = child.outcome or _died(child)
    if "facts" in outcome:
        facts: dict[str, Any] = outcome["facts"]
        return facts
    return {
        "torch_ready": False,
        "torch_asked": True,
        "problems": [f"torch could not be asked about this machine: {outcome['error']}"],
    }


def _collective_result(there: Round) -> dict[str, Any]:
    """The outcomes of one replica's processes as one `CollectiveResult`."""
    assert there.task is not None
    parts = [(child, child.outcome or _died(child)) for child in there.children]
    failed = [(child, part) for child, part in parts if not part["ok"]]
    result: dict[str, Any] = {
        "kind": "collective",
        "backend": there.task["backend"],
        "ok": not failed,
        "phase": "done",
        "values_ok": all(part.get("values_ok", False) for _, part in parts),
        "missing_ranks": sorted({rank for _, part in parts for rank in part.get("missing_ranks", ())}),
        "elapsed_s": time.monotonic() - there.began,
    }
    for name in ("init_s", "first_all_reduce_s"):
        known = [part[name] for _, part in parts if part.get(name) is not None]
        result[name] = max(known, default=None)
    speeds = [part.get("bytes_per_s") or {} for _, part in parts]
    result["bytes_per_s"] = {
        size: min(speed[size] for speed in speeds)
        for size in speeds[0]
        if all(size in speed for speed in speeds)
    }
    if failed:
        # The first to fail by itself is the cause; one that was merely waiting is not.
        failed.sort(key=lambda pair: (pair[1].get("overdue", False), pair[0].ended_s))
        child, part = failed[0]
        result["error"] = part["error"]
        if len(parts) > 1:
            result["error"] = f"process {child.local_rank}: {part['error']}"
        result["phase"] = min((part.get("phase", "start") for _, part in failed), key=PHASES.index)
        result["log"] = _tail(there.log)
    elif there.task["rank"] == 0 and not _port_free(there.task["master_port"]):
        port = there.task["master_port"]
        result.update(ok=False, phase="end", error=f"port {port} is still listened on after the round's end")
    return result


def _port_free(port: int) -> bool:
    until = time.monotonic() + _PORT_FREE_S
    while port in sockets.listening(sockets.table()):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _tail(log: int) -> list[str]:
    size = os.lseek(log, 0, os.SEEK_END)
    os.lseek(log, max(0, size - _LOG_BYTES), os.SEEK_SET)
    text = os.read(log, _LOG_BYTES).decode("utf-8", "replace")
    lines = [line[:300] for line in text.splitlines() if line.strip() and not line.startswith(_STACK)]
    return lines[-_LOG_LINES:]


def _write_line(pipe: int, message: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(message).encode() + b"\n")


def _tell_facts(tell: Callable[[dict[str, Any]], None]) -> None:
    from agent.probes.hardware import facts

    tell({"outcome": {"ok": True, "facts": facts()}})


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever torch prints is talk, not an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the agent's to handle
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # is_available() must not initialise CUDA here
    forker = Forker(0, answers)
    began = time.monotonic()
    try:
        import torch
        import torch.distributed as dist

        if not dist.is_available():
            raise ImportError("this torch was built without torch.distributed")
    except Exception as problem:  # a torch that does not fit its libraries fails to import in many ways
        forker.say({"ready": False, "error": f"{type(problem).__name__}: {explain(problem)}"})
        sys.exit(1)
    forker.say({"ready": True, "torch": torch.__version__, "import_s": time.monotonic() - began})
    forker.loop()
    os._exit(0)  # torch takes a second to tear itself down, for nothing


if __name__ == "__main__":
    main()
