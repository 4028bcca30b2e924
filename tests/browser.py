"""A real browser for tests of pages: Chromium, where there is one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright's sync interface; skips the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("there is no Chromium here")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*ARGUMENTS])
        yield browser
        browser.close()


class Visit:
    """A visit to a page in a file: what it asked the network for, and what it complained about."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}} | options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.url = path.as_uri()
        self.page.goto(self.url)

    def leave(self) -> None:
        """Close the page, which must have asked for nothing but itself and complained about nothing."""
        self.context.close()
        assert [url for url in self.requests if not url.startswith("data:")] == [self.url]
        assert self.complaints == []
