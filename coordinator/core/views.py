"""What users see and send: the public shapes of `/api/v1`, shared by the API, the command line and the tests.

Separate from `protocol.py` (agents) and from the store's tables: a column or a message can change without
a user noticing. Instants are aware UTC datetimes (RFC 3339 in JSON), durations seconds, sizes bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from coordinator.core.protocol import BundleFile, Facts, Finding, Stage, Telemetry

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
TERMINAL_STATES: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})


class View(BaseModel):
    """Base of what the API answers."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64", defer_build=True)


class Input(BaseModel):
    """Base of what a user sends: an unknown key is refused, because it is a misspelt one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )


class Deadlines(Input):
    """How long each stage may take, in seconds. Training has none: the watchdog judges it.

    The defaults are judgements: a container image takes up to two hours to be pulled everywhere; a healthy
    handshake takes seconds; tokenising a large dataset takes most of an hour but always shows progress.
    `train_quiet_s`: for how long no rank must have worked before a training counts as hung; 0: it is never ended for it.
    """

    gather_s: float = Field(default=7200, gt=0)
    match_s: float = Field(default=30, gt=0)
    tcp_s: float = Field(default=30, gt=0)
    collective_s: float = Field(default=60, gt=0)
    prepare_s: float = Field(default=3600, gt=0)
    prepare_idle_s: float = Field(default=600, gt=0)
    train_quiet_s: float = Field(default=40, ge=0)
    collect_s: float = Field(default=1800, gt=0)
    compare_s: float = Field(default=600, gt=0)


class SubmittedFile(Input):
    """A configuration file that came with the submission, as text."""

    name: str = Field(min_length=1, max_length=255)
    text: str = Field(max_length=4 << 20)


class Submission(Input):
    """`POST /jobs`: an Axolotl config and what else a job needs.

    Attributes:
        config: the Axolotl YAML as text; `config_name` its file name, for findings.
        overrides: `key=value` or `a.b=value`, applied to the config in order.
        nodes: replicas to train on; None: as many as the deployment has.
        gpus_per_node: GPUs of each to use; None: as many as each has; 0: train on the CPU.
        files: what the config names relative to its folder (datasets, DeepSpeed JSON, a small local model).
        accelerate, deepspeed: files of the user's own; topology is taken from rankcall all the same.
        allow: codes of blocking findings to go on in spite of.
    """

    name: str | None = Field(default=None, max_length=128)
    config: str = Field(max_length=4 << 20)
    config_name: str = Field(default="config.yml", max_length=255)
    overrides: tuple[str, ...] = Field(default=(), max_length=256)
    nodes: int | None = Field(default=None, ge=1, le=4096)
    gpus_per_node: int | None = Field(default=None, ge=0, le=64)
    prompts: tuple[str, ...] = Field(default=(), max_length=64)
    files: tuple[BundleFile, ...] = Field(default=(), max_length=1024)
    accelerate: SubmittedFile | None = None
    deepspeed: SubmittedFile | None = None
    deadlines: Deadlines = Deadlines()
    max_attempts: int = Field(default=1, ge=1, le=20)
    allow: tuple[str, ...] = ()


class PreflightRequest(Input):
    """`POST /preflights`: the handshake by itself, on the replicas a job would get.

    Attributes:
        nodes: replicas to test; None: as many as the deployment has.
        gpus_per_node: GPUs of each to test with; None: as many as each has; 0: on the CPU.
        allow: codes of blocking findings to go on in spite of.
    """

    nodes: int | None = Field(default=None, ge=1, le=4096)
    gpus_per_node: int | None = Field(default=None, ge=0, le=64)
    deadlines: Deadlines = Deadlines()
    allow: tuple[str, ...] = Field(default=(), max_length=256)


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


class OfferView(View):
    """An address a replica offered: how many of the peers that tried it reached it."""

    address: str
    interface: str
    used: bool = False
    reached_by: int = 0
    tried_by: int = 0


class LinkEndView(View):
    """A replica in the grid. `address` and `interface` are those its peers, the rendezvous, gloo and NCCL use.

    `clock_offset_s`: its clock minus the coordinator's; shown, relied upon by nothing.
    """

    rank: int
    replica_id: str
    hostname: str = ""
    address: str = ""
    interface: str | None = None
    offers: tuple[OfferView, ...] = ()
    clock_offset_s: float | None = None


class LinkView(View):
    """One direction of one link, from rank `source` to rank `target`, as `source` saw it.

    Attributes:
        state: unknown while it is not tested or not reported.
        fault: how it failed, in one word; `error` says it in a sentence.
        at_fault: it failed by itself; of two that failed, the other may have lost only its answer on this one.
        bytes_per_s, return_bytes_per_s: of the payload on its way there and back; None where only a sample is measured.
        tries: 2 where the first try failed.
    """

    source: int
    target: int
    state: Literal["ok", "failed", "unknown"] = "unknown"
    fault: str = ""
    error: str = ""
    at_fault: bool = False
    rtt_s: float | None = None
    bytes_per_s: float | None = None
    return_bytes_per_s: float | None = None
    tries: int = 1


class GroupView(View):
    """Ranks that were tested together; `passed` is null while they are."""

    ranks: tuple[int, ...]
    passed: bool | None = None


class RoundView(View):
    """A round of the collective check: within each replica, among all, in groups to isolate a fault, or among all
    once more to confirm that it is gone."""

    number: int
    kind: Literal["within", "all", "groups", "confirming"]
    groups: tuple[GroupView, ...] = ()


class LinkGrid(View):
    """What the handshake of one attempt found: `state` is that of its tcp stage, or failed where the collective after it
    failed; `links` has both directions of each.

    `good`, `failed` and `untested` count all links, also where only the worst were asked for.
    """

    attempt: int
    state: Literal["waiting", "running", "passed", "failed", "skipped"] = "waiting"
    replicas: tuple[LinkEndView, ...] = ()
    links: tuple[LinkView, ...] = ()
    good: int = 0
    failed: int = 0
    untested: int = 0
    rounds: tuple[RoundView, ...] = ()


class PreflightView(JobSummary):
    """A preflight is a job of kind "preflight" that ends after the collective: `/jobs/{id}` shows it too."""

    attempt: AttemptView | None = None
    findings: tuple[Finding, ...] = ()
    grid: LinkGrid | None = None


class ReplicaView(View):
    id: str
    hostname: str
    incarnation: int
    alive: bool
    last_seen_s: float
    registered_at: datetime
    addresses: tuple[str, ...] = ()
    ordinal: int | None = None
    beside_coordinator: bool = False
    gpu_count: int = 0
    rank: int | None = None
    attempt_id: str | None = None
    job_id: str | None = None
    role: Literal["member", "spare", "ending"] = "spare"
    clock_offset_s: float | None = None
    facts: Facts | None = None
    telemetry: Telemetry | None = None


class ReplicaPage(View):
    """`expected` is RANKCALL_NODES; `message` reads e.g. "1 of 2 replicas registered, waiting for one more"."""

    items: tuple[ReplicaView, ...]
    expected: int | None = None
    message: str = ""


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


class SessionView(View):
    """Who the browser is. `open`: the coordinator runs without a token and serves this machine only."""

    role: Literal["none", "viewer", "replica", "admin"]
    open: bool


class EventView(View):
    id: int
    at: datetime
    actor: str
    action: str
    job_id: str | None = None
    replica_id: str | None = None
    detail: dict[str, JsonValue] = {}


class EventPage(View):
    items: tuple[EventView, ...]
    next_cursor: str | None = None


class RenderedFileView(View):
    path: str
    content: str
    sha256: str


class RenderedView(View):
    """What one rank gets: files, environment and command."""

    rank: int
    files: tuple[RenderedFileView, ...]
    environment: dict[str, str]
    argv: tuple[str, ...]


class CheckVerdict(View):
    verdict: Literal["accept", "reject"]
    findings: tuple[Finding, ...] = ()


class CodeView(View):
    """One entry of the catalogue; `bad` and `good` are an example of what triggers it and of what does not."""

    model_config = ConfigDict(from_attributes=True)

    code: str
    title: str
    severity: str
    what: str
    why: str
    fix: str
    bad: str = ""
    good: str = ""


class CodePage(View):
    items: tuple[CodeView, ...]


class SignIn(Input):
    """`POST /session`: a token turned into a browser session."""

    token: str = Field(min_length=1, max_length=4096)


class Health(View):
    """`GET /healthz` and `/readyz`. `role`: of several coordinator processes on one store one is active; one that
    stands by passes on to it what it is asked."""

    status: Literal["ok"] = "ok"
    version: str = ""
    role: Literal["active", "standby"] = "active"


class Problem(View):
    """RFC 9457 `application/problem+json`, with rankcall's `code`, `hint` and `findings`."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str | None = None
    code: str | None = None
    hint: str | None = None
    findings: tuple[Finding, ...] = ()
