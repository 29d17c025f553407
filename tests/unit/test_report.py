"""The report as text: whatever a job, a log or a model says stands in it as text, and nothing of it is lost."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.protocol import Facts, Finding, GpuFacts, Stage
from coordinator.core.views import (
    ArtifactView,
    AttemptView,
    ComparedAnswer,
    CurvePoint,
    EvidenceView,
    JobView,
    MemberView,
    ProgressView,
    RenderedFileView,
    RenderedView,
    ReportView,
    StageView,
)
from coordinator.report import markdown, spread

BEGAN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
HASH = "ab" * 32


def told(name: str = "llama", answer: str = "42", evidence: str = "stack") -> ReportView:
    """A job that succeeded in its second attempt, with something in every section."""
    stages = (
        StageView(
            stage=Stage.COLLECTIVE,
            state="passed",
            started_at=BEGAN,
            ended_at=BEGAN + timedelta(seconds=3.3),
            summary="2 ranks",
            figures={"init_s": 3.3, "ranks": [0, 1]},
        ),
        StageView(stage=Stage.TRAIN, state="failed", summary="hung | at step 7"),
    )
    members = (MemberView(replica_id="r-1", hostname="gpu-a", rank=0, address="10.0.0.4", alive=True),)
    attempts = [
        AttemptView(
            id=f"a{number}",
            number=number,
            state="ended",
            outcome=outcome,
            created_at=BEGAN,
            ended_at=BEGAN + timedelta(minutes=28, seconds=15),
            stages=stages,
            members=members,
        )
        for number, outcome in ((1, "failed"), (2, "succeeded"))
    ]
    job = JobView(
        id="7f3a91c2",
        name=name,
        state="succeeded",
        stage=Stage.COLLECT,
        verdict="Succeeded: 1 file",
        nodes=2,
        gpus_per_node=1,
        attempts=2,
        created_at=BEGAN,
        started_at=BEGAN,
        ended_at=BEGAN + timedelta(minutes=28, seconds=15),
        attempt=attempts[1],
        previous=(attempts[0],),
        progress=ProgressView(
            step=519,
            total_steps=519,
            train_loss=1.207,
            eval_loss=1.18,
            perplexity=3.255,
            step_s=3.27,
            trainable_parameters=11_272_192,
            all_parameters=1_247_086_592,
            memory_bytes=9_116_000_000,
        ),
        findings=(
            Finding(
                code="RUN032",
                severity="error",
                message="nobody works",
                hint="look",
                replica="r-1",
                evidence={"traceback": ["Traceback:", "ValueError: `x`"]},
            ),
        ),
        artifacts=(
            ArtifactView(
                id="1",
                path="outputs/m.safetensors",
                kind="model",
                size_bytes=45,
                sha256=HASH,
                replica_id="r-1",
            ),
        ),
        result_folder="outputs",
        comparison=(
            ComparedAnswer(
                prompt="why?", base="so so", tuned=answer, base_repetition=0.5, tuned_repetition=0
            ),
        ),
    )
    return ReportView(
        job=job,
        made_at=BEGAN,
        version="0.1.0",
        facts={
            "r-1": Facts(python="3.11.7", packages={"torch": "2.13.0"}, gpus=(GpuFacts(index=0, name="RTX"),))
        },
        given=RenderedView(
            rank=0,
            files=(
                RenderedFileView(path="accelerate_config.yaml", content="machine_rank: 0\n", sha256=HASH),
            ),
            environment={"MASTER_PORT": "29500"},
            argv=("accelerate", "launch"),
        ),
        curve=(CurvePoint(step=1, loss=2.5), CurvePoint(step=519, loss=1.2, eval_loss=1.18)),
        evidence=(EvidenceView(attempt=1, rank=1, stream="evidence.stacks", size_bytes=10, text=evidence),),
    )


def test_everything_that_is_known_is_in_it_once_in_the_readers_order() -> None:
    document = markdown(told())
    wanted = (
        "# llama: succeeded", "28:15", "## Result", HASH, "## Training", "519 of 519", "1.207", "3.255",
        "11,272,192 of 1,247,086,592 (0.9039%)", "8.5 GiB", "## Before and after", "42", "## Findings",
        "**error RUN032** r-1", "ValueError: `x`", "## Attempt 1: failed", "hung \\| at step 7",
        "collective: init_s 3.3", "## Attempt 2: succeeded", "## Replicas", "1 × RTX", "2.13.0",
        "## What rank 0 was given", "machine_rank: 0", "MASTER_PORT=29500", "accelerate launch", "## Evidence",
        "rank 1, evidence.stacks, the last 5 B of 10 B",
    )  # fmt: skip
    positions = [document.find(words) for words in wanted]
    assert -1 not in positions, wanted[positions.index(-1)]
    assert positions == sorted(positions)


def test_a_job_of_which_nothing_is_known_yet_is_a_heading_and_its_verdict() -> None:
    whole = told()
    job = JobView(
        **{
            name: getattr(whole.job, name)
            for name in ("id", "name", "stage", "nodes", "attempts", "created_at")
        },
        state="queued",
        verdict="1 of 2 replicas registered",
    )
    document = markdown(ReportView(job=job, made_at=BEGAN))
    assert "1 of 2 replicas registered" in document and "The job still runs." in document
    assert "##" not in document


@given(st.text(min_size=1))
def test_no_name_breaks_out_of_its_line(name: str) -> None:
    usual, hostile = markdown(told("x")).split("\n"), markdown(told(name)).split("\n")
    assert len(hostile) == len(usual) and hostile[1:] == usual[1:]
    assert not re.search(r"(?<!\\)(?:\\\\)*[<`\[|]", hostile[0])


@given(st.text(alphabet="`\na#<\x1b\u202e~", max_size=60))
def test_no_answer_or_log_ends_its_own_fence(text: str) -> None:
    for document in (markdown(told(answer=text)), markdown(told(evidence=text))):
        fence, inside = "", 0
        for line in document.split("\n"):
            opening = re.match(r"(?:  )?(`{3,})", line)
            if fence and line.strip() == fence:
                fence = ""
            elif not fence and opening:
                fence, inside = opening[1], inside + 1
        assert fence == "" and inside == 8
        assert "\x1b" not in document and "\u202e" not in document
        assert document.rstrip().endswith("```")


def test_a_message_begins_no_heading_and_no_list_and_names_stay_readable() -> None:
    whole = told()
    job = whole.job.model_copy(update={"verdict": "1. # of _all_ in a_b.json"})
    assert "\n1\\. # of \\_all\\_ in a_b.json\n" in markdown(whole.model_copy(update={"job": job}))
    job = whole.job.model_copy(update={"verdict": "# one"})
    assert "\n\\# one\n" in markdown(whole.model_copy(update={"job": job}))


@given(st.integers(0, 500), st.integers(2, 40))
def test_points_are_spread_over_the_whole_with_both_ends(count: int, most: int) -> None:
    chosen = spread(count, most)
    assert len(chosen) == min(count, most)
    assert chosen == sorted(set(chosen))
    if count:
        assert chosen[0] == 0 and chosen[-1] == count - 1
