"""What a replica observes: results of its tasks, what its streams hold, how it fares. All of it is one `Report`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from coordinator.core.protocol.message import Finding, Message, Stage
from coordinator.core.protocol.replica import Facts


class LinkResult(Message):
    """One direction of one link, as the prober saw it. `error` is empty when the echo came back whole.

    Attributes:
        bytes_per_s: of the payload on its way out; `return_bytes_per_s` on its way back.
        fault: how it failed, one word of `agent.probes.link.Fault`; "" when it did not.
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
    """How a process ended. `tail`: the last lines of its log; `errors`: what of its end is known to tell of a failure.

    `killed_by_kernel`: processes of the container that the kernel killed meanwhile for want of memory, of which it may
    have `memory_limit_bytes`.
    """

    kind: Literal["run"] = "run"
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    output: JsonValue = None
    tail: tuple[str, ...] = ()
    errors: tuple[ErrorSeen, ...] = ()
    killed_by_kernel: int = 0
    memory_limit_bytes: int | None = None


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
    """`clock_mhz`: of its multiprocessors; `throttled`: why it runs slower than it could (heat, power)."""

    index: int
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    throttled: tuple[str, ...] = ()


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
        number: grows with each report of an incarnation. One that was overtaken on its way (the agent gave it up and
            made another) is old news and brings nothing but its streams. 0: not told.
    """

    incarnation: int
    number: int = Field(default=0, ge=0)
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
    """Sizes committed for the streams this report named."""

    acknowledged: tuple[StreamSize, ...] = ()
