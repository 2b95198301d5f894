"""The rebuilt view is what a real engine sent: every recorded call, text for text, in order.

Each recorded call is matched to the assistant message that was newest when it was made. Left out,
with their reasons: titles (no message), summaries (their prompt is ours, not the recording's).
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.exchange.load import load
from forge_nb.history import view_at
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.render import ModelMessage, to_model_messages
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge_nb.messages.message import MessageWithParts

COMPARED = {
    "a-text": 2,
    "b-reasoning": 5,
    "c-tools": 4,
    "d-tool-errors": 14,
    "e-abort": 7,
    "f-provider-errors": 22,
    "g-compaction": 11,
    "g2-compaction-tail": 19,
    "h-summarize": 5,
    "j-subagent": 11,
    "k-files": 9,
    "t-late-subscribe": 2,
}
"""How many calls of each case are compared, 111 in all; n-long keeps too few of its calls."""

cases_with_calls = pytest.mark.parametrize("name", sorted(COMPARED))


def recorded_calls(folder: Path) -> list[dict[str, Any]]:
    lines = gzip.decompress((folder / "calls.jsonl.gz").read_bytes()).splitlines()
    calls = [json.loads(line) for line in lines]
    return [call for call in calls if call["purpose"] != "title"]


def sessions_of(store_gz: Path, folder: Path) -> dict[str, list[MessageWithParts]]:
    path = folder / "opencode.db"
    path.write_bytes(gzip.decompress(store_gz.read_bytes()))
    with open_store(folder / "forge.db") as store:
        report = load(store, path)
        assert report.skipped == ()
        assert [one for one in verify(store) if one.level == "failure"] == []
        return {one.id: list(store.messages(one.id))[::-1] for one in report.sessions}


def message_of(call: dict[str, Any], messages: list[MessageWithParts]) -> AssistantMessage:
    """Return the assistant message that was newest when the call was made."""
    at_ms = call["t"] * 1000
    made = [
        item.message
        for item in messages
        if isinstance(item.message, AssistantMessage) and item.message.time.created <= at_ms
    ]
    return max(made, key=lambda message: message.time.created)


def sent(call: dict[str, Any]) -> list[str]:
    """Return what was sent as words: who, then text; one entry per non-empty piece."""
    return [piece for message in call["messages"] for piece in _pieces(message)]


def _pieces(message: dict[str, Any]) -> Iterator[str]:
    role, content = message["role"], message.get("content")
    if message.get("reasoning_content"):
        yield f"thought: {message['reasoning_content']}"
    if role == "tool":
        yield f"result: {content}"
    elif isinstance(content, str):
        yield from [f"{role}: {content}"] if content else []
    else:
        for block in content or ():
            yield from _block(role, block)
    for call in message.get("tool_calls") or ():
        yield f"call: {call['function']['name']}"


def _block(role: str, block: dict[str, Any]) -> Iterator[str]:
    kind = block["type"]
    if kind == "text":
        yield from [f"{role}: {block['text']}"] if block["text"] else []
    elif kind == "thinking":
        yield f"thought: {block['thinking']}"
    elif kind == "tool_use":
        yield f"call: {block['name']}"
    elif kind == "tool_result":
        texts = block["content"]
        whole = texts if isinstance(texts, str) else "".join(one["text"] for one in texts)
        yield f"result: {whole}"
    else:
        yield f"file: {kind}"


def rebuilt(messages: list[ModelMessage]) -> list[str]:
    """Return a view in the same words; results follow the calls of their message, as sent."""
    return [piece for message in messages for piece in _rebuilt(message)]


def _rebuilt(message: ModelMessage) -> Iterator[str]:
    tools = [part for part in message.parts if part.kind == "tool"]
    for part in message.parts:
        if part.kind == "reasoning":
            yield from [f"thought: {part.text}"] if part.text else []
        elif part.kind == "file":
            yield "file: image_url"
        elif part.kind != "tool" and part.text:
            yield f"{message.role}: {part.text}"
    yield from (f"call: {part.tool}" for part in tools)
    yield from (f"result: {part.text}" for part in tools)


@cases_with_calls
def test_the_view_before_a_call_is_what_the_engine_sent(
    cases: Path, name: str, tmp_path: Path
) -> None:
    folder = cases / "recorded" / name
    sessions = sessions_of(folder / "store.db.gz", tmp_path)
    compared = 0
    for call in recorded_calls(folder):
        messages = sessions[call["session"]]
        message = message_of(call, messages)
        if message.is_summary:
            continue
        view = view_at(messages, message.id)
        assert rebuilt(to_model_messages(view.messages)) == sent(call), call["n"]
        compared += 1
    assert compared == COMPARED[name]


@pytest.mark.parametrize("name", ["g-compaction", "g2-compaction-tail", "h-summarize"])
def test_a_store_from_the_middle_of_the_run_gives_the_same_views(
    cases: Path, name: str, tmp_path: Path
) -> None:
    """What came later does not change what was seen earlier."""
    folder = cases / "recorded" / name
    (tmp_path / "whole").mkdir()
    whole = sessions_of(folder / "store.db.gz", tmp_path / "whole")
    compared = 0
    for number, store in enumerate(sorted(folder.glob("store-*.db.gz"))):
        (tmp_path / str(number)).mkdir()
        for session_id, messages in sessions_of(store, tmp_path / str(number)).items():
            compared += agreeing(messages, whole[session_id])
    assert compared > 3


def agreeing(then: list[MessageWithParts], now: list[MessageWithParts]) -> int:
    """Compare the views before every call that the earlier store holds; return how many."""
    calls = [item.message.id for item in then if isinstance(item.message, AssistantMessage)]
    for message_id in calls:
        views = [view_at(messages, message_id, rule="tail").messages for messages in (then, now)]
        assert rebuilt(to_model_messages(views[0])) == rebuilt(to_model_messages(views[1]))
    return len(calls)
