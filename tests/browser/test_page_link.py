"""A broken link is said, and healed without a reload, without loss and without doubles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rehearsal
from playwright.sync_api import Page, Route, expect
from rehearsal import Player, Script
from serving import Coordinator, running
from wire import wire_to

from coordinator.core.protocol import Stage

Open = Callable[..., Page]
JOB = "7f3a91c2"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    Script(
        players=(Player(0, "gcube-ft-0"), Player(1, "gcube-ft-1")),
        jobs=[rehearsal.job(JOB, "lora-1b", state="running", stage="train", attempts=1)],
        attempts=[rehearsal.attempt(JOB, Stage.TRAIN)],
        metrics=rehearsal.metrics(JOB, 5),
    ).write(tmp_path)
    with running(tmp_path, token=None) as coordinator:
        yield coordinator


def test_the_page_says_that_it_reconnects_and_catches_up(
    coordinator: Coordinator, open_page: Open, faults: list[str]
) -> None:
    player = Player(0, "gcube-ft-0", coordinator.url, "token-0")
    player.report(f"{JOB}-1", rehearsal.training(), train_log=b"before\n")
    with wire_to(coordinator.url) as wire:
        page = open_page(f"{wire.url}/jobs/{JOB}")
        link, log = page.locator("#link"), page.get_by_role("log")
        expect(link).to_have_text("live")
        expect(log).to_contain_text("before")
        wire.cut()
        expect(link).to_have_text("reconnecting…")
        expect(page.locator(".log-foot")).to_contain_text("reconnecting…")
        records = rehearsal.lines(rehearsal.record(6), rehearsal.record(7, loss=0.7777))
        player.report(f"{JOB}-1", rehearsal.training(), train_log=b"meanwhile\n", progress_0=records)
        wire.mend()
        expect(link).to_have_text("live", timeout=15_000)
        expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "7")
        expect(page.locator(".chart-said")).to_contain_text("rank 0 0.7777")
        expect(log).to_contain_text("meanwhile")
        assert log.locator(".log-line").all_inner_texts()[:2] == ["before", "meanwhile"]
        assert log.locator(".log-line", has_text="meanwhile").count() == 1
        page.close()
    # The browser itself notes each broken request.
    faults[:] = [fault for fault in faults if "net::ERR_" not in fault]


def test_the_overview_says_that_it_reconnects(
    coordinator: Coordinator, open_page: Open, faults: list[str]
) -> None:
    with wire_to(coordinator.url) as wire:
        page = open_page(wire.url)
        expect(page.locator("#link")).to_have_text("live")
        wire.cut()
        expect(page.locator("#link")).to_have_text("reconnecting…")
        Player(4, "a late one").register(coordinator.url, None)
        wire.mend()
        expect(page.locator("#link")).to_have_text("live", timeout=15_000)
        expect(page.locator("li.replica", has_text="a late one")).to_be_visible()
        page.close()
    faults[:] = [fault for fault in faults if "net::ERR_" not in fault]


def test_a_page_whose_scripts_did_not_arrive_tries_again(
    coordinator: Coordinator, open_page: Open, faults: list[str]
) -> None:
    page = open_page("about:blank")
    refused = 2

    def route(request: Route) -> None:
        nonlocal refused
        refused -= 1
        if refused >= 0:
            request.abort()
        else:
            request.continue_()

    page.route("**/js/shared/format.js", route)
    page.goto(coordinator.url)
    expect(page.locator(".verdict-line")).to_be_visible(timeout=15_000)
    page.close()
    faults[:] = [fault for fault in faults if "net::ERR_" not in fault]
