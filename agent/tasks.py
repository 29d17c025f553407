"""One attempt on this replica: its files, its tasks, and where each of them stands.

`Attempt.want` is level-triggered: told the same plan again it does nothing, told one with a task it has not seen
it does that task once. Finished reports are kept on disk and repeated for as long as the attempt is desired, also
by the agent that comes after this one; processes of the attempt are adopted (`run_task.py`). Called by `convergence.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
from pydantic import ValidationError

from agent import collect, forensics, launcher, leftovers
from agent.around import Outcome, Surroundings, TaskFailed
from agent.probes import tcp
from agent.run_task import Run
from coordinator.core.paths import AttemptFolder, write_whole
from coordinator.core.protocol import (
    EVIDENCE,
    AttemptPlan,
    CollectiveTask,
    CollectTask,
    Finding,
    Member,
    RunResult,
    RunTask,
    Stage,
    Task,
    TaskReport,
    TcpTask,
)
from coordinator.core.readings import ranks_of

log = structlog.get_logger("agent")

_LEAVE_S = 1.0  # from the end of the processes to their reports
_REPORT_MARGIN_S = 5.0  # a task that judges itself late answers a little after its deadline


@dataclass(frozen=True, slots=True)
class Training:
    """What trains here: the ranks of its processes, and where their streams grow."""

    ranks: tuple[int, ...]
    on_gpus: bool
    streams: Path


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
        seen = forensics.Whereabouts({})
        try:
            seen = await asyncio.to_thread(
                forensics.gather, launcher.shims(self.folder), self.folder.streams, plan.evidence
            )
        except Exception as error:  # evidence is wanted, but the attempt has to end without it as well
            log.warning("evidence could not be gathered", attempt=self.attempt_id, why=str(error))
            state = "failed"
        mask = self._around.redactor().mask_text
        said = RunResult(
            output={
                "where": {str(rank): mask(place) for rank, place in seen.places.items()},
                "waiting": sorted(seen.waiting),
            }
        )
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
            if report.state != "running":  # it came to its end while it was being ended
                continue
            self._reports[task_id] = report.model_copy(
                update={"state": "failed", "findings": (self._around.shut_down(report.stage, self._rank()),)}
            )

    def _rank(self) -> int | None:
        return self._plan.rank if self._plan is not None else None

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
        except TaskFailed as failure:
            outcome = Outcome(ok=False, findings=(failure.finding,))
        except TimeoutError:
            late = f"{task.stage.value} was not finished after {task.deadline_s:.0f} s."
            outcome = Outcome(ok=False, findings=(self._around.found("SYS004", late, task),))
        except (
            Exception
        ) as error:  # the one place where a mistake of ours becomes a report instead of a crash
            log.exception("a task failed", attempt=self.attempt_id, task=task.task_id)
            text = f"The agent failed at {task.task_id}: {type(error).__name__}: {error}"
            outcome = Outcome(ok=False, findings=(self._around.found("RUN026", text, task),))
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

    async def _do(self, task: Task, plan: AttemptPlan | None) -> Outcome:
        if isinstance(task, RunTask):
            run = Run(
                self.attempt_id,
                self.folder,
                self._around,
                task,
                lambda: self._given_up,
                lambda: self._leaving,
                self._rank,
                lambda: self.training.ranks[0] if self.training else None,
            )
            return await run.see_through(plan)
        async with asyncio.timeout(task.deadline_s + _REPORT_MARGIN_S):
            if isinstance(task, TcpTask):
                return Outcome(ok=True, result=await tcp.probe(task, self._around.replica_id()))
            if isinstance(task, CollectiveTask):
                return Outcome(ok=True, result=await self._around.warm.collective(task))
            return await self._collect(task, plan)

    async def _collect(self, task: CollectTask, plan: AttemptPlan | None) -> Outcome:
        assert plan is not None
        given_up = threading.Event()
        work = self._around.layout.work(plan.job_id)
        before = leftovers.noted(self.folder.root)
        try:
            result, findings = await asyncio.to_thread(
                collect.collect, work, task.output_dir, lambda: not given_up.is_set(), before
            )
        finally:
            given_up.set()
        whole = all(found.severity != "error" for found in findings)
        return Outcome(ok=whole, result=result, findings=findings)
