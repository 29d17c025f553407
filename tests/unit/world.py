"""Jobs, attempts and replicas as a coordinator would hold them, for tests of what it decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.attempt import AttemptState, Job, Observed, Snapshot
from coordinator.core.protocol import (
    Address,
    ArtifactFacts,
    CollectiveResult,
    CollectResult,
    Facts,
    Finding,
    LinkResult,
    ProgressRecord,
    Registration,
    RunResult,
    Stage,
    TaskReport,
    TcpResult,
)
from coordinator.lifecycle import Change, advance

PACKAGES = {
    "torch": "2.13.0",
    "accelerate": "1.13.0",
    "deepspeed": "0.18.9",
    "axolotl": "0.19.0",
    "transformers": "5.16.1",
    "rankcall": "0.1.0",
}


class World:
    """Jobs, attempts and replicas as a coordinator would hold them, and a clock that only moves when told."""

    def __init__(self, *names: str) -> None:
        self.now_at = 1000.0
        self.jobs: dict[str, Job] = {}
        self.attempts: dict[str, AttemptState] = {}
        self.replicas: dict[str, Observed] = {}
        self.starts: dict[str, tuple[ProgressRecord, ...]] = {}
        self.findings: list[Finding] = []
        self.broken: dict[str, str] = {}
        self.listening_since = 0.0
        for name in names:
            self.register(name)

    def register(self, name: str, **changes: Any) -> None:
        number = len(self.replicas) + 1
        registration = Registration(
            replica_id=f"r-{name:0>6}",
            fingerprint=name,
            incarnation=1,
            hostname=name,
            addresses=(Address(address=f"10.0.0.{number}", interface="eth0"),),
            echo_port=4000,
        )
        facts = Facts(python="3.11.7", packages=PACKAGES, torch_ready=True)
        self.replicas[registration.replica_id] = replace(
            Observed(registration.replica_id, registration, 1, 0.5, None, facts), **changes
        )

    def submit(self, job_id: str = "job00001", **changes: Any) -> None:
        job = Job(job_id, len(self.jobs) + 1, 2, self.now_at, name=job_id, has_prompts=True)
        self.jobs[job_id] = replace(job, **changes)

    def observe(self, replica_id: str, **changes: Any) -> None:
        self.replicas[replica_id] = replace(self.replicas[replica_id], **changes)

    def step(self, seconds: float = 0.0) -> Change:
        self.now_at += seconds
        open_jobs = [j for j in self.jobs.values() if j.state in ("queued", "running")]
        change = advance(
            Snapshot(
                self.now_at,
                tuple(sorted(open_jobs, key=lambda j: j.seq)),
                tuple(self.attempts.values()),
                self.replicas,
                self.starts,
                broken=self.broken,
                listening_since=self.listening_since,
            )
        )
        self.jobs.update({job.id: job for job in change.jobs})
        self.attempts.update({attempt.id: attempt for attempt in change.attempts})
        self.findings += [found for _, _, found in change.findings]
        return change

    def attempt(self, job_id: str = "job00001") -> AttemptState:
        return [a for a in self.attempts.values() if a.job_id == job_id][-1]

    def report(self, stage: Stage, rank: int, result: Any, state: str = "succeeded") -> None:
        attempt = self.attempt()
        replica_id = attempt.seats[rank].replica_id
        before = self.replicas[replica_id]
        tasks = dict(before.tasks) if before.attempt_id == attempt.id else {}
        tasks[stage.value] = TaskReport(task_id=stage.value, stage=stage, state=state, result=result)  # type: ignore[arg-type]
        self.observe(
            replica_id,
            attempt_id=attempt.id,
            tasks=tasks,
            holding=frozenset({attempt.id}),
        )

    def let_go(self) -> None:
        for replica_id in self.replicas:
            self.observe(replica_id, attempt_id=None, tasks={}, holding=frozenset())

    def pass_stage(self, stage: Stage) -> None:
        """Every replica reports this stage as a healthy one would; then the decision is taken."""
        attempt = self.attempt()
        for seat in attempt.seats:
            others = [o for o in attempt.seats if o.rank != seat.rank]
            result: Any
            if stage is Stage.TCP:
                links = [
                    LinkResult(
                        replica_id=o.replica_id, address=o.address, ok=True, rtt_s=0.001, bytes_per_s=1e9
                    )
                    for o in others
                ]
                result = TcpResult(links=tuple(links), rendezvous_port=29500 if seat.rank == 0 else None)
            elif stage is Stage.COLLECTIVE:
                result = CollectiveResult(
                    ok=True, values_ok=True, backend="gloo", init_s=0.4, bytes_per_s={4: 1e3}
                )
            elif stage is Stage.PREPARE:
                result = RunResult(exit_code=0, output={"digest": "abc", "rows": 40})
            elif stage is Stage.TRAIN:
                result = RunResult(exit_code=0)
            elif stage is Stage.COLLECT:
                file = ArtifactFacts(
                    path="outputs/adapter_model.safetensors", size_bytes=9, sha256="0", kind="adapter"
                )
                result = CollectResult(folder="outputs", artifacts=(file,), tensors=28)
            else:
                answer = {
                    "prompt": "?",
                    "base": "no",
                    "tuned": "yes",
                    "base_repetition": 0.5,
                    "tuned_repetition": 0.0,
                }
                result = RunResult(exit_code=0, output=[answer])
            if stage in (Stage.COLLECT, Stage.COMPARE) and seat.rank != 0:
                continue
            self.report(stage, seat.rank, result)
        if stage is Stage.TRAIN:
            self.starts[attempt.id] = tuple(
                ProgressRecord(type="start", at=0, rank=r, world_size=len(attempt.seats), total_steps=9)
                for r in range(len(attempt.seats))
            )
        self.step(1.0)


def stage_of(world: World) -> tuple[Stage, str]:
    record = world.attempt().stage
    return record.stage, record.state


def started(stage: Stage) -> World:
    """A job of two replicas that has reached `stage`."""
    world = World("a", "b")
    world.submit()
    world.step()
    world.step()
    for passed in (Stage.TCP, Stage.COLLECTIVE, Stage.PREPARE, Stage.TRAIN, Stage.COLLECT):
        if stage_of(world)[0] is stage:
            break
        world.pass_stage(passed)
    assert stage_of(world) == (stage, "running")
    return world
