"""The browser, the coordinator behind it, and the faults that no page may have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

# The running coordinator is the service tests' own.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "service"))

CHROMIUM = Path("/usr/bin/chromium")
# Without the background flags Chromium asks for its maker's hosts at every start.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Chromium ends its requests when the machine's interfaces change, as they do while another test makes hosts; the
# pages try again.
ELSEWHERE = "net::ERR_NETWORK_CHANGED"

Open = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """What went wrong in any page of the test; it must be empty in the end. A test that provokes one removes it."""
    found: list[str] = []
    yield found
    assert [fault for fault in found if ELSEWHERE not in fault] == []


@pytest.fixture
def context_of(browser: Browser, faults: list[str]) -> Iterator[Callable[..., BrowserContext]]:
    """Makes browser contexts (each with cookies of its own) whose faults are collected."""
    contexts: list[BrowserContext] = []

    def note(fault: str) -> None:  # Playwright cannot call a built-in method
        faults.append(fault)

    def make(**options: object) -> BrowserContext:
        made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})  # type: ignore[arg-type]
        made.set_default_timeout(15_000)
        made.expose_function("reportViolation", note)
        made.add_init_script(
            "document.addEventListener('securitypolicyviolation',"
            " (e) => reportViolation(`CSP: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));"
        )
        made.on("weberror", lambda error: faults.append(f"error: {error.error}"))
        made.on(
            "console", lambda said: faults.append(f"console: {said.text}") if said.type == "error" else None
        )
        contexts.append(made)
        return made

    yield make
    for made in contexts:
        made.close()


@pytest.fixture
def open_page(context_of: Callable[..., BrowserContext]) -> Open:
    """Opens an address in a fresh context."""

    def go(url: str, **options: object) -> Page:
        page = context_of(**options).new_page()
        page.goto(url)
        return page

    return go
