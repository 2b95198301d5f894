from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.messages.parts import ReasoningPart
from forge_nb.widgets.static import transcript_html, transcript_text
from tests.browser.driver import Driver, stopped, tour, usage

HOSTILE = "</script></style></pre><img src=x onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    """Collects what a browser would see."""

    VOID = frozenset({"br", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.texts: list[str] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.depth += tag not in self.VOID

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag not in self.VOID

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def hostile_driver(text: str) -> Driver:
    driver = Driver(lambda _event: None)
    driver.user("msg_u", text)
    driver.message("msg_1", model_id=text)
    driver.text("prt_1", text)
    driver.text("prt_2", text, ReasoningPart)
    driver.tool("prt_3", text, {text: text}, state="completed", said=text)
    driver.tool("prt_4", text, {"a": text}, state="error", said=text)
    return driver


@given(
    text=st.one_of(st.just(HOSTILE), st.text(st.sampled_from("<>&\"'`*[]()!/:a\n "), max_size=60))
)
def test_hostile_text_is_never_markup(text: str) -> None:
    html = transcript_html(hostile_driver(text).messages(), title=text)

    seen = read(html)
    assert seen.depth == 0
    assert {"script", "img", "iframe", "object", "link", "form"} & set(seen.tags) == set()
    assert {name for name in seen.attributes if name.startswith("on")} == set()


def test_hostile_text_is_readable_as_it_is() -> None:
    html = transcript_html(hostile_driver(HOSTILE).messages())

    assert "<img" not in html
    assert HOSTILE in "".join(read(html).texts)


def test_it_shows_everything_and_loads_nothing() -> None:
    driver = Driver(lambda _event: None)
    tour(driver)
    stopped(driver)

    html = transcript_html(driver.messages(), title="a title", usable=24_000)

    words = " ".join(" ".join(read(html).texts).split())
    for expected in (
        "a title",
        "context 5,100 of 24,000 · 21 %",
        "20,616 → 5,100 tokens",
        "Thought for 2.3 s",
        "Step 2 input 812 output 460 reasoning — cache read 19,804 cache write — cost —",
        "Stopped",
    ):
        assert expected in words
    assert re.findall(r" src=|url\(", html) == []


def test_two_hundred_steps_stay_below_300_kb() -> None:
    driver = Driver(lambda _event: None)
    for number in range(200):
        driver.message(f"msg_{number}")
        driver.text(f"prt_{number}t", "A sentence about the work. " * 40)
        driver.tool(
            f"prt_{number}c",
            "bash",
            {"command": "x" * 300},
            state="completed",
            said="line\n" * 4_000,
        )
        driver.step(f"prt_{number}s", usage(1_000, 10), 0.01)

    html = transcript_html(driver.messages())

    assert len(html.encode()) < 300_000
    assert "earlier parts are not shown" in html
    assert "earlier characters are not shown" in html
    assert "200 steps" in html


def test_the_same_session_gives_the_same_html_and_text() -> None:
    driver = Driver(lambda _event: None)
    tour(driver)

    assert transcript_html(driver.messages()) == transcript_html(driver.messages())
    assert transcript_text(driver.messages()) == transcript_text(driver.messages())


def test_an_empty_session_is_a_header() -> None:
    assert "0 steps" in transcript_html([])
    assert transcript_text([]) == "context — tokens · 0 steps · 0 tool calls · cost —"


def test_the_plain_twin_reads_like_the_page() -> None:
    driver = Driver(lambda _event: None)
    driver.user("msg_1", "Why?")
    driver.message("msg_2")
    driver.tool("prt_1", "read", {"path": "a.py"}, state="completed", said="one\ntwo")
    driver.text("prt_2", "Because.")
    driver.step("prt_3", usage(10, 2))
    stopped(driver)

    assert transcript_text(driver.messages(), title="t", usable=100).splitlines() == [
        "t",
        "context 10 of 100 · 10 % · 1 step · 1 tool call · cost —",
        "",
        "You:",
        "  Why?",
        "",
        "Assistant:",
        "  ✓ read a.py · done",
        "      one",
        "      two",
        "  Because.",
        "  Step 1 · input 10 · output 2 · reasoning — · cache read — · cache write — · cost —",
        "  ✕ Stopped",
    ]


@pytest.mark.parametrize("max_parts", [3, 6])
def test_older_messages_are_left_out_and_said_to_be(max_parts: int) -> None:
    driver = Driver(lambda _event: None)
    tour(driver)

    html = transcript_html(driver.messages(), max_parts=max_parts)

    assert "earlier parts are not shown" in html
    assert "Going on behind the boundary." in html
