"""What a job's report is made of, as data: the job as it is now, and what the page keeps on other tabs."""

from __future__ import annotations

from datetime import datetime

from coordinator.core.protocol import Facts
from coordinator.core.views.base import View
from coordinator.core.views.job import JobView
from coordinator.core.views.judged import RenderedView


class CurvePoint(View):
    """What the trainer said at a step, on the lowest rank that says it."""

    step: int
    loss: float | None = None
    eval_loss: float | None = None
    learning_rate: float | None = None
    tokens_per_s: float | None = None


class EvidenceView(View):
    """A stream in which an agent kept what it saw of a hang; `text` is its end where it is longer than `size_bytes` allows."""

    attempt: int
    rank: int
    stream: str
    size_bytes: int
    text: str


class ReportView(View):
    """`GET /jobs/{id}/report`: everything about a job that somebody without rankcall needs.

    Attributes:
        made_at: when it was asked for; a job that still runs looks different a moment later.
        facts: of each replica of the foremost attempt, by id, where they are known.
        given: files, environment and command of the lowest rank, secrets masked; None where nothing was rendered.
        curve: at most a few dozen points, evenly spaced, the last one included.
    """

    job: JobView
    made_at: datetime
    version: str = ""
    facts: dict[str, Facts] = {}
    given: RenderedView | None = None
    curve: tuple[CurvePoint, ...] = ()
    evidence: tuple[EvidenceView, ...] = ()
