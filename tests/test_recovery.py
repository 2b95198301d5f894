"""What a crash left open is closed, word for word, and nothing else is touched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forge_nb.clock import system_clock
from forge_nb.events import MessageUpdated, PartUpdated, SyncEvent
from forge_nb.messages.message import AssistantMessage, MessageTime
from forge_nb.messages.parts import (
    FilePart,
    ReasoningPart,
    Span,
    TextPart,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolRunning,
)
from forge_nb.recovery import closed_part, recover, repairs
from forge_nb.workbench import Workbench
from tests.helpers import Saying, text, workbench

BASE: dict[str, Any] = {"session_id": "s", "message_id": "m"}


def test_text_and_reasoning_keep_what_they_hold_and_get_an_end() -> None:
    words = TextPart(id="t", text="half", time=Span(start=1), **BASE)
    thought = ReasoningPart(id="r", text="why", time=Span(start=2), metadata={"s": 1}, **BASE)
    for part in (words, thought):
        closed = closed_part(part, 9)
        assert isinstance(closed, TextPart | ReasoningPart)
        assert closed.text == part.text
        assert closed.time == Span(start=part.time.start if part.time else 0, end=9)
        assert closed.metadata == part.metadata


@pytest.mark.parametrize(
    ("state", "start", "metadata"),
    [
        (ToolPending(input={}, raw=""), 9, {"interrupted": True}),
        (ToolRunning(input={"a": 1}, time=Span(start=3)), 3, {"interrupted": True}),
        (
            ToolRunning(input={"a": 1}, time=Span(start=3), metadata={"output": "so far"}),
            3,
            {"output": "so far", "interrupted": True},
        ),
    ],
)
def test_a_tool_becomes_an_error_that_keeps_its_input_and_output(
    state: ToolPending | ToolRunning, start: int, metadata: dict[str, Any]
) -> None:
    closed = closed_part(ToolPart(id="x", call_id="c", tool="look", state=state, **BASE), 9)
    assert isinstance(closed, ToolPart)
    assert isinstance(closed.state, ToolFailed)
    assert closed.state.error == "Tool execution aborted"
    assert closed.state.input == state.input
    assert (closed.state.time.start, closed.state.time.end) == (start, 9)
    assert closed.state.metadata == metadata


def test_other_parts_stay_as_they_are() -> None:
    part = FilePart(id="f", mime="text/plain", url="file:///a", **BASE)
    assert closed_part(part, 9) is part


def crashed(wb: Any) -> Any:
    """Return a session that looks as after a crash: an open answer behind a question."""
    conversation = wb.session("t")
    asyncio.run(conversation.prompt("go"))
    session = conversation.id
    message = AssistantMessage(id="msg_cut", session_id=session, time=MessageTime(created=5))
    part = TextPart(
        id="prt_cut", session_id=session, message_id="msg_cut", text="", time=Span(start=5)
    )
    [question] = [item for item in conversation.messages() if item.message.id != "msg_cut"][:1]
    events: list[SyncEvent] = [
        MessageUpdated(message=message),
        PartUpdated(part=part),
        MessageUpdated(message=question.message, prompt_state="taken"),
    ]
    wb.store.apply(events).result()
    return conversation


def test_recovery_says_what_it_closed_and_does_nothing_the_second_time() -> None:
    with workbench(Saying(text("one"))) as wb:
        conversation = crashed(wb)
        report = recover(wb.store, conversation.id, now_ms=77)
        assert (report.messages, report.parts, report.prompts) == (1, 1, 1)
        item = wb.store.message(conversation.id, "msg_cut")
        assert isinstance(item.message, AssistantMessage)
        assert item.message.time.completed == 77
        assert (item.message.finish, item.message.error) == (None, None)
        assert repairs(item, now_ms=78) == []
        again = recover(wb.store, conversation.id, now_ms=78)
        assert (again.messages, again.parts) == (0, 0)
        assert len(wb.store.prompts(conversation.id, "waiting")) == 1


def test_a_session_that_somebody_runs_is_left_alone_when_a_workbench_opens(tmp_path: Any) -> None:
    path = tmp_path / "forge.db"
    with Workbench(path, model="scripted:hello") as wb:
        conversation = crashed(wb)
        wb.store.acquire_lease(conversation.id, "other:1", now_ms=system_clock())
        with Workbench(path) as other:
            item = other.store.message(conversation.id, "msg_cut")
            assert isinstance(item.message, AssistantMessage)
            assert item.message.time.completed is None
        wb.store.release_lease(conversation.id, "other:1")
        with Workbench(path) as other:
            item = other.store.message(conversation.id, "msg_cut")
            assert isinstance(item.message, AssistantMessage)
            assert item.message.time.completed is not None
