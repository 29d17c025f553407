"""Phone and desk, light and dark, keyboard and reader: every page in every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rehearsal
import test_page_job as job
from playwright.sync_api import Page, expect
from serving import Coordinator, running

Open = Callable[..., Page]

PAGES = {
    "overview": "",
    "running": f"jobs/{job.RUNNING}",
    "failed": f"jobs/{job.FAILED}",
    "finished": f"jobs/{job.DONE}",
    "queued": f"jobs/{job.WAITING}",
    "sign-in": "sign-in",
}

# Text whose contrast with what lies behind it is below WCAG AA. Colours are read back from a canvas, because a
# computed one may be in any notation.
POOR_CONTRAST = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parsed = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return { rgb: [r, g, b], alpha: a / 255 };
  };
  const over = (top, below) => top.rgb.map((value, i) => value * top.alpha + below[i] * (1 - top.alpha));
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(parsed(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility() || node.closest(".visually-hidden, .skip, option")) continue;
    const style = getComputedStyle(node);
    const back = behind(node);
    const [a, b] = [luminance(over(parsed(style.color), back)), luminance(back)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${ratio.toFixed(2)}: ${text.data.trim().slice(0, 40)} .${node.className}`);
  }
  return [...new Set(poor)];
}"""

# What the keyboard has to reach and has not reached so far. The skip link is only visible while it has the focus.
MISSED = """() => [...document.querySelectorAll("a[href], button, select, summary, [tabindex='0']")]
  .filter((node) => node.checkVisibility() && !window.reached.has(node) && !node.matches(".skip"))
  .map((node) => node.outerHTML.slice(0, 120))"""

# The element that has the focus: its name for a reader, and whether one sees that it has it.
FOCUSED = """() => {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  (window.reached ??= new WeakSet()).add(node);
  const style = getComputedStyle(node);
  const after = getComputedStyle(node, "::after");
  const seen = (one) => one.outlineStyle !== "none" && parseFloat(one.outlineWidth) >= 2;
  const name = node.getAttribute("aria-label") || node.innerText || node.labels?.[0]?.innerText || "";
  return { name: name.trim(), seen: seen(style) || seen(after), tag: node.tagName };
}"""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    state_dir: Path = tmp_path_factory.mktemp("layout")
    job.script().write(state_dir)
    with running(state_dir, token=None) as coordinator, rehearsal.beating(job.players(coordinator)):
        yield coordinator


def settled(page: Page) -> None:
    """The page has been drawn with what the coordinator says."""
    expect(page.locator("main")).not_to_contain_text("Asking the coordinator")
    if "/jobs/" in page.url:
        expect(page.locator("#stages > li")).to_have_count(8)
        expect(page.locator("#members")).not_to_be_empty()


def stop(page: Page) -> dict[str, str] | None:
    """The next element on the keyboard's way; None at the end of the page."""
    page.keyboard.press("Tab")
    focused: dict[str, str] | None = page.evaluate(FOCUSED)
    return focused


@pytest.mark.parametrize("scheme", ["dark", pytest.param("light", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_readable_at_every_width(
    coordinator: Coordinator, open_page: Open, name: str, scheme: str
) -> None:
    page = open_page(f"{coordinator.url}/{PAGES[name]}", color_scheme=scheme)
    settled(page)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert page.evaluate(POOR_CONTRAST) == []
    for width in (1280, 900, 390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = page.evaluate(
            "(width) => [...document.querySelectorAll('main *')].filter((node) => node.checkVisibility()"
            " && !node.closest('.log, .chart-canvas, .visually-hidden, pre') && node.getBoundingClientRect().right > width + 1)"
            ".map((node) => `${node.tagName}.${node.className}`)",
            width,
        )
        assert wide == [], width


@pytest.mark.parametrize("name", ["overview", "running", "failed", "finished"])
def test_everything_is_reached_by_keyboard_and_seen_when_it_is(
    coordinator: Coordinator, open_page: Open, name: str
) -> None:
    page = open_page(f"{coordinator.url}/{PAGES[name]}")
    settled(page)
    first = None
    # The page lives: what appears above the focus is met when the keyboard comes round again.
    for _ in range(3):
        while focused := stop(page):
            first = first or focused["name"]
            assert focused["name"], focused
            assert focused["seen"], focused
        if not page.evaluate(MISSED):
            break
    assert first == "Skip to content"
    assert page.evaluate(MISSED) == []


def test_the_skip_link_leads_past_the_bar(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/{PAGES['running']}")
    settled(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_the_colour_scheme_can_be_chosen_and_is_kept(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(coordinator.url, color_scheme="light")
    settled(page)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    button = page.get_by_role("button", name="Colour scheme")
    button.click()
    button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    expect(button).to_have_attribute("aria-label", "Colour scheme: dark")


def test_an_update_leaves_focus_and_what_is_open_alone(coordinator: Coordinator, open_page: Open) -> None:
    page = open_page(f"{coordinator.url}/{PAGES['running']}")
    settled(page)
    summary = page.locator("#members summary").first
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#members details").first).to_have_attribute("open", "")
    player = job.players(coordinator)[0]
    player.report(f"{job.RUNNING}-1", rehearsal.training())
    # Durations tick each second, so that everything has been drawn again by then.
    page.wait_for_timeout(2500)
    expect(page.locator("#members details").first).to_have_attribute("open", "")
    expect(summary).to_be_focused()
