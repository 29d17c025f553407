"""The one loop that moves jobs on: look at everything, ask `lifecycle.advance`, store what it says, tell the replicas.

It is woken by whatever changes (a registration, a report, a submission, a deadline) and runs one pass for
any number of wake-ups, over the jobs that these are about and all that are not in training; a training that
runs is looked at by `lookout.py`, which calls when something follows. A pass commits all its changes in one transaction before
any replica hears of them, so a coordinator killed at any moment goes on from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from coordinator.assignment import Work, plan
from coordinator.attempt import AttemptState, Job, Snapshot, Watched
from coordinator.bookkeeping import apply, job_of, known_of, put_back
from coordinator.broadcast import Broadcast
from coordinator.core.clock import monotonic_s, now_at
from coordinator.core.protocol import Finding, HeldAttempt, ProgressRecord
from coordinator.core.views import Submission
from coordinator.lifecycle import Change, advance
from coordinator.lookout import Lookout
from coordinator.recovery import KEEPERS, put_together, snapshot_of
from coordinator.roster import Roster, expected
from coordinator.store import Store, queries, rows
from coordinator.watch import Watch, is_training

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
        self._jobs: dict[str, Job] = {}
        self._trainings: dict[str, AttemptState] = {}
        self._works: dict[str, Work] = {}
        self._standings: OrderedDict[str, Standing] = OrderedDict()
        self._noted: list[Finding] = []
        self._broken: dict[str, str] = {}
        self._wake_at: float | None = None
        self._all = True
        self._called: set[str] = set()
        self._seen: dict[str, Watched] = {}
        self._watch = Watch()
        self._lookout = Lookout(
            self._watch, roster, self._trainings, self._jobs, self._alone, self._take_call
        )
        self._listening_since = 0.0

    # --- what others tell it

    def wake(self) -> None:
        """Something changed: make a pass over everything soon."""
        self._all = True
        self._woken.set()

    def wake_for(self, attempt_ids: Iterable[str]) -> None:
        """Something changed about these attempts, or about who is free: make a pass soon, but leave other trainings alone."""
        self._called.update(
            attempt.job_id for id_ in attempt_ids if (attempt := self._attempts.get(id_)) is not None
        )
        self._woken.set()

    def note_findings(self, findings: Iterable[Finding]) -> None:
        """Findings about the service itself (a cloned replica), stored with the next pass."""
        self._noted += findings

    def note_progress(self, attempt_id: str, records: Iterable[ProgressRecord]) -> None:
        """A training process said how it goes on: in what world, at which step, with which losses."""
        if attempt_id not in self._attempts:
            return
        now_s = monotonic_s()
        for record in records:
            if self._watch.hear(attempt_id, record, now_s):
                self.wake_for((attempt_id,))

    def _take_call(self, attempt: AttemptState, seen: Watched) -> None:
        """Something follows from what the lookout has seen."""
        self._seen[attempt.id] = seen
        self.wake_for((attempt.id,))

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
        self._keep(attempt)
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
            self._keep(attempt)
        for attempt_id, record in known.said:
            self._watch.hear(attempt_id, record, monotonic_s())
        await self._assign(self._attempts.values())
        for presence in known.presences:
            held = [one.attempt_id for one in presence.registration.held]
            lost = frozenset([one for one in held if await self.standing(one) is None])
            self._roster.leave_alone(presence.replica_id, lost)

    async def run(self) -> None:
        """Make passes, and look at the trainings, until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._passes())
            both.create_task(self._lookout.run())

    async def _passes(self) -> None:
        """An error in one pass is logged and the next goes on."""
        while True:
            try:
                if self._all or self._called or self._noted or self._unsettled():
                    await self.one_pass()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("a pass of the controller failed; it is tried again")
                self._all = True
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
        if not self._jobs and not self._attempts and self._wake_at is None:
            return None
        if self._wake_at is None:
            return IDLE_INTERVAL_S
        return min(IDLE_INTERVAL_S, max(0.0, self._wake_at - now_at()))

    def _unsettled(self) -> set[str]:
        """Ids of the jobs that wait, are in another stage than training, or let go of their replicas."""
        training = {attempt.job_id for attempt in self._trainings.values() if not _has_begun_to_end(attempt)}
        return (self._jobs.keys() | {attempt.job_id for attempt in self._attempts.values()}) - training

    def _keep(self, attempt: AttemptState) -> None:
        """As it is from now on; one that has ended is no more."""
        self._seat(attempt)
        if attempt.state == "ended":
            self._attempts.pop(attempt.id, None)
            self._watch.forget(attempt.id)
        else:
            self._attempts[attempt.id] = attempt
        if is_training(attempt):
            self._trainings[attempt.id] = attempt
        else:
            self._trainings.pop(attempt.id, None)

    async def one_pass(self) -> None:
        """Look, decide, store, tell."""
        only = None if self._all else self._called | self._unsettled()
        self._all, self._called = False, set()
        rows = await self._store.read(lambda c: queries.open_jobs(c, only))
        jobs = tuple([await self._job(row) for row in rows])
        for job_id in tuple(self._jobs if only is None else only):
            self._jobs.pop(job_id, None)
        self._jobs.update((job.id, job) for job in jobs)
        last = await self._last_attempts(jobs)
        seen, self._seen = self._seen, {}
        snapshot = self._snapshot(jobs, (*self._attempts.values(), *last), seen)
        change = advance(snapshot)
        self._wake_at = change.wake_at
        if not (change.jobs or change.attempts or change.findings or change.artifacts or self._noted):
            return
        noted = tuple(self._noted)
        await self._store.write(lambda c: apply(c, change, noted, snapshot.now_at))
        del self._noted[: len(noted)]
        for job in change.jobs:
            self._jobs[job.id] = job
        for attempt in change.attempts:
            if attempt.state != "active":
                self._broken.pop(attempt.id, None)
            self._keep(attempt)
        await self._assign(change.attempts)
        self._tell(change, snapshot)
        # a stage that was entered may have passed already
        self._called.update(job.id for job in change.jobs)
        self.wake_for(attempt.id for attempt in change.attempts)

    def _snapshot(
        self, jobs: tuple[Job, ...], attempts: tuple[AttemptState, ...], seen: Mapping[str, Watched]
    ) -> Snapshot:
        return Snapshot(
            now_at(),
            jobs,
            attempts,
            self._roster.at_hand(),
            {attempt.id: self._watch.starts(attempt.id) for attempt in attempts},
            seen,
            dict(self._broken),
            {attempt.id: self._watch.spoiled(attempt.id) for attempt in attempts},
            self._listening_since,
        )

    def _alone(self, job: Job, attempt: AttemptState, seen: Watched) -> Snapshot:
        return self._snapshot((job,), (attempt,), {attempt.id: seen})

    async def _job(self, row: rows.Job | rows.OpenJob) -> Job:
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
                    self.wake_for((attempt.id,))
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


def _has_begun_to_end(attempt: AttemptState) -> bool:
    """Something was seen of a training that is to have a consequence after a certain time."""
    return not (attempt.hung is None and attempt.echo_since is None and attempt.unheard_since is None)
