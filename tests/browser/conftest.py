"""One JupyterLab for all tests here, a browser for each module, a fresh page for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.lab import CHROMIUM_FLAGS, Lab, running_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running JupyterLab."""
    with running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A running Chromium, for one module: Playwright's loop runs until it ends.

    While it runs no other loop can, and other modules have asynchronous tests.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, lab: Lab) -> Iterator[Page]:
    """A page that fails the test when a script in it fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    lab.end_sessions()
    assert errors == []
