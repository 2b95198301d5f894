"""Notebook 01 and a live session, as a person meets them in JupyterLab."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.lab import Lab, cells, command, open_notebook, run_all, start_all

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FIRST = "01_bring_a_session.ipynb"

OPEN = """
import asyncio
import forge_nb as forge
wb = forge.open("{name}.db")
s = wb.session("live", model="scripted:slow")
"""
PROMPT = "task = asyncio.ensure_future(s.prompt('go', show=True))"
LIVE_TEXT = "() => document.querySelector('.fnb-live')?.textContent ?? ''"
STOPPED = """
from forge_nb.messages.parts import is_open
result = await task
print(sum(is_open(part) for item in s.messages() for part in item.parts), result.outcome)
"""


def output(page: Page, place: int) -> str:
    """Return what a cell printed; fails on an error."""
    outputs = cells(page)[place]["outputs"]
    assert [one for one in outputs if one["output_type"] == "error"] == []
    return "".join("".join(one.get("text", "")) for one in outputs)


def keep(page: Page, name: str) -> None:
    """Keep a picture for people, where FORGE_SCREENSHOTS names a folder."""
    folder = os.environ.get("FORGE_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_run_all_on_the_first_notebook_ends_clean(page: Page, lab: Lab) -> None:
    shutil.copytree(NOTEBOOKS, lab.root, dirs_exist_ok=True)
    open_notebook(page, lab, FIRST)

    run_all(page)

    ran = [cell for cell in cells(page) if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in ran)
    errors = [one for cell in ran for one in cell["outputs"] if one["output_type"] == "error"]
    assert errors == []
    live = next(cell for cell in ran if "s.prompt(" in "".join(cell["source"]))
    [shown] = [one for one in live["outputs"] if "text/html" in one.get("data", {})]
    page_text = "".join(shown["data"]["text/html"])
    assert "run the 24 tests again." in page_text
    assert "application/vnd.jupyter.widget-view+json" not in shown["data"]
    keep(page, "first-light")
    command(page, "apputils:change-theme", {"theme": "JupyterLab Dark"})
    keep(page, "first-dark")
    command(page, "apputils:change-theme", {"theme": "JupyterLab Light"})


def test_stop_ends_a_live_run_and_leaves_no_open_part(page: Page, lab: Lab) -> None:
    lab.write_notebook(
        "stop.ipynb",
        OPEN.format(name="stop"),
        "task = asyncio.ensure_future(s.prompt('go', show=True))",
        STOPPED,
    )
    open_notebook(page, lab, "stop.ipynb")
    start_all(page)
    page.wait_for_function(f"() => ({LIVE_TEXT})().length > 200")
    keep(page, "live")

    page.click(".fnb-stop")

    page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.content.model.cells.get(2).toJSON().outputs.length",
        timeout=1_000,
    )
    assert output(page, 2).split() == ["0", "aborted"]


def test_a_reload_in_mid_run_brings_the_session_s_text_back(page: Page, lab: Lab) -> None:
    lab.write_notebook(
        "again.ipynb",
        OPEN.format(name="again"),
        "task = asyncio.ensure_future(s.prompt('go', show=True))",
    )
    open_notebook(page, lab, "again.ipynb")
    run_all(page)
    page.wait_for_function(f"() => ({LIVE_TEXT})().includes('memory is what is stored')")
    command(page, "docmanager:save")

    open_notebook(page, lab, "again.ipynb", reset=False)

    page.wait_for_function(
        f"() => ({LIVE_TEXT})().includes('memory is what is stored')", timeout=10_000
    )
    before = len(page.evaluate(LIVE_TEXT))
    page.wait_for_function(f"(n) => ({LIVE_TEXT})().length > n + 100", arg=before)
