"""The normal form in which a recording and a replay of it are compared.

Left out are ids, clocks, paths of the machine, hashes of snapshots and patches, and provider
metadata; links between messages become places. What remains is what a person or a model can see.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from forge_nb.messages.message import UserMessage
from forge_nb.messages.parts import (
    AgentPart,
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolRunning,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forge_nb.messages.message import Message, MessageWithParts
    from forge_nb.messages.parts import Part
    from forge_nb.messages.usage import TokenUsage
    from tests.conformance.recording import SessionRows

__all__ = ["difference", "event_row", "normal_request", "normal_rows"]

_PATH = re.compile(r"(?:/[\w.-]+)+/([\w.-]+)")
_BLANK_LINES = re.compile(r"\n\s*\n")
_CHILD = re.compile(r"ses_[0-9A-Za-z]+")


def normal_rows(sessions: Sequence[SessionRows]) -> list[dict[str, Any]]:
    """Return sessions in normal form, in their order."""
    places = {session.info.id: f"session {n}" for n, session in enumerate(sessions)}
    return [
        {
            "parent": places.get(session.info.parent_id or ""),
            "messages": _messages(session.messages, places),
        }
        for session in sessions
    ]


def _messages(
    messages: Sequence[MessageWithParts], sessions: Mapping[str, str]
) -> list[dict[str, Any]]:
    places = {item.message.id: n for n, item in enumerate(messages)}
    return [
        {
            **_message(item.message, places),
            "parts": [_part(part, places, sessions) for part in item.parts],
        }
        for item in messages
    ]


def _message(message: Message, places: Mapping[str, int]) -> dict[str, Any]:
    if isinstance(message, UserMessage):
        return {
            "role": "user",
            "agent": message.agent,
            "model": message.model.model_id if message.model else None,
        }
    return {
        "role": "assistant",
        "answers": places.get(message.parent_id or ""),
        "agent": message.agent,
        "mode": message.mode,
        "model": message.model_id,
        "summary": message.is_summary,
        "finish": message.finish,
        "error": None if message.error is None else message.error.name,
        "error_text": None if message.error is None else message.error.data.message,
        "completed": message.time.completed is not None,
        "tokens": _tokens(message.tokens),
        "cost": _money(message.cost),
        "structured": message.structured,
    }


def _tokens(tokens: TokenUsage) -> list[int]:
    return [kind or 0 for kind in tokens.kinds]


def _money(cost: float | None) -> float:
    return round(cost or 0.0, 9)


def _part(part: Part, places: Mapping[str, int], sessions: Mapping[str, str]) -> dict[str, Any]:
    match part:
        case TextPart():
            return {
                "kind": "text",
                "text": _anonymous(part.text, sessions),
                "synthetic": bool(part.synthetic),
                "ignored": bool(part.ignored),
                "closed": part.time is None or part.time.end is not None,
            }
        case ReasoningPart():
            closed = part.time is not None and part.time.end is not None
            return {"kind": "reasoning", "text": part.text, "closed": closed}
        case ToolPart():
            return {"kind": "tool", "tool": part.tool, **_state(part, sessions)}
        case CompactionPart():
            return {
                "kind": "compaction",
                "auto": part.auto,
                "overflow": bool(part.overflow),
                "tail": places.get(part.tail_start_id or ""),
            }
        case _:
            return _plain_part(part)


def _plain_part(part: Part) -> dict[str, Any]:
    match part:
        case StepFinishPart():
            return {
                "kind": "step-finish",
                "reason": part.reason,
                "tokens": _tokens(part.tokens),
                "cost": _money(part.cost),
            }
        case FilePart():
            return {"kind": "file", "mime": part.mime, "filename": part.filename}
        case AgentPart():
            return {"kind": "agent", "name": part.name}
        case SubtaskPart():
            told = {"prompt": part.prompt, "description": part.description, "agent": part.agent}
            return {"kind": "subtask", **told}
        case PatchPart():
            return {"kind": "patch", "files": len(part.files)}
        case StepStartPart():
            return {"kind": "step-start"}
        case _:
            return {"kind": "unknown"}


def _state(part: ToolPart, sessions: Mapping[str, str]) -> dict[str, Any]:
    state = part.state
    facts: dict[str, Any] = {"status": part.status, "input": _without_paths(state.input)}
    match state:
        case ToolCompleted():
            facts["output"] = _anonymous(state.output, sessions)
            facts["title"] = _without_paths(state.title)
            facts["cleared"] = state.time.compacted is not None
        case ToolFailed():
            facts["error"] = _anonymous(state.error, sessions)
        case ToolPending() | ToolRunning():
            pass
    return facts


def _anonymous(text: str, sessions: Mapping[str, str]) -> str:
    return _CHILD.sub(lambda found: sessions.get(found.group(), "a session"), _without_paths(text))


def _without_paths(value: Any) -> Any:
    """Return a value with every absolute path cut to its last name; recordings hide the rest."""
    if isinstance(value, str):
        return _PATH.sub(r"/\1", value)
    if isinstance(value, dict):
        return {key: _without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_paths(one) for one in value]
    return value


def event_row(kind: str, data: Mapping[str, Any], places: dict[str, int]) -> tuple[str, ...] | None:
    """Return a durable event in short; None for one that floats, as a session's own do.

    Parameters
    ----------
    kind
        The event's type.
    data
        Its payload, in the family's JSON.
    places
        Places of the messages that were seen so far, by id; extended here.
    """
    if kind == "message.updated":
        info = data["info"]
        is_new = info["id"] not in places
        place = places.setdefault(info["id"], len(places))
        if info["role"] == "user":
            return ("message", str(place), "user", "new") if is_new else None
        ended = "completed" if info["time"].get("completed") else "open"
        error = (info.get("error") or {}).get("name", "")
        return ("message", str(place), "assistant", ended, info.get("finish") or "", error)
    if kind == "message.part.updated":
        part = data["part"]
        place = places.setdefault(part["messageID"], len(places))
        return ("part", str(place), part["type"], _part_state(part))
    if kind in {"message.removed", "message.part.removed"}:
        return (kind,)
    return None


def _part_state(part: Mapping[str, Any]) -> str:
    if part["type"] == "tool":
        return str(part["state"]["status"])
    if part["type"] in {"text", "reasoning"}:
        return "closed" if (part.get("time") or {}).get("end") else "open"
    return ""


def normal_request(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what a request says, adjacent words of one role joined; system prompts left out.

    Both wire formats read alike: who speaks, texts, thoughts, calls with their inputs, results.
    """
    said: list[dict[str, Any]] = []
    for piece in (piece for message in messages for piece in _pieces(message)):
        last = said[-1] if said else {"what": None, "role": None}
        if piece["what"] == last["what"] == "text" and piece["role"] == last["role"]:
            last["text"] += "\n" + piece["text"]
        else:
            said.append(piece)
    calls: dict[str, str] = {}
    for piece in said:
        if "id" in piece:
            piece["id"] = calls.setdefault(piece["id"] or "", f"call {len(calls) + 1}")
        if "text" in piece:
            joined = _BLANK_LINES.sub("\n", piece["text"])  # where texts meet, clients differ
            piece["text"] = _CHILD.sub("a session", joined)
    return [_without_paths(piece) for piece in said]


def _pieces(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role = message["role"]
    if role in {"system", "developer"}:
        return []
    if role == "tool":
        return [_result(message.get("tool_call_id"), message.get("content"))]
    pieces: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        pieces.append({"role": role, "what": "reasoning", "text": message["reasoning_content"]})
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    for block in blocks:
        pieces += _block(role, block)
    for call in message.get("tool_calls") or []:
        given = json.loads(call["function"]["arguments"] or "{}")
        pieces.append(_call(call["id"], call["function"]["name"], given))
    return pieces


def _block(role: str, block: Mapping[str, Any]) -> list[dict[str, Any]]:
    match block.get("type"):
        case "text":
            text = block["text"]
            return [{"role": role, "what": "text", "text": text}] if text.strip() else []
        case "thinking":
            return [{"role": role, "what": "reasoning", "text": block["thinking"]}]
        case "tool_use":
            return [_call(block["id"], block["name"], block["input"])]
        case "tool_result":
            return [_result(block["tool_use_id"], block.get("content"))]
        case _:
            return [{"role": role, "what": "media"}]


def _call(call_id: str, tool: str, given: Any) -> dict[str, Any]:
    return {"role": "assistant", "what": "call", "id": call_id, "tool": tool, "input": given}


def _result(call_id: str | None, content: Any) -> dict[str, Any]:
    if isinstance(content, list):
        content = "\n".join(str(block.get("text", "")) for block in content)
    return {"role": "tool", "what": "result", "id": call_id, "text": _unwrapped(content or "")}


def _unwrapped(text: str) -> str:
    """Return a failed call's words without the object that some clients put around them."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if isinstance(found, dict) and list(found) == ["error"]:
        return str(found["error"])
    return text


def difference(expected: Any, got: Any, path: str = "") -> list[str]:
    """Return every place at which two normal forms differ, in words; empty when they are equal."""
    if isinstance(expected, dict) and isinstance(got, dict):
        keys = [*expected, *(key for key in got if key not in expected)]
        return [
            line
            for key in keys
            for line in difference(expected.get(key), got.get(key), f"{path}.{key}")
        ]
    if _are_lines(expected) and _are_lines(got):
        return _line_difference(expected, got, path)
    if isinstance(expected, list) and isinstance(got, list):
        lines = [
            line
            for n, (one, other) in enumerate(zip(expected, got, strict=False))
            for line in difference(one, other, f"{path}.{n}")
        ]
        shared = min(len(expected), len(got))
        for what, rest in (("missing", expected[shared:]), ("too much", got[shared:])):
            lines += [f"{path}.{n} is {what}: {_short(x)}" for n, x in enumerate(rest, shared)]
        return lines
    return [] if expected == got else [f"{path}: {_short(expected)} became {_short(got)}"]


def _are_lines(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _line_difference(expected: list[str], got: list[str], path: str) -> list[str]:
    """Compare lists of lines as a diff does: what is missing, too much, or somewhere else."""
    matcher = difflib.SequenceMatcher(a=expected, b=got, autojunk=False)
    gone: list[str] = []
    new: list[str] = []
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag != "equal":
            gone += expected[start:end]
            new += got[other_start:other_end]
    moved = [line for line in gone if line in new]
    lines = [f"{path}: moved {line!r}" for line in moved]
    for line in moved:
        gone.remove(line)
        if line in new:
            new.remove(line)
    lines += [f"{path}: missing {_short(line)}" for line in gone]
    return lines + [f"{path}: too much {_short(line)}" for line in new]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 160 else f"{text[:157]}..."
