"""What the pages are shown with: jobs in every state in a real store, and replicas that report over HTTP.

The store is filled through its own queries before the coordinator starts, as if the coordinator had been
killed and come back; what arrives while a page is open comes from `Player`, which speaks the agents'
protocol. Nothing here knows what a page looks like.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from sqlalchemy import Connection

from coordinator.attempt import AttemptState, Outcome, Seat, StageRecord
from coordinator.core.clock import now_at
from coordinator.core.protocol import (
    Address,
    Append,
    Facts,
    Finding,
    GpuFacts,
    GpuTelemetry,
    Registered,
    Registration,
    Report,
    Stage,
    TaskReport,
    Telemetry,
)
from coordinator.core.views import ComparedAnswer, Submission
from coordinator.roster import hash_token
from coordinator.settings import Settings
from coordinator.store import Store, queries, rows, streams

GIB = 1 << 30
STEPS = 519
SUMMARIES = {
    Stage.GATHER: "2 of 2 replicas here",
    Stage.MATCH: "2 alike: 1 × NVIDIA GeForce RTX 5090, torch 2.9.1+cu130",
    Stage.TCP: "2 links echoed, slowest 0.4 ms, rendezvous on port 29500",
    Stage.COLLECTIVE: "nccl up in 3.3 s, sums right on 2 of 2 ranks, 912 MB/s",
    Stage.PREPARE: "8304 samples, the same on every rank",
    Stage.TRAIN: "519 steps on 2 ranks",
    Stage.COLLECT: "3 files, 62.3 MB, 224 tensors whole, in outputs/lora-out",
    Stage.COMPARE: "2 prompts answered by both",
}
FIGURES = {Stage.COLLECTIVE: {"backend": "nccl", "init_s": 3.3, "bytes_per_s_min": 912e6}}
SECONDS = dict(zip(Stage, (4.0, 1.2, 0.8, 5.1, 21.0, 1695.0, 3.1, 14.0), strict=True))


def facts() -> Facts:
    return Facts(
        python="3.11.14",
        cpu_count=24,
        memory_bytes=128 * GIB,
        packages={"torch": "2.9.1+cu130", "axolotl": "0.19.0"},
        gpus=(GpuFacts(index=0, name="NVIDIA GeForce RTX 5090", memory_bytes=32 * GIB),),
        torch_ready=True,
    )


def registration(number: int, hostname: str) -> Registration:
    return Registration(
        replica_id=f"r-{number:010x}",
        fingerprint=f"fingerprint-{number}",
        incarnation=1,
        hostname=hostname,
        addresses=(Address(address=f"10.42.9.{126 + number}", interface="eth0"),),
        gpu_count=1,
        beside_coordinator=number == 0,
    )


@dataclass(slots=True)
class Player:
    """A replica that is played: it registers and reports through the API, streams by offset."""

    number: int
    hostname: str
    url: str = ""
    token: str = ""
    offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    last: tuple[str | None, TaskReport | None] = (None, None)

    @property
    def replica_id(self) -> str:
        return f"r-{self.number:010x}"

    def register(self, url: str, join_token: str | None) -> None:
        headers = {"Authorization": f"Bearer {join_token}"} if join_token else {}
        body = registration(self.number, self.hostname).model_dump(mode="json")
        answer = httpx.post(f"{url}/api/v1/replicas", json=body, headers=headers, trust_env=False)
        answer.raise_for_status()
        self.url, self.token = url, Registered.model_validate_json(answer.content).token

    def report(self, attempt_id: str | None = None, task: TaskReport | None = None, **said: bytes) -> None:
        """One combined report; `said` are bytes to append, a stream each ("train.log" is written `train_log`)."""
        self.last = (attempt_id, task)
        appends = []
        for name, data in said.items():
            stream = name.replace("_", ".")
            offset = self.offsets.get((attempt_id or "", stream), 0)
            appends.append(Append(attempt_id=attempt_id or "", stream=stream, offset=offset, data=data))
            self.offsets[attempt_id or "", stream] = offset + len(data)
        report = Report(
            incarnation=1,
            holding=(attempt_id,) if attempt_id else (),
            attempt_id=attempt_id,
            tasks=(task,) if task else (),
            appends=tuple(appends),
            facts=facts(),
            telemetry=Telemetry(
                at=time.time(),
                cpu_percent=21.0,
                memory_used_bytes=21 * 10**9,
                memory_total_bytes=128 * GIB,
                gpus=(
                    GpuTelemetry(
                        index=0,
                        utilization=97.0,
                        memory_used_bytes=9 * GIB,
                        memory_total_bytes=32 * GIB,
                        temperature_c=63.0,
                    ),
                ),
            ),
        )
        answer = httpx.post(
            f"{self.url}/api/v1/replicas/{self.replica_id}/report",
            content=report.model_dump_json(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            trust_env=False,
        )
        answer.raise_for_status()


@contextmanager
def beating(players: Sequence[Player]) -> Iterator[None]:
    """Repeats the last report each second, so that the replicas stay alive however long a test takes."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(1.0):
            for player in players:
                with suppress(httpx.HTTPError):
                    player.report(*player.last)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def training() -> TaskReport:
    return TaskReport(task_id="train", stage=Stage.TRAIN, state="running")


def record(step: int, rank: int = 0, **values: object) -> dict[str, object]:
    """One line of a progress stream, as the plugin writes it."""
    loss = 1.18 + 0.9 * math.exp(-step / 60)
    return {
        "type": "log",
        "at": now_at(),
        "rank": rank,
        "step": step,
        "total_steps": STEPS,
        "epoch": step / STEPS,
        "phase": "train",
        "loss": loss,
        "perplexity": math.exp(loss),
        "learning_rate": 2e-4 * (1 - step / STEPS),
        "grad_norm": 0.56,
        "tokens_per_s": 5320.0,
        "memory_bytes": int(8.49 * GIB),
        "memory_total_bytes": 32 * GIB,
        "step_s": 3.27,
        **values,
    }


def lines(*records: dict[str, object]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)


def job(job_id: str, name: str, **columns: object) -> rows.Job:
    at = now_at() - 120
    values: dict[str, object] = {
        "nodes": 2,
        "gpus_per_node": 1,
        "created_at": at,
        "started_at": at,
        **columns,
    }
    submission = Submission(config="base_model: demo\n", nodes=2).model_dump(mode="json")
    return rows.Job(id=job_id, name=name, submission=submission, **values)  # type: ignore[arg-type]


def attempt(
    job_id: str,
    until: Stage,
    *,
    number: int = 1,
    state: str = "active",
    outcome: Outcome | None = None,
    last: str = "running",
    hostnames: tuple[str, ...] = ("gcube-ft-0", "gcube-ft-1"),
    comparison: tuple[ComparedAnswer, ...] = (),
    summary: str = "",
    first: int = 0,
) -> AttemptState:
    """An attempt that has come as far as `until`, which is in state `last`; its seats are replicas `first` and on."""
    at = now_at() - 100
    stages: list[StageRecord] = []
    for stage in Stage:
        passed = list(Stage).index(stage) < list(Stage).index(until) or outcome == "succeeded"
        here = stage is until and not passed
        shown = summary if here else SUMMARIES[stage] if passed else ""
        ended = at + SECONDS[stage] if passed or (here and last == "failed") else None
        stages.append(
            StageRecord.model_validate(
                {
                    "stage": stage,
                    "state": "passed" if passed else last if here else "waiting",
                    "started_at": at if passed or here else None,
                    "ended_at": ended,
                    "summary": shown,
                    "figures": FIGURES.get(stage, {}) if passed else {},
                }
            )
        )
        at = ended or at
    seats = tuple(
        Seat(
            replica_id=f"r-{first + n:010x}",
            rank=n,
            hostname=name,
            address=f"10.42.9.{126 + first + n}",
            gpu_count=1,
        )
        for n, name in enumerate(hostnames)
    )
    return AttemptState.model_validate(
        {
            "id": f"{job_id}-{number}",
            "job_id": job_id,
            "number": number,
            "state": state,
            "outcome": outcome,
            "created_at": now_at() - 100,
            "ended_at": now_at() if state == "ended" else None,
            "gpus_per_node": 1,
            "seats": seats,
            "stages": stages,
            "rendezvous_port": 29500,
            "result_folder": "outputs/lora-out" if outcome == "succeeded" else None,
            "comparison": comparison,
        }
    )


@dataclass(slots=True)
class Script:
    """What the store holds when the coordinator starts."""

    players: tuple[Player, ...] = ()
    jobs: list[rows.Job] = field(default_factory=list)
    attempts: list[AttemptState] = field(default_factory=list)
    metrics: list[rows.NewMetric] = field(default_factory=list)
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    artifacts: dict[str, list[rows.Artifact]] = field(default_factory=dict)
    logs: list[tuple[str, str, str, bytes]] = field(default_factory=list)

    def write(self, state_dir: Path) -> None:
        store = Store.open(Settings(state_dir=state_dir, port=0).store_url)
        try:
            store.write_now(self._apply)
        finally:
            store.close()

    def _apply(self, c: Connection) -> None:
        for player in self.players:
            queries.upsert_replica(
                c,
                id=player.replica_id,
                fingerprint=f"fingerprint-{player.number}",
                incarnation=1,
                token_hash=hash_token(f"token-{player.number}"),
                hostname=player.hostname,
                at=now_at(),
                registration=registration(player.number, player.hostname).model_dump(mode="json"),
            )
        for one in self.jobs:
            queries.insert_job(c, one)
        for state in self.attempts:
            queries.insert_attempt(
                c,
                rows.Attempt(
                    id=state.id,
                    job_id=state.job_id,
                    number=state.number,
                    created_at=state.created_at,
                    state=state.state,
                    outcome=state.outcome,
                    ended_at=state.ended_at,
                    record=state.model_dump(mode="json"),
                ),
            )
        queries.insert_metrics(c, self.metrics)
        for job_id, found in self.findings:
            queries.insert_findings(c, job_id, None, now_at(), [found])
        for job_id, files in self.artifacts.items():
            queries.replace_artifacts(c, job_id, files)
        for attempt_id, replica_id, name, data in self.logs:
            streams.append(c, attempt_id, replica_id, name, 0, data)


def metrics(job_id: str, steps: int, *, ranks: int = 2) -> list[rows.NewMetric]:
    """The records of a training that has come to `steps`."""
    attempt_id = f"{job_id}-1"
    found = [
        rows.NewMetric(job_id, attempt_id, rank, "start", 0, {
            "type": "start", "at": now_at(), "rank": rank, "world_size": ranks, "total_steps": STEPS,
            "trainable_parameters": 11_272_192, "all_parameters": 1_247_086_592,
        })
        for rank in range(ranks)
    ]  # fmt: skip
    for step in range(1, steps + 1):
        found += [
            rows.NewMetric(job_id, attempt_id, rank, "log", step, record(step, rank)) for rank in range(ranks)
        ]
        if step % 100 == 0:
            evaluated = {
                "type": "eval",
                "at": now_at(),
                "rank": 0,
                "step": step,
                "eval_loss": 1.3,
                "perplexity": 3.67,
            }
            found.append(rows.NewMetric(job_id, attempt_id, 0, "eval", step, evaluated))
    return found
