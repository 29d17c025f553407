"""A job as users see it: where it stands, what it found, and what it left."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from coordinator.core.protocol import Finding, Stage
from coordinator.core.views.base import View

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
TERMINAL_STATES: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})


class StageView(View):
    stage: Stage
    state: Literal["waiting", "running", "passed", "failed", "skipped"] = "waiting"
    started_at: datetime | None = None
    ended_at: datetime | None = None
    summary: str = ""
    figures: dict[str, JsonValue] = {}


class MemberView(View):
    """A replica's part in an attempt."""

    replica_id: str
    hostname: str
    rank: int
    address: str
    alive: bool
    task_state: str | None = None


class AttemptView(View):
    id: str
    number: int
    state: Literal["active", "ending", "ended"]
    outcome: str | None = None
    created_at: datetime
    ended_at: datetime | None = None
    rendezvous_port: int | None = None
    stages: tuple[StageView, ...] = ()
    members: tuple[MemberView, ...] = ()


class ProgressView(View):
    """Where training is, from the newest records of all ranks (figures of the lowest rank that has them)."""

    step: int = 0
    total_steps: int | None = None
    epoch: float | None = None
    phase: str | None = None
    loss: float | None = None
    eval_loss: float | None = None
    perplexity: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    step_s: float | None = None
    eta_s: float | None = None
    train_loss: float | None = None
    train_runtime_s: float | None = None
    trainable_parameters: int | None = None
    all_parameters: int | None = None
    world_size: int | None = None
    updated_at: datetime | None = None


class ArtifactView(View):
    id: str
    path: str
    kind: str
    size_bytes: int
    sha256: str
    replica_id: str
    hostname: str = ""


class ComparedAnswer(View):
    """One prompt answered by the base and by the tuned model, with the same decoding.

    A repetition score is the share of repeated 4-grams of words, 0 (none) to 1 (says the same for ever).
    """

    prompt: str
    base: str
    tuned: str
    base_repetition: float
    tuned_repetition: float


class JobSummary(View):
    id: str
    name: str
    kind: Literal["train", "preflight"] = "train"
    state: JobState
    stage: Stage
    verdict: str
    nodes: int
    gpus_per_node: int | None = None
    attempts: int
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None


class JobView(JobSummary):
    attempt: AttemptView | None = None
    previous: tuple[AttemptView, ...] = ()
    progress: ProgressView | None = None
    findings: tuple[Finding, ...] = ()
    artifacts: tuple[ArtifactView, ...] = ()
    result_folder: str | None = None
    comparison: tuple[ComparedAnswer, ...] = ()


class JobPage(View):
    items: tuple[JobSummary, ...]
    next_cursor: str | None = None


class MetricView(View):
    """One progress record; `id` grows with arrival and is a cursor."""

    id: int
    attempt: int
    rank: int
    type: str
    step: int | None = None
    at: datetime
    values: dict[str, JsonValue] = {}


class MetricPage(View):
    items: tuple[MetricView, ...]
    next_cursor: str | None = None


class FindingPage(View):
    items: tuple[Finding, ...]


class ArtifactPage(View):
    items: tuple[ArtifactView, ...]


class StreamInfo(View):
    """A stream that the coordinator mirrors; its bytes are at `/jobs/{id}/logs?rank=&stream=&attempt=`."""

    attempt: int
    rank: int
    replica_id: str
    stream: str
    size_bytes: int


class StreamPage(View):
    items: tuple[StreamInfo, ...]
