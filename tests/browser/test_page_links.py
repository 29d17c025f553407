"""The links of a handshake on its page: a table one can walk with the keyboard, the worst first where there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rehearsal
from playwright.sync_api import Page, expect
from rehearsal import Script
from serving import Coordinator, running

from coordinator.attempt import AttemptState, Round
from coordinator.core.protocol import Address, LinkResult, Stage, TaskReport, TcpResult
from coordinator.store import Store, queries

Open = Callable[..., Page]

FEW, MANY = "fe0fe0fe", "3a9b3a9b"


def planted(job_id: str, count: int, first: int) -> AttemptState:
    """An attempt of a preflight that failed in tcp: rank 1 does not reach rank 2."""
    made = rehearsal.attempt(
        job_id,
        Stage.TCP,
        state="ended",
        outcome="failed",
        last="failed",
        hostnames=tuple(f"gcube-ft-{n}" for n in range(count)),
        summary="packets from rank 1 do not reach rank 2",
        first=first,
    )
    seats = tuple(
        seat.model_copy(
            update={
                "interface": "eth0",
                "offers": (
                    Address(address=seat.address, interface="eth0"),
                    Address(address=f"10.99.0.{seat.rank + 1}", interface="eth1"),
                ),
                "clock_offset_s": 42.0 if seat.rank == 1 else 0.01,
            }
        )
        for seat in made.seats
    )
    ids = tuple(seat.replica_id for seat in seats)
    tried = Round(task_id="collective", groups=(ids,), started_at=1.0, passed=(False,))
    halves = Round(task_id="collective-1", groups=(ids[:2], ids[2:]), started_at=2.0, passed=(True, False))
    return made.model_copy(update={"seats": seats, "stages": made.stages[:4], "rounds": (tried, halves)})


def results(attempt: AttemptState) -> Iterator[tuple[str, TcpResult]]:
    for seat in attempt.seats:
        links = []
        for other in attempt.seats:
            if other is seat:
                continue
            bad = (seat.rank, other.rank) == (1, 2)
            fields = (
                {
                    "ok": False,
                    "fault": "timed_out",
                    "error": "no answer to the connect within 5.0 s",
                    "tries": 2,
                }
                if bad
                else {"ok": True, "rtt_s": 0.0004, "bytes_per_s": 9.4e8, "return_bytes_per_s": 9e8}
            )
            known = {"replica_id": other.replica_id, "address": other.address}
            links.append(LinkResult.model_validate({**known, **fields}))
        yield seat.replica_id, TcpResult(links=tuple(links))


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    state_dir: Path = tmp_path_factory.mktemp("links")
    attempts = [planted(FEW, 3, 0), planted(MANY, 18, 32)]
    columns = {
        "kind": "preflight",
        "state": "failed",
        "stage": "tcp",
        "attempts": 1,
        "verdict": "A link fails.",
    }
    Script(
        jobs=[rehearsal.job(FEW, "preflight", **columns), rehearsal.job(MANY, "preflight", **columns)],
        attempts=attempts,
    ).write(state_dir)
    with running(state_dir, token=None) as served:
        store: Store = served.services.store
        for attempt in attempts:
            for replica_id, result in results(attempt):
                report = TaskReport(task_id="tcp", stage=Stage.TCP, state="succeeded", result=result)
                store.write_now(
                    lambda c, a=attempt.id, r=replica_id, said=report: queries.upsert_task(  # type: ignore[misc]
                        c,
                        attempt_id=a,
                        replica_id=r,
                        task_id="tcp",
                        state="succeeded",
                        incarnation=1,
                        at=1.0,
                        report=said.model_dump_json(),
                    )
                )
        yield served


def test_few_replicas_are_rows_and_columns_and_the_bad_link_stands_out(
    coordinator: Coordinator, open_page: Open
) -> None:
    page = open_page(f"{coordinator.url}/jobs/{FEW}")
    expect(page.locator("#stages > li")).to_have_count(4)
    table = page.get_by_role("grid")
    expect(table.locator("tbody tr")).to_have_count(3)
    expect(table.locator("td[data-state=failed]")).to_have_text("timed out")
    expect(table.locator("td[data-state=ok]")).to_have_count(5)
    expect(table.locator("td[data-state=ok]").first).to_contain_text("400 µs")
    expect(page.locator("#links-sum")).to_have_text("6 links, 1 failed")
    expect(page.locator("#log-section")).to_be_hidden()
    page.get_by_text("Addresses").click()
    ends = page.locator(".link-ends")
    expect(ends).to_contain_text("10.99.0.1 on eth1: reached by 0 of 0")
    expect(ends).to_contain_text("clock 42 s ahead")
    expect(page.locator(".rounds > li")).to_have_count(2)
    expect(page.locator(".rounds")).to_contain_text("rank 2: failed")


def test_the_table_is_walked_with_the_keyboard_and_says_each_link_in_words(
    coordinator: Coordinator, open_page: Open
) -> None:
    page = open_page(f"{coordinator.url}/jobs/{FEW}")
    cells = page.get_by_role("grid").locator("[tabindex='0']")
    expect(cells).to_have_count(1)
    cells.focus()
    words = page.locator("#link-words")
    expect(words).to_contain_text("From rank 0 (gcube-ft-0) to rank 1 (gcube-ft-1) at 10.42.9.127 on eth0")
    expect(words).to_contain_text("round trip 400 µs, 940 MB/s there, 900 MB/s back")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    expect(words).to_contain_text("From rank 1 (gcube-ft-1) to rank 2 (gcube-ft-2)")
    expect(words).to_contain_text("no answer to the connect")
    expect(cells).to_have_count(1)
    assert page.evaluate("document.activeElement.dataset.link") == "1 2"
    page.keyboard.press("Control+Home")
    assert page.evaluate("document.activeElement.dataset.link") == "0 1"


def test_of_many_replicas_the_worst_links_come_first(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/jobs/{MANY}")
    rows = page.get_by_role("grid").locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("rank 1 (gcube-ft-1)")
    expect(rows.first.locator("td").first).to_have_text("timed out")
    expect(page.locator("#links-sum")).to_have_text("306 links, 1 failed")
    page.get_by_role("grid").locator("[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.cellIndex") == 1


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_it_scrolls_within_its_card(coordinator: Coordinator, open_page: Open, width: int) -> None:
    for job_id in (FEW, MANY):
        page = open_page(f"{coordinator.url}/jobs/{job_id}")
        page.set_viewport_size({"width": width, "height": 844})
        expect(page.get_by_role("grid")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
