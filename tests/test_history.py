"""What the model may see: boundaries, tails, and what a bad summary must not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.errors import NotFoundError
from forge_nb.history import choose_rule, filter_compacted, find_boundaries, view_at
from forge_nb.messages.message import (
    AssistantMessage,
    MessageError,
    MessageTime,
    MessageWithParts,
    UserMessage,
)
from forge_nb.messages.parts import CompactionPart, TextPart, ToolCompleted, ToolPart, ToolSpan

if TYPE_CHECKING:
    from collections.abc import Iterator

S = "ses_1"


def user(name: str, *, at: int = 0) -> MessageWithParts:
    part = TextPart(id=f"p_{name}", session_id=S, message_id=name, text=name)
    return MessageWithParts(
        message=UserMessage(id=name, session_id=S, time=MessageTime(created=at)), parts=(part,)
    )


def request(name: str, tail: str | None = None) -> MessageWithParts:
    part = CompactionPart(
        id=f"p_{name}", session_id=S, message_id=name, auto=True, tail_start_id=tail
    )
    message = UserMessage(id=name, session_id=S, time=MessageTime(created=0))
    return MessageWithParts(message=message, parts=(part,))


def answer(
    name: str,
    parent: str,
    *,
    summary: bool = False,
    finish: str | None = "stop",
    error: str | None = None,
    said: str = "text",
) -> MessageWithParts:
    message = AssistantMessage(
        id=name,
        session_id=S,
        parent_id=parent,
        time=MessageTime(created=0, completed=0),
        summary=summary or None,
        finish=finish,
        error=MessageError(name=error) if error else None,
    )
    part = TextPart(id=f"p_{name}", session_id=S, message_id=name, text=said)
    return MessageWithParts(message=message, parts=(part,))


def seen(messages: list[MessageWithParts], **options: object) -> list[str]:
    return [item.message.id for item in filter_compacted(reversed(messages), **options)]  # type: ignore[arg-type]


HEAD = [user("u1"), answer("a1", "u1"), user("u2"), answer("a2", "u2")]
WHOLE = ["u1", "a1", "u2", "a2", "uC", "aS", "u3"]


def test_without_a_boundary_everything_is_seen() -> None:
    assert seen(HEAD) == ["u1", "a1", "u2", "a2"]
    assert seen([]) == []


def test_a_boundary_drops_what_is_older() -> None:
    messages = [*HEAD, request("uC"), answer("aS", "uC", summary=True), user("u3")]
    assert seen(messages) == ["uC", "aS", "u3"]
    assert choose_rule(messages) == "classic"


def test_a_tail_stays_behind_the_summary_and_the_classic_rule_ignores_it() -> None:
    messages = [*HEAD, request("uC", "u2"), answer("aS", "uC", summary=True), user("u3")]
    assert seen(messages) == ["uC", "aS", "u2", "a2", "u3"]
    assert seen(messages, rule="classic") == ["uC", "aS", "u3"]
    assert choose_rule(messages) == "tail"


@pytest.mark.parametrize("tail", [None, "u2"])
@pytest.mark.parametrize(
    "broken",
    [{"error": "APIError"}, {"finish": None}, {"said": "  \n"}],
    ids=["error", "unfinished", "blank"],
)
def test_a_bad_summary_cuts_nothing_with_or_without_a_tail(
    tail: str | None, broken: dict[str, str | None]
) -> None:
    summary = answer("aS", "uC", summary=True, **broken)  # type: ignore[arg-type]
    messages = [*HEAD, request("uC", tail), summary, user("u3")]
    assert seen(messages) == WHOLE
    assert find_boundaries(messages) == []


def test_parity_reproduces_what_the_recorded_engine_does_with_bad_summaries() -> None:
    failed = answer("aS", "uC", summary=True, error="APIError")
    messages = [*HEAD, request("uC", "u2"), failed, user("u3")]
    assert seen(messages, parity=True) == ["uC", "aS", "u2", "a2", "u3"]
    blank = answer("aS", "uC", summary=True, said="")
    assert seen([*HEAD, request("uC"), blank, user("u3")], parity=True) == ["uC", "aS", "u3"]


def test_a_tail_that_is_not_in_the_session_gives_everything_in_its_order() -> None:
    messages = [*HEAD, request("uC", "gone"), answer("aS", "uC", summary=True), user("u3")]
    assert seen(messages) == WHOLE


def test_a_summary_whose_parent_did_not_ask_is_no_boundary() -> None:
    messages = [*HEAD, request("uC"), answer("aS", "u2", summary=True), user("u3")]
    assert seen(messages) == WHOLE


def test_reading_stops_at_the_boundary() -> None:
    messages = [*HEAD * 50, request("uC"), answer("aS", "uC", summary=True), user("u3")]
    taken = 0

    def newest_first() -> Iterator[MessageWithParts]:
        nonlocal taken
        for item in reversed(messages):
            taken += 1
            yield item

    filter_compacted(newest_first())
    assert taken == 3


def test_every_part_is_labelled_at_every_step() -> None:
    messages = [
        *HEAD,
        request("uC"),
        answer("aS", "uC", summary=True),
        user("u3"),
        answer("a3", "u3"),
    ]
    at_a2 = view_at(messages, "a2").labels
    assert {name: label.state for name, label in at_a2.items()} == {
        "p_u1": "visible",
        "p_a1": "visible",
        "p_u2": "visible",
        **dict.fromkeys(("p_a2", "p_uC", "p_aS", "p_u3", "p_a3"), "future"),
    }
    at_a3 = view_at(messages, "a3")
    assert [item.message.id for item in at_a3.messages] == ["uC", "aS", "u3"]
    assert (at_a3.labels["p_u1"].state, at_a3.labels["p_u1"].boundary) == ("dropped", 1)


def test_at_a_summary_the_view_is_what_was_summarised() -> None:
    messages = [*HEAD, request("uC"), answer("aS", "uC", summary=True), user("u3")]
    view = view_at(messages, "aS")
    assert [item.message.id for item in view.messages] == ["u1", "a1", "u2", "a2"]


def test_an_output_that_was_cleared_later_is_seen_as_it_was_then() -> None:
    state = ToolCompleted(input={}, output="long", time=ToolSpan(start=1, end=2, compacted=50))
    part = ToolPart(id="t", session_id=S, message_id="a1", call_id="c", tool="read", state=state)
    first = AssistantMessage(
        id="a1", session_id=S, parent_id="u1", time=MessageTime(created=1), finish="tool-calls"
    )
    early = AssistantMessage(id="a2", session_id=S, parent_id="u1", time=MessageTime(created=10))
    late = AssistantMessage(id="a3", session_id=S, parent_id="u1", time=MessageTime(created=90))
    messages = [
        user("u1"),
        MessageWithParts(message=first, parts=(part,)),
        MessageWithParts(message=early),
        MessageWithParts(message=late),
    ]
    assert view_at(messages, "a2").labels["t"].state == "visible"
    assert view_at(messages, "a3").labels["t"].state == "cleared"


@pytest.mark.parametrize("wrong", ["u1", "nope"])
def test_a_view_at_something_else_than_a_call_is_refused(wrong: str) -> None:
    with pytest.raises(NotFoundError):
        view_at(HEAD, wrong)


turns = st.lists(st.sampled_from(["turn", "cut", "tail", "failed", "blank"]), max_size=12)


def session(kinds: list[str]) -> list[MessageWithParts]:
    messages: list[MessageWithParts] = []
    for number, kind in enumerate(kinds):
        asked, said = f"u{number}", f"a{number}"
        if kind == "turn":
            messages += [user(asked), answer(said, asked)]
            continue
        tail = messages[-2].message.id if kind == "tail" and len(messages) > 1 else None
        error = "APIError" if kind == "failed" else None
        text = "" if kind == "blank" else "summary"
        messages += [
            request(asked, tail),
            answer(said, asked, summary=True, error=error, said=text),
        ]
    return messages


@given(turns)
def test_the_view_is_part_of_a_suffix_and_filtering_it_again_changes_nothing(
    kinds: list[str],
) -> None:
    whole = session(kinds)
    view = filter_compacted(reversed(whole))
    places = [whole.index(item) for item in view]
    assert sorted(places) == list(range(min(places, default=0), len(whole)))[-len(places) :]
    if "tail" not in kinds:
        assert filter_compacted(reversed(view)) == view


@given(turns)
def test_every_part_has_one_label_and_the_visible_ones_are_those_of_the_view(
    kinds: list[str],
) -> None:
    whole = session(kinds)
    view = view_at(whole, None)
    assert set(view.labels) == {part.id for item in whole for part in item.parts}
    visible = {name for name, label in view.labels.items() if label.state == "visible"}
    assert visible == {part.id for item in view.messages for part in item.parts}
