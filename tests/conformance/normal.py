"""The normal form of events and requests, and how two normal forms are compared."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from tests.conformance.normal_rows import anonymous, without_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["difference", "event_row", "floating_row", "normal_request"]

_BLANK_LINES = re.compile(r"\n\s*\n")


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


def floating_row(kind: str, data: Mapping[str, Any], places: dict[str, int]) -> str | None:
    """Return a durable event that may come at any time in short; None for any other.

    A session's own events and the changes that are noted in a question come from work beside the
    turn. Parameters as for `event_row`.
    """
    if kind in {"session.created", "session.updated"}:
        return "session"
    if kind != "message.updated":
        return None
    info = data["info"]
    place = places.setdefault(info["id"], len(places))
    return f"changes noted in {place}" if isinstance(info.get("summary"), dict) else None


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
            piece["text"] = anonymous(joined, {})
    return [without_paths(piece) for piece in said]


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
