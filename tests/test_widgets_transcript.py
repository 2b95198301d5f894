from __future__ import annotations

import asyncio
import io
import threading
import time
from typing import Any

import pytest

from forge_nb.widgets import transcript
from forge_nb.widgets.live import LiveDisplay
from forge_nb.widgets.transcript import TranscriptView
from tests.browser.driver import SESSION, Driver, tour


class Browser:
    """The other end of a view's comm: reads what is sent, says what a page would say."""

    def __init__(self, view: TranscriptView) -> None:
        self.view = view
        self.got: list[dict[str, Any]] = []
        self.texts: dict[str, str] = {}
        self.seq = 0
        self.is_waiting = True
        view.send = self._take

    def _take(self, content: dict[str, Any], buffers: object = None) -> None:
        assert buffers is None
        self.got.append(content)
        if content["kind"] == "snap":
            parts = [part for message in content["messages"] for part in message["parts"]]
            self.texts = {part["id"]: part.get("text", "") for part in parts}
            self.seq, self.is_waiting = content["seq"], False
        elif content["kind"] == "ops" and not self.is_waiting:
            self._frame(content)

    def _frame(self, content: dict[str, Any]) -> None:
        assert content["seq"] == self.seq + 1
        self.seq += 1
        for op in content["ops"]:
            if op["kind"] == "d":
                self.texts[op["part"]] += op["s"]
            elif op["kind"] == "part":
                self.texts[op["item"]["id"]] = op["item"].get("text", "")

    def say(self, kind: str, view: str = "v1", **more: Any) -> None:
        self.view._handle({"kind": kind, "view": view, **more})

    def sent(self) -> int:
        return sum(len(op.get("s", "")) for m in self.got for op in m.get("ops", ()))


@pytest.fixture
def opened() -> tuple[TranscriptView, Driver, Browser]:
    view = TranscriptView(SESSION, usable=1_000)
    driver = Driver(view.feed)
    return view, driver, Browser(view)


async def test_nothing_is_sent_before_a_view_opens_and_after_it_closes(
    opened: tuple[TranscriptView, Driver, Browser],
) -> None:
    view, driver, browser = opened
    driver.message("msg_1")
    driver.text("prt_1", "unseen")
    assert browser.got == []

    browser.say("hydrate")
    assert [message["kind"] for message in browser.got] == ["snap"]
    browser.say("bye")
    driver.text("prt_2", "unseen")
    view.flush()

    assert len(browser.got) == 1


async def test_a_view_that_opens_in_mid_stream_gets_all_and_goes_on(
    opened: tuple[TranscriptView, Driver, Browser],
) -> None:
    view, driver, browser = opened
    driver.message("msg_1")
    driver.open("prt_1")
    driver.delta("prt_1", "seen 🙂 later", 0)

    browser.say("hydrate")
    driver.delta("prt_1", ", and more", 12)
    view.flush()

    assert browser.texts["prt_1"] == "seen 🙂 later, and more"


async def test_a_snapshot_leaves_nothing_to_be_sent_twice(
    opened: tuple[TranscriptView, Driver, Browser],
) -> None:
    view, driver, browser = opened
    browser.say("hydrate")
    driver.message("msg_1")
    driver.open("prt_1")
    driver.delta("prt_1", "abc", 0)

    browser.say("hydrate")
    view.flush()

    assert browser.texts["prt_1"] == "abc"
    assert browser.got[-1]["kind"] == "snap"


async def test_a_browser_that_lags_gets_no_deltas_and_then_one_snapshot(
    opened: tuple[TranscriptView, Driver, Browser],
) -> None:
    view, driver, browser = opened
    browser.say("hydrate")
    driver.message("msg_1")
    driver.open("prt_1")

    whole = ""
    for number in range(1_000):
        piece = f"{number:05d}" * 200
        driver.delta("prt_1", piece, len(whole))
        whole += piece
        view.flush()

    assert browser.sent() <= transcript.UNACKED_LIMIT + 2_000
    browser.say("ack", n=browser.got[-1]["n"])
    assert browser.got[-1]["kind"] == "snap"
    assert whole.endswith(browser.texts["prt_1"])
    browser.say("ack", n=browser.got[-1]["n"])
    driver.delta("prt_1", "END", len(whole))
    view.flush()
    assert browser.texts["prt_1"].endswith("END")


async def test_a_view_that_is_silent_for_long_holds_up_no_other(
    opened: tuple[TranscriptView, Driver, Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    view, driver, browser = opened
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    browser.say("hydrate", view="closed without a word")
    browser.say("hydrate")
    driver.message("msg_1")
    driver.open("prt_1")

    for number in range(60):
        driver.delta("prt_1", "x" * 10_000, number * 10_000)
        view.flush()
        now[0] += 1
        browser.say("ack", n=browser.got[-1]["n"])

    assert list(view._views) == ["v1"]
    assert browser.texts["prt_1"].endswith("x" * 10_000)
    browser.say("ack", view="closed without a word", n=0)
    assert len(view._views) == 2


async def test_stop_calls_back_on_the_loops_thread_whatever_thread_it_comes_on() -> None:
    heard: list[int] = []
    done = asyncio.Event()

    def stop() -> None:
        heard.append(threading.get_ident())
        done.set()

    view = TranscriptView(SESSION, on_stop=stop)
    thread = threading.Thread(target=view._receive, args=(view, {"kind": "stop", "view": "v"}, []))
    thread.start()
    await asyncio.wait_for(done.wait(), 5)
    thread.join()

    assert heard == [threading.get_ident()]


async def test_older_text_comes_from_the_store_when_it_is_asked_for() -> None:
    view = TranscriptView(SESSION, reload=lambda part_id: f"whole of {part_id}")
    browser = Browser(view)

    browser.say("text", part="prt_1")

    assert browser.got == [{"kind": "text", "part": "prt_1", "s": "whole of prt_1"}]


@pytest.mark.parametrize("content", [None, "x", {}, {"kind": 3}, {"kind": "ack", "n": "many"}])
async def test_nonsense_from_a_browser_is_ignored(content: Any) -> None:
    view = TranscriptView(SESSION)
    browser = Browser(view)

    view._receive(view, content, [])
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)

    assert browser.got == []


async def test_facts_are_traits_and_the_text_is_in_none_of_them(
    opened: tuple[TranscriptView, Driver, Browser],
) -> None:
    view, driver, browser = opened
    browser.say("hydrate")
    tour(driver)
    driver.status("retry", attempt=2, message="overloaded", next_ms=5)

    assert view.gauge == {"used": 5_100, "usable": 1_000}
    assert view.status["state"] == "retry"
    assert view.counters["steps"] == 4
    facts = {key: value for key, value in view.get_state().items() if key not in {"_esm", "_css"}}
    assert "maxsplit" not in repr(facts)


async def test_a_retired_view_closes_when_the_last_browser_leaves(
    opened: tuple[TranscriptView, Driver, Browser],
) -> None:
    view, _, browser = opened
    closed: list[bool] = []
    view.close = lambda: closed.append(True)
    browser.say("hydrate", view="v1")
    browser.say("hydrate", view="v2")

    view.retire()
    browser.say("bye", view="v1")
    assert closed == []
    browser.say("bye", view="v2")

    assert closed == [True]


def test_a_view_has_the_same_repr_every_time() -> None:
    assert repr(TranscriptView("ses_1")) == "TranscriptView(session_id='ses_1')"


async def test_events_of_other_sessions_are_not_shown() -> None:
    view = TranscriptView("ses_other")

    tour(Driver(view.feed))

    assert view.state.snapshot()["messages"] == []


def test_without_a_front_end_text_is_printed_as_it_comes() -> None:
    out = io.StringIO()
    shown = LiveDisplay(None, out=out)
    shown.start()

    tour(Driver(shown.feed))
    shown.finish("<p>", "p")

    lines = out.getvalue().splitlines()
    assert lines[:4] == ["[read: running]", "[read: completed]", "[bash: running]", "[bash: error]"]
    assert "[compacting]" in lines
    assert lines[-1] == "Going on behind the boundary."
