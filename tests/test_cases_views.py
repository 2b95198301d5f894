"""The rebuilt view is what a real engine sent: every recorded call, word for word, in order.

Each recorded call is matched to the assistant message of its session that was newest when it was
made; a retry makes several calls for one message. Compared are roles, texts, thoughts, calls with
their ids and inputs, results with theirs, and the addresses of files. Not compared are system
prompts and tool schemas (not recorded), cache marks and signatures (a provider adds them), and
where one role's texts are joined into one message.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from forge_nb.exchange.load import load
from forge_nb.history import view_at
from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import CompactionPart, ModelRef
from forge_nb.messages.record import CONVERSATION, conversation_text, tagged
from forge_nb.messages.render import ModelMessage, to_model_messages
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge_nb.history import View
    from forge_nb.messages.message import MessageWithParts


class Calls(NamedTuple):
    """How many calls a case holds of each kind."""

    turns: int
    """Compared word for word."""
    summaries: int = 0
    """Their prompt is a text of the engine's own; the conversation in it is compared."""
    titles: int = 1
    """Left out: a title's call belongs to no message."""


CASES = {
    "a-text": Calls(2),
    "b-reasoning": Calls(5, titles=2),
    "c-tools": Calls(4),
    "d-tool-errors": Calls(14, titles=3),
    "e-abort": Calls(7),
    "f-provider-errors": Calls(22),
    "g-compaction": Calls(11, summaries=3),
    "g2-compaction-tail": Calls(19, summaries=3),
    "h-summarize": Calls(5, summaries=2),
    "j-subagent": Calls(11),
    "k-files": Calls(9, summaries=1),
    "n-long": Calls(4),
    "t-late-subscribe": Calls(2),
}
"""All recorded calls: 115 turns, 9 summaries, 16 titles. None disagrees."""

every_case = pytest.mark.parametrize("name", sorted(CASES))
cases_with_summaries = pytest.mark.parametrize(
    "name", [name for name, calls in CASES.items() if calls.summaries]
)


def recorded_calls(folder: Path) -> list[dict[str, Any]]:
    lines = gzip.decompress((folder / "calls.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


def own_calls(folder: Path) -> list[dict[str, Any]]:
    return [call for call in recorded_calls(folder) if call["purpose"] == "queue"]


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
        yield f"result {message['tool_call_id']}: {content}"
    elif isinstance(content, str):
        yield from [f"{role}: {content}"] if content else []
    else:
        for block in content or ():
            yield from _block(role, block)
    for call in message.get("tool_calls") or ():
        named = call["function"]
        yield _call(call["id"], named["name"], json.loads(named["arguments"]))


def _block(role: str, block: dict[str, Any]) -> Iterator[str]:
    match block["type"]:
        case "text":
            yield from [f"{role}: {block['text']}"] if block["text"] else []
        case "thinking":
            yield f"thought: {block['thinking']}"
        case "tool_use":
            yield _call(block["id"], block["name"], block["input"])
        case "tool_result":
            texts = block["content"]
            whole = texts if isinstance(texts, str) else "".join(one["text"] for one in texts)
            yield f"result {block['tool_use_id']}: {whole}"
        case "image_url":
            yield f"file: {block['image_url']['url']}"
        case kind:
            pytest.fail(f"a block of kind {kind!r} is compared with nothing")


def _call(call_id: str | None, name: str | None, arguments: object) -> str:
    return f"call {call_id}: {name} {json.dumps(arguments, sort_keys=True)}"


def rebuilt(messages: list[ModelMessage]) -> list[str]:
    """Return a view in the same words; results follow the calls of their message, as sent."""
    return [piece for message in messages for piece in _rebuilt(message)]


def _rebuilt(message: ModelMessage) -> Iterator[str]:
    tools = [part for part in message.parts if part.kind == "tool"]
    for part in message.parts:
        if part.kind == "reasoning":
            yield from [f"thought: {part.text}"] if part.text else []
        elif part.kind == "file":
            yield f"file: {part.url}"
        elif part.kind != "tool" and part.text:
            yield f"{message.role}: {part.text}"
    yield from (_call(part.call_id, part.tool, part.input) for part in tools)
    yield from (f"result {part.call_id}: {part.text}" for part in tools)


def model_of(message: AssistantMessage) -> ModelRef:
    assert message.provider_id is not None
    assert message.model_id is not None
    return ModelRef(provider_id=message.provider_id, model_id=message.model_id)


@every_case
@pytest.mark.parametrize("parity", [False, True], ids=["default", "parity"])
def test_the_view_before_a_call_is_what_the_engine_sent(
    cases: Path,
    name: str,
    tmp_path: Path,
    parity: bool,  # noqa: FBT001
) -> None:
    folder = cases / "recorded" / name
    sessions = sessions_of(folder / "store.db.gz", tmp_path)
    compared = 0
    for call in own_calls(folder):
        message = message_of(call, sessions[call["session"]])
        if message.is_summary:
            continue
        view = view_at(sessions[call["session"]], message.id)
        target = model_of(message)
        ours = to_model_messages(view.messages, target=target, parity=parity)
        assert rebuilt(ours) == sent(call), call["n"]
        compared += 1
    assert compared == CASES[name].turns


@every_case
def test_every_recorded_call_is_accounted_for(cases: Path, name: str) -> None:
    calls = recorded_calls(cases / "recorded" / name)
    titles = sum(call["purpose"] == "title" for call in calls)
    assert titles == CASES[name].titles
    assert len(calls) == sum(CASES[name])


def test_the_table_names_every_recorded_case(cases: Path) -> None:
    assert {path.parent.name for path in cases.glob("recorded/*/calls.jsonl.gz")} == set(CASES)


@cases_with_summaries
def test_the_view_at_a_summary_is_the_conversation_that_was_summarised(
    cases: Path, name: str, tmp_path: Path
) -> None:
    """Every character of it, up to the tail or the question that waits to be replayed."""
    folder = cases / "recorded" / name
    sessions = sessions_of(folder / "store.db.gz", tmp_path)
    compared = 0
    for call in own_calls(folder):
        messages = sessions[call["session"]]
        message = message_of(call, messages)
        if not message.is_summary:
            continue
        view = view_at(messages, message.id)
        [prompt] = sent(call)
        asked = prompt.partition("<conversation>\n")[2]
        conversation, _, prior = asked.partition("\n</conversation>")
        head = to_model_messages(summarised(view, message, messages), as_data=True)
        assert conversation_text(head, tool_output_max_chars=2_000) == conversation, call["n"]
        assert tagged(CONVERSATION, conversation) in prompt
        assert ("<prior-summary>" in prior) == bool(view.boundaries)
        compared += 1
    assert compared == CASES[name].summaries


def summarised(
    view: View, summary: AssistantMessage, messages: list[MessageWithParts]
) -> list[MessageWithParts]:
    """Return a view without the last boundary's pair and what stayed out of the summary."""
    [asked] = [
        part
        for item in messages
        if item.message.id == summary.parent_id
        for part in item.parts
        if isinstance(part, CompactionPart)
    ]
    pairs = {name for one in view.boundaries for name in (one.request_id, one.summary_id)}
    head = [item for item in view.messages if item.message.id not in pairs]
    ids = [item.message.id for item in head]
    if asked.overflow:
        return head[: max(n for n, one in enumerate(head) if isinstance(one.message, UserMessage))]
    return head if asked.tail_start_id is None else head[: ids.index(asked.tail_start_id)]


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
