"""The system's Chromium, driven by Playwright; skips where one of them is missing."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.lab import need
from tests.lab.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
TIMEOUT_MS = 60_000 * PATIENCE


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    missing = "" if Path(CHROMIUM).exists() else CHROMIUM
    missing = missing or ("" if importlib.util.find_spec("playwright") else "playwright")
    need(missing and f"no {missing}")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=TIMEOUT_MS,
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_page(browser: Browser, address: str, messages: tuple[str, ...] = ()) -> Iterator[Page]:
    """Open an address and wait until the page is drawn.

    In the end, its console must have said nothing but `messages`, and it must have asked for
    nothing of another origin.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    said: list[str] = []
    asked: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        yield page
    finally:
        context.close()
    assert [text for text in said if not any(known in text for known in messages)] == []
    origin = "/".join(address.split("/")[:3])
    assert [url for url in asked if not url.startswith(origin)] == []
