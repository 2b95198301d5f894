"""JSON in and out: messages, parts and sessions as the family writes them.

Reading keeps unknown kinds and unknown fields, writing gives them back: for every JSON object `x`
that can be read, ``part_to_dict(part_from_dict(x)) == x`` (`tests/properties/test_codec.py`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from forge_nb.errors import ExchangeError
from forge_nb.messages.message import AssistantMessage, Message, SessionInfo, UserMessage
from forge_nb.messages.parts import NATIVE_KEYS, PART_KINDS, KnownPart, Part, UnknownPart
from forge_nb.messages.value import EXTRA_KEY, Value, merge, residue

__all__ = [
    "message_from_dict",
    "message_to_dict",
    "part_from_dict",
    "part_to_dict",
    "session_from_dict",
    "session_to_dict",
]

_UNKNOWN_REQUIRED = ("id", "sessionID", "messageID")
_TOOL_STATUSES = ("pending", "running", "completed", "error")  # a list cannot be sought in a set

_V = TypeVar("_V", bound=Value)


def part_from_dict(raw: dict[str, Any]) -> Part:
    """Read one part.

    Parameters
    ----------
    raw
        The JSON object, with ``id``, ``sessionID`` and ``messageID``.

    Raises
    ------
    ExchangeError
        When a known kind lacks a field or has one of the wrong type; says which.
    """
    if not _is_known(raw):
        return _unknown_part(raw)
    part: KnownPart = _convert(raw, KnownPart)
    return _with_extra(part, raw)


def part_to_dict(part: Part, *, native: bool = False) -> dict[str, Any]:
    """Write one part; `native` adds the fields that only this package has."""
    if isinstance(part, UnknownPart):
        return {**part.extra, **_native_of(part)} if native else dict(part.extra)
    written = _write(part)
    if not native:
        for name in NATIVE_KEYS:
            written.pop(name, None)
    return written


def message_from_dict(raw: dict[str, Any]) -> Message:
    """Read one message (the ``info`` object of an export).

    Raises
    ------
    ExchangeError
        When the role is not user or assistant, or a field is missing or of the wrong type.
    """
    message: Message = _convert(raw, Message)
    return _with_extra(message, raw)


def message_to_dict(message: Message) -> dict[str, Any]:
    """Write one message."""
    return _write(message)


def session_from_dict(raw: dict[str, Any]) -> SessionInfo:
    """Read a session's metadata (the top ``info`` object of an export)."""
    info: SessionInfo = _convert(raw, SessionInfo)
    return _with_extra(info, raw)


def session_to_dict(info: SessionInfo) -> dict[str, Any]:
    """Write a session's metadata."""
    return _write(info)


def _is_known(raw: dict[str, Any]) -> bool:
    kind = raw.get("type")
    if kind != "tool":
        return kind in PART_KINDS
    state = raw.get("state")
    return isinstance(state, dict) and state.get("status") in _TOOL_STATUSES


def _unknown_part(raw: dict[str, Any]) -> UnknownPart:
    missing = [name for name in _UNKNOWN_REQUIRED if not isinstance(raw.get(name), str)]
    if missing:
        msg = f"a part of kind {raw.get('type')!r} has no text in {missing}; every part needs them"
        raise ExchangeError(msg, place=f"$.{missing[0]}")
    return UnknownPart(
        id=raw["id"],
        session_id=raw["sessionID"],
        message_id=raw["messageID"],
        kind=str(raw.get("type")),
        extra=dict(raw),
    )


def _convert(raw: dict[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        place = str(error).rpartition("`")[0].rpartition("`")[2] or "$"
        msg = f"{error}; got an object with keys {sorted(raw)[:12]}"
        raise ExchangeError(msg, place=place) from error


def _with_extra(value: _V, raw: dict[str, Any]) -> _V:
    left = residue(raw, msgspec.to_builtins(value))
    return msgspec.structs.replace(value, extra=left) if left else value


def _write(value: UserMessage | AssistantMessage | SessionInfo | Part) -> dict[str, Any]:
    written: dict[str, Any] = msgspec.to_builtins(value)
    extra = written.pop(EXTRA_KEY, None)
    return merge(written, extra) if extra else written


def _native_of(part: UnknownPart) -> dict[str, Any]:
    return {"$attempt": part.attempt, "$discarded": part.discarded}
