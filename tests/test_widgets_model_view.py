from __future__ import annotations

import re
from pathlib import Path

import pytest

from forge_nb.workbench import Workbench
from tests.helpers import Saying, text, workbench

RECORDED = Path(__file__).parents[1] / "notebooks" / "data" / "parser-fix.json"


async def test_a_long_text_can_be_opened_and_nothing_of_it_is_markup() -> None:
    hostile = "<img src=x onerror=alert(1)>" * 20
    wb = workbench(Saying(text(hostile)))
    s = wb.session("a title")
    await s.prompt("go")

    html = s.view()._repr_html_()

    assert "<img" not in html
    assert html.count("&lt;img") > 20, "the whole text stands behind the fold"
    assert html.count("<details") == 1


def test_a_long_view_stays_small() -> None:
    wb = Workbench(":memory:")
    s = wb.session(wb.load(RECORDED).sessions[0].id)

    assert len(s.view()._repr_html_()) < 300_000


@pytest.mark.parametrize("at", [1, 12, None])
def test_the_text_twin_has_a_line_for_every_part(at: int | None) -> None:
    wb = Workbench(":memory:")
    s = wb.session(wb.load(RECORDED).sessions[0].id)
    view = s.view(at=at)

    lines = str(view).splitlines()

    assert len(lines) == 1 + sum(len(message.parts) for message in view.messages)
    assert re.match(r"model view (before step \d+|for the next call): \d+ messages", lines[0])
