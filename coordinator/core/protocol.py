"""What agent and coordinator say to each other, and the one currency of judgement, `Finding`.

Both sides import this module and nothing else of each other. Messages are level-triggered: a `Report`
is everything a replica observes, a `Desired` is everything it should be doing; either may be lost,
repeated or arrive late without harm. Unknown keys are ignored, so that the two sides may be one release
apart. Instants are seconds since the epoch as float (`…_at`), durations seconds as float (`…_s`), sizes
bytes (`…_bytes`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

PROTOCOL_VERSION = 1
# What every JSON reader and every database can hold exactly.
LARGEST_COUNT = 2**53 - 1
# The task id under which a replica reports that it has gathered evidence of a hang.
EVIDENCE = "evidence"
# More ranks than there are GPUs anywhere; a database's integer column holds it.
LARGEST_RANK = 2**24


class Message(BaseModel):
    """Base of all messages: immutable, lenient towards keys of a newer peer. Bytes are base64 in JSON.

    A class is built when it is first used: a command that needs five of them does not wait for fifty.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )


class Stage(StrEnum):
    """The gates of an attempt, in their order; none is entered before the one before it has passed."""

    GATHER = "gather"
    MATCH = "match"
    TCP = "tcp"
    COLLECTIVE = "collective"
    PREPARE = "prepare"
    TRAIN = "train"
    COLLECT = "collect"
    COMPARE = "compare"


Severity = Literal["error", "warning", "note"]


class Finding(Message):
    """One judgement: what was seen, where, and what to do about it.

    Attributes:
        code: a stable name from `catalogue.py` (`CFG…`, `ENV…`, `NET…`, `COL…`, `RUN…`, `SYS…`).
        replica: the replica it speaks of; None for the whole job or the submission.
        file, key, line: where in a submission (`key` dotted, `line` from 1).
        message: one sentence with the values seen; `hint`: one sentence saying what to do.
        evidence: what was observed, as data (log lines, exit codes, measured figures).
    """

    code: str
    severity: Severity
    message: str
    hint: str = ""
    stage: Stage | None = None
    replica: str | None = None
    file: str | None = None
    key: str | None = None
    line: int | None = None
    evidence: dict[str, JsonValue] = {}


# --- what a replica is ---------------------------------------------------------------------------


class Address(Message):
    """One address of a replica, with the interface that carries it."""

    address: str
    interface: str
    family: Literal["ipv4", "ipv6"] = "ipv4"


class GpuHolder(Message):
    """A process that holds memory of a GPU. `name` is empty where it cannot be seen from here (another container's)."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None


class GpuFacts(Message):
    index: int
    name: str
    memory_bytes: int = 0
    free_bytes: int | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    holders: tuple[GpuHolder, ...] = ()


class DiskFacts(Message):
    """Free space under a path that matters. `purpose`: state, hf_home, hub_cache, datasets_cache, shm."""

    purpose: str
    path: str
    free_bytes: int
    total_bytes: int
    filesystem: str | None = None


class Facts(Message):
    """What a replica has. A fact that could not be learned is None, and `problems` says why.

    `packages` maps a distribution's name to its version (torch, accelerate, deepspeed, axolotl,
    transformers, peft, datasets, rankcall). `leftovers` are rank variables found in the container's
    environment (WORLD_SIZE, RANK, MASTER_ADDR …), which the launcher scrubs; `proxies` are its HTTP proxy
    variables. `torch_asked`: torch was tried, so that `torch_ready` False means it cannot be used. `limits` are
    soft limits by name (nofile, memlock); -1 is unlimited.
    """

    python: str | None = None
    platform: str | None = None
    kernel: str | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    packages: dict[str, str] = {}
    cuda: str | None = None
    nccl: str | None = None
    driver: str | None = None
    arch_list: tuple[str, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    disks: tuple[DiskFacts, ...] = ()
    cache_environment: dict[str, str] = {}
    leftovers: dict[str, str] = {}
    proxies: dict[str, str] = {}
    limits: dict[str, int] = {}
    clock_at: float | None = None
    torch_ready: bool = False
    torch_asked: bool = False
    problems: tuple[str, ...] = ()


class JobSnapshot(Message):
    """A job and one of its attempts as the coordinator knew them, for one that has lost its store to start from.

    `job` and `attempt` are the coordinator's own records; an agent keeps them on its disk and does not read them.
    """

    job: dict[str, JsonValue]
    attempt: dict[str, JsonValue]


class HeldAttempt(Message):
    """An attempt that a replica still has processes of, with its snapshot where this replica keeps one."""

    attempt_id: str = Field(max_length=128)
    snapshot: JobSnapshot | None = None


class Registration(Message):
    """`POST /replicas`: an agent introduces its replica.

    Attributes:
        replica_id: random, made once, kept on container-local disk.
        fingerprint: boot id, container id and start time of pid 1, hashed: tells a clone from a restart.
        incarnation: grows each time the agent starts.
        addresses: every address a peer might reach, best first; loopback only where there is no other.
        ordinal: the platform's ordinal, where it has one.
        beside_coordinator: this agent runs in the coordinator's own replica.
        gpu_count: GPUs this replica offers; 0 trains on the CPU.
        echo_port: where its echo server listens for the peers' tcp probes.
        held: attempts that run here: a coordinator that does not know them must not take them for leftovers.
    """

    protocol: int = PROTOCOL_VERSION
    replica_id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{3,63}$")
    fingerprint: str = Field(max_length=128)
    incarnation: int = Field(ge=1, le=LARGEST_COUNT)
    version: str = ""
    hostname: str = Field(default="", max_length=255)
    addresses: tuple[Address, ...] = Field(default=(), max_length=64)
    ordinal: int | None = None
    beside_coordinator: bool = False
    gpu_count: int = Field(default=0, ge=0)
    echo_port: int = Field(default=0, ge=0, le=65535)
    data_roots: tuple[str, ...] = ()
    held: tuple[HeldAttempt, ...] = Field(default=(), max_length=64)


class Registered(Message):
    """The answer: the replica's own token, and the id it is to use from now on (a clone gets a new one)."""

    replica_id: str
    token: str
    incarnation: int
    findings: tuple[Finding, ...] = ()


# --- what a replica should do --------------------------------------------------------------------


class Member(Message):
    """One replica of an attempt, in rank order in `AttemptPlan.members`."""

    replica_id: str
    rank: int
    address: str
    interface: str | None = None
    echo_port: int = 0
    name: str = ""


class RenderedFile(Message):
    """A file written under the attempt's folder before any process of the attempt starts."""

    path: str
    content: str
    sha256: str


class _Task(Message):
    """A piece of work for one replica. `task_id` is unique in its attempt: a repeated desired state with
    the same id is the same work and is not started twice."""

    task_id: str
    stage: Stage
    deadline_s: float


class TcpTask(_Task):
    """Probe every target: connect, send `nonce` and `payload_bytes`, read them back echoed.

    On rank 0 `port_candidates` is not empty: the first that no process listens on becomes the
    rendezvous port of the attempt. `sampled` names the replicas whose link carries the whole payload, for
    its throughput; None: all of them. The others get just enough to show a link that loses large packets.
    A replica may be a target several times, once for each address it offers.
    """

    kind: Literal["tcp"] = "tcp"
    nonce: str
    targets: tuple[Member, ...]
    payload_bytes: int = 256 * 1024
    sampled: tuple[str, ...] | None = None
    port_candidates: tuple[int, ...] = ()


class CollectiveTask(_Task):
    """torch.distributed all_reduce among `world_size` processes, `processes` of each replica in the group.

    Attributes:
        rank: the replica's place in the group; its processes are `rank * processes + local_rank`.
        world_size: all processes of the group: replicas times `processes`.
        environment: laid over the child's own (what the training will get for NCCL and gloo).
    """

    kind: Literal["collective"] = "collective"
    rank: int
    world_size: int
    master_address: str
    master_port: int
    backend: Literal["nccl", "gloo"]
    interface: str | None = None
    processes: int = 1
    environment: dict[str, str] = {}
    sizes_bytes: tuple[int, ...] = (4, 1 << 20, 16 << 20)


class RunTask(_Task):
    """A process under the shim: prepare, train and compare.

    Attributes:
        argv: `argv[0] == "python"` stands for the interpreter of the training environment.
        environment: laid over the container's own; `AttemptPlan.unset` is removed first.
        stream: the name of the stream its output goes to, e.g. `train.log`.
        result_file: a JSON file, relative to the attempt's folder, that the process leaves and the agent
            sends back as `RunResult.output`.
        idle_s: end it when its output has not grown for so long; None: never.
    """

    kind: Literal["run"] = "run"
    argv: tuple[str, ...]
    environment: dict[str, str] = {}
    stream: str
    result_file: str | None = None
    idle_s: float | None = None


class CollectTask(_Task):
    """Find, hash and verify what the training left in `output_dir` (relative to the job's work folder)."""

    kind: Literal["collect"] = "collect"
    output_dir: str


Task = Annotated[TcpTask | CollectiveTask | RunTask | CollectTask, Field(discriminator="kind")]


class AttemptPlan(Message):
    """What one replica needs for one attempt, and the one task it should have done by now.

    On the replica's disk a job has `jobs/<job_id>/work` (the bundle, the working folder of every
    process, outputs, prepared data; kept over attempts) and `jobs/<job_id>/attempt-<number>` (`files`,
    streams, specs). A rendered file names paths relative to the work folder, so that all replicas' hashes agree.
    `rendezvous_port` is the one all ranks agreed on; rank 0 looks once more whether it is free before it trains.
    `evidence`: the training hangs; gather what it looks like from inside, once. It names all ranks and their addresses.
    """

    job_id: str
    attempt_id: str
    number: int
    rank: int
    nodes: int
    gpus_per_node: int
    world_size: int
    files: tuple[RenderedFile, ...] = ()
    unset: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    bundle_sha256: str | None = None
    rendezvous_port: int | None = None
    task: Task | None = None
    evidence: tuple[Member, ...] = ()
    snapshot: JobSnapshot | None = None


class UploadRequest(Message):
    """Somebody wants a file that this replica holds: `PUT /replicas/{id}/uploads/{upload_id}` with its bytes."""

    upload_id: str
    artifact_id: str
    job_id: str
    path: str
    offset_bytes: int = 0


class Desired(Message):
    """`GET /replicas/{id}/desired`. `version` is the ETag; no attempt means: hold nothing, run nothing,
    but for `unknown`: attempts that this coordinator knows nothing of (it may have lost its store) go on as they are."""

    version: str
    attempt: AttemptPlan | None = None
    unknown: tuple[str, ...] = ()
    uploads: tuple[UploadRequest, ...] = ()


# --- what a replica observes ---------------------------------------------------------------------


class LinkResult(Message):
    """One direction of one link, as the prober saw it. `error` is empty when the echo came back whole.

    Attributes:
        bytes_per_s: of the payload on its way out; `return_bytes_per_s` on its way back.
        fault: how it failed, one word of `agent.probes.tcp.Fault`; "" when it did not.
        tries: 2 where the first try failed and was repeated.
        source: the prober's own address on this link; `seen_as`: what the other side saw it come from.
        answered_by: the replica that echoed, when it is another than the one asked for.
        half_open: of a connect that timed out: the target's own connect reached the prober, so it is the
            prober's packets that are lost.
    """

    replica_id: str
    address: str
    ok: bool
    connect_s: float | None = None
    rtt_s: float | None = None
    bytes_per_s: float | None = None
    error: str = ""
    return_bytes_per_s: float | None = None
    fault: str = ""
    tries: int = 1
    source: str | None = None
    seen_as: str | None = None
    answered_by: str | None = None
    half_open: bool = False


class TcpResult(Message):
    """`port_holders`: what holds the candidates that were not free. `sidecars`: proxies of a service mesh
    that listen in this replica's network."""

    kind: Literal["tcp"] = "tcp"
    links: tuple[LinkResult, ...]
    rendezvous_port: int | None = None
    port_holders: dict[int, str] = {}
    sidecars: tuple[str, ...] = ()


class CollectiveResult(Message):
    """`values_ok`: every rank saw the sum it had to see. Bandwidth is payload bytes over seconds, per size.

    Attributes:
        phase: how far it came (`agent.probes.collective.PHASES`); where it failed, if it did.
        missing_ranks: group ranks that did not come to the store while this replica waited there.
        elapsed_s: from the task's start to its end; log: last lines of what torch and NCCL printed.
    """

    kind: Literal["collective"] = "collective"
    ok: bool
    backend: str = ""
    init_s: float | None = None
    first_all_reduce_s: float | None = None
    values_ok: bool = False
    bytes_per_s: dict[int, float] = {}
    error: str = ""
    phase: str = ""
    missing_ranks: tuple[int, ...] = ()
    elapsed_s: float | None = None
    log: tuple[str, ...] = ()


class ErrorSeen(Message):
    """A line of a log that says what went wrong, with the traceback that it ends; `name` is a kind of `trouble.py`."""

    name: str
    line: str
    traceback: tuple[str, ...] = ()


class RunResult(Message):
    """How a process ended. `tail`: the last lines of its log; `errors`: what of its end is known to tell of a failure."""

    kind: Literal["run"] = "run"
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    output: JsonValue = None
    tail: tuple[str, ...] = ()
    errors: tuple[ErrorSeen, ...] = ()


class ArtifactFacts(Message):
    """A file of the result. `path` is relative to the job's work folder on that replica."""

    path: str
    size_bytes: int
    sha256: str
    kind: Literal["model", "adapter", "tokenizer", "config", "other"] = "other"


class CollectResult(Message):
    kind: Literal["collect"] = "collect"
    folder: str
    artifacts: tuple[ArtifactFacts, ...] = ()
    tensors: int = 0
    empty_tensors: tuple[str, ...] = ()


TaskResult = Annotated[TcpResult | CollectiveResult | RunResult | CollectResult, Field(discriminator="kind")]


class TaskReport(Message):
    """Where one task stands. A finished report is repeated until the attempt is over."""

    task_id: str
    stage: Stage
    state: Literal["running", "succeeded", "failed"]
    result: TaskResult | None = None
    findings: tuple[Finding, ...] = ()


class Append(Message):
    """Bytes of a stream from `offset` on. Streams named `progress.*` are cut at line ends.

    An empty append asks for the size the coordinator has.
    """

    attempt_id: str
    stream: str = Field(pattern=r"^[a-z0-9][a-zA-Z0-9._-]{0,63}$")
    offset: int = Field(ge=0)
    data: bytes = b""


class GpuTelemetry(Message):
    index: int
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None


class RankTelemetry(Message):
    """What the processes of one rank of the training have used since they started; counters only grow.

    Attributes:
        rank: in the whole training; None while no process knows its rank (the launcher starts): it speaks of all ranks here.
        cpu_s: CPU seconds of the rank's process tree, data loaders and compilers included.
        io_bytes: through read and write calls; network_bytes_in, network_bytes_out: over its TCP connections.
        sockets: its TCP connections by state, e.g. {"ESTABLISHED": 4, "CLOSE_WAIT": 6}.
        stopped: a process of it is stopped; disk_wait: one is in uninterruptible sleep.
        line_age_s: since the replica's training log last grew.
    """

    rank: int | None = None
    local_rank: int = 0
    pid: int | None = None
    processes: int = 0
    cpu_s: float | None = None
    io_bytes: int | None = None
    network_bytes_in: int | None = None
    network_bytes_out: int | None = None
    sockets: dict[str, int] = {}
    stopped: bool = False
    disk_wait: bool = False
    line_age_s: float | None = None


class Telemetry(Message):
    """A reading of the replica's load; shown, and used by the watchdog."""

    at: float
    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    agent_rss_bytes: int | None = None
    disk_free_bytes: int | None = None
    training_cpu_s: float | None = None
    gpus: tuple[GpuTelemetry, ...] = ()
    ranks: tuple[RankTelemetry, ...] = ()


class Report(Message):
    """`POST /replicas/{id}/report`: everything observed now, and the next bytes of each stream.

    Attributes:
        holding: attempts of which this replica still has processes; empty means it is free.
        attempt_id, tasks: the attempt it works on, and all its tasks so far.
        facts: sent when they are new since the coordinator last acknowledged them.
        leaving: this replica was shut down; it says nothing more after this.
    """

    incarnation: int
    holding: tuple[str, ...] = ()
    attempt_id: str | None = None
    tasks: tuple[TaskReport, ...] = ()
    appends: tuple[Append, ...] = ()
    facts: Facts | None = None
    telemetry: Telemetry | None = None
    leaving: bool = False


class StreamSize(Message):
    attempt_id: str
    stream: str
    size_bytes: int


class ReportReply(Message):
    """Sizes committed for the streams this report named, and the version of the desired state."""

    acknowledged: tuple[StreamSize, ...] = ()
    desired_version: str = ""


# --- what a user sends ---------------------------------------------------------------------------


class BundleFile(Message):
    """A file that travels with a submission; `path` is relative to the config's folder."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, max_length=1024)
    data: bytes


class Bundle(Message):
    files: tuple[BundleFile, ...] = ()


# --- what the training writes --------------------------------------------------------------------


class ProgressRecord(Message):
    """One line of a `progress.<local_rank>` stream, written by `agent/plugin.py` on every rank.

    `start` once (sizes and world as the training itself sees them), `phase` when the kind of work
    changes (load, train, evaluate, save, done), `log` and `eval` with the trainer's numbers, `end` once.
    """

    type: Literal["start", "phase", "log", "eval", "end"]
    at: float
    rank: int = Field(ge=0, le=LARGEST_RANK)
    local_rank: int = Field(default=0, ge=0, le=LARGEST_RANK)
    world_size: int | None = None
    step: int | None = None
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
    trainable_parameters: int | None = None
    all_parameters: int | None = None
    packing: bool | None = None
    batches: int | None = None
    train_loss: float | None = None
    train_runtime_s: float | None = None
