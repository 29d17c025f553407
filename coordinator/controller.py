"""The one loop that moves jobs on: look at everything, ask `lifecycle.advance`, store what it says, tell the replicas.

It is woken by whatever changes (a registration, a report, a submission, a deadline) and runs one pass for
any number of wake-ups. A pass commits all its changes in one transaction before any replica hears of them,
so a coordinator killed at any moment goes on from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from coordinator.assignment import Work, plan
from coordinator.attempt import AttemptState, Job, Snapshot, Watched
from coordinator.bookkeeping import apply, job_of, known_of, put_back
from coordinator.broadcast import Broadcast
from coordinator.core.clock import monotonic_s, now_at
from coordinator.core.protocol import Finding, HeldAttempt, ProgressRecord, Stage
from coordinator.core.track import THRESHOLDS
from coordinator.core.views import Submission
from coordinator.lifecycle import Change, advance
from coordinator.recovery import KEEPERS, put_together, snapshot_of
from coordinator.roster import Roster, expected
from coordinator.store import Store, queries, rows
from coordinator.watch import LOOK_EVERY_S, Heard, Watch, is_training

log = structlog.get_logger(__name__)

# A pass costs a read and a walk over all replicas: a storm of wake-ups is served by fifty a second.
PASS_INTERVAL_S = 0.02
# With jobs open it looks again at least so often: silence is noticed by looking.
IDLE_INTERVAL_S = 1.0
# So late by its own clock, the process was stopped with its machine and could hear nobody.
STOOD_STILL_S = 3.0
# Attempts whose seats are kept in memory for late appends (the tail of a log after a cancel).
STANDINGS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Standing:
    """Who sits in an attempt: replica id → rank."""

    job_id: str
    ranks: Mapping[str, int]


class Controller:
    """Moves jobs on. One per service; with several coordinator processes, the one that holds the lease."""

    def __init__(self, store: Store, roster: Roster, broadcast: Broadcast) -> None:
        self._store = store
        self._roster = roster
        self._broadcast = broadcast
        self._woken = asyncio.Event()
        self._attempts: dict[str, AttemptState] = {}
        self._works: dict[str, Work] = {}
        self._starts: dict[str, dict[int, ProgressRecord]] = {}
        self._spoiled: dict[str, dict[int, ProgressRecord]] = {}
        self._standings: OrderedDict[str, Standing] = OrderedDict()
        self._noted: list[Finding] = []
        self._broken: dict[str, str] = {}
        self._wake_at: float | None = None
        self._open = False
        self._watch = Watch()
        self._watched_s = float("-inf")
        self._listening_since = 0.0

    # --- what others tell it

    def wake(self) -> None:
        """Something changed: make a pass soon."""
        self._woken.set()

    def note_findings(self, findings: Iterable[Finding]) -> None:
        """Findings about the service itself (a cloned replica), stored with the next pass."""
        self._noted += findings

    def note_progress(self, attempt_id: str, record: ProgressRecord) -> None:
        """A training process said what world it sees, or that a loss of its was not a number."""
        if attempt_id in self._attempts:
            self._remember(attempt_id, record)
            self.wake()

    def _remember(self, attempt_id: str, record: ProgressRecord) -> None:
        of_kind = self._starts if record.type == "start" else self._spoiled
        of_kind.setdefault(attempt_id, {})[record.rank] = record

    async def standing(self, attempt_id: str) -> Standing | None:
        """The seats of an attempt, ended ones included; None where there is no such attempt."""
        known = self._standings.get(attempt_id)
        if known is not None:
            self._standings.move_to_end(attempt_id)
            return known
        row = await self._store.read(lambda c: queries.attempt(c, attempt_id))
        if row is None:
            return None
        return self._seat(AttemptState.model_validate(row.record))

    async def take_up(self, replica_id: str, held: Iterable[HeldAttempt], *, trusted: bool) -> frozenset[str]:
        """A replica holds these attempts: those that are ours get their plans; what the store has lost is put back.

        Args:
            trusted: the join token in force was shown; with any other a snapshot is not believed.

        Returns:
            The attempts that stay unknown: the replica is to leave them as they are.
        """
        unknown: set[str] = set()
        for one in held:
            found = put_together(one, replica_id) if trusted else None
            if await self.standing(one.attempt_id) is None and found is not None:
                await self._put_back(*found)
            if await self.standing(one.attempt_id) is None:
                unknown.add(one.attempt_id)
            elif (attempt := self._attempts.get(one.attempt_id)) is not None:
                await self._assign([attempt])
        return frozenset(unknown)

    async def _put_back(self, job: rows.Job, attempt: AttemptState) -> None:
        """A job and its attempt from a replica's snapshot, as if they had always been here."""
        if not await self._store.write(lambda c: put_back(c, job, attempt, now_at())):
            return
        log.warning("job taken up again from a replica's snapshot", job=job.id, attempt=attempt.id)
        for seat in attempt.seats:
            presence = self._roster.get(seat.replica_id)
            if presence is None:
                self._roster.put(presence := expected(seat))
            presence.holding |= {attempt.id}
            presence.heard_s = monotonic_s()
            self._roster.leave_alone(seat.replica_id, presence.unknown - {attempt.id})
        self._attempts[attempt.id] = attempt
        self._seat(attempt)
        self._broadcast.publish("jobs")
        self.wake()

    # --- the loop

    async def load(self) -> None:
        """Take up what the store knows: open attempts, and what their trainings said at the start."""
        self._listening_since = now_at()
        known = await self._store.read(known_of)
        for presence in known.presences:
            self._roster.put(presence)
        for attempt in known.attempts:
            self._attempts[attempt.id] = attempt
            self._seat(attempt)
        for attempt_id, record in known.said:
            self._remember(attempt_id, record)
        await self._assign(self._attempts.values())
        for presence in known.presences:
            held = [one.attempt_id for one in presence.registration.held]
            lost = frozenset([one for one in held if await self.standing(one) is None])
            self._roster.leave_alone(presence.replica_id, lost)

    async def run(self) -> None:
        """Make passes until cancelled. An error in one is logged and the next goes on."""
        while True:
            try:
                await self.one_pass()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("a pass of the controller failed; it is tried again")
                await asyncio.sleep(IDLE_INTERVAL_S)
            await asyncio.sleep(PASS_INTERVAL_S)
            await self._wait()
            self._woken.clear()

    async def _wait(self) -> None:
        """Until something changed, or it is time to look; time in which this process stood still is nobody's silence."""
        patience_s, since_s = self._patience_s(), monotonic_s()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), patience_s)
        late_s = monotonic_s() - since_s - (patience_s or 0.0)
        if patience_s is not None and late_s > STOOD_STILL_S:
            log.warning("the coordinator stood still; no replica is blamed for it", for_s=round(late_s, 1))
            self._roster.forgive(late_s)
            self._listening_since = now_at()

    def _patience_s(self) -> float | None:
        if not self._open and self._wake_at is None:
            return None
        if self._wake_at is None:
            return IDLE_INTERVAL_S
        return min(IDLE_INTERVAL_S, max(0.0, self._wake_at - now_at()))

    async def one_pass(self) -> None:
        """Look, decide, store, tell."""
        rows = await self._store.read(queries.open_jobs)
        jobs = tuple([await self._job(row) for row in rows])
        self._open = bool(jobs or self._attempts)
        last = await self._last_attempts(jobs)
        snapshot = Snapshot(
            now_at(),
            jobs,
            (*self._attempts.values(), *last),
            self._roster.observed(),
            {attempt_id: tuple(starts.values()) for attempt_id, starts in self._starts.items()},
            await self._look_at_trainings(jobs),
            dict(self._broken),
            {attempt_id: tuple(records.values()) for attempt_id, records in self._spoiled.items()},
            self._listening_since,
        )
        change = advance(snapshot)
        self._wake_at = change.wake_at
        if not (change.jobs or change.attempts or change.findings or change.artifacts or self._noted):
            return
        noted = tuple(self._noted)
        await self._store.write(lambda c: apply(c, change, noted, snapshot.now_at))
        del self._noted[: len(noted)]
        for attempt in change.attempts:
            self._seat(attempt)
            if attempt.state != "active":
                self._broken.pop(attempt.id, None)
            if attempt.state == "ended":
                self._attempts.pop(attempt.id, None)
                self._starts.pop(attempt.id, None)
                self._spoiled.pop(attempt.id, None)
            else:
                self._attempts[attempt.id] = attempt
        await self._assign(change.attempts)
        self._tell(change, snapshot)
        self.wake()  # a stage that was entered may have passed already

    async def _look_at_trainings(self, jobs: Iterable[Job]) -> Mapping[str, Watched]:
        """What is known of every training that runs, once a second; nothing in between."""
        now_s = monotonic_s()
        if now_s - self._watched_s < LOOK_EVERY_S:
            return {}
        self._watched_s = now_s
        running = [attempt for attempt in self._attempts.values() if is_training(attempt)]
        self._watch.keep(attempt.id for attempt in running)
        quiet_s = {job.id: job.deadlines.train_quiet_s for job in jobs}
        known = {attempt.id: self._watch.heard_up_to(attempt.id) for attempt in running}
        newest = await self._store.read(
            lambda c: {a: queries.newest_metrics(c, a, after) for a, after in known.items()}
        )
        found = {}
        for attempt in running:
            words = [
                (metric.id, ProgressRecord.model_validate(metric.record)) for metric in newest[attempt.id]
            ]
            window_s = quiet_s.get(attempt.job_id) or THRESHOLDS.window_s
            found[attempt.id] = self._watch.look(
                attempt, self._heard(attempt), words, now_s, replace(THRESHOLDS, window_s=window_s)
            )
        return found

    def _heard(self, attempt: AttemptState) -> dict[str, Heard]:
        """The last reading of each replica of an attempt; none of one that has registered anew and not yet reported."""
        present = ((seat.replica_id, self._roster.get(seat.replica_id)) for seat in attempt.seats)
        return {
            replica_id: Heard(
                presence.telemetry,
                (task := presence.tasks.get(Stage.TRAIN.value)) is None or task.state == "running",
            )
            for replica_id, presence in present
            if presence is not None and presence.attempt_id == attempt.id
        }

    async def _job(self, row: rows.Job) -> Job:
        return job_of(row, (await self._work(row.id)).submission)

    async def _work(self, job_id: str) -> Work:
        work = self._works.get(job_id)
        if work is None:
            row = await self._store.read(lambda c: queries.job(c, job_id))
            assert row is not None
            work = Work(Submission.model_validate(row.submission), row.bundle_sha256)
            self._works[job_id] = work
        return work

    async def _last_attempts(self, jobs: tuple[Job, ...]) -> list[AttemptState]:
        """The ended attempt before, of jobs that wait for their next: replicas keep their ranks."""
        waiting = [job for job in jobs if job.attempts and job.state == "queued"]
        found = []
        for job in waiting:
            attempt_id = f"{job.id}-{job.attempts}"
            row = await self._store.read(lambda c, a=attempt_id: queries.attempt(c, a))  # type: ignore[misc]
            if row is not None:
                found.append(AttemptState.model_validate(row.record))
        return found

    def _seat(self, attempt: AttemptState) -> Standing:
        standing = Standing(attempt.job_id, {seat.replica_id: seat.rank for seat in attempt.seats})
        self._standings[attempt.id] = standing
        while len(self._standings) > STANDINGS_KEPT:
            self._standings.popitem(last=False)
        return standing

    async def _assign(self, attempts: Iterable[AttemptState]) -> None:
        """Hand each replica of these attempts its plan, or take it away when the attempt is over."""
        for attempt in attempts:
            if attempt.state != "active":
                for seat in attempt.seats:
                    presence = self._roster.get(seat.replica_id)
                    if presence and presence.plan and presence.plan.attempt_id == attempt.id:
                        self._roster.assign(seat.replica_id, None)
                continue
            row = await self._store.read(lambda c, j=attempt.job_id: queries.job(c, j))  # type: ignore[misc]
            if row is None:
                continue
            job, work = await self._job(row), await self._work(attempt.job_id)
            for seat in attempt.seats:
                presence = self._roster.get(seat.replica_id)
                if presence is None:
                    continue
                presence.last_rank = seat.rank
                try:
                    what = plan(job, work, attempt, seat, presence.facts)
                except Exception as error:  # a fault of ours ends this attempt, and keeps no other waiting
                    log.exception("no plan could be made", attempt=attempt.id, rank=seat.rank)
                    self._broken[attempt.id] = str(error) or type(error).__name__
                    self.wake()
                    break
                if what.task is not None and seat.rank < KEEPERS and what.files:
                    what = what.model_copy(update={"snapshot": snapshot_of(row, attempt)})
                self._roster.assign(seat.replica_id, what)

    def _tell(self, change: Change, snapshot: Snapshot) -> None:
        touched = {job.id for job in change.jobs} | {a.job_id for a in change.attempts}
        touched |= {job_id for job_id, _, _ in change.findings}
        for job_id in touched:
            self._broadcast.publish(f"job:{job_id}")
        self._broadcast.publish("jobs")
        if change.attempts:
            self._broadcast.publish("replicas")
        before = {job.id: job for job in snapshot.jobs}
        for job in change.jobs:
            old = before.get(job.id)
            if old is None or (old.state, old.stage) != (job.state, job.stage):
                log.info("job", job=job.id, state=job.state, stage=job.stage.value, verdict=job.verdict)
            if job.state in ("succeeded", "failed", "cancelled"):
                self._works.pop(job.id, None)
