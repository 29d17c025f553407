"""A job's page: what it shows of a running, a failed and a finished job, and that it moves by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rehearsal
from playwright.sync_api import Page, expect
from rehearsal import Player, Script
from serving import Coordinator, running

from coordinator.core.protocol import Finding, Stage
from coordinator.core.views import ComparedAnswer
from coordinator.store import rows

Open = Callable[..., Page]

RUNNING, MOVING, FAILED, DONE, WAITING = "7f3a91c2", "11fe0000", "0badc0de", "600d0000", "aaaa1111"
ENDED = "cace11ed"
WHY = (
    "train failed on rank 1 (gcube-ft-1) with exit code 1: "
    + "torch.OutOfMemoryError: CUDA out of memory. " * 6
)
DIGEST = "c8b9a1" + "0" * 58


def script() -> Script:
    players = tuple(Player(number, f"gcube-ft-{number}") for number in range(4))
    failed = Finding(
        code="RUN001",
        severity="error",
        stage=Stage.TRAIN,
        replica="r-0000000001",
        message=WHY,
        hint="Look at its last lines, or lower `micro_batch_size`.",
        evidence={
            "registered": [],
            "exit_code": 1,
            "tail": ["Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA"],
        },
    )
    advice = Finding(
        code="ENV001", severity="note", message="Most of the memory is idle.", hint="Raise the batch."
    )
    answers = (
        ComparedAnswer(
            prompt="What is a black hole?",
            base="It is it is it is it is",
            tuned="A place that not even light can leave.",
            base_repetition=0.83,
            tuned_repetition=0.0,
        ),
    )
    return Script(
        players=players,
        jobs=[
            rehearsal.job(
                DONE, "first", state="succeeded", stage="compare", attempts=1, verdict="Trained 519 steps."
            ),
            rehearsal.job(FAILED, "second", state="failed", stage="train", attempts=2, verdict=WHY),
            rehearsal.job(
                RUNNING, "lora-1b", state="running", stage="train", attempts=1, verdict="Training."
            ),
            rehearsal.job(MOVING, "moving", state="running", stage="train", attempts=1, verdict="Training."),
            rehearsal.job(
                ENDED, "given up", state="cancelled", stage="prepare", attempts=1, verdict="Cancelled."
            ),
            rehearsal.job(WAITING, "next", started_at=None),
        ],
        attempts=[
            rehearsal.attempt(DONE, Stage.COMPARE, state="ended", outcome="succeeded", comparison=answers),
            rehearsal.attempt(
                FAILED, Stage.TCP, state="ended", outcome="failed", last="failed", summary="no echo"
            ),
            rehearsal.attempt(
                FAILED,
                Stage.TRAIN,
                number=2,
                state="ended",
                outcome="failed",
                last="failed",
                summary=WHY,
            ),
            rehearsal.attempt(
                ENDED,
                Stage.PREPARE,
                state="ended",
                outcome="cancelled",
                last="failed",
                summary="Cancelled.",
            ),
            rehearsal.attempt(RUNNING, Stage.TRAIN),
            rehearsal.attempt(MOVING, Stage.TRAIN, first=2, hostnames=("gcube-ft-2", "gcube-ft-3")),
        ],
        metrics=[
            *rehearsal.metrics(DONE, 20),
            *rehearsal.metrics(RUNNING, 213),
            *rehearsal.metrics(MOVING, 213),
        ],
        findings=[(FAILED, advice), (FAILED, failed)],
        artifacts={
            DONE: [
                rows.Artifact(f"a{n}", DONE, f"{DONE}-1", "r-0000000000", path, kind, size, DIGEST)
                for n, (path, kind, size) in enumerate(
                    (
                        ("outputs/lora-out/README.md", "other", 5210),
                        ("outputs/lora-out/adapter_model.safetensors", "adapter", 45_118_424),
                    )
                )
            ]
        },
        logs=[
            (f"{RUNNING}-1", "r-0000000000", "train.log", b"\x1b[32mgreen\x1b[0m and plain\n" * 40),
            (f"{MOVING}-1", "r-0000000002", "train.log", b"first line\r\n 10%|#\r 20%|##\r 30%|###"),
            (f"{FAILED}-2", "r-0000000001", "train.log", b"torch.OutOfMemoryError on rank one\n"),
            (f"{MOVING}-1", "r-0000000003", "train.log", b"said by rank one\n"),
        ],
    )


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    state_dir: Path = tmp_path_factory.mktemp("job")
    script().write(state_dir)
    with running(state_dir, token=None) as coordinator, rehearsal.beating(players(coordinator)):
        yield coordinator


def players(coordinator: Coordinator) -> tuple[Player, ...]:
    """The replicas of the store, with the tokens they got there and what they have written; they train."""
    written = script()
    for player in written.players:
        player.url, player.token = coordinator.url, f"token-{player.number}"
        for attempt_id, replica_id, stream, data in written.logs:
            if replica_id == player.replica_id:
                player.offsets[attempt_id, stream] = len(data)
        player.report(f"{RUNNING if player.number < 2 else MOVING}-1", rehearsal.training())
    return written.players


def test_a_running_job_shows_its_stages_figures_and_replicas(
    coordinator: Coordinator, open_page: Open
) -> None:
    page = open_page(f"{coordinator.url}/jobs/{RUNNING}")
    expect(page.get_by_role("heading", level=1)).to_have_text("lora-1b")
    expect(page.locator("#link")).to_have_text("live")
    stages = page.locator("#stages > li")
    expect(stages).to_have_count(8)
    expect(stages.nth(3)).to_contain_text("nccl up in 3.3 s")
    expect(stages.nth(5)).to_have_attribute("data-state", "running")
    expect(stages.nth(6)).to_have_attribute("data-state", "waiting")
    stages.nth(3).locator("summary").click()
    expect(stages.nth(3)).to_contain_text("912 MB/s")
    progress = page.get_by_role("progressbar")
    expect(progress).to_have_attribute("aria-valuenow", "213")
    for words in ("Step 213 of 519", "3.27 s/it", "5,320", "8.49 GiB", "11,272,192", "0.9039 %"):
        expect(page.locator("#progress")).to_contain_text(words)
    members = page.locator("#members li.replica")
    expect(members).to_have_count(2)
    expect(members.first).to_contain_text("gcube-ft-0")
    expect(members.first).to_contain_text("10.42.9.126")
    expect(members.first).to_contain_text("rank 0")
    expect(members.first).to_contain_text("NVIDIA GeForce RTX 5090")
    expect(members.first.get_by_role("meter", name="GPU", exact=True)).to_have_attribute(
        "aria-valuenow", "97"
    )
    expect(page.locator("#chart canvas")).to_be_visible()
    expect(page.locator(".chart-said")).to_contain_text("evaluation 1.3")


def test_steps_log_lines_and_findings_arrive_without_a_reload(
    coordinator: Coordinator, open_page: Open
) -> None:
    page = open_page(f"{coordinator.url}/jobs/{MOVING}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("30%|###")
    expect(log).not_to_contain_text("10%|#")
    expect(log.locator(".log-line").first).to_have_text("first line")
    zero, one = players(coordinator)[2:]
    zero.report(
        f"{MOVING}-1",
        rehearsal.training(),
        train_log=b"\r 100%|##########|\nloss fell\n",
        progress_0=rehearsal.lines(rehearsal.record(214, loss=1.1111)),
    )
    expect(log).to_contain_text("loss fell")
    expect(log).to_contain_text("100%|##########|")
    expect(log).not_to_contain_text("30%|###")
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "214")
    expect(page.locator("#progress")).to_contain_text("1.111")
    page.get_by_label("Rank", exact=True).select_option("1")
    expect(log).to_contain_text("said by rank one")
    expect(log).not_to_contain_text("loss fell")
    one.report(f"{MOVING}-1", rehearsal.training(), train_log=b"and again\n")
    expect(log).to_contain_text("and again")


def test_ranks_and_measures_of_the_curve_can_be_chosen(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{RUNNING}")
    said = page.locator(".chart-said")
    expect(said).to_contain_text("rank 1")
    page.get_by_role("button", name="rank 1", exact=True).click()
    expect(said).not_to_contain_text("rank 1")
    page.get_by_role("button", name="Learning rate").click()
    expect(said).to_contain_text("1.18e-4")
    page.locator(".chart-canvas").focus()
    page.keyboard.press("Home")
    expect(said).to_contain_text("step 1")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("step 2")


def test_a_failed_job_leads_with_the_error_and_its_evidence(
    coordinator: Coordinator, open_page: Open
) -> None:
    page = open_page(f"{coordinator.url}/jobs/{FAILED}")
    cards = page.locator(".finding")
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("RUN001")
    expect(cards.first).to_contain_text("rank 1 · gcube-ft-1")
    expect(cards.first).to_contain_text("Look at its last lines, or lower micro_batch_size.")
    expect(cards.first.locator(".finding-hint code")).to_have_text("micro_batch_size")
    expect(cards.first.locator(".pairs")).to_contain_text("none")
    expect(cards.first.locator("pre")).to_contain_text("torch.OutOfMemoryError")
    cards.first.get_by_text("What RUN001 means").click()
    expect(cards.first.locator(".explained")).not_to_be_empty()
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    expect(page.locator("#stages > li").nth(5)).to_have_attribute("data-state", "failed")
    page.get_by_role("button", name="#1", exact=True).click()
    expect(page.locator("#stages > li").nth(2)).to_have_attribute("data-state", "failed")
    expect(page.locator("#stages > li").nth(5)).to_have_attribute("data-state", "waiting")


def test_a_failed_job_opens_the_log_of_the_rank_that_is_to_blame(
    coordinator: Coordinator, open_page: Open
) -> None:
    page = open_page(f"{coordinator.url}/jobs/{FAILED}")
    expect(page.get_by_role("log")).to_contain_text("torch.OutOfMemoryError on rank one")
    expect(page.get_by_label("Rank", exact=True)).to_have_value("1")
    page.get_by_label("Rank", exact=True).select_option("0")
    expect(page.locator(".log-foot")).to_contain_text("Nothing was written here.")


def test_a_long_failure_is_said_in_full_once(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{FAILED}")
    expect(page.locator(".finding-message").first).to_have_text(WHY.strip())
    expect(page.locator(".verdict-line")).to_contain_text("train failed on rank 1")
    assert len(page.locator(".verdict-line").inner_text()) < len(WHY)
    expect(page.locator("#stages > li").nth(5)).to_contain_text("RUN001: see the findings.")


def test_a_cancelled_job_has_no_failed_stage(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{ENDED}")
    stage = page.locator("#stages > li").nth(4)
    expect(stage).to_have_attribute("data-state", "cancelled")
    expect(stage).to_contain_text("Prepare, cancelled")
    expect(page.locator('#stages > li[data-state="failed"]')).to_have_count(0)


def test_a_finished_job_shows_its_files_and_both_answers(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{DONE}")
    files = page.locator("#artifacts li")
    expect(files.first).to_contain_text("adapter_model.safetensors")
    expect(files.first).to_contain_text("45.1 MB")
    expect(files.first).to_contain_text("c8b9a1")
    link = files.first.get_by_role("link", name="Download adapter_model.safetensors")
    expect(link).to_have_attribute("href", f"/api/v1/jobs/{DONE}/artifacts/a1")
    pair = page.locator(".compared").first
    expect(pair).to_contain_text("What is a black hole?")
    expect(pair.locator(".answer").nth(0)).to_contain_text("83 %")
    expect(pair.locator(".answer").nth(1)).to_contain_text("A place that not even light can leave.")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_cancelling_asks_first_and_then_shows_what_follows(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{WAITING}")
    expect(page.locator("#stages > li").first).to_have_attribute("data-state", "running")
    page.get_by_role("button", name="Cancel", exact=True).click()
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("next")
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    expect(page.locator(".title .badge")).to_have_text("queued")
    page.get_by_role("button", name="Cancel", exact=True).click()
    question.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".title .badge")).to_have_text("cancelled")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".title .badge")).not_to_have_text("cancelled")


def test_an_unknown_job_is_said_to_be_unknown(
    coordinator: Coordinator, open_page: Open, faults: list[str]
) -> None:
    page = open_page(f"{coordinator.url}/jobs/ffffffff")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such job")
    expect(page.get_by_role("alert")).to_contain_text("ffffffff")
    expect(page.locator("#link")).to_be_hidden()
    page.get_by_role("link", name="All jobs and replicas").click()
    expect(page.locator(".job").first).to_be_visible()
    # The browser itself notes the 404.
    faults[:] = [fault for fault in faults if "404" not in fault]


@pytest.mark.parametrize("path", ["/foo", "/jobs/7f3a91c2/nothing"])
def test_an_address_without_a_page_leads_back(
    coordinator: Coordinator, open_page: Open, faults: list[str], path: str
) -> None:
    page = open_page(coordinator.url + path)
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing here")
    page.get_by_role("link", name="All jobs and replicas").click()
    expect(page.locator(".job").first).to_be_visible()
    with coordinator.client(None) as client:
        answer = client.get(path)
        assert answer.status_code == 404 and answer.json()["code"] == "SYS102"
    faults[:] = [fault for fault in faults if "404" not in fault]


def test_the_report_is_one_click_away(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{FAILED}")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Report").click()
    assert waiting.value.suggested_filename == f"rankcall-{FAILED}.md"
    document = Path(waiting.value.path()).read_text()
    assert document.startswith("# second: failed") and "CUDA out of memory" in document
