"""What a replica should be doing: the plan of its attempt, and the task that is its turn."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coordinator.core.protocol.message import Message, Stage
from coordinator.core.protocol.replica import JobSnapshot


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
        nonce: of this round alone: who still takes part in an earlier one at the same address does not meet it.
    """

    kind: Literal["collective"] = "collective"
    nonce: str = ""
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
