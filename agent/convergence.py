"""Makes this replica be what is desired: ends every attempt but the one that is, then does that one's task.

The one place that knows which attempts this replica holds. What an agent before this one left running is taken
over, and judged by the same rule. Called by `main.py`, whose loops bring the desired state and take the reports away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog
from pydantic import ValidationError

from agent import launcher
from agent.around import Surroundings
from agent.streams import Mirror
from agent.tasks import Attempt, Training
from coordinator.core.clock import monotonic_s
from coordinator.core.paths import AttemptFolder, write_whole
from coordinator.core.process import ProcessId
from coordinator.core.protocol import AttemptPlan, Desired, Finding, HeldAttempt, JobSnapshot, TaskReport

log = structlog.get_logger("agent")

# A registration with a larger one would not be read.
SNAPSHOT_BYTES = 6 << 20
MARKS_S = 15.0  # how often all processes are searched for those of an attempt, when nothing suggests a change


class Convergence:
    """What runs here, and what should.

    Args:
        prepare: called with a plan before anything of it is done.
    """

    def __init__(self, around: Surroundings, mirror: Mirror, prepare: Callable[[AttemptPlan], None]) -> None:
        self._around = around
        self._layout = around.layout
        self._mirror = mirror
        self._prepare = prepare
        self._desired: Desired | None = None
        self._changed = asyncio.Event()
        self._work: Attempt | None = None
        self._marked: dict[str, set[ProcessId]] = {}
        self._marked_at_s = float("-inf")
        self._free = asyncio.Event()

    # --- what is reported

    @property
    def attempt_id(self) -> str | None:
        """The attempt this replica works on, until nothing of it is left."""
        return self._work.attempt_id if self._work else None

    @property
    def reports(self) -> tuple[TaskReport, ...]:
        return self._work.reports if self._work else ()

    async def wait_free(self) -> None:
        """Until no attempt is here; at the start only one that was adopted counts."""
        await self._free.wait()

    def shims(self) -> tuple[ProcessId, ...]:
        return launcher.shims(self._work.folder) if self._work else ()

    @property
    def training(self) -> Training | None:
        """What trains here; None while nothing does."""
        return self._work.training if self._work else None

    async def gather_alone(self) -> None:
        """Evidence of a hang, which nobody has asked for."""
        if self._work is not None:
            await self._work.gather_alone()

    async def give_up(self, found: Finding) -> None:
        """End what trains here, for this reason; it is reported like any end."""
        if self._work is not None:
            self._work.give_up(found)

    def streams(self) -> Path | None:
        """Where the logs of what runs here grow."""
        return self._work.folder.streams if self._work else None

    def holding(self) -> set[str]:
        """Attempts of which something runs here. Processes that lost their shim are seen within `MARKS_S`."""
        if monotonic_s() - self._marked_at_s >= MARKS_S:
            self._look()
        held = set(self._marked)
        if self._work is not None and (self._work.busy or self.shims()):
            held.add(self._work.attempt_id)
        return held

    def held(self) -> tuple[HeldAttempt, ...]:
        """What runs here, with what a coordinator that does not know it can start from."""
        held = self.holding()
        return tuple(
            HeldAttempt(attempt_id=attempt_id, snapshot=_snapshot(folder))
            for attempt_id, folder in launcher.attempt_folders(self._layout)
            if attempt_id in held
        )

    def _look(self) -> set[str]:
        """Search all processes for those of an attempt, now."""
        self._marked, self._marked_at_s = launcher.marked(self._layout), monotonic_s()
        return self.holding()

    # --- what is done

    def adopt(self) -> None:
        """Find what an agent before this one left: streams not yet delivered, and an attempt that still runs."""
        holding = self._look()
        for attempt_id, folder in launcher.attempt_folders(self._layout):
            if attempt_id in holding or not folder.mirrored.exists():
                self._mirror.follow(attempt_id, folder)
        if len(holding) == 1:
            self._work = self._attempt(next(iter(holding)))
        if not holding:
            self._free.set()

    def want(self, desired: Desired) -> None:
        """This is what should be, from now on."""
        self._desired = desired
        self._changed.set()

    async def run(self) -> None:
        """Follow what is wanted. Never returns."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            desired = self._desired
            if desired is None:
                continue
            plan = desired.attempt
            wanted = {plan.attempt_id} if plan else set(desired.unknown)
            await self._leave_others(wanted)
            if plan is None or self._is_outdated(plan):
                continue
            if self._work is None:
                self._work = self._attempt(plan.attempt_id)
            self._prepare(plan)
            await asyncio.to_thread(_keep_snapshot, plan, self._work.folder)
            self._work.want(plan)
            self._around.news(False)

    async def shut_down(self) -> None:
        """End everything here, and have a report of how each task ended. `run` must have been cancelled."""
        if self._work is not None:
            self._work.leave()
        held = self._look()
        if held:
            log.warning("ending what runs here", attempts=sorted(held))
        await asyncio.gather(*(self._end(attempt_id) for attempt_id in held))
        if self._work is not None:
            await self._work.left()
        await asyncio.gather(*(self._end(attempt_id) for attempt_id in self._look()))
        for attempt_id, _ in launcher.attempt_folders(self._layout):
            self._mirror.close(attempt_id)

    def forget(self) -> None:
        """After `shut_down`, once its reports were delivered: this replica works on nothing any more."""
        self._work = None

    async def aclose(self) -> None:
        """Stop working on it; what runs goes on."""
        if self._work is not None:
            await self._work.aclose()

    def _attempt(self, attempt_id: str) -> Attempt:
        job_id, _, number = attempt_id.rpartition("-")
        folder = self._layout.attempt(job_id, int(number))
        self._free.clear()
        folder.streams.mkdir(parents=True, exist_ok=True)
        self._mirror.follow(attempt_id, folder)
        return Attempt(attempt_id, folder, self._around)

    def _is_outdated(self, plan: AttemptPlan) -> bool:
        """Whether by now another attempt is desired; then the next turn of the loop sees to that one."""
        now = self._desired.attempt if self._desired else None
        return now is None or now.attempt_id != plan.attempt_id

    async def _leave_others(self, wanted: set[str]) -> None:
        """End every attempt but the wanted ones; each is reported as held for as long as anything of it is left."""
        left_work = self._work is not None and self._work.attempt_id not in wanted
        if left_work and self._work is not None:
            await self._work.aclose()
        others = self._look() - wanted
        if others:
            log.info("ending", attempts=sorted(others))
            await asyncio.gather(*(self._end(attempt_id) for attempt_id in others))
        held = self._look()
        still = held - wanted
        if left_work:
            self._work = None
            await self._around.warm.start()
        for attempt_id, _ in launcher.attempt_folders(self._layout):
            if attempt_id not in wanted and attempt_id not in still:
                self._mirror.close(attempt_id)
        if left_work or others:
            self._around.news(True)
        if self._work is None and not held:
            self._free.set()
        if still:  # hangs in the kernel; it may come out of there
            asyncio.get_running_loop().call_later(MARKS_S, self._changed.set)

    async def _end(self, attempt_id: str) -> None:
        stuck = await asyncio.to_thread(launcher.end_attempt, attempt_id, self._layout)
        if stuck:
            log.error("not even SIGKILL ends them", attempt=attempt_id, pids=[one.pid for one in stuck])
        launcher.reap()


def _keep_snapshot(plan: AttemptPlan, folder: AttemptFolder) -> None:
    """For a coordinator that has lost its store: what this one knows of the job and its attempt, newest last."""
    if plan.snapshot is None:
        return
    try:
        write_whole(folder.snapshot, plan.snapshot.model_dump_json().encode())
    except OSError as error:  # the training is worth more than its insurance
        log.warning("a snapshot cannot be kept", attempt=plan.attempt_id, why=error.strerror or str(error))


def _snapshot(folder: AttemptFolder) -> JobSnapshot | None:
    try:
        if folder.snapshot.stat().st_size > SNAPSHOT_BYTES:
            return None
        return JobSnapshot.model_validate_json(folder.snapshot.read_bytes())
    except (OSError, ValidationError):
        return None
