"""A task that is a process: start it or take it over, wait for its end, and say what came of it. Called by `tasks.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from agent import launcher, memory_limit
from agent.around import Outcome, Surroundings, TaskFailed
from agent.client import Backoff, NotRegistered
from agent.files import NotPlaced, place_bundle, place_rendered
from agent.launcher import Exit, TaskFolder
from agent.log_progress import LogProgress
from agent.log_tail import end_of, last_lines
from agent.probes import sockets
from coordinator.core import process
from coordinator.core.clock import monotonic_s, now_at
from coordinator.core.http import ProblemAnswer, Unreachable
from coordinator.core.last_words import last_words
from coordinator.core.paths import AttemptFolder, PathRefused, contained
from coordinator.core.protocol import AttemptPlan, ErrorSeen, Finding, RunResult, RunTask, Stage

_SEARCHED_BYTES = 256 << 10  # the end of a log that is searched for what went wrong: some thousand lines
_OUTPUT_LIMIT_BYTES = 2 << 20  # a result file longer than that is not ours
_PORT_PATIENCE_S = 3.0  # the collective check may be closing the port this very moment


def overdue(task: RunTask, left_s: float, silent_s: float) -> tuple[str, str] | None:
    """Why a process is to be ended now, as code and sentence; None: it may go on.

    `left_s`: until its deadline; `silent_s`: since its output last grew.
    """
    if left_s <= 0:
        return "SYS004", f"{task.task_id} was not finished after {task.deadline_s:.0f} s and was ended."
    if task.idle_s is not None and silent_s > task.idle_s:
        return "RUN021", f"{task.task_id} said nothing for {task.idle_s:.0f} s and was ended."
    return None


@dataclass(frozen=True, slots=True)
class Run:
    """One process of one attempt.

    Attributes:
        folder: of the attempt.
        given_up: why the agent itself has ended what runs here, if it has.
        leaving: whether this replica is being shut down.
        rank: of this replica, once a plan has said it; `first_rank`: of its first process.
    """

    attempt_id: str
    folder: AttemptFolder
    around: Surroundings
    task: RunTask
    given_up: Callable[[], Finding | None]
    leaving: Callable[[], bool]
    rank: Callable[[], int | None]
    first_rank: Callable[[], int | None]

    async def see_through(self, plan: AttemptPlan | None) -> Outcome:
        """Start the task's process, or take it over, and wait for its end."""
        folder = TaskFolder(self.folder.task(self.task.task_id))
        if plan is not None and folder.shim() is None:
            await self._start(folder, plan)
        ended_for = await self._watch(folder)
        ending = folder.exit()
        if ending is None and self.leaving():
            raise TaskFailed(self.around.shut_down(self.task.stage, self.rank()))
        if ending is None:
            await asyncio.to_thread(launcher.end_attempt, self.attempt_id, self.around.layout)
            text = f"The process of {self.task.task_id} is gone, and its exit code with it."
            raise TaskFailed(self._found("RUN022", text, evidence={"tail": list(self._tail())}))
        result = RunResult(
            exit_code=ending.exit_code,
            signal=ending.signal,
            started_at=ending.started_at,
            ended_at=ending.ended_at,
            output=self._output(),
            tail=self._tail(),
            errors=() if ending.exit_code == 0 else await asyncio.to_thread(self._errors),
            killed_by_kernel=_kernel_kills(folder),
            memory_limit_bytes=memory_limit.limit_bytes(),
        )
        return self._judged(ending, result, ended_for or self.given_up())

    def _judged(self, ending: Exit, result: RunResult, ended_for: Finding | None) -> Outcome:
        findings: tuple[Finding, ...] = (ended_for,) if ended_for else ()
        if self.leaving() and ending.requested:
            findings = (self.around.shut_down(self.task.stage, self.rank()),)
        if ending.error:
            findings += (self._found("RUN024", f"{ending.error[:1].upper()}{ending.error[1:]}."),)
        ok = ending.exit_code == 0 and not findings
        if ending.dropped_bytes:
            text = f"The disk was full: {ending.dropped_bytes} bytes of the output of {self.task.task_id} were dropped."
            findings += (self._found("RUN028", text),)
        return Outcome(ok=ok, result=result, findings=findings)

    async def _start(self, folder: TaskFolder, plan: AttemptPlan) -> None:
        around = self.around
        await self._place(plan)
        if self.task.stage is Stage.TRAIN:
            # Ours alone need the memory from here on; the next attempt's handshake starts it again.
            await around.warm.close()
            if plan.rank == 0:
                await self._rendezvous_port_free(plan)
        if self.leaving():
            raise TaskFailed(self.around.shut_down(self.task.stage, self.rank()))
        try:
            launcher.write_spec(folder, self.task, plan, around.layout, around.python)
            folder.kernel_kills_file.write_text(str(memory_limit.kills()))
            launcher.start(folder, plan, self.folder)
        except OSError as error:
            text = f"{self.task.task_id} cannot be started: {error.strerror or error}."
            raise TaskFailed(self._found("RUN024", text)) from None
        if not await launcher.started(folder):
            said = last_lines(folder.root / "shim.log")
            text = f"The shim of {self.task.task_id} did not start{': ' + said[-1] if said else ''}."
            raise TaskFailed(self._found("RUN024", text, evidence={"tail": list(said)}))

    async def _place(self, plan: AttemptPlan) -> None:
        """Files and bundle in place; a coordinator that is away is waited for."""
        backoff = Backoff()
        while True:
            try:
                await asyncio.to_thread(place_rendered, plan.files, self.folder)
                await place_bundle(
                    plan, self.around.layout, lambda into: self.around.coordinator.bundle(plan.job_id, into)
                )
                return
            except NotPlaced as error:
                text = f"{str(error)[:1].upper()}{str(error)[1:]}"
                raise TaskFailed(self._found("RUN025", text)) from None
            except (Unreachable, NotRegistered):
                await asyncio.sleep(backoff.again_s())
            except ProblemAnswer as error:
                text = f"The coordinator does not hand out the job's files: {error}"
                raise TaskFailed(self._found("RUN025", text)) from None

    async def _rendezvous_port_free(self, plan: AttemptPlan) -> None:
        """The kernel's table says whether the port that all ranks agreed on is still nobody's."""
        port, until = plan.rendezvous_port, monotonic_s() + _PORT_PATIENCE_S
        if port is None:
            return
        while True:
            _, holders = await asyncio.to_thread(lambda: sockets.first_free((port,), sockets.table()))
            if not holders:
                return
            if monotonic_s() > until:
                taken = f"Port {port}, which all ranks agreed on for their rendezvous, is held by {holders[port]}."
                evidence: dict[str, JsonValue] = {"port": port, "holder": holders[port]}
                raise TaskFailed(self._found("RUN020", taken, evidence=evidence))
            await asyncio.sleep(0.25)

    async def _watch(self, folder: TaskFolder) -> Finding | None:
        """Wait for the end; ask for it when the task is late or silent, and say so."""
        record = folder.shim()
        if record is None:
            return None
        asked: Finding | None = None
        grown_at_s, size = monotonic_s(), -1
        progress = self._log_progress() if self.task.stage is Stage.TRAIN else None
        looks = self.task.idle_s is not None or progress is not None
        while True:
            left_s = self.task.deadline_s - process.age_s(record.shim)
            look_s = launcher.TIMES.look_s if looks else 60.0
            over = await launcher.ended(record.shim, max(0.1, min(look_s, left_s)) if asked is None else 60.0)
            if progress is not None and (rank := self.first_rank()) is not None:
                with contextlib.suppress(OSError):  # a full disk is said by the shim
                    await asyncio.to_thread(progress.look, rank, now_at())
            if over:
                return asked
            if asked is not None:
                continue
            now_s, before = monotonic_s(), size
            size = self._written() if self.task.idle_s is not None else 0
            if size != before:
                grown_at_s = now_s
            why = overdue(self.task, left_s, now_s - grown_at_s)
            if why is not None:
                tail: dict[str, JsonValue] = {"tail": list(self._tail())} if why[0] == "RUN021" else {}
                asked = self._found(*why, evidence=tail)
                launcher.ask_to_end(folder)

    def _log_progress(self) -> LogProgress:
        streams = self.folder.streams
        return LogProgress(
            streams / self.task.stream, streams / "progress.0", self.folder.root / "log-progress"
        )

    def _written(self) -> int:
        """Bytes in all streams of the attempt."""
        total = 0
        with contextlib.suppress(OSError):
            for entry in self.folder.streams.iterdir():
                total += entry.stat().st_size
        return total

    def _output(self) -> JsonValue:
        """What the process left in its result file, or None where that is missing or not JSON."""
        if self.task.result_file is None:
            return None
        try:
            path = contained(self.folder.root, self.task.result_file)
            if path.stat().st_size > _OUTPUT_LIMIT_BYTES:
                return None
            output: JsonValue = json.loads(path.read_bytes())
        except (OSError, ValueError, PathRefused):
            return None
        return output

    def _tail(self) -> tuple[str, ...]:
        redactor = self.around.redactor()
        return tuple(redactor.mask_text(line) for line in last_lines(self.folder.streams / self.task.stream))

    def _errors(self) -> tuple[ErrorSeen, ...]:
        """What the end of the log says went wrong; further back than the tail, which a launcher fills by itself."""
        mask = self.around.redactor().mask_text
        text = end_of(self.folder.streams / self.task.stream, _SEARCHED_BYTES)
        return tuple(
            ErrorSeen(
                name=seen.name, line=mask(seen.line), traceback=tuple(mask(line) for line in seen.traceback)
            )
            for seen in last_words(text)
        )

    def _found(self, code: str, message: str, evidence: dict[str, JsonValue] | None = None) -> Finding:
        return self.around.found(code, message, self.task, evidence)


def _kernel_kills(folder: TaskFolder) -> int:
    """How often the kernel has killed in this container since the task began; 0 where nobody knows."""
    try:
        return max(0, (memory_limit.kills() or 0) - int(folder.kernel_kills_file.read_text()))
    except (OSError, ValueError):
        return 0
