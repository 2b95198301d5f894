"""The tail of any history: nothing is lost or torn apart, and the budget holds."""

from __future__ import annotations

import json
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.compaction import tail as tail_module
from forge_nb.compaction.tail import estimate_view, select_tail
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import AssistantMessage, MessageWithParts, UserMessage
from forge_nb.messages.parts import FilePart, ReasoningPart, ToolFailed, ToolPart, ToolSpan
from forge_nb.messages.render import to_model_messages
from tests.histories import S, answer, having, ids, read_file, said, user

if TYPE_CHECKING:
    from forge_nb.messages.parts import Part

History = list[MessageWithParts]


@st.composite
def histories(draw: st.DrawFn, *, turns: int = 6) -> History:
    """Draw turns of a question and up to five steps that think, speak and call."""
    history: History = []
    for turn in range(draw(st.integers(0, turns))):
        asked = f"u{turn}"
        history.append(having(user(asked), said(asked, "q" * draw(st.integers(1, 200)))))
        for step in range(draw(st.integers(0, 5))):
            name = f"a{turn}.{step}"
            history.append(having(answer(name, asked), *draw(steps(name))))
    return [msgspec.structs.replace(item, seq=place + 1) for place, item in enumerate(history)]


@st.composite
def steps(draw: st.DrawFn, name: str) -> list[Part]:
    parts: list[Part] = []
    if draw(st.booleans()):
        metadata = draw(st.sampled_from([None, {"anthropic": {"signature": "s"}}]))
        base: dict[str, Any] = {"id": f"r_{name}", "session_id": S, "message_id": name}
        parts.append(ReasoningPart(**base, text="hm", metadata=metadata))
    parts.append(said(name, "w" * draw(st.integers(0, 200))))
    if draw(st.booleans()):
        parts.append(read_file(name, output="o" * draw(st.integers(0, 400))))
    return parts


budgets = st.integers(0, 600)


def cut(history: History, start: str | None) -> tuple[History, History]:
    place = len(history) if start is None else ids(history).index(start)
    return history[:place], history[place:]


def is_signed(item: MessageWithParts) -> bool:
    return any(isinstance(part, ReasoningPart) and part.metadata for part in item.parts)


@given(histories(), budgets)
def test_head_and_tail_are_all_and_the_budget_holds(history: History, budget: int) -> None:
    head, tail = cut(history, select_tail(history, budget_tokens=budget))
    assert [*head, *tail] == history
    assert estimate_view(tail) <= budget
    if history:
        assert head, "something is left to be summarised"


@given(histories(), budgets)
def test_a_call_and_its_result_are_on_the_same_side(history: History, budget: int) -> None:
    _, tail = cut(history, select_tail(history, budget_tokens=budget))
    stored = [part.call_id for item in tail for part in item.parts if isinstance(part, ToolPart)]
    sent = [part for message in to_model_messages(tail) for part in message.parts]
    calls = [part for part in sent if part.kind == "tool"]
    assert [part.call_id for part in calls] == stored


@given(histories(), budgets)
def test_a_tail_never_leans_on_a_signature_that_was_cut_off(history: History, budget: int) -> None:
    head, tail = cut(history, select_tail(history, budget_tokens=budget))
    if not tail or isinstance(tail[0].message, UserMessage):
        return
    turn = [item for item in head if getattr(item.message, "parent_id", None) == _parent(tail[0])]
    assert is_signed(tail[0]) or not any(is_signed(item) for item in turn)


def _parent(item: MessageWithParts) -> str | None:
    return item.message.parent_id if isinstance(item.message, AssistantMessage) else None


@given(histories(), budgets)
def test_a_tail_takes_what_fits_whole_turns_first(history: History, budget: int) -> None:
    """One more turn would be over the budget, or there is none.

    Only the newest turn with an answer is split; behind it may stand questions without one.
    """
    head, tail = cut(history, select_tail(history, budget_tokens=budget))
    starts = [place for place, item in enumerate(history) if isinstance(item.message, UserMessage)]
    if not tail:
        fits = [place for place in starts if estimate_view(history[place:]) <= budget]
        assert not fits or min(fits) == 0
    elif isinstance(tail[0].message, UserMessage):
        older = [place for place in starts if place < len(head)]
        assert estimate_view(history[older[-1] :]) > budget
    else:
        behind = dropwhile(lambda item: not isinstance(item.message, UserMessage), tail)
        assert all(isinstance(item.message, UserMessage) for item in behind)


@given(histories(), budgets, st.integers(-1, 4))
def test_a_tail_has_at_most_so_many_turns(history: History, budget: int, most: int) -> None:
    _, tail = cut(history, select_tail(history, budget_tokens=budget, max_turns=most))
    assert sum(isinstance(item.message, UserMessage) for item in tail) <= max(most, 0)
    if most <= 0:
        assert tail == []


@given(histories(), budgets, st.integers(0, 30))
def test_a_tail_never_reaches_over_the_newest_summary(
    history: History, budget: int, seq: int
) -> None:
    _, tail = cut(history, select_tail(history, budget_tokens=budget, after_seq=seq))
    assert all(item.seq > seq for item in tail)


@given(histories(), budgets)
def test_parity_holds_its_budget_in_its_own_measure(history: History, budget: int) -> None:
    """Whole turns weigh on their own, so the sum may be over by the roundings."""
    head, tail = cut(history, select_tail(history, budget_tokens=budget, parity=True))
    assert [*head, *tail] == history
    assert estimate_view(tail) <= budget
    if history:
        assert head


def test_parity_weighs_the_json_of_a_run_to_the_character() -> None:
    """The bytes that the AI SDK's messages have, by hand: a call's result is one of its own."""
    image = FilePart(
        id="f", session_id=S, message_id="u1", mime="image/png", url="data:,AA", filename="a.png"
    )
    thought = ReasoningPart(
        id="r", session_id=S, message_id="a1", text="hm", metadata={"m": {"signature": "s"}}
    )
    failed = ToolFailed(input={}, error="no", time=ToolSpan(start=1, end=2))
    call = msgspec.structs.replace(read_file("a2"), state=failed)
    turn = [
        having(user("u1"), said("u1"), image),
        having(answer("a1", "u1"), thought, read_file("a1")),
        having(answer("a2", "u1"), call),
    ]
    named = {"toolCallId": "call_1", "toolName": "read"}
    written = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "u1"},
                {"type": "file", "mediaType": "image/png", "filename": "a.png", "data": "data:,AA"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "hm", "providerOptions": {"m": {"signature": "s"}}},
                {"type": "tool-call", **named, "input": {"path": "a.py"}},
            ],
        },
        {
            "role": "tool",
            "content": [
                {"type": "tool-result", **named, "output": {"type": "text", "value": "words"}}
            ],
        },
        {"role": "assistant", "content": [{"type": "tool-call", **named, "input": {}}]},
        {
            "role": "tool",
            "content": [
                {"type": "tool-result", **named, "output": {"type": "error-text", "value": "no"}}
            ],
        },
    ]
    exact = estimate_tokens(json.dumps(written, separators=(",", ":")))
    history = [user("u0"), answer("a0", "u0"), *turn]
    history = [msgspec.structs.replace(item, seq=n + 1) for n, item in enumerate(history)]
    assert select_tail(history, budget_tokens=exact, parity=True) == "u1"
    assert select_tail(history, budget_tokens=exact - 1, parity=True) == "a1"


def test_what_was_done_before_a_fresh_question_stays_as_far_as_it_fits() -> None:
    turn = [user("u1"), *(having(answer(f"a{n}", "u1"), said("a", "w" * 400)) for n in range(5))]
    history = [msgspec.structs.replace(one, seq=n + 1) for n, one in enumerate([*turn, user("u2")])]
    assert select_tail(history, budget_tokens=250) == "a3"
    answered = [*history, msgspec.structs.replace(answer("b", "u2"), seq=9)]
    assert select_tail(answered, budget_tokens=250) == "u2"


@pytest.mark.parametrize("parity", [False, True])
def test_weighing_looks_at_every_message_once(
    parity: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice the messages, twice the work: no candidate is weighed anew."""
    rendered = 0

    def counting(messages: History, **options: Any) -> object:
        nonlocal rendered
        rendered += len(messages)
        return to_model_messages(messages, **options)

    monkeypatch.setattr(tail_module, "to_model_messages", counting)
    history = [user("u"), *(answer(f"a{n}", "u") for n in range(300))]
    history = [msgspec.structs.replace(item, seq=n + 1) for n, item in enumerate(history)]
    assert select_tail(history, budget_tokens=100, parity=parity) is not None
    assert rendered == len(history)
