"""The live view in a real JupyterLab."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.browser.lab import Lab, cells, command, evaluate, open_notebook, run_all, start_all

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

SHOW = """
import asyncio, json
from forge_nb.widgets.transcript import TranscriptView
from tests.browser.driver import *
view = TranscriptView(SESSION, title="a title", usable=24_000)
driver = Driver(view.feed)
driver.message("msg_1")
view
"""

TEXT = "(n) => document.querySelectorAll('.fnb-live [data-part=prt_stream]')[n]?.textContent ?? ''"
ENDED = (
    "([views, length]) => { const found = "
    "[...document.querySelectorAll('.fnb-live [data-part=prt_stream]')]; "
    "return found.length >= views && found.every((n) => n.textContent.endsWith('END.')) }"
)


def printed(page: Page, place: int) -> str:
    """Return what a cell wrote to standard output."""
    outputs = cells(page)[place]["outputs"]
    assert [o for o in outputs if o["output_type"] == "error"] == []
    return "".join("".join(o.get("text", "")) for o in outputs if o.get("name") == "stdout")


def test_the_last_character_of_a_fast_stream_is_shown(page: Page, lab: Lab) -> None:
    lab.write_notebook("fast.ipynb", SHOW, "whole = await driver.stream(6_000)\nprint(len(whole))")
    open_notebook(page, lab, "fast.ipynb")

    run_all(page)
    page.wait_for_function(ENDED, arg=[1, 0], timeout=5_000)

    shown = page.evaluate(TEXT, 0)
    assert len(shown) == int(printed(page, 1))
    assert shown.startswith("000 001 002 ")


def test_a_reload_in_mid_stream_brings_the_text_back_and_goes_on(page: Page, lab: Lab) -> None:
    lab.write_notebook("reload.ipynb", SHOW, "task = asyncio.ensure_future(driver.stream(100_000))")
    open_notebook(page, lab, "reload.ipynb")
    run_all(page)
    page.wait_for_function(f"() => ({TEXT})(0).length > 4000")
    command(page, "docmanager:save")

    open_notebook(page, lab, "reload.ipynb", reset=False)
    page.wait_for_function(f"() => ({TEXT})(0).length > 4000", timeout=10_000)
    before = len(page.evaluate(TEXT, 0))
    page.wait_for_function(f"(n) => ({TEXT})(0).length > n + 2000", arg=before)

    shown: str = page.evaluate(TEXT, 0)
    numbers = [int(word) for word in shown.rsplit("not shown", 1)[-1].split()[1:-1]]
    assert all(later == (now + 1) % 1000 for now, later in pairwise(numbers))


def test_a_second_view_shows_the_same(page: Page, lab: Lab) -> None:
    lab.write_notebook(
        "two.ipynb",
        SHOW,
        "task = asyncio.ensure_future(driver.stream(5_000))",
        "await asyncio.wait([task], timeout=0.7)\nview",
        "await task\nprint(len(task.result()))",
    )
    open_notebook(page, lab, "two.ipynb")

    run_all(page)
    page.wait_for_function(ENDED, arg=[2, 0], timeout=5_000)

    first, second = page.evaluate(TEXT, 0), page.evaluate(TEXT, 1)
    assert first == second
    assert len(first) == int(printed(page, 3))


def test_stop_is_heard_within_a_second_while_the_cell_runs(page: Page, lab: Lab) -> None:
    lab.write_notebook(
        "stop.ipynb",
        SHOW,
        "task = asyncio.ensure_future(driver.stream(200_000))\n"
        "view.on_stop = task.cancel\n"
        "await asyncio.wait([task])\n"
        "print(json.dumps([task.cancelled(), driver.messages()[0].parts[0].time.end is None]))",
    )
    open_notebook(page, lab, "stop.ipynb")
    start_all(page)
    page.wait_for_function(f"() => ({TEXT})(0).length > 2000")

    stop = page.locator(".fnb-live").get_by_role("button", name="Stop")
    stop.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.fnb-status').textContent === 'Idle'", timeout=1_000
    )

    page.wait_for_function(ENDED, arg=[1, 0], timeout=2_000)
    evaluate(page, "async () => { await jupyterapp.shell.currentWidget.sessionContext.ready; }")
    page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.content.model.cells.get(1).outputs.length > 0"
    )
    assert printed(page, 1).strip() == "[true, false]"


def test_everything_a_view_can_show_and_nothing_of_it_is_markup(page: Page, lab: Lab) -> None:
    hostile = "</script><img src=x onerror=window.hacked=1><b>bold</b>"
    lab.write_notebook(
        "tour.ipynb",
        SHOW,
        "tour(driver)\n"
        f"text = {hostile!r}\n"
        "driver.message('msg_7')\n"
        "driver.text('prt_h', text)\n"
        "driver.open('prt_open'); driver.delta('prt_open', text, 0)\n"
        "driver.tool('prt_ht', text, {'a': text}, state='completed', said=text)\n"
        "stopped(driver)",
    )
    open_notebook(page, lab, "tour.ipynb")

    run_all(page)
    page.wait_for_selector("[data-part=prt_ht]")

    kinds = {"text", "reasoning", "tool", "step", "compaction", "chip"}
    for kind in kinds:
        assert page.locator(f".fnb-live .fnb-{kind}").count() > 0
    assert page.locator(".fnb-live :is(img, script, b b, iframe)").count() == 0
    assert page.evaluate("() => window.hacked") is None
    assert "20,616 → 5,100 tokens" in page.locator(".fnb-compaction").inner_text()
    meter = page.locator(".fnb-live").get_by_role("meter")
    assert meter.get_attribute("aria-valuetext") == "context 5,100 of 24,000 · 21 %"


def test_the_live_view_becomes_a_transcript_that_needs_no_kernel(page: Page, lab: Lab) -> None:
    lab.write_notebook(
        "static.ipynb",
        SHOW.rsplit("\n", 2)[0] + "\nfrom forge_nb.widgets.live import LiveDisplay\n"
        "from forge_nb.widgets.static import transcript_html, transcript_text\n"
        "shown = LiveDisplay(view)\nshown.start()\ntour(driver)\nstopped(driver)\n"
        "messages = driver.messages()\n"
        "shown.finish(transcript_html(messages), transcript_text(messages))",
        "for _ in range(100):\n"
        "    await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0.02))])\n"
        "    if view.comm is None: break\n"
        "print(view.comm is None)",
    )
    open_notebook(page, lab, "static.ipynb")

    run_all(page)
    page.wait_for_selector(".fnb-static")

    bundle = cells(page)[0]["outputs"][0]["data"]
    assert set(bundle) == {"text/html", "text/plain"}
    assert "Going on behind the boundary." in "".join(bundle["text/plain"])
    assert page.locator(".fnb-live").count() == 0
    assert printed(page, 1).strip() == "True"


def test_the_keyboard_scrolls_and_folds_and_stays_in_the_cell(page: Page, lab: Lab) -> None:
    lab.write_notebook("keys.ipynb", SHOW, "tour(driver)\nstopped(driver)", "pass", "pass")
    open_notebook(page, lab, "keys.ipynb")
    run_all(page)
    page.wait_for_selector("[data-part=prt_b]")
    active = "() => jupyterapp.shell.currentWidget.content.activeCellIndex"
    fold = page.locator(".fnb-reasoning summary")

    fold.focus()
    before = page.evaluate(active)
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.fnb-reasoning details').open")
    page.locator(".fnb-log").focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => document.querySelector('.fnb-log').scrollTop === 0")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.querySelector('.fnb-log').scrollTop > 0")

    assert page.evaluate(active) == before


def test_a_long_text_arrives_bounded_and_the_whole_of_it_on_request(page: Page, lab: Lab) -> None:
    """More than a browser may be behind by, so it also proves that acknowledgements flow."""
    lab.write_notebook(
        "long.ipynb",
        SHOW,
        "view._reload = lambda part_id: whole\n"
        "whole = await driver.stream(150_000, per_second=40_000)\nprint(len(whole))",
    )
    open_notebook(page, lab, "long.ipynb")

    run_all(page)
    page.wait_for_function(ENDED, arg=[1, 0], timeout=10_000)
    length = int(printed(page, 1))
    assert len(page.evaluate(TEXT, 0)) < length / 2

    page.locator(".fnb-live").get_by_role("button", name="show all").click()
    page.wait_for_function(f"(n) => ({TEXT})(0).length === n", arg=length)
