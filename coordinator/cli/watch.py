"""`--watch`: follows a job's event stream until it ends, and shows it. Ctrl-C detaches and cancels nothing.

The stream breaks (a coordinator restarts, a laptop sleeps, a proxy cuts at 100 s); it is resumed by the
id of the last event, for as long as it takes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from coordinator.cli.board import (
    LINE_EVERY_S,
    Board,
    figures,
    mark,
    news,
    stage_duration,
    with_finding,
    with_job,
    with_metric,
)
from coordinator.cli.console import say, shortened, talk
from coordinator.cli.exits import Exit, Stop
from coordinator.cli.remote import Remote, stop_of
from coordinator.core import interrupt
from coordinator.core.clock import monotonic_s
from coordinator.core.http import ProblemAnswer, ServerEvent, Unreachable
from coordinator.core.protocol import Finding
from coordinator.core.views import TERMINAL_STATES, JobView, MetricView
from coordinator.core.words import counted, duration, plain, size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0
# A coordinator that restarts is back before that many tries; only then is there something to say.
_FAILURES_BEFORE_A_WORD = 2
_REFRESH_PER_S = 4


class Display(Protocol):
    def show(self, before: Board, after: Board) -> None: ...


def watch_job(remote: Remote, job_id: str, come_back: str = "rankcall job {} --watch") -> JobView:
    """Until the job has ended; returns its last state. `come_back` is the command that watches it again.

    Raises:
        Stop: 102 for no such job, 3 when the coordinator refuses or was never reached, 130 on Ctrl-C.
    """
    remote.job(job_id)  # no such job, no coordinator, no authority: said at once and plainly
    interrupt.raise_it()
    try:
        return follow(remote, job_id)
    except KeyboardInterrupt:
        say(f"Detached; it goes on. Come back with: {come_back.format(job_id)}", "bold")
        raise Stop(Exit.INTERRUPTED) from None


def follow(
    remote: Remote,
    job_id: str,
    check: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> JobView:
    """Shows the job until it has ended. `check` is asked whenever the stream broke, and may raise."""
    with _display() as display:
        return _follow(remote, job_id, display, check, sleep)


def _follow(
    remote: Remote,
    job_id: str,
    display: Display,
    check: Callable[[], None],
    sleep: Callable[[float], None],
) -> JobView:
    board = Board()
    last_id: str | None = None
    failures = 0
    while True:
        try:
            for event in remote.events(job_id, last_id):
                failures = 0
                last_id = event.id or last_id
                before, board = board, fold(board, event)
                display.show(before, board)
                if board.job is not None and board.job.state in TERMINAL_STATES:
                    return board.job
        except Unreachable as error:
            if failures == _FAILURES_BEFORE_A_WORD:
                say(f"The coordinator is away ({error.reason}); the job goes on, trying again.", "yellow")
        except ProblemAnswer as error:
            if error.status < 500:
                raise stop_of(error, f"job {job_id}") from None
        check()
        sleep(min(_FIRST_PAUSE_S * 2**failures, _LONGEST_PAUSE_S))
        failures = min(failures + 1, 16)


def fold(board: Board, event: ServerEvent) -> Board:
    """The board after one event. A number or a finding of another release that cannot be read changes nothing.

    Raises:
        Stop: for a job that cannot be read: the watch would never see it end.
    """
    from pydantic import ValidationError

    try:
        if event.type == "job":
            return with_job(board, JobView.model_validate_json(event.data))
        if event.type == "metric":
            return with_metric(board, MetricView.model_validate_json(event.data))
        if event.type == "finding":
            return with_finding(board, Finding.model_validate_json(event.data))
    except ValidationError as error:
        if event.type == "job":
            first = error.errors(include_input=False, include_url=False)[0]
            raise Stop(
                Exit.FAILED,
                f"What the coordinator says of the job cannot be read ({first['loc']}: {first['msg']}).",
                hint="Are this command and the coordinator of the same release? `rankcall --version` says.",
            ) from None
    return board


@contextlib.contextmanager
def _display() -> Iterator[Display]:
    if not talk().is_terminal or talk().is_dumb_terminal:
        yield Lines()
        return
    from rich.live import Live

    with Live(console=talk(), refresh_per_second=_REFRESH_PER_S, transient=True) as live:
        yield Panel(live)


class Lines:
    """For a file or a pipe: a line for every change, training at most every few seconds."""

    def __init__(self) -> None:
        self._said = ""
        self._said_s = -LINE_EVERY_S
        self._said_step = 0

    def show(self, before: Board, after: Board) -> None:
        for text, style in news(before, after):
            say(text, style)
        progress = after.progress
        if progress is None or after.job is None:
            return
        line = figures(progress)
        now_s = monotonic_s()
        last = progress.total_steps is not None and progress.step >= progress.total_steps
        at_once = last and progress.step != self._said_step
        if line != self._said and (at_once or now_s - self._said_s >= LINE_EVERY_S) and progress.step:
            say(f"  {line}")
            self._said, self._said_s, self._said_step = line, now_s, progress.step


class Panel:
    """For a terminal: stages and figures redrawn in place, what is worth keeping printed above them."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._stage_since: dict[str, float] = {}

    def show(self, before: Board, after: Board) -> None:
        for text, style in news(before, after):
            if not text.startswith(("✓", "…", "-", "·")):
                say(text, style)
        self._live.update(self._drawn(after))

    def _drawn(self, board: Board) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        job = board.job
        if job is None:
            return Text("…")
        parts: list[RenderableType] = [
            Text.assemble((plain(job.name), "bold"), f"  {job.id}  ", (plain(job.verdict), ""))
        ]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for stage in job.attempt.stages if job.attempt is not None else ():
            sign, style = mark(stage)
            since = self._stage_since.setdefault(f"{job.attempts}.{stage.stage}.{stage.state}", monotonic_s())
            took = stage_duration(stage) or (
                duration(monotonic_s() - since) if stage.state == "running" else ""
            )
            table.add_row(
                Text(sign, style),
                Text(str(stage.stage), style),
                Text(took, "dim"),
                Text(plain(stage.summary)),
            )
        parts.append(table)
        progress = board.progress
        if progress is not None and progress.total_steps:
            parts.append(ProgressBar(total=progress.total_steps, completed=progress.step, width=50))
        if progress is not None:
            parts.append(Text(figures(progress)))
        return Group(*parts)


def say_outcome(job: JobView, line: Callable[[str, str], None] = say) -> None:
    """The end of a job in a few lines: verdict, figures, where the result is, answers before and after."""
    style = {"succeeded": "bold green", "failed": "bold red"}.get(job.state, "bold")
    took = ""
    if job.started_at is not None and job.ended_at is not None:
        took = f" after {duration((job.ended_at - job.started_at).total_seconds())}"
    # a verdict that begins with the state says it once
    verdict = job.verdict.removeprefix(job.state.capitalize()).lstrip(":. ")
    if job.findings:
        verdict = shortened(verdict, 160)  # said at length above
    line(f"{job.name} ({job.id}) {job.state}{took}" + (f": {verdict}" if verdict else ""), style)
    progress = job.progress
    if progress is not None and progress.step:
        line(f"  {figures(progress)}", "")
        if progress.trainable_parameters and progress.all_parameters:
            share = 100 * progress.trainable_parameters / progress.all_parameters
            counts = f"{progress.trainable_parameters:,} of {progress.all_parameters:,}"
            line(f"  trainable {counts} ({share:.4f} %)", "")
    if job.result_folder:
        total = sum(artifact.size_bytes for artifact in job.artifacts)
        line(f"  result: {job.result_folder} ({counted(len(job.artifacts), 'file')}, {size(total)})", "")
    for answer in job.comparison:
        line(f"  {answer.prompt}", "bold")
        line(f"    base:  {answer.base}", "")
        line(f"    tuned: {answer.tuned}", "")
