"""What one replica gets for one attempt: (job, attempt, seat) → `AttemptPlan` with the task of its stage. Pure.

Called by `controller.py` whenever an attempt changed, and by the API to show what each rank was given.
Files are rendered once the rendezvous port is known; they must be equal on all ranks but for the rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.attempt import AttemptState, Job, Seat
from coordinator.core.protocol import (
    AttemptPlan,
    CollectiveTask,
    CollectTask,
    Facts,
    RunTask,
    Stage,
    Task,
    TcpTask,
)
from coordinator.core.views import Submission
from coordinator.preflight.plan import offered_targets, sampled
from coordinator.render import Rendered, Site, Topology, render
from coordinator.render.environment import environment
from coordinator.stages import round_limit_s, task_id, tcp_task_id

# The field's default first; the others are ordinary ports just above it that nothing well known uses.
RENDEZVOUS_PORTS = (29500, 29501, 29511, 29521, 29531, 29541)
# Training has no deadline of its own, a task must name one: ten years.
UNLIMITED_S = 10.0 * 365 * 86400


@dataclass(frozen=True, slots=True)
class Work:
    """A job's submission, as far as assignments need it."""

    submission: Submission
    bundle_sha256: str | None = None


def rendered(work: Work, attempt: AttemptState, seat: Seat, facts: Facts | None = None) -> Rendered:
    """The files, environment and commands of one rank; the attempt's rendezvous port must be known."""
    topology, site = _topology(attempt), _site(seat, facts)
    return render(work.submission, topology, site, attempt.number, attempt.resume)


def _topology(attempt: AttemptState) -> Topology:
    return Topology(
        nodes=len(attempt.seats),
        gpus_per_node=attempt.gpus_per_node,
        master_address=attempt.seats[0].address,
        master_port=attempt.rendezvous_port or RENDEZVOUS_PORTS[0],
    )


def _site(seat: Seat, facts: Facts | None) -> Site:
    return Site(
        rank=seat.rank,
        interface=seat.interface,
        family=seat.family,
        gpu_names=tuple(gpu.name for gpu in facts.gpus) if facts else (),
        host_id=seat.replica_id,
        infiniband=seat.infiniband,
        chosen=facts.chosen if facts else {},
    )


def plan(job: Job, work: Work, attempt: AttemptState, seat: Seat, facts: Facts | None = None) -> AttemptPlan:
    """What the replica of this seat should hold and do now."""
    base = AttemptPlan(
        job_id=attempt.job_id,
        attempt_id=attempt.id,
        number=attempt.number,
        rank=seat.rank,
        nodes=len(attempt.seats),
        gpus_per_node=attempt.gpus_per_node,
        world_size=attempt.world_size,
        bundle_sha256=work.bundle_sha256,
        rendezvous_port=attempt.rendezvous_port,
    )
    stage = attempt.stage.stage
    if stage in (Stage.GATHER, Stage.MATCH):
        return base
    if stage is Stage.TCP:
        return base.model_copy(update={"task": _tcp(job, attempt, seat)})
    if stage is Stage.COLLECTIVE:
        site = _site(seat, facts)
        variables, _ = environment(_topology(attempt), site, f"../attempt-{attempt.number}")
        # what the container chose reaches the training by itself
        return base.model_copy(update={"task": _collective(job, attempt, seat, {**site.chosen, **variables})})
    files = rendered(work, attempt, seat, facts)
    return base.model_copy(
        update={
            "files": files.files,
            "unset": files.unset,
            "environment": files.environment,
            "task": _run(job, stage, files, seat),
            "evidence": tuple(other.member for other in attempt.seats) if attempt.hung else (),
        }
    )


def _tcp(job: Job, attempt: AttemptState, seat: Seat) -> TcpTask:
    members = tuple(other.member for other in attempt.seats)
    return TcpTask(
        task_id=tcp_task_id(attempt),
        stage=Stage.TCP,
        deadline_s=job.deadlines.tcp_s,
        nonce=_nonce(attempt),
        targets=offered_targets(members, {other.replica_id: other.offers for other in attempt.seats})[
            seat.replica_id
        ],
        sampled=sampled(members)[seat.replica_id],
        port_candidates=_candidates(seat.rank),
    )


def _candidates(rank: int) -> tuple[int, ...]:
    """The ports to look at, the field's default first on rank 0; others begin elsewhere, so that replicas
    of one machine do not choose the same."""
    at = rank % len(RENDEZVOUS_PORTS)
    return RENDEZVOUS_PORTS[at:] + RENDEZVOUS_PORTS[:at]


def _collective(
    job: Job, attempt: AttemptState, seat: Seat, variables: Mapping[str, str]
) -> CollectiveTask | None:
    """The seat's part in the running round, None when it rests.

    The check runs with what the training will get for NCCL and gloo: else it would prove something else.
    """
    running = attempt.rounds[-1]
    group = running.group_of(seat.replica_id)
    if group is None:
        return None
    processes = max(1, attempt.gpus_per_node)
    master = attempt.seat_of(group[0]) or attempt.seats[0]
    return CollectiveTask(
        task_id=running.task_id,
        stage=Stage.COLLECTIVE,
        deadline_s=round_limit_s(job, attempt),
        rank=group.index(seat.replica_id),
        world_size=len(group) * processes,
        master_address=master.address,
        master_port=_port(attempt, master),
        backend="nccl" if attempt.gpus_per_node else "gloo",
        interface=seat.interface,
        processes=processes,
        environment={name: value for name, value in variables.items() if name.startswith(("NCCL_", "GLOO_"))},
        nonce=_nonce(attempt),
    )


def _nonce(attempt: AttemptState) -> str:
    """No secret: it only has to differ from what another attempt's probes would say at the same address."""
    return hashlib.sha256(f"{attempt.id}/{attempt.created_at}".encode()).hexdigest()[:32]


def _port(attempt: AttemptState, master: Seat) -> int:
    """The rendezvous port; of a group whose master is another, one that was seen free there."""
    own = attempt.free_ports[master.rank] if master.rank < len(attempt.free_ports) else None
    return (None if master.rank == 0 else own) or attempt.rendezvous_port or RENDEZVOUS_PORTS[0]


def _run(job: Job, stage: Stage, files: Rendered, seat: Seat) -> Task | None:
    deadlines = job.deadlines
    if stage is Stage.PREPARE:
        return RunTask(
            task_id=task_id(stage),
            stage=stage,
            deadline_s=deadlines.prepare_s,
            argv=files.prepare_argv,
            stream="prepare.log",
            result_file="prepare-result.json",
            idle_s=deadlines.prepare_idle_s,
        )
    if stage is Stage.TRAIN:
        return RunTask(
            task_id=task_id(stage),
            stage=stage,
            deadline_s=UNLIMITED_S,
            argv=files.train_argv,
            stream="train.log",
        )
    if seat.rank != 0:
        return None
    if stage is Stage.COLLECT:
        return CollectTask(
            task_id=task_id(stage), stage=stage, deadline_s=deadlines.collect_s, output_dir=files.output_dir
        )
    if stage is Stage.COMPARE and files.compare_argv:
        return RunTask(
            task_id=task_id(stage),
            stage=stage,
            deadline_s=deadlines.compare_s,
            argv=files.compare_argv,
            stream="compare.log",
            result_file="compare-result.json",
        )
    return None
