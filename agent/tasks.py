"""One attempt on this replica: its files, its tasks, and where each of them stands.

`Attempt.want` is level-triggered: told the same plan again it does nothing, told one with a task it has not seen
it does that task once. Finished reports are kept on disk and repeated for as long as the attempt is desired, also
by the agent that comes after this one; processes of the attempt are adopted. Called by `main.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
from pydantic import JsonValue, ValidationError

from agent import collect, forensics, launcher
from agent.client import Backoff, Coordinator, NotRegistered
from agent.files import NotPlaced, place_bundle, place_rendered
from agent.launcher import TaskFolder
from agent.log_tail import end_of, last_lines
from agent.probes import sockets, tcp
from agent.probes.warm import WarmProbe
from coordinator.core import process
from coordinator.core.catalogue import finding
from coordinator.core.clock import monotonic_s
from coordinator.core.http import ProblemAnswer, Unreachable
from coordinator.core.last_words import last_words
from coordinator.core.paths import AttemptFolder, Layout, PathRefused, contained, write_whole
from coordinator.core.protocol import (
    EVIDENCE,
    AttemptPlan,
    CollectiveTask,
    CollectTask,
    ErrorSeen,
    Finding,
    Member,
    RunResult,
    RunTask,
    Stage,
    Task,
    TaskReport,
    TaskResult,
    TcpTask,
)
from coordinator.core.readings import ranks_of
from coordinator.core.redact import Redactor

log = structlog.get_logger("agent")

_SEARCHED_BYTES = 256 << 10  # the end of a log that is searched for what went wrong: some thousand lines
_OUTPUT_LIMIT_BYTES = 2 << 20  # a result file longer than that is not ours
_PORT_PATIENCE_S = 3.0  # the collective check may be closing the port this very moment
_LEAVE_S = 1.0  # from the end of the processes to their reports
_REPORT_MARGIN_S = 5.0  # a task that judges itself late answers a little after its deadline


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an attempt needs of its agent.

    Attributes:
        news: to be called when a report has changed; True when a gate waits for it.
        redactor: masks what goes into reports.
    """

    layout: Layout
    python: str
    replica_id: Callable[[], str]
    coordinator: Coordinator
    warm: WarmProbe
    redactor: Callable[[], Redactor]
    news: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Training:
    """What trains here: the ranks of its processes, and where their streams grow."""

    ranks: tuple[int, ...]
    on_gpus: bool
    streams: Path


@dataclass(frozen=True, slots=True)
class _Outcome:
    ok: bool
    result: TaskResult | None = None
    findings: tuple[Finding, ...] = ()


class _Failed(Exception):
    """The task has failed for a reason that is known."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.message)
        self.finding = found


class Attempt:
    """One attempt; made for what is found on disk after a restart, or for a plan that has just come."""

    def __init__(self, attempt_id: str, folder: AttemptFolder, around: Surroundings) -> None:
        self.attempt_id = attempt_id
        self.folder = folder
        self._around = around
        self._reports: dict[str, TaskReport] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._leaving = False
        self._given_up: Finding | None = None
        self._plan: AttemptPlan | None = None
        self._peers: tuple[Member, ...] = ()
        self._adopt()

    @property
    def reports(self) -> tuple[TaskReport, ...]:
        return tuple(self._reports.values())

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def want(self, plan: AttemptPlan) -> None:
        """Do the plan's task, unless it has been done or is being done."""
        task = plan.task
        self._plan = plan
        if isinstance(task, TcpTask):
            self._peers = task.targets
        if task is not None and task.task_id not in self._reports:
            if task.stage is Stage.COLLECTIVE:
                self._leave_round()
            self._begin(task, plan)
        if plan.evidence and EVIDENCE not in self._reports:
            self._reports[EVIDENCE] = TaskReport(task_id=EVIDENCE, stage=Stage.TRAIN, state="running")
            self._running[EVIDENCE] = asyncio.create_task(self._gather_evidence(plan))

    @property
    def training(self) -> Training | None:
        """What trains here now, as far as a plan has said who is who."""
        plan = self._plan
        if plan is None or Stage.TRAIN.value not in self._running:
            return None
        ranks = tuple(ranks_of(plan.rank, plan.gpus_per_node))
        return Training(ranks, plan.gpus_per_node > 0, self.folder.streams)

    async def gather_alone(self) -> None:
        """Evidence of a hang that this agent sees by itself; no report speaks of it."""
        try:
            await asyncio.to_thread(
                forensics.gather, launcher.shims(self.folder), self.folder.streams, self._peers
            )
        except Exception as error:  # wanted, but nothing depends on it
            log.warning("evidence could not be gathered", attempt=self.attempt_id, why=str(error))

    def give_up(self, found: Finding) -> None:
        """End what runs here for this reason."""
        if self._given_up is not None:
            return
        self._given_up = found
        log.error("ending it", attempt=self.attempt_id, why=found.message)
        for folder in launcher.task_folders(self.folder):
            if folder.stands() == "running":
                launcher.ask_to_end(folder)

    def _leave_round(self) -> None:
        """Another round is wanted than the one that goes on here: it would hold the port that the new one needs."""
        for task_id, work in tuple(self._running.items()):
            if self._reports[task_id].stage is Stage.COLLECTIVE:
                work.cancel()
                del self._running[task_id], self._reports[task_id]

    async def _gather_evidence(self, plan: AttemptPlan) -> None:
        """Stacks and sockets of what hangs here; the coordinator waits for the report before it ends the attempt."""
        state: Literal["succeeded", "failed"] = "succeeded"
        places: dict[int, str] = {}
        try:
            places = await asyncio.to_thread(
                forensics.gather, launcher.shims(self.folder), self.folder.streams, plan.evidence
            )
        except Exception as error:  # evidence is wanted, but the attempt has to end without it as well
            log.warning("evidence could not be gathered", attempt=self.attempt_id, why=str(error))
            state = "failed"
        mask = self._around.redactor().mask_text
        said = RunResult(output={"where": {str(rank): mask(place) for rank, place in places.items()}})
        report = TaskReport(task_id=EVIDENCE, stage=Stage.TRAIN, state=state, result=said)
        await self._keep(report)
        self._reports[EVIDENCE] = report
        self._running.pop(EVIDENCE, None)
        log.info("evidence gathered", attempt=self.attempt_id, state=state)
        self._around.news(True)

    async def aclose(self) -> None:
        """Stop working on it. Processes are not touched: who ends an attempt does that."""
        running = tuple(self._running.values())
        if any(self._reports[task_id].stage is Stage.COLLECTIVE for task_id in self._running):
            await self._around.warm.close()  # else it stays in the round until the deadline
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._running.clear()

    def leave(self) -> None:
        """The replica is being shut down: what ends from now on, ends for that reason."""
        self._leaving = True

    async def left(self) -> None:
        """Once the processes were ended: every task has its report, also those that had no process."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=_LEAVE_S)
        late = tuple(self._running)
        await self.aclose()
        for task_id in late:
            report = self._reports[task_id]
            self._reports[task_id] = report.model_copy(
                update={"state": "failed", "findings": (self._shut_down(report.stage),)}
            )

    def _shut_down(self, stage: Stage) -> Finding:
        text = f"This replica was shut down during {stage.value}."
        return finding("RUN027", text, stage=stage, replica=self._around.replica_id())

    def _adopt(self) -> None:
        """Take over what an agent before this one left: finished reports, and processes that still run."""
        for folder in launcher.task_folders(self.folder):
            with contextlib.suppress(OSError, ValidationError):
                report = TaskReport.model_validate_json(folder.result_file.read_bytes())
                self._reports[report.task_id] = report
                continue
            task = folder.task()
            if task is not None and folder.stands() != "new":
                log.info("adopted", attempt=self.attempt_id, task=task.task_id, stands=folder.stands())
                self._begin(task, None)

    def _begin(self, task: Task, plan: AttemptPlan | None) -> None:
        self._reports[task.task_id] = TaskReport(task_id=task.task_id, stage=task.stage, state="running")
        self._running[task.task_id] = asyncio.create_task(self._see_through(task, plan))
        self._around.news(False)

    async def _see_through(self, task: Task, plan: AttemptPlan | None) -> None:
        """Do the task and report how it went, whatever happens."""
        try:
            outcome = await self._do(task, plan)
        except _Failed as failure:
            outcome = _Outcome(ok=False, findings=(failure.finding,))
        except TimeoutError:
            late = f"{task.stage.value} was not finished after {task.deadline_s:.0f} s."
            outcome = _Outcome(ok=False, findings=(self._found("SYS004", late, task),))
        except (
            Exception
        ) as error:  # the one place where a mistake of ours becomes a report instead of a crash
            log.exception("a task failed", attempt=self.attempt_id, task=task.task_id)
            text = f"The agent failed at {task.task_id}: {type(error).__name__}: {error}"
            outcome = _Outcome(ok=False, findings=(self._found("RUN026", text, task),))
        report = TaskReport(
            task_id=task.task_id,
            stage=task.stage,
            state="succeeded" if outcome.ok else "failed",
            result=outcome.result,
            findings=outcome.findings,
        )
        await self._keep(report)
        self._reports[task.task_id] = report
        self._running.pop(task.task_id, None)
        log.info("task ended", attempt=self.attempt_id, task=task.task_id, state=report.state)
        self._around.news(True)

    async def _keep(self, report: TaskReport) -> None:
        path = self.folder.task(report.task_id) / "result.json"
        try:
            await asyncio.to_thread(write_whole, path, report.model_dump_json().encode())
        except (
            OSError
        ) as error:  # a full disk: the report is made all the same, only a restart would forget it
            log.warning("a report cannot be kept", task=report.task_id, why=str(error))

    async def _do(self, task: Task, plan: AttemptPlan | None) -> _Outcome:
        if isinstance(task, RunTask):
            return await self._run(task, plan)
        async with asyncio.timeout(task.deadline_s + _REPORT_MARGIN_S):
            if isinstance(task, TcpTask):
                return _Outcome(ok=True, result=await tcp.probe(task, self._around.replica_id()))
            if isinstance(task, CollectiveTask):
                return _Outcome(ok=True, result=await self._around.warm.collective(task))
            return await self._collect(task, plan)

    async def _collect(self, task: CollectTask, plan: AttemptPlan | None) -> _Outcome:
        assert plan is not None
        given_up = threading.Event()
        work = self._around.layout.work(plan.job_id)
        try:
            result, findings = await asyncio.to_thread(
                collect.collect, work, task.output_dir, lambda: not given_up.is_set()
            )
        finally:
            given_up.set()
        return _Outcome(ok=not findings, result=result, findings=findings)

    # --- processes

    async def _run(self, task: RunTask, plan: AttemptPlan | None) -> _Outcome:
        """Start the task's process, or take it over, and wait for its end."""
        folder = TaskFolder(self.folder.task(task.task_id))
        if plan is not None and folder.shim() is None:
            await self._start(folder, task, plan)
        ended_for = await self._watch(folder, task)
        ending = folder.exit()
        if ending is None and self._leaving:
            raise _Failed(self._shut_down(task.stage))
        if ending is None:
            await asyncio.to_thread(launcher.end_attempt, self.attempt_id, self._around.layout)
            text = f"The process of {task.task_id} is gone, and its exit code with it."
            raise _Failed(self._found("RUN022", text, task, evidence={"tail": list(self._tail(task))}))
        result = RunResult(
            exit_code=ending.exit_code,
            signal=ending.signal,
            started_at=ending.started_at,
            ended_at=ending.ended_at,
            output=self._output(task),
            tail=self._tail(task),
            errors=() if ending.exit_code == 0 else await asyncio.to_thread(self._errors, task),
        )
        ended_for = ended_for or self._given_up
        findings: tuple[Finding, ...] = (ended_for,) if ended_for else ()
        if self._leaving and ending.requested:
            findings = (self._shut_down(task.stage),)
        if ending.error:
            findings += (self._found("RUN024", f"{ending.error[:1].upper()}{ending.error[1:]}.", task),)
        ok = ending.exit_code == 0 and not findings
        if ending.dropped_bytes:
            text = f"The disk was full: {ending.dropped_bytes} bytes of the output of {task.task_id} were dropped."
            findings += (self._found("RUN028", text, task),)
        return _Outcome(ok=ok, result=result, findings=findings)

    async def _start(self, folder: TaskFolder, task: RunTask, plan: AttemptPlan) -> None:
        around = self._around
        await self._place(task, plan)
        if task.stage is Stage.TRAIN:
            # Ours alone need the memory from here on; the next attempt's handshake starts it again.
            await around.warm.close()
            if plan.rank == 0:
                await self._rendezvous_port_free(task, plan)
        if self._leaving:
            raise _Failed(self._shut_down(task.stage))
        try:
            launcher.write_spec(folder, task, plan, around.layout, around.python)
            launcher.start(folder, plan, self.folder)
        except OSError as error:
            text = f"{task.task_id} cannot be started: {error.strerror or error}."
            raise _Failed(self._found("RUN024", text, task)) from None
        if not await launcher.started(folder):
            said = last_lines(folder.root / "shim.log")
            text = f"The shim of {task.task_id} did not start{': ' + said[-1] if said else ''}."
            raise _Failed(self._found("RUN024", text, task, evidence={"tail": list(said)}))

    async def _place(self, task: Task, plan: AttemptPlan) -> None:
        """Files and bundle in place; a coordinator that is away is waited for."""
        backoff = Backoff()
        while True:
            try:
                await asyncio.to_thread(place_rendered, plan.files, self.folder)
                await place_bundle(
                    plan, self._around.layout, lambda into: self._around.coordinator.bundle(plan.job_id, into)
                )
                return
            except NotPlaced as error:
                text = f"{str(error)[:1].upper()}{str(error)[1:]}"
                raise _Failed(self._found("RUN025", text, task)) from None
            except (Unreachable, NotRegistered):
                await asyncio.sleep(backoff.again_s())
            except ProblemAnswer as error:
                text = f"The coordinator does not hand out the job's files: {error}"
                raise _Failed(self._found("RUN025", text, task)) from None

    async def _rendezvous_port_free(self, task: RunTask, plan: AttemptPlan) -> None:
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
                raise _Failed(self._found("RUN020", taken, task, evidence=evidence))
            await asyncio.sleep(0.25)

    async def _watch(self, folder: TaskFolder, task: RunTask) -> Finding | None:
        """Wait for the end; ask for it when the task is late or silent, and say so."""
        record = folder.shim()
        if record is None:
            return None
        asked: Finding | None = None
        grown_at_s, size = monotonic_s(), -1
        while True:
            left_s = task.deadline_s - process.age_s(record.shim)
            look_s = launcher.TIMES.look_s if task.idle_s is not None else 60.0
            if await launcher.ended(record.shim, max(0.1, min(look_s, left_s)) if asked is None else 60.0):
                return asked
            if asked is not None:
                continue
            if left_s <= 0:
                late = f"{task.task_id} was not finished after {task.deadline_s:.0f} s and was ended."
                asked = self._found("SYS004", late, task)
            elif task.idle_s is not None:
                now_s, before, size = monotonic_s(), size, self._written()
                if size != before:
                    grown_at_s = now_s
                elif now_s - grown_at_s > task.idle_s:
                    text = f"{task.task_id} said nothing for {task.idle_s:.0f} s and was ended."
                    asked = self._found("RUN021", text, task, evidence={"tail": list(self._tail(task))})
            if asked is not None:
                launcher.ask_to_end(folder)

    def _written(self) -> int:
        """Bytes in all streams of the attempt."""
        total = 0
        with contextlib.suppress(OSError):
            for entry in self.folder.streams.iterdir():
                total += entry.stat().st_size
        return total

    def _output(self, task: RunTask) -> JsonValue:
        """What the process left in its result file, or None where that is missing or not JSON."""
        if task.result_file is None:
            return None
        try:
            path = contained(self.folder.root, task.result_file)
            if path.stat().st_size > _OUTPUT_LIMIT_BYTES:
                return None
            output: JsonValue = json.loads(path.read_bytes())
        except (OSError, ValueError, PathRefused):
            return None
        return output

    def _tail(self, task: RunTask) -> tuple[str, ...]:
        redactor = self._around.redactor()
        return tuple(redactor.mask_text(line) for line in last_lines(self.folder.streams / task.stream))

    def _errors(self, task: RunTask) -> tuple[ErrorSeen, ...]:
        """What the end of the log says went wrong; further back than the tail, which a launcher fills by itself."""
        mask = self._around.redactor().mask_text
        text = end_of(self.folder.streams / task.stream, _SEARCHED_BYTES)
        return tuple(
            ErrorSeen(
                name=seen.name, line=mask(seen.line), traceback=tuple(mask(line) for line in seen.traceback)
            )
            for seen in last_words(text)
        )

    def _found(
        self, code: str, message: str, task: Task, evidence: dict[str, JsonValue] | None = None
    ) -> Finding:
        return finding(
            code,
            self._around.redactor().mask_text(message),
            stage=task.stage,
            replica=self._around.replica_id(),
            evidence=evidence,
        )
