"""What agent and coordinator say to each other, and the one currency of judgement, `Finding`.

Both sides import this module and nothing else of each other. Messages are level-triggered: a `Report`
is everything a replica observes, a `Desired` is everything it should be doing; either may be lost,
repeated or arrive late without harm. Unknown keys are ignored, so that the two sides may be one release
apart. Instants are seconds since the epoch as float (`…_at`), durations seconds as float (`…_s`), sizes
bytes (`…_bytes`).
"""

from __future__ import annotations

from coordinator.core.protocol.desired import (
    AttemptPlan,
    CollectiveTask,
    CollectTask,
    Desired,
    Member,
    RenderedFile,
    RunTask,
    Task,
    TcpTask,
    UploadRequest,
)
from coordinator.core.protocol.message import (
    EVIDENCE,
    LARGEST_COUNT,
    LARGEST_RANK,
    PROTOCOL_VERSION,
    Finding,
    Message,
    Severity,
    Stage,
)
from coordinator.core.protocol.observed import (
    Append,
    ArtifactFacts,
    CollectiveResult,
    CollectResult,
    ErrorSeen,
    GpuTelemetry,
    LinkResult,
    RankTelemetry,
    Report,
    ReportReply,
    RunResult,
    StreamSize,
    TaskReport,
    TaskResult,
    TcpResult,
    Telemetry,
)
from coordinator.core.protocol.progress import ProgressRecord
from coordinator.core.protocol.replica import (
    Address,
    DiskFacts,
    Facts,
    GpuFacts,
    GpuHolder,
    HeldAttempt,
    InfinibandPort,
    JobSnapshot,
    Registered,
    Registration,
)
from coordinator.core.protocol.submitted import Bundle, BundleFile, bundle_sha256

__all__ = [
    "EVIDENCE",
    "LARGEST_COUNT",
    "LARGEST_RANK",
    "PROTOCOL_VERSION",
    "Address",
    "Append",
    "ArtifactFacts",
    "AttemptPlan",
    "Bundle",
    "BundleFile",
    "CollectResult",
    "CollectTask",
    "CollectiveResult",
    "CollectiveTask",
    "Desired",
    "DiskFacts",
    "ErrorSeen",
    "Facts",
    "Finding",
    "GpuFacts",
    "GpuHolder",
    "GpuTelemetry",
    "HeldAttempt",
    "InfinibandPort",
    "JobSnapshot",
    "LinkResult",
    "Member",
    "Message",
    "ProgressRecord",
    "RankTelemetry",
    "Registered",
    "Registration",
    "RenderedFile",
    "Report",
    "ReportReply",
    "RunResult",
    "RunTask",
    "Severity",
    "Stage",
    "StreamSize",
    "Task",
    "TaskReport",
    "TaskResult",
    "TcpResult",
    "TcpTask",
    "Telemetry",
    "UploadRequest",
    "bundle_sha256",
]
