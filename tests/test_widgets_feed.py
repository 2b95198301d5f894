from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.events import Committed, MessageRemoved, PartRemoved
from forge_nb.messages.parts import ReasoningPart
from forge_nb.widgets.feed import OpenText, TranscriptState
from forge_nb.widgets.items import cost_text, printable, units
from tests.browser.driver import Driver, tour, usage

TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("ab \n🙂é𝒳")), max_size=200)


class Screen:
    """What a browser does with operations, in UTF-16 units."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}
        self.gaps = 0

    def apply(self, op: dict[str, Any]) -> None:
        if op["kind"] == "part":
            item = op["item"]
            if "text" in item:
                self.texts[item["id"]] = item["text"].encode("utf-16-le")
        elif op["kind"] == "d":
            text = self.texts.setdefault(op["part"], b"")
            if op["off"] * 2 != len(text):
                self.gaps += 1
            self.texts[op["part"]] = text + op["s"].encode("utf-16-le")

    def text(self, part_id: str) -> str:
        return self.texts[part_id].decode("utf-16-le")


def driven(state: TranscriptState | None = None) -> tuple[TranscriptState, Driver, list[Any]]:
    state, ops = state or TranscriptState(), []
    driver = Driver(lambda event: ops.extend(state.feed(event)))
    driver.message("msg_1")
    return state, driver, ops


def items(state: TranscriptState) -> dict[str, dict[str, Any]]:
    messages = state.snapshot()["messages"]
    return {part["id"]: part for message in messages for part in message["parts"]}


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=12))
def test_any_split_of_a_text_is_the_text_on_the_screen(text: str, cuts: list[int]) -> None:
    state, driver, ops = driven()
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    driver.open("prt_1")

    for start, end in pairwise(places):
        driver.delta("prt_1", text[start:end], start)

    screen = Screen()
    for op in ops:
        screen.apply(op)
    assert screen.gaps == 0
    assert screen.text("prt_1") == text == state.text("prt_1")


@given(text=TEXTS, parts=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=12))
def test_repeated_and_overlapping_deltas_add_nothing_twice(
    text: str, parts: list[tuple[int, int]]
) -> None:
    state, driver, _ = driven()
    driver.open("prt_1")
    sent = 0

    for place, length in [*parts, (0, len(text))]:
        start = min(place, sent)
        driver.delta("prt_1", text[start : start + length], start)
        sent = max(sent, min(start + length, len(text)))

    assert state.text("prt_1") == text


def test_offsets_count_utf16_units_as_browsers_do() -> None:
    _, driver, ops = driven()
    driver.open("prt_1")
    ops.clear()

    driver.delta("prt_1", "a🙂", 0)
    driver.delta("prt_1", "é", 2)
    driver.delta("prt_1", "b", 3)

    assert [op["off"] for op in ops] == [0, 3, 4]
    assert units("a🙂é") == 4


def test_lone_surrogates_become_something_an_encoder_takes() -> None:
    assert printable("a\ud83d") == "a\ufffd"
    assert units("\ud83d") == units(printable("\ud83d")) == 1


def test_after_a_gap_the_text_goes_on_and_the_closing_row_mends_it() -> None:
    state, driver, ops = driven()
    driver.open("prt_1")
    driver.delta("prt_1", "abc", 0)

    driver.delta("prt_1", "xyz", 10)

    assert ops[-1] == {"kind": "d", "part": "prt_1", "off": 10, "s": "xyz"}
    shown = items(state)["prt_1"]
    assert (shown["text"], shown["off"]) == ("xyz", 10)
    driver.close("prt_1", "abc1234567xyz")
    assert state.text("prt_1") == "abc1234567xyz"


def test_a_delta_of_a_part_that_was_never_seen_opens_it() -> None:
    """A view that is opened in mid-stream missed the row."""
    state = TranscriptState()
    driver = Driver(state.feed)
    driver.message_id = "msg_unknown"

    driver.delta("prt_1", "tail", 100)

    assert items(state)["prt_1"]["text"] == "tail"


def test_deltas_after_the_close_change_nothing() -> None:
    state, driver, ops = driven()
    driver.text("prt_1", "all of it")
    ops.clear()

    driver.delta("prt_1", "more", 9)

    assert ops == []
    assert state.text("prt_1") == "all of it"


def test_a_snapshot_twice_is_the_same_and_shares_nothing_with_the_state() -> None:
    state, driver, _ = driven(TranscriptState(now=lambda: 1.0))
    tour(driver)
    driver.open("prt_open")
    driver.delta("prt_open", "abc", 0)

    first, second = state.snapshot(), state.snapshot()
    first["messages"][0]["parts"].clear()

    assert second == state.snapshot()


def test_open_text_keeps_its_end_within_the_limit() -> None:
    text = OpenText(limit=10)

    for place in range(100):
        text.append(f"{place:02d}", place * 2)

    assert len(text.text) <= 12
    assert text.text.endswith("9899")
    assert text.start + len(text.text) == text.end == 200


def test_one_long_delta_is_cut_in_units() -> None:
    text = OpenText(limit=3)

    text.append("🙂" * 5 + "abc", 0)

    assert (text.text, text.start, text.end) == ("abc", 10, 13)


def test_closed_texts_share_a_budget_and_the_oldest_go() -> None:
    state, driver, _ = driven(TranscriptState(total_chars=25))

    for number in range(4):
        driver.text(f"prt_{number}", "x" * 10)

    assert [state.text(f"prt_{number}") for number in range(4)] == ["", "", "x" * 10, "x" * 10]
    assert items(state)["prt_0"]["off"] == 10


def test_old_messages_go_when_there_are_too_many_parts() -> None:
    state, driver, ops = driven(TranscriptState(max_parts=3))

    for number in range(5):
        driver.message(f"msg_n{number}")
        driver.text(f"prt_{number}", "x")

    assert list(items(state)) == ["prt_2", "prt_3", "prt_4"]
    assert state.snapshot()["older"] == state.older == 2
    assert [op["message"] for op in ops if op["kind"] == "gone"][-1] == "msg_n1"


def test_one_message_with_too_many_parts_loses_its_oldest() -> None:
    state, driver, ops = driven(TranscriptState(max_parts=2))

    for number in range(4):
        driver.text(f"prt_{number}", "x")

    assert list(items(state)) == ["prt_2", "prt_3"]
    assert [op["part"] for op in ops if op["kind"] == "gone"] == ["prt_0", "prt_1"]


def test_the_text_of_a_model_is_a_tree_once_it_is_closed_and_a_persons_never() -> None:
    state = TranscriptState()
    driver = Driver(state.feed)
    driver.user("msg_u", "**mine**")
    driver.message("msg_1")
    driver.text("prt_1", "**bold**")
    driver.text("prt_2", "**thought**", ReasoningPart)

    shown = items(state)
    assert shown["prt_1"]["nodes"] == [["p", [["strong", ["bold"]]]]]
    assert shown["msg_ut"]["text"] == "**mine**"
    assert shown["prt_2"]["text"] == "**thought**"


def test_the_first_step_behind_a_boundary_measures_it() -> None:
    state = TranscriptState()
    tour(Driver(state.feed))

    marker = items(state)["prt_c"]

    assert (marker["state"], marker["before"], marker["after"]) == ("done", 20_616, 5_100)
    assert [item["step"] for item in items(state).values() if item["kind"] == "step"] == [
        1,
        2,
        3,
        4,
    ]
    assert state.context == 5_100


def test_a_marker_keeps_its_result_when_its_row_comes_again() -> None:
    state = TranscriptState()
    driver = Driver(state.feed)
    tour(driver)
    request = driver.history["msg_4"][1]["prt_c"]

    driver.part(request)

    assert items(state)["prt_c"]["after"] == 5_100


def test_an_unknown_cost_is_none_and_is_counted_apart() -> None:
    state, driver, _ = driven()
    driver.step("prt_1", usage(10, 2), 0.5)
    driver.step("prt_2", usage(10, 2))

    counters = state.counters()

    assert (counters["cost"], counters["unpriced"]) == (0.5, 1)
    assert counters["tokens"] == [20, 4, None, None, None]
    assert [cost_text(usd) for usd in (None, 0.5)] == ["—", "$0.50"]


@pytest.mark.parametrize("recorded", [0.0, None])
def test_a_recorded_zero_with_tokens_is_an_unknown_price(recorded: float | None) -> None:
    state, driver, _ = driven()
    driver.step("prt_1", usage(10, 2))
    part: Any = driver.history["msg_1"][1]["prt_1"]

    driver.part(type(part)(**{**_fields(part), "cost": recorded, "cost_source": None}))

    assert items(state)["prt_1"]["cost"] is None


def _fields(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__struct_fields__}


def test_what_is_removed_is_gone() -> None:
    state, driver, ops = driven()
    driver.text("prt_1", "x")
    driver.text("prt_2", "y")

    driver.commit(PartRemoved(session_id="ses_1", message_id="msg_1", part_id="prt_1"))
    assert list(items(state)) == ["prt_2"]
    driver.commit(MessageRemoved(session_id="ses_1", message_id="msg_1"))

    assert state.snapshot()["messages"] == []
    assert ops[-1] == {"kind": "gone", "message": "msg_1"}


def test_history_before_is_counted_and_not_shown() -> None:
    earlier = Driver(lambda _event: None)
    tour(earlier)

    state = TranscriptState(before=earlier.messages())
    driver = Driver(state.feed)
    driver.message("msg_9")
    driver.step("prt_9", usage(10, 2))

    assert items(state)["prt_9"]["step"] == 5
    assert len(state.snapshot()["messages"]) == 1


def test_a_loaded_history_is_what_its_events_would_have_shown() -> None:
    fed = TranscriptState(now=lambda: 0.0)
    driver = Driver(fed.feed)
    tour(driver)
    loaded = TranscriptState(now=lambda: 0.0)

    loaded.load(driver.messages())

    assert loaded.snapshot() == fed.snapshot()


def test_events_it_does_not_know_change_nothing() -> None:
    event: Any = object()

    assert TranscriptState().feed(Committed(event=event, session_id="s", seq=1, rev=1)) == []
