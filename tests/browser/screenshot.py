"""A picture of a running coordinator's page: `python tests/browser/screenshot.py URL OUT.png [--dark] [--full] [--width N]`.

The README's picture is made with it from the real demo. It waits until the page is live and its curve is
drawn, and fails when the page has an error of its own. RANKCALL_TOKEN signs in where that is needed.
"""

from __future__ import annotations

import argparse
import os
import sys
from urllib.parse import urljoin

from conftest import CHROMIUM, FLAGS
from playwright.sync_api import Page, expect, sync_playwright


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("out")
    parser.add_argument("--dark", action="store_true", help="the dark colour scheme")
    parser.add_argument("--full", action="store_true", help="the whole page, not one screen of it")
    parser.add_argument("--width", type=int, default=1280, help="width in CSS pixels (390 is a phone)")
    parser.add_argument("--height", type=int, default=900, help="height in CSS pixels, without --full")
    parser.add_argument("--scale", type=float, default=1.5, help="device pixels for each of them")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds until the page must be ready")
    return parser.parse_args()


def sign_in(page: Page, url: str) -> None:
    """The page has led to the sign-in form: use the token."""
    token = os.environ.get("RANKCALL_TOKEN")
    if not token:
        sys.exit("This coordinator wants a token: set RANKCALL_TOKEN.")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(url)


def ready(page: Page, wait_s: float) -> None:
    """The page shows what the coordinator says, a training's curve included."""
    expect(page.locator("#link")).to_have_text("live", timeout=wait_s * 1000)
    expect(page.locator(".verdict-line")).to_be_visible()
    if "/jobs/" in page.url:
        expect(page.locator("#stages > li")).to_have_count(8)
        page.wait_for_timeout(1000)
        if page.locator("#training-section").is_visible():
            expect(page.locator("#progress")).not_to_be_empty()


def main() -> int:
    given = arguments()
    url = urljoin(given.url, "/") if given.url.count("/") < 3 else given.url
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(
            viewport={"width": given.width, "height": given.height},
            device_scale_factor=given.scale,
            color_scheme="dark" if given.dark else "light",
            locale="en-GB",
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        page.wait_for_timeout(500)
        if "/sign-in" in page.url:
            sign_in(page, url)
        ready(page, given.wait)
        page.screenshot(path=given.out, full_page=given.full)
        browser.close()
    for error in errors:
        print(f"the page had an error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
