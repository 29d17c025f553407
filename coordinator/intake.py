"""What agents say, taken in: registration, reports with their appends, held reads of what should be.

The hot path of the service. Everything a report carries is committed in one write before it is answered;
a report without news touches memory only. Called by `api/replicas.py`; wakes `controller.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

import structlog
from pydantic import ValidationError
from sqlalchemy import Connection

from coordinator.broadcast import Broadcast
from coordinator.controller import Controller, Standing
from coordinator.core.catalogue import finding
from coordinator.core.clock import monotonic_s, now_at
from coordinator.core.protocol import (
    Finding,
    ProgressRecord,
    Registered,
    Registration,
    Report,
    ReportReply,
    StreamSize,
    TaskReport,
)
from coordinator.roster import ALIVE_WITHIN_S, Presence, Roster
from coordinator.store import Store, queries, rows, streams

log = structlog.get_logger(__name__)

TOKEN_BYTES = 24
# The longest a read is held; well below the 60–100 s at which proxies in front of containers cut.
LONGEST_HOLD_S = 30.0
# A container that was restarted comes with its old id and a new fingerprint, and so does a clone. An agent that is
# alive speaks every 2 s: who is silent for so long was restarted.
DOUBT_S = 5.0
# A doubt of so long ago has nothing to do with the container that comes now.
DOUBT_KEPT_S = 30.0


# A replica that says that it is leaving counts as one that has been silent for so long: not here.
GONE_S = ALIVE_WITHIN_S + 1.0


class Unknown(Exception):
    """The replica is not known here; it has to register."""


class Stale(Exception):
    """The message comes from an incarnation that has been replaced."""

    def __init__(self, current: int) -> None:
        super().__init__(f"a later incarnation ({current}) of this replica has registered")
        self.current = current


class Doubtful(Exception):
    """Somebody with this id was here a moment ago, in another container; it must ask again in a second."""

    def __init__(self, registration: Registration, before: Presence) -> None:
        name = before.registration.hostname or before.replica_id
        super().__init__(
            f"{registration.hostname or 'A container'} comes with the id of {name}, which was heard of a moment ago: "
            "it shows in a few seconds whether that one has been restarted or cloned."
        )


class Intake:
    """Takes in what agents send. One for the service."""

    def __init__(self, store: Store, roster: Roster, controller: Controller, broadcast: Broadcast) -> None:
        self._store = store
        self._roster = roster
        self._controller = controller
        self._broadcast = broadcast

    # --- registration

    async def register(
        self, registration: Registration, peer_host: str, *, joined_with_previous: bool = False
    ) -> Registered:
        """Enter a replica and issue its token; repeating it issues another and ends the one before.

        Args:
            joined_with_previous: the token before the present one was shown; the replica's own ends with that one.

        Raises:
            Stale: a later incarnation of the same replica is registered.
            Doubtful: it is not clear yet whether this is that replica, restarted, or a clone of it.
        """
        found: tuple[Finding, ...] = ()
        before = self._roster.get(registration.replica_id)
        if before is not None:
            seen = bool(before.registration.fingerprint)  # else nothing but its seat is known of it
            if seen and _is_a_clone(registration, before, monotonic_s()):
                registration, found = _as_a_clone(registration, before)
                before = None
            elif before.incarnation > registration.incarnation:
                raise Stale(before.incarnation)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        presence = Presence(
            registration=registration.model_copy(update={"held": ()}),
            incarnation=registration.incarnation,
            token_hash=self._roster.hashed(token, joined_with_previous=joined_with_previous),
            registered_at=now_at(),
            heard_s=monotonic_s(),
        )
        if before is not None:
            presence.registered_at = before.registered_at
            presence.last_rank, presence.facts = before.last_rank, before.facts
            presence.holding, presence.attempt_id = before.holding, before.attempt_id
            presence.tasks = before.tasks
        held = tuple(one.model_copy(update={"snapshot": None}) for one in registration.held)
        dumped = registration.model_copy(update={"held": held}).model_dump_json()

        def enter(connection: Connection) -> None:
            queries.upsert_replica(
                connection,
                id=registration.replica_id,
                fingerprint=registration.fingerprint,
                incarnation=registration.incarnation,
                token_hash=presence.token_hash,
                hostname=registration.hostname,
                at=now_at(),
                registration=dumped,
            )
            queries.insert_event(
                connection,
                at=now_at(),
                actor=f"replica:{registration.replica_id}@{peer_host}",
                action="replica.registered",
                replica_id=registration.replica_id,
                detail={"hostname": registration.hostname, "incarnation": registration.incarnation},
            )

        await self._store.write(enter)
        self._roster.put(presence)
        if registration.held:
            found += await self._take_up(registration, trusted=not joined_with_previous)
        log.info(
            "replica registered",
            replica=registration.replica_id,
            hostname=registration.hostname,
            incarnation=registration.incarnation,
            peer=peer_host,
        )
        self._controller.note_findings(found)
        self._controller.wake()
        self._broadcast.publish("replicas")
        return Registered(
            replica_id=registration.replica_id,
            token=token,
            incarnation=registration.incarnation,
            findings=found,
        )

    async def _take_up(self, registration: Registration, *, trusted: bool) -> tuple[Finding, ...]:
        """What runs there already is taken up, or left alone: nothing is ended that this coordinator does not know."""
        replica_id = registration.replica_id
        unknown = await self._controller.take_up(replica_id, registration.held, trusted=trusted)
        self._roster.leave_alone(replica_id, unknown)
        return tuple(
            finding(
                "SYS031",
                f"{registration.hostname or replica_id} runs attempt {attempt_id}, of which this coordinator knows nothing.",
                replica=replica_id,
            )
            for attempt_id in sorted(unknown)
        )

    # --- reports

    async def report(self, replica_id: str, incarnation: int, report: Report) -> ReportReply:
        """Take in everything a replica observed.

        Args:
            replica_id, incarnation: whom the token that came with it was issued to.

        Raises:
            Unknown: no such replica.
            Stale: token or report belong to an earlier incarnation.
        """
        presence = self._current(replica_id, incarnation)
        if report.incarnation != presence.incarnation:
            raise Stale(presence.incarnation)
        overtaken = 0 < report.number < presence.report_number
        if overtaken:
            report = report.model_copy(
                update={"tasks": (), "attempt_id": None, "facts": None, "leaving": False}
            )
        else:
            presence.report_number = report.number
        presence.heard_s = monotonic_s() - (GONE_S if report.leaving else 0.0)
        standing = await self._standing(report, replica_id)
        sizes: tuple[StreamSize, ...] = ()
        tasks = {task.task_id: task for task in report.tasks} if report.attempt_id in standing else {}
        news = [task for task_id, task in tasks.items() if presence.tasks.get(task_id) != task]
        if report.attempt_id != presence.attempt_id:
            news = list(tasks.values())
        if news or report.appends or report.facts is not None:
            telling: list[tuple[str, tuple[ProgressRecord, ...]]] = []

            def take(connection: Connection) -> tuple[StreamSize, ...]:
                telling.clear()
                now = now_at()
                for task in news:
                    queries.upsert_task(
                        connection,
                        attempt_id=report.attempt_id or "",
                        replica_id=replica_id,
                        task_id=task.task_id,
                        state=task.state,
                        incarnation=report.incarnation,
                        at=now,
                        report=task.model_dump_json(),
                    )
                if report.facts is not None:
                    queries.set_facts(connection, replica_id, report.facts.model_dump(mode="json"))
                return tuple(self._append(connection, replica_id, report, standing, telling))

            sizes = await self._store.write(take)
            for attempt_id, records in telling:
                self._controller.note_progress(attempt_id, records)
            for append in report.appends:
                if append.data and append.attempt_id in standing:
                    self._broadcast.publish(f"logs:{append.attempt_id}:{replica_id}")
                    self._broadcast.publish(f"job:{standing[append.attempt_id].job_id}")
        # While it was being written, the one after it may have come, been in no need of that, and said what is.
        if not overtaken and not 0 < report.number < presence.report_number:
            self._remember(presence, report, tasks, changed=bool(news) or report.facts is not None)
        return ReportReply(acknowledged=sizes)

    def _append(
        self,
        connection: Connection,
        replica_id: str,
        report: Report,
        standing: dict[str, Standing],
        telling: list[tuple[str, tuple[ProgressRecord, ...]]],
    ) -> Iterable[StreamSize]:
        for append in report.appends:
            stands = standing.get(append.attempt_id)
            if stands is None:
                continue
            done = streams.append(
                connection, append.attempt_id, replica_id, append.stream, append.offset, append.data
            )
            if done.accepted and append.stream.startswith("progress."):
                records = tuple(_records(append.data))
                queries.insert_metrics(
                    connection,
                    [
                        rows.NewMetric(
                            stands.job_id,
                            append.attempt_id,
                            record.rank,
                            record.type,
                            record.step,
                            record.model_dump_json(exclude_none=True),
                        )
                        for record in records
                    ],
                )
                telling.append((append.attempt_id, records))
            yield StreamSize(attempt_id=append.attempt_id, stream=append.stream, size_bytes=done.size_bytes)

    async def _standing(self, report: Report, replica_id: str) -> dict[str, Standing]:
        """The attempts this report speaks of, as far as the replica has or had a seat in them."""
        named = {append.attempt_id for append in report.appends}
        if report.attempt_id is not None:
            named.add(report.attempt_id)
        found: dict[str, Standing] = {}
        for attempt_id in named:
            standing = await self._controller.standing(attempt_id)
            if standing is not None and replica_id in standing.ranks:
                found[attempt_id] = standing
        return found

    def _remember(
        self, presence: Presence, report: Report, tasks: Mapping[str, TaskReport], *, changed: bool
    ) -> None:
        holding = frozenset(report.holding)
        if report.leaving or holding != presence.holding or report.attempt_id != presence.attempt_id:
            changed = True
        if changed:  # also of the attempt that it held before
            about = {*holding, *presence.holding, report.attempt_id or "", presence.attempt_id or ""}
            self._controller.wake_for(about)
        presence.holding = holding
        presence.attempt_id = report.attempt_id
        presence.tasks = {task.task_id: task for task in report.tasks if task.task_id in tasks}
        presence.telemetry = report.telemetry or presence.telemetry
        if report.telemetry is not None:
            presence.clocks_s.append(report.telemetry.at - now_at())
        if report.facts is not None:
            presence.facts = report.facts
        if changed or report.telemetry is not None:
            self._broadcast.publish("replicas")

    # --- desired state

    async def desired(
        self, replica_id: str, incarnation: int, if_none_match: str | None, wait_s: float
    ) -> tuple[str, bytes] | None:
        """What the replica should do: (version, JSON body); held until it differs from `if_none_match`.

        None when nothing changed for `wait_s`.

        Raises:
            Unknown, Stale: as `report`.
        """
        presence = self._current(replica_id, incarnation)
        presence.heard_s = monotonic_s()
        if presence.version == if_none_match and wait_s > 0:
            await self._roster.changed(presence, min(wait_s, LONGEST_HOLD_S))
            presence = self._current(replica_id, incarnation)
        if presence.version == if_none_match:
            return None
        return presence.version, presence.body

    def _current(self, replica_id: str, incarnation: int) -> Presence:
        presence = self._roster.get(replica_id)
        if presence is None:
            raise Unknown(replica_id)
        if presence.incarnation != incarnation:
            raise Stale(presence.incarnation)
        return presence


def _is_a_clone(registration: Registration, first: Presence, now_s: float) -> bool:
    """Whether the first to come with this id is another container, and alive: it has spoken since the second came.

    Raises:
        Doubtful: it may still do so.
    """
    if first.registration.fingerprint == registration.fingerprint or now_s - first.heard_s > DOUBT_S:
        return False
    doubted_s = first.doubted_s
    if doubted_s is None or now_s - doubted_s > DOUBT_KEPT_S:
        first.doubted_s = now_s
        raise Doubtful(registration, first)
    if first.heard_s <= doubted_s:
        raise Doubtful(registration, first)
    first.doubted_s = None
    return True


def _as_a_clone(registration: Registration, first: Presence) -> tuple[Registration, tuple[Finding, ...]]:
    """A new id for the second of two containers that share one, and the finding that says so."""
    fresh = registration.model_copy(update={"replica_id": f"r-{secrets.token_hex(5)}"})
    said = finding(
        "SYS002",
        f"{registration.hostname or 'A container'} came with the id of {first.registration.hostname or 'another'}, "
        f"which is alive; it is now {fresh.replica_id}.",
        replica=fresh.replica_id,
        evidence={"id": registration.replica_id, "new_id": fresh.replica_id},
    )
    return fresh, (said,)


def _records(data: bytes) -> Iterable[ProgressRecord]:
    """The records of whole lines; a line that is none (a torn write of a killed process) is passed over."""
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            yield ProgressRecord.model_validate_json(line)
        except ValidationError:
            log.warning("progress line not understood", line=line[:200].decode(errors="replace"))
