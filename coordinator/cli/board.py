"""What a watch knows about a job, folded from its events, and what is new in it as lines of text. Pure.

`watch.py` reads the events and shows this: live for a terminal, as lines for a file or a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from coordinator.cli.console import finding_lines, shortened
from coordinator.core.protocol import Finding
from coordinator.core.views import JobView, MetricView, ProgressView, StageView
from coordinator.core.words import between, duration

# Without a terminal a training line comes at most this often: a log of 10,000 steps is not wanted twice.
LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Board:
    """A job as the watch has seen it so far.

    Attributes:
        job: the newest snapshot.
        findings: in the order they came, each once.
        progress: figures of the newest snapshot, with those of metrics that came after it.
    """

    job: JobView | None = None
    findings: tuple[Finding, ...] = ()
    progress: ProgressView | None = None


def with_job(board: Board, job: JobView) -> Board:
    new = tuple(finding for finding in job.findings if finding not in board.findings)
    return replace(board, job=job, findings=board.findings + new, progress=job.progress or board.progress)


def with_finding(board: Board, finding: Finding) -> Board:
    if finding in board.findings:
        return board
    return replace(board, findings=(*board.findings, finding))


def with_metric(board: Board, metric: MetricView) -> Board:
    """A rank's numbers; those of the lowest rank are shown, and only if they are not behind what is."""
    if metric.rank != 0:
        return board
    before = board.progress or ProgressView()
    step = metric.step if metric.step is not None else before.step
    if step < before.step:
        return board
    known = {
        name: value
        for name, value in metric.values.items()
        if name in ProgressView.model_fields and value is not None
    }
    progress = before.model_copy(update={**known, "step": step})
    remaining = None if progress.total_steps is None else progress.total_steps - step
    if progress.step_s is not None and remaining is not None:
        progress = progress.model_copy(update={"eta_s": progress.step_s * remaining})
    return replace(board, progress=progress)


def news(before: Board, after: Board) -> Iterator[tuple[str, str]]:
    """(text, style) lines for what changed: attempts, stages, findings, the verdict while it waits."""
    yield from (line for f in after.findings if f not in before.findings for line in finding_lines(f))
    if after.job is None:
        return
    old = before.job
    attempt = after.job.attempt
    same = (
        old is not None and old.attempt is not None and attempt is not None and old.attempt.id == attempt.id
    )
    if attempt is not None and not same:
        ranks = ", ".join(
            f"rank {m.rank} is {m.hostname or m.replica_id} ({m.address})" for m in attempt.members[:8]
        )
        more = f", and {len(attempt.members) - 8} more" if len(attempt.members) > 8 else ""
        yield f"attempt {attempt.number}: {ranks}{more}", "bold"
    stages: Mapping[str, StageView] = (
        {s.stage: s for s in old.attempt.stages} if same and old and old.attempt else {}
    )
    for stage in attempt.stages if attempt is not None else ():
        known = stages.get(stage.stage)
        if stage.state != "waiting" and (known is None or known.state != stage.state):
            yield stage_line(stage)
    if after.job.state == "queued" and (old is None or old.verdict != after.job.verdict):
        yield after.job.verdict, ""


_MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "running": ("…", "cyan"),
    "skipped": ("-", "dim"),
    "waiting": ("·", "dim"),
}


def mark(stage: StageView) -> tuple[str, str]:
    """(sign, style)."""
    return _MARKS[stage.state]


def state_word(stage: StageView) -> str:
    """What to call its state: one that was cut off by a cancel was not merely left out."""
    cut_off = stage.state == "skipped" and stage.summary == "Cancelled."
    return "cancelled" if cut_off else stage.state


def stage_line(stage: StageView) -> tuple[str, str]:
    sign, style = mark(stage)
    took = stage_duration(stage)
    parts = [
        f"{sign} {stage.stage:<10} {state_word(stage)}",
        f"in {took}" if took and stage.state in ("passed", "failed") else "",
    ]
    line = " ".join(part for part in parts if part)
    # what failed is in the finding, at length
    summary = shortened(stage.summary) if stage.state == "failed" else stage.summary
    return (f"{line}: {summary}" if summary else line), style


def stage_duration(stage: StageView) -> str:
    return between(stage.started_at, stage.ended_at)


def figures(progress: ProgressView) -> str:
    """Step, losses, speed and time left, those that are known."""
    of = f"/{progress.total_steps}" if progress.total_steps else ""
    parts = [f"step {progress.step}{of}"]
    for label, value, form in (
        ("loss", progress.loss, ".4f"),
        ("eval loss", progress.eval_loss, ".4f"),
        ("ppl", progress.perplexity, ".3f"),
        ("s/it", progress.step_s, ".2f"),
        ("tok/s", progress.tokens_per_s, ".0f"),
    ):
        if value is not None:
            parts.append(f"{label} {value:{form}}")
    if progress.eta_s is not None and progress.total_steps and progress.step < progress.total_steps:
        parts.append(f"ETA {duration(progress.eta_s)}")
    return " · ".join(parts)
