"""What a request asks, without ids: its key on a tape, and where two requests differ."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.providers.secrets import Secrets

if TYPE_CHECKING:
    from forge_nb.messages.render import ModelMessage, ModelPart
    from forge_nb.providers.base import ModelRequest

__all__ = ["asked_of", "encoded", "first_difference", "key_of", "piece_hash", "request_key"]

_KEY_CHARS = 16
_AROUND = 24  # characters of both texts that an error shows


def request_key(request: ModelRequest) -> str:
    """Return a short hash of what a request asks.

    Left out: ids of messages, parts and calls, the model's name, how tools are described.
    """
    return key_of(asked_of(request))


def key_of(asked: Any) -> str:
    """Return the key of what was asked."""
    return hashlib.sha256(encoded(asked)).hexdigest()[:_KEY_CHARS]


def piece_hash(piece: Any) -> str:
    """Return a short hash by which a message is named on a tape."""
    return hashlib.sha256(encoded(piece)).hexdigest()[:_KEY_CHARS]


def asked_of(request: ModelRequest) -> dict[str, Any]:
    """Return what a request asks, as values of JSON's types, secrets taken out."""
    asked = {
        "purpose": request.purpose,
        "system": list(request.system),
        "messages": [_message(message) for message in request.messages],
        "tools": [spec.name for spec in request.tools],
        "tool_choice": request.tool_choice,
    }
    cleaned = Secrets().without(msgspec.to_builtins(asked))
    whole: dict[str, Any] = msgspec.json.decode(encoded(cleaned))
    return whole


def _message(message: ModelMessage) -> dict[str, Any]:
    return {"role": message.role, "parts": [_part(part) for part in message.parts]}


def _part(part: ModelPart) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": part.kind, "text": part.text}
    if part.kind == "tool":
        said |= {"tool": part.tool, "input": part.input, "is_error": part.is_error}
    if part.url is not None:
        said |= {"mime": part.mime, "url": part.url}
    return said


def encoded(row: Any) -> bytes:
    """Write a row; half a character, which no encoder takes, becomes a question mark."""
    try:
        return msgspec.json.encode(row)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(row), ensure_ascii=False).encode("utf-8", "replace")


def first_difference(recorded: Any, asked: Any, *, at: str = "") -> str | None:
    """Return where two values of JSON's types first differ, and how; None when they do not.

    Examples
    --------
    >>> first_difference({"a": ["x", "yes"]}, {"a": ["x", "yet"]})
    "a[1], character 2: recorded 'yes', asked 'yet'"
    """
    if isinstance(recorded, dict) and isinstance(asked, dict):
        return _first_of_dicts(recorded, asked, at)
    if isinstance(recorded, list) and isinstance(asked, list):
        return _first_of_lists(recorded, asked, at)
    if recorded == asked and type(recorded) is type(asked):
        return None
    if isinstance(recorded, str) and isinstance(asked, str):
        place = _first_char(recorded, asked)
        words = f"recorded {_around(recorded, place)}, asked {_around(asked, place)}"
        return f"{at or 'text'}, character {place}: {words}"
    return f"{at or 'value'}: recorded {_short(recorded)}, asked {_short(asked)}"


def _first_of_dicts(recorded: dict[str, Any], asked: dict[str, Any], at: str) -> str | None:
    for name in dict.fromkeys([*recorded, *asked]):
        place = f"{at}.{name}" if at else name
        if name not in recorded or name not in asked:
            has, lacks = ("asked", "recorded") if name in asked else ("recorded", "asked")
            return f"{place}: {has} has it, {lacks} does not"
        found = first_difference(recorded[name], asked[name], at=place)
        if found is not None:
            return found
    return None


def _first_of_lists(recorded: list[Any], asked: list[Any], at: str) -> str | None:
    for place, (left, right) in enumerate(zip(recorded, asked, strict=False)):
        found = first_difference(left, right, at=f"{at}[{place}]")
        if found is not None:
            return found
    if len(recorded) == len(asked):
        return None
    shared = min(len(recorded), len(asked))
    who, more = ("recorded", recorded) if len(recorded) > shared else ("asked", asked)
    counts = f"recorded {len(recorded)}, asked {len(asked)}"
    return f"{at}: {counts}; {who} goes on with {_short(more[shared])}"


def _first_char(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(left), len(right)))


def _around(text: str, place: int) -> str:
    start, end = max(0, place - _AROUND), place + _AROUND
    shown = text[start:end]
    return repr(f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}")


def _short(value: Any) -> str:
    text = encoded(value).decode()
    limit = 3 * _AROUND
    return text if len(text) <= limit else f"{text[:limit]}…"
