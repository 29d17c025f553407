"""Whatever a log, a host name, a config or a model says is shown as text, and never costs the page its life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rehearsal
from playwright.sync_api import Page, expect
from rehearsal import Script
from serving import Coordinator, running

from coordinator.core.protocol import Finding, Stage
from coordinator.core.views import ComparedAnswer
from coordinator.store import rows

Open = Callable[..., Page]

JOB = "7f3a91c2"
BAD = '<img src=x onerror="window.stolen=1"><script>window.stolen=1</script>\'"&lt;'
# The right-to-left override turns "exe.txt" into "txt.exe" for a reader.
REVERSED = "safe\u202etxt.exe"
LOG = (
    BAD.encode()
    + b"\n\x1b[31mred\x1b[0m and \x1b[38;2;1;2;3mtrue colour\x1b[0m \x1b[999;999;9q"
    + b"\n\x1b]8;;javascript:window.stolen=1\x1b\\a link\x1b]8;;\x1b\\"
    + b"\n\xff\xfe not UTF-8 \x00 \x07 \x1b[2J\x1b[H \x1b]0;title\x07"
    + ("\n" + REVERSED).encode()
    + b"\n" + b"x" * 100_000
    + b"\n\x1b[" + b"9" * 5000
    + b"\nlast line\n"
)  # fmt: skip


def script() -> Script:
    finding = Finding(
        code="RUN001",
        severity="error",
        message=BAD,
        hint=BAD,
        file=BAD,
        key=BAD,
        replica=BAD,
        evidence={BAD: BAD, "tail": [BAD, BAD + "\n" + BAD], "deep": {"a": [BAD]}},
    )
    answer = ComparedAnswer(prompt=BAD, base=BAD, tuned=REVERSED, base_repetition=0.5, tuned_repetition=0)
    path = f"out/{BAD}"
    return Script(
        jobs=[rehearsal.job(JOB, BAD, state="failed", stage="train", attempts=1, verdict=BAD, ended_at=time.time())],
        attempts=[
            rehearsal.attempt(
                JOB, Stage.TRAIN, state="ended", outcome="failed", last="failed",
                hostnames=(BAD, REVERSED), comparison=(answer,), summary=BAD,
            )
        ],
        findings=[(JOB, finding)],
        artifacts={JOB: [rows.Artifact("a0", JOB, f"{JOB}-1", "r-0000000000", path, "other", 1, "0" * 64)]},
        logs=[(f"{JOB}-1", "r-0000000000", "train.log", LOG)],
    )  # fmt: skip


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    script().write(tmp_path)
    with running(tmp_path, token=None) as coordinator:
        rehearsal.Player(5, BAD).register(coordinator.url, None)
        yield coordinator


def stolen(page: Page) -> bool:
    return bool(
        page.evaluate("'stolen' in window || document.querySelectorAll('main img, main script').length > 0")
    )


def test_foreign_text_is_text_on_the_page_of_a_job(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{JOB}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("last line")
    expect(page.get_by_role("heading", level=1)).to_have_text(BAD)
    expect(page.locator(".verdict-line")).to_have_text(BAD)
    expect(page.locator(".finding-message")).to_have_text(BAD)
    expect(page.locator(".replica-name").first).to_have_text(BAD)
    expect(page.locator("#answers h3")).to_have_text(BAD)
    expect(page.locator("#artifacts li")).to_contain_text(BAD.rpartition("/")[2])
    expect(log.locator(".log-line").first).to_have_text(BAD)
    assert not stolen(page)


def test_a_log_cannot_hide_reorder_or_lead_away(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{JOB}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("last line")
    lines = log.locator(".log-line")
    expect(lines.nth(1)).to_have_text("red and true colour ")
    expect(lines.nth(1).locator(".ansi-red-fg")).to_have_text("red")
    expect(lines.nth(2)).to_have_text("a link")
    assert log.locator("a").count() == 0
    expect(lines.nth(3)).to_contain_text("not UTF-8 ␀ ␇")
    expect(lines.nth(4)).to_have_text("safe⟨U+202E⟩txt.exe")
    expect(page.locator(".replica-name").nth(1)).to_have_text("safe⟨U+202E⟩txt.exe")
    expect(lines.nth(5)).to_contain_text("xxx … this line goes on in the whole log")
    assert len(lines.nth(5).inner_text()) < 5000


def test_foreign_text_is_text_on_the_overview(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(coordinator.url)
    expect(page.locator(".job-name a")).to_have_text(BAD)
    expect(page.locator(".job-verdict")).to_have_text(BAD)
    expect(page.locator("li.replica").first).to_contain_text(BAD)
    assert not stolen(page)


def test_a_very_long_log_leaves_the_page_small_and_quick(tmp_path: Path, open_page: Open) -> None:
    many = b"".join(
        b"%07d a line of an ordinary length, as training writes them\n" % n for n in range(150_000)
    )
    state = rehearsal.attempt(JOB, Stage.TRAIN)
    Script(
        players=(rehearsal.Player(0, "a"), rehearsal.Player(1, "b")),
        jobs=[rehearsal.job(JOB, "long", state="running", stage="train", attempts=1)],
        attempts=[state],
        logs=[(state.id, "r-0000000000", "train.log", many)],
    ).write(tmp_path)
    with running(tmp_path, token=None) as coordinator:
        page = open_page(f"{coordinator.url}/jobs/{JOB}")
        log = page.get_by_role("log")
        expect(log).to_contain_text("0149999 a line")
        player = rehearsal.Player(0, "a", coordinator.url, "token-0", {(state.id, "train.log"): len(many)})
        for burst in range(12):
            more = b"".join(b"burst %d line %d\n" % (burst, n) for n in range(2000))
            player.report(state.id, rehearsal.training(), train_log=more)
        expect(log).to_contain_text("burst 11 line 1999")
        assert log.locator(".log-line").count() <= 5001
        # Reading further up: the reader stays where he is, and can fetch what came earlier.
        log.evaluate("(box) => { box.scrollTop = 0; }")
        expect(page.get_by_role("button", name="Jump to the end")).to_be_visible()
        page.get_by_role("button", name="Jump to the end").click()
        expect(page.get_by_role("button", name="Jump to the end")).to_be_hidden()
        page.get_by_role("button", name="Earlier").click()
        expect(log).to_contain_text("burst 2 line 0", timeout=20_000)
        shown = [line.split() for line in log.inner_text().splitlines() if line.startswith("burst")]
        numbers = [int(burst) * 2000 + int(number) for _, burst, _, number in shown]
        assert len(numbers) > 5001
        assert numbers == list(range(numbers[0], 24_000)), "what was let go of comes back without a gap"
