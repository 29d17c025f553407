"""What users see and send: the public shapes of `/api/v1`, shared by the API, the command line and the tests.

Separate from `core/protocol/` (agents) and from the store's tables: a column or a message can change without
a user noticing. Instants are aware UTC datetimes (RFC 3339 in JSON), durations seconds, sizes bytes.
"""

from __future__ import annotations

from coordinator.core.views.asked import Deadlines, PreflightRequest, SignIn, Submission, SubmittedFile
from coordinator.core.views.base import Input, View
from coordinator.core.views.handshake import (
    GroupView,
    LinkEndView,
    LinkGrid,
    LinkView,
    OfferView,
    PreflightView,
    RoundView,
)
from coordinator.core.views.job import (
    TERMINAL_STATES,
    ArtifactPage,
    ArtifactView,
    AttemptView,
    ComparedAnswer,
    FindingPage,
    JobPage,
    JobState,
    JobSummary,
    JobView,
    MemberView,
    MetricPage,
    MetricView,
    ProgressView,
    StageView,
    StreamInfo,
    StreamPage,
)
from coordinator.core.views.judged import CheckVerdict, CodePage, CodeView, RenderedFileView, RenderedView
from coordinator.core.views.report import CurvePoint, EvidenceView, ReportView
from coordinator.core.views.service import (
    EventPage,
    EventView,
    Health,
    Problem,
    ReplicaPage,
    ReplicaView,
    SessionView,
)

__all__ = [
    "TERMINAL_STATES",
    "ArtifactPage",
    "ArtifactView",
    "AttemptView",
    "CheckVerdict",
    "CodePage",
    "CodeView",
    "ComparedAnswer",
    "CurvePoint",
    "Deadlines",
    "EventPage",
    "EventView",
    "EvidenceView",
    "FindingPage",
    "GroupView",
    "Health",
    "Input",
    "JobPage",
    "JobState",
    "JobSummary",
    "JobView",
    "LinkEndView",
    "LinkGrid",
    "LinkView",
    "MemberView",
    "MetricPage",
    "MetricView",
    "OfferView",
    "PreflightRequest",
    "PreflightView",
    "Problem",
    "ProgressView",
    "RenderedFileView",
    "RenderedView",
    "ReplicaPage",
    "ReplicaView",
    "ReportView",
    "RoundView",
    "SessionView",
    "SignIn",
    "StageView",
    "StreamInfo",
    "StreamPage",
    "Submission",
    "SubmittedFile",
    "View",
]
