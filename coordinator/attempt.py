"""What a job, an attempt and a replica look like to the decisions (`lifecycle.py`, `stages/`, `assignment.py`).

Plain values without I/O: the controller builds them from the store and the roster, and stores what comes
back. `AttemptState` is kept as JSON in the attempt's row, so that a coordinator may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from coordinator.core.protocol import (
    Address,
    Facts,
    Finding,
    Member,
    Message,
    ProgressRecord,
    Registration,
    Stage,
    TaskReport,
    Telemetry,
)
from coordinator.core.straggler import Own
from coordinator.core.track import Track
from coordinator.core.trouble import Kind
from coordinator.core.views import ComparedAnswer, Deadlines, JobState

StageState = Literal["waiting", "running", "passed", "failed", "skipped"]
Outcome = Literal["succeeded", "failed", "cancelled"]
Proof = Literal["transient", "reproducible", "unknown"]


class Seat(Message):
    """One replica's place in an attempt. Rank `r` sits at index `r`.

    `offers` are the addresses its peers try in tcp; `address` is the first of them that may do until then, the one
    that was settled on afterwards. `clock_offset_s`: its clock minus the coordinator's when the facts were compared;
    `infiniband`: the ports that all replicas of the attempt share a subnet with, by the same facts.
    """

    replica_id: str
    rank: int
    hostname: str = ""
    address: str = ""
    interface: str | None = None
    family: Literal["ipv4", "ipv6"] = "ipv4"
    echo_port: int = 0
    gpu_count: int = 0
    offers: tuple[Address, ...] = ()
    clock_offset_s: float | None = None
    infiniband: tuple[str, ...] = ()
    incarnation: int = 0

    @property
    def member(self) -> Member:
        """The seat as its peers are told of it."""
        return Member(
            replica_id=self.replica_id,
            rank=self.rank,
            address=self.address,
            interface=self.interface,
            echo_port=self.echo_port,
            name=self.hostname,
        )


class StageRecord(Message):
    stage: Stage
    state: StageState = "waiting"
    started_at: float | None = None
    ended_at: float | None = None
    summary: str = ""
    figures: dict[str, JsonValue] = {}


class Round(Message):
    """One round of the collective check: disjoint groups of replica ids tested at once.

    `passed` has a word for each group once the round is over; `within`: each replica by itself, with all of
    its GPUs; `confirming`: the round among all that follows when no group failed again; `proving`: one of the
    several among all that have to pass after a training that hung; `disturbed`: an agent was started anew in the
    middle of it, so it says nothing and was held again.
    """

    task_id: str
    groups: tuple[tuple[str, ...], ...]
    started_at: float
    passed: tuple[bool, ...] | None = None
    confirming: bool = False
    disturbed: bool = False
    within: bool = False
    proving: bool = False

    def group_of(self, replica_id: str) -> tuple[str, ...] | None:
        """The group this replica is tested in; None when it rests."""
        return next((group for group in self.groups if replica_id in group), None)


class Doubt(Message):
    """A training that hung or lost its peers in the attempt `number`: the handshake of the next one is to say whether the
    fault is still there. `replicas` are those it happened among, in rank order; `hung` is what the watchdog saw."""

    number: int
    reason: str
    replicas: tuple[str, ...]
    hung: Finding | None = None


class AttemptState(Message):
    """One try at a job with a fixed ordered set of replicas.

    `state`: active (a stage is running), ending (the outcome is known, processes are being ended), ended.
    `fault`: whose fault the failure was, which decides about another attempt; `warned`: codes that were said once.
    `probed`: how often the links were probed anew because a replica had been restarted, `probed_since`: last;
    `refused_since`: an agent did not take connections, and may be dead.
    `hung`: the training hangs since `hung_at`, and every replica gathers evidence before it is ended.
    `doubt`: the failure before, that this attempt's handshake is to explain; `proof`: what it said.
    `resume`: the checkpoint it goes on from, the name of a folder in output_dir.
    """

    id: str
    job_id: str
    number: int
    state: Literal["active", "ending", "ended"] = "active"
    outcome: Outcome | None = None
    reason: str = ""
    retryable: bool = False
    fault: Kind = "unknown"
    warned: tuple[str, ...] = ()
    hung: Finding | None = None
    hung_at: float | None = None
    doubt: Doubt | None = None
    proof: Proof | None = None
    resume: str | None = None
    created_at: float
    ended_at: float | None = None
    gpus_per_node: int = 0
    seats: tuple[Seat, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    rendezvous_port: int | None = None
    free_ports: tuple[int | None, ...] = ()
    probed: int = 0
    probed_since: float | None = None
    refused_since: float | None = None
    rounds: tuple[Round, ...] = ()
    unheard_since: float | None = None
    echo_since: float | None = None
    result_folder: str | None = None
    comparison: tuple[ComparedAnswer, ...] = ()

    @property
    def stage(self) -> StageRecord:
        """The running stage, or the last that ran."""
        for record in self.stages:
            if record.state == "running":
                return record
        cut_off = "skipped" if self.outcome == "cancelled" else "failed"
        ran = [
            record
            for record in self.stages
            if record.state in ("passed", "failed")
            or (record.state == cut_off and record.ended_at is not None)
        ]
        return ran[-1] if ran else self.stages[0]

    @property
    def world_size(self) -> int:
        return len(self.seats) * max(1, self.gpus_per_node)

    @property
    def trains(self) -> bool:
        """Not only the handshake is asked of it."""
        return any(record.stage is Stage.TRAIN for record in self.stages)

    def seat_of(self, replica_id: str) -> Seat | None:
        return next((seat for seat in self.seats if seat.replica_id == replica_id), None)

    def changed(self, record: StageRecord) -> tuple[StageRecord, ...]:
        """The stages with `record` in the place of the one of its name."""
        return tuple(record if old.stage is record.stage else old for old in self.stages)


@dataclass(frozen=True, slots=True)
class Job:
    """What the lifecycle needs of a job, and may change of it."""

    id: str
    seq: int
    nodes: int
    created_at: float
    name: str = ""
    kind: Literal["train", "preflight"] = "train"
    state: JobState = "queued"
    stage: Stage = Stage.GATHER
    verdict: str = ""
    gpus_per_node: int | None = None
    gather_since: float | None = None
    ended_at: float | None = None
    cancel_requested: bool = False
    attempts: int = 0
    attempts_allowed: int = 1
    deadlines: Deadlines = field(default_factory=Deadlines)
    has_prompts: bool = False
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Observed:
    """A replica as the coordinator sees it now. `silent_s` is on the coordinator's clock alone."""

    replica_id: str
    registration: Registration
    incarnation: int
    silent_s: float
    last_rank: int | None = None
    facts: Facts | None = None
    holding: frozenset[str] = frozenset()
    attempt_id: str | None = None
    tasks: Mapping[str, TaskReport] = field(default_factory=dict)
    clock_offset_s: float | None = None

    def task(self, attempt_id: str, task_id: str) -> TaskReport | None:
        """The report of one task of one attempt; None while there is none."""
        return self.tasks.get(task_id) if self.attempt_id == attempt_id else None

    @property
    def name(self) -> str:
        return self.registration.hostname or self.replica_id


@dataclass(frozen=True, slots=True)
class Watched:
    """What the watchdog knows of a training: a track of each rank, on the monotonic clock; `since_s`: first looked at;
    `own`: what each rank did by itself for its steps; `readings`: the last of each replica's load."""

    tracks: tuple[Track, ...]
    now_s: float
    since_s: float
    own: Mapping[int, tuple[Own, ...]] = field(default_factory=dict)
    readings: Mapping[str, Telemetry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a decision may look at.

    Attributes:
        jobs: queued and running ones, oldest first; those that wait are all in it, of those that train maybe none.
        attempts: those not ended, of other jobs too, and the last ended one of each open job.
        starts: what the training processes said of themselves when they started, by attempt.
        spoiled: the newest record of each rank whose losses were not all numbers, by attempt.
        watched: trainings that are to be judged now, by attempt; empty in between.
        broken: attempts for which no plan could be made, and why.
        listening_since: from then on replicas could be heard; nothing is late for the time before, in which the
            coordinator was away or stood still.
    """

    now_at: float
    jobs: tuple[Job, ...]
    attempts: tuple[AttemptState, ...]
    replicas: Mapping[str, Observed]
    starts: Mapping[str, tuple[ProgressRecord, ...]] = field(default_factory=dict)
    watched: Mapping[str, Watched] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    spoiled: Mapping[str, tuple[ProgressRecord, ...]] = field(default_factory=dict)
    listening_since: float = 0.0

    def elapsed_s(self, since: float | None) -> float:
        """How long something has had, as far as it could be heard of."""
        return self.now_at - max(since or self.now_at, self.listening_since)
