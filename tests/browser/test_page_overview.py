"""The overview and signing in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rehearsal
from playwright.sync_api import BrowserContext, Page, expect
from rehearsal import Player, Script
from serving import TOKEN, VIEWER_TOKEN, Coordinator, running

Open = Callable[..., Page]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path, token=None) as coordinator:
        yield coordinator


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Coordinator]:
    Script(jobs=[rehearsal.job("7f3a91c2", "lora-1b", nodes=5)]).write(tmp_path)
    with running(tmp_path) as coordinator:
        yield coordinator


def test_replicas_appear_as_they_register_and_the_missing_one_is_said(
    coordinator: Coordinator, open_page: Open
) -> None:
    page = open_page(coordinator.url)
    line = page.locator(".verdict-line")
    expect(line).to_have_text("0 of 2 replicas registered, waiting for 2 more")
    expect(page.locator("#jobs")).to_contain_text("rankcall submit")
    Player(0, "gcube-ft-0").register(coordinator.url, None)
    expect(line).to_have_text("1 of 2 replicas registered, waiting for one more")
    expect(page.locator(".lamp[data-on=yes]")).to_have_count(1)
    expect(page.locator(".lamp")).to_have_count(2)
    second = Player(1, "gcube-ft-1")
    second.register(coordinator.url, None)
    second.report()
    expect(line).to_have_text("2 of 2 replicas registered")
    row = page.locator("li.replica").nth(1)
    expect(row).to_contain_text("gcube-ft-1")
    expect(row).to_contain_text("1 × NVIDIA GeForce RTX 5090")
    row.get_by_text("Facts").click()
    expect(row).to_contain_text("2.9.1+cu130")


def test_who_did_what_is_listed_when_it_is_opened(guarded: Coordinator, open_page: Open) -> None:
    with guarded.client("wrong-token-of-somebody") as stranger:
        assert stranger.post("/api/v1/jobs/7f3a91c2/cancel").status_code == 401
    with guarded.client() as client:
        client.post("/api/v1/jobs/7f3a91c2/cancel").raise_for_status()
    page = open_page(f"{guarded.url}/sign-in")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".job")).to_have_count(1)
    page.get_by_text("Who did what").click()
    events = page.locator("li.event")
    expect(events.filter(has_text="asked to cancel a job 7f3a91c2")).to_contain_text("admin@127.0.0.1")
    expect(events.filter(has_text="was turned away")).to_contain_text(
        "POST /api/v1/jobs/{job_id}/cancel (401)"
    )
    expect(events.filter(has_text="signed in")).to_have_count(1)
    with guarded.client() as client:
        client.post("/api/v1/session", json={"token": TOKEN}).raise_for_status()
    expect(events.filter(has_text="signed in")).to_have_count(2, timeout=10_000)


def test_a_submitted_job_appears_and_leads_to_its_page(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(coordinator.url)
    expect(page.locator("#link")).to_have_text("live")
    config = (
        "base_model: ./tiny\ndatasets:\n  - path: ./data.jsonl\n    type: alpaca\noutput_dir: ./out\n"
        "learning_rate: 0.0002\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\nnum_epochs: 1\n"
        "sequence_len: 128\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"
    )
    with coordinator.client(None) as client:
        submission = {
            "config": config,
            "name": "from the test",
            "nodes": 2,
            "files": [{"path": "data.jsonl", "data": "e30K"}, {"path": "tiny/config.json", "data": "e30K"}],
        }
        answer = client.post("/api/v1/jobs", json=submission)
        assert answer.status_code == 201, answer.text
    row = page.locator("li.job")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("from the test")
    expect(row).to_contain_text("waiting for 2 more")
    page.get_by_role("link", name="from the test").last.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("from the test")
    page.get_by_role("link", name="Overview").click()
    expect(row).to_have_count(1)


def test_without_a_token_nobody_signs_in(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(coordinator.url)
    expect(page.locator(".verdict-line")).to_be_visible()
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()


def test_a_token_becomes_a_session_and_leads_back_to_where_one_was(
    guarded: Coordinator, context_of: Callable[..., BrowserContext], faults: list[str]
) -> None:
    context = context_of()
    page = context.new_page()
    page.goto(f"{guarded.url}/jobs/7f3a91c2")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    field = page.get_by_label("Token")
    field.fill("not-the-token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("This token is not known here.")
    field.fill(TOKEN)
    field.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("lora-1b")
    expect(page.locator("#link")).to_have_text("live")
    assert [(c["httpOnly"], c["sameSite"]) for c in context.cookies()] == [(True, "Strict")]
    assert TOKEN not in page.evaluate(
        "JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie"
    )
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".title .badge")).to_have_text("cancelled")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.goto(guarded.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    # The browser itself notes the refusals.
    faults[:] = [fault for fault in faults if "401" not in fault]


def test_a_viewer_may_look_but_is_offered_nothing_to_change(
    guarded: Coordinator, open_page: Open, faults: list[str]
) -> None:
    page = open_page(f"{guarded.url}/sign-in?next=jobs/7f3a91c2")
    page.get_by_label("Token").fill(VIEWER_TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("lora-1b")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def test_signing_in_never_leads_to_another_site(guarded: Coordinator, open_page: Open) -> None:
    for where in ("https://evil.example/", "//evil.example", "jobs/../../x", "javascript:alert(1)"):
        page = open_page(f"{guarded.url}/sign-in?next={where}")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".verdict-line")).to_be_visible()
        assert page.url == f"{guarded.url}/"
