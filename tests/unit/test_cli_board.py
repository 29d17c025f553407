"""What a watch shows, folded from a job's events; exit codes; words for figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coordinator.cli.board import Board, figures, news, stage_line, with_finding, with_job, with_metric
from coordinator.cli.console import finding_lines
from coordinator.cli.exits import Exit, Stop, of_job
from coordinator.cli.watch import fold
from coordinator.core.catalogue import finding
from coordinator.core.http import ServerEvent
from coordinator.core.protocol import Finding, Stage
from coordinator.core.views import AttemptView, JobView, MemberView, MetricView, ProgressView, StageView
from coordinator.core.words import duration, plain, size

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(state: str = "running", stage: Stage = Stage.TRAIN, **more: Any) -> JobView:
    return JobView(
        id="0badcafe",
        name="tried",
        state=state,  # type: ignore[arg-type]
        stage=stage,
        verdict=more.pop("verdict", ""),
        nodes=2,
        gpus_per_node=0,
        attempts=1,
        created_at=NOW,
        **more,
    )


def attempt(*stages: tuple[Stage, str]) -> AttemptView:
    return AttemptView(
        id="0badcafe-1",
        number=1,
        state="active",
        created_at=NOW,
        stages=tuple(
            StageView(stage=stage, state=state, started_at=NOW, ended_at=NOW + timedelta(seconds=2))  # type: ignore[arg-type]
            for stage, state in stages
        ),
        members=(MemberView(replica_id="r-1", hostname="a", rank=0, address="10.0.0.4", alive=True),),
    )


def metric(number: int, rank: int = 0, **values: Any) -> MetricView:
    step = values.pop("step", None)
    return MetricView(id=number, attempt=1, rank=rank, type="log", step=step, at=NOW, values=values)


FINDING = Finding(code="NET004", severity="error", message="no echo", hint="look there", replica="r-1")


def texts(before: Board, after: Board) -> list[str]:
    return [text for text, _ in news(before, after)]


def test_each_change_is_told_once() -> None:
    first = with_job(Board(), job("queued", Stage.GATHER, verdict="0 of 2 replicas registered."))
    assert texts(Board(), first) == ["0 of 2 replicas registered."]
    assert texts(first, with_job(first, first.job)) == []  # type: ignore[arg-type]
    second = with_job(first, job(attempt=attempt((Stage.GATHER, "passed"), (Stage.MATCH, "running"))))
    assert texts(first, second) == [
        "attempt 1: rank 0 is a (10.0.0.4)",
        "✓ gather     passed in 2.0 s",
        "… match      running",
    ]
    third = with_job(second, job(attempt=attempt((Stage.GATHER, "passed"), (Stage.MATCH, "failed"))))
    assert texts(second, third) == ["✗ match      failed in 2.0 s"]


def test_a_finding_comes_once_whichever_event_brings_it() -> None:
    board = with_finding(Board(), FINDING)
    again = with_job(with_finding(board, FINDING), job(findings=(FINDING,)))
    assert again.findings == (FINDING,)
    assert texts(Board(), board) == ["error NET004 replica r-1: no echo", "  → look there"]
    assert texts(board, again) == []


def test_metrics_move_the_progress_on_and_never_back() -> None:
    board = with_job(Board(), job(progress=ProgressView(step=10, total_steps=20, loss=2.0)))
    board = with_metric(board, metric(1, step=12, loss=1.5, step_s=3.0, tokens_per_s=None))
    assert board.progress is not None
    assert (board.progress.step, board.progress.loss, board.progress.eta_s) == (12, 1.5, 24.0)
    assert with_metric(board, metric(2, step=11, loss=9.0)) == board
    assert with_metric(board, metric(3, rank=1, step=15, loss=9.0)) == board
    assert with_metric(board, metric(4, step=12, unheard_of="x")).progress == board.progress


def test_figures_are_words() -> None:
    progress = ProgressView(
        step=519, total_steps=519, loss=1.207, eval_loss=1.18, perplexity=3.255, step_s=3.27
    )
    assert figures(progress) == "step 519/519 · loss 1.2070 · eval loss 1.1800 · ppl 3.255 · s/it 3.27"
    assert figures(ProgressView(step=1, total_steps=3, eta_s=200)) == "step 1/3 · ETA 3:20"
    assert figures(ProgressView()) == "step 0"


@pytest.mark.parametrize(
    ("state", "stage", "findings", "code"),
    [
        ("succeeded", Stage.COMPARE, (), Exit.GOOD),
        ("queued", Stage.GATHER, (), Exit.RUNNING),
        ("running", Stage.TRAIN, (), Exit.RUNNING),
        ("cancelled", Stage.TCP, (), Exit.CANCELLED),
        ("failed", Stage.TRAIN, (), Exit.FAILED),
        ("failed", Stage.TCP, (), Exit.PREFLIGHT),
        ("failed", Stage.MATCH, (), Exit.PREFLIGHT),
        ("failed", Stage.GATHER, ("SYS001",), Exit.DEADLINE),
        ("failed", Stage.PREPARE, ("SYS004",), Exit.DEADLINE),
        ("failed", Stage.COLLECTIVE, ("SYS004",), Exit.PREFLIGHT),
        ("failed", Stage.TCP, ("SYS003",), Exit.FAILED),
    ],
)
def test_the_most_specific_exit_code_wins(
    state: str, stage: Stage, findings: tuple[str, ...], code: Exit
) -> None:
    found = tuple(Finding(code=c, severity="error", message="", stage=stage) for c in findings)
    assert of_job(job(state, stage, findings=found)) == code


def test_what_comes_from_outside_cannot_move_the_cursor() -> None:
    assert plain("\x1b[2J\x07\u202eevil\r\n\ttext") == "\ufffd[2J\ufffd\ufffdevil\ufffd\n\ttext"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (-1, "–"), (0, "0 s"), (59.6, "1:00"), (61, "1:01"), (7384, "2:03:04")],
)
def test_durations_are_words(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (1 << 60, "1048576.0 TiB")],
)
def test_sizes_are_words(count: int, words: str) -> None:
    assert size(count) == words


def test_a_job_that_cannot_be_read_ends_the_watch_and_the_rest_does_not() -> None:
    whole = job(attempt=attempt((Stage.GATHER, "passed")), progress=ProgressView(step=1))
    sent = whole.model_dump_json(exclude_none=True)
    assert fold(Board(), ServerEvent("1.1", "job", sent)).job == whole, "as it is sent: without what is None"
    for kind in ("metric", "finding", "something-new"):
        assert fold(Board(), ServerEvent("1.1", kind, "{}")) == Board()
    with pytest.raises(Stop, match="cannot be read"):
        fold(Board(), ServerEvent("1.1", "job", "{}"))


def test_a_failed_rank_shows_the_end_of_its_traceback_and_long_words_stand_once() -> None:
    lines = ["Traceback (most recent call last):", *(f"  frame {n}" for n in range(30)), "ValueError: no"]
    found = finding("RUN001", "Rank 1 ended.", evidence={"traceback": [*lines]})
    shown = [text for text, _ in finding_lines(found)]
    assert shown[-2] == "  | ValueError: no" and shown[-1].startswith("  → ")
    assert len(shown) < 20
    stage = StageView(stage=Stage.TRAIN, state="failed", summary="word " * 100)
    assert len(stage_line(stage)[0]) < 140
