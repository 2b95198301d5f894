from __future__ import annotations

import json
from typing import Any

import pytest

from forge_nb.errors import StoreError
from forge_nb.events import (
    MessageRemoved,
    MessageUpdated,
    PartRemoved,
    PartUpdated,
    SessionRemoved,
)
from forge_nb.messages.message import AssistantMessage, ErrorData, MessageError, MessageTime
from forge_nb.messages.parts import (
    CompactionPart,
    Span,
    StepFinishPart,
    TextPart,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolSpan,
    UnknownPart,
)
from forge_nb.messages.usage import CacheTokens, TokenUsage
from forge_nb.projection import (
    Delete,
    Upsert,
    entity_of,
    json_text,
    message_columns,
    part_columns,
    payload,
    project,
    session_columns,
    session_of,
    state_of,
)
from tests.contracts.store_events import SESSION, asked, conversation, said, session, step_finish

ZEROS = TokenUsage(input=0, output=0, reasoning=0, cache=CacheTokens(read=0, write=0))
FACTS: dict[str, Any] = {"id": "prt_1", "session_id": SESSION, "message_id": "msg_1"}


def test_an_update_is_an_upsert_of_its_table() -> None:
    changes = [project(event) for event in conversation()]
    assert [change.table for change in changes] == [
        "session",
        "message",
        "part",
        "message",
        "part",
        "part",
        "usage",
    ]
    assert all(isinstance(change, Upsert) for change in changes)


def test_a_removal_is_a_delete() -> None:
    assert project(SessionRemoved(session_id="s")) == Delete("session", "s", "s")
    assert project(MessageRemoved(session_id="s", message_id="m")) == Delete("message", "s", "m")
    gone = PartRemoved(session_id="s", message_id="m", part_id="p")
    assert project(gone) == Delete("part", "s", "p")
    assert (entity_of(gone), session_of(gone), state_of(gone)) == ("p", "s", None)


def test_data_is_the_familys_json_and_native_facts_are_columns() -> None:
    change = project(PartUpdated(part=step_finish("msg_b")))
    assert isinstance(change, Upsert)
    assert not [name for name in change.values["data"] if name.startswith("$")]
    assert change.values["cost_source"] == "computed"
    assert change.values["prices"] == {"input": 3.0, "output": 15.0, "source": "scripted"}


def test_a_lost_report_is_unknown_and_not_zero() -> None:
    finish = StepFinishPart(**FACTS, reason="unknown", cost=0.0, tokens=ZEROS)
    assert part_columns(finish)["tokens_input"] is None
    finish = StepFinishPart(**FACTS, reason="stop", cost=0.0, tokens=ZEROS)
    assert part_columns(finish)["tokens_input"] == 0


def test_tool_columns() -> None:
    state = ToolFailed(input={"a": "é"}, error="no", time=ToolSpan(start=1, end=2, compacted=3))
    columns = part_columns(ToolPart(**FACTS, call_id="c", tool="read", state=state))
    names = ("status", "tool", "chars", "input_chars", "time_start", "time_end", "time_compacted")
    assert [columns[name] for name in names] == ["error", "read", 2, 9, 1, 2, 3]
    pending = ToolPart(**FACTS, call_id="c", tool="read", state=ToolPending(input={}))
    assert part_columns(pending)["time_start"] is None


def test_text_and_compaction_columns() -> None:
    text = TextPart(**FACTS, text="𝄞a", synthetic=True, time=Span(start=1))
    columns = part_columns(text)
    assert (columns["chars"], columns["synthetic"], columns["ignored"]) == (2, 1, None)
    columns = part_columns(CompactionPart(**FACTS, auto=False, tail_start_id="msg_9"))
    assert (columns["auto"], columns["overflow"], columns["tail_start_id"]) == (0, None, "msg_9")


def test_every_kind_fills_the_same_columns() -> None:
    parts = [event.part for event in conversation() if isinstance(event, PartUpdated)]
    unknown = UnknownPart(**FACTS, kind="hologram", extra={"type": "hologram"})
    assert len({frozenset(part_columns(part)) for part in [*parts, unknown]}) == 1
    messages = [event.message for event in conversation() if isinstance(event, MessageUpdated)]
    assert len({frozenset(message_columns(message)) for message in messages}) == 1


def test_message_columns() -> None:
    error = MessageError(name="APIError", data=ErrorData(message="x"))
    message = AssistantMessage(
        id="m", session_id="s", time=MessageTime(created=1), summary=True, error=error
    )
    columns = message_columns(message)
    assert (columns["role"], columns["is_summary"], columns["error"]) == (
        "assistant",
        1,
        "APIError",
    )


@pytest.mark.parametrize(
    ("text", "stored"), [("a\0", "a\ufffd"), ("\ud800x", "\ufffdx"), ("é\0", "é\ufffd"), ("", "")]
)
def test_column_text_is_what_every_database_takes(text: str, stored: str) -> None:
    assert session_columns(session(title=text).info)["title"] == stored


def test_an_id_is_never_changed_so_a_bad_one_is_refused() -> None:
    for event in (asked("a\0"), said("m\ud800", "x"), session("\0")):
        with pytest.raises(StoreError, match="give the row another id"):
            project(event)


def test_json_text_escapes_what_text_cannot_hold() -> None:
    assert json_text({"a": "\0é"}) == '{"a":"\\u0000é"}'
    assert json.loads(json_text(["\ud800"])) == ["\ud800"]


def test_a_payload_has_the_native_facts() -> None:
    written = payload(PartUpdated(part=step_finish("msg_b")))
    assert written["part"]["$costSource"] == "computed"
    assert all(payload(event) for event in conversation())
