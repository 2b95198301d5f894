"""From what happened to rows: the one place that knows which columns an event fills.

Pure. A row change names a table by its name in `store.schema`; the store adds what only it knows:
the tenant, `seq`, `rev`, and what an earlier row keeps. `store.verify` calls the same functions
to derive the typed columns once more from a row's `data`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import StoreError
from forge_nb.events import (
    MessageRemoved,
    MessageUpdated,
    PartRemoved,
    PartUpdated,
    SessionRemoved,
    SessionUpdated,
    UsageRecorded,
)
from forge_nb.messages.codec import message_to_dict, part_to_dict, session_to_dict
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import (
    CompactionPart,
    ReasoningPart,
    StepFinishPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolPending,
)

if TYPE_CHECKING:
    from forge_nb.events import Origin, SyncEvent, UsageRecord
    from forge_nb.messages.message import Message, SessionInfo
    from forge_nb.messages.parts import Part
    from forge_nb.messages.usage import TokenUsage

__all__ = [
    "Delete",
    "RowChange",
    "Upsert",
    "entity_of",
    "json_text",
    "message_columns",
    "origin_columns",
    "part_columns",
    "payload",
    "project",
    "session_columns",
    "session_of",
    "state_of",
    "token_columns",
    "usage_columns",
]

_INT64 = 1 << 63
_UNREPORTED_FINISH = "unknown"  # with all-zero usage: a report that was lost


class Upsert(msgspec.Struct, frozen=True):
    """Insert a row, or change the one that has this key."""

    table: str
    session_id: str
    id: str
    values: dict[str, Any]
    """Columns by name, the key's own included."""


class Delete(msgspec.Struct, frozen=True):
    """Delete a row and what belongs to it; does nothing when there is none."""

    table: str
    session_id: str
    id: str


RowChange = Upsert | Delete


def project(event: SyncEvent) -> RowChange:
    """Return the change of rows that an event means.

    Parameters
    ----------
    event
        What happened.

    Raises
    ------
    StoreError
        When an id cannot be stored: it holds a NUL or half a character.
    """
    match event:
        case SessionUpdated(info=info, origin=origin):
            values = {"id": _id(info.id)} | session_columns(info) | origin_columns(origin)
            return Upsert("session", info.id, info.id, values | {"data": session_to_dict(info)})
        case MessageUpdated(message=message, origin=origin, prompt_state=state):
            values = message_columns(message) | origin_columns(origin) | {"prompt_state": state}
            return _upsert("message", message, values | {"data": message_to_dict(message)})
        case PartUpdated(part=part, origin=origin):
            values = part_columns(part) | origin_columns(origin) | {"data": part_to_dict(part)}
            return _upsert("part", part, values)
        case UsageRecorded(usage=usage):
            return _upsert("usage", usage, usage_columns(usage))
        case SessionRemoved(session_id=session_id):
            return Delete("session", session_id, session_id)
        case MessageRemoved(session_id=session_id, message_id=message_id):
            return Delete("message", session_id, message_id)
        case PartRemoved(session_id=session_id, part_id=part_id):
            return Delete("part", session_id, part_id)


def entity_of(event: SyncEvent) -> str:
    """Return the id of the row that an event is about."""
    match event:
        case SessionUpdated(info=info):
            return info.id
        case MessageUpdated(message=message):
            return message.id
        case PartUpdated(part=part):
            return part.id
        case UsageRecorded(usage=usage):
            return usage.id
        case SessionRemoved(session_id=gone):
            return gone
        case MessageRemoved(message_id=gone):
            return gone
        case PartRemoved(part_id=gone):
            return gone


def state_of(event: SyncEvent) -> str | None:
    """Return a part's status, a message's finish, a prompt's state, or a call's purpose."""
    match event:
        case MessageUpdated(message=AssistantMessage(finish=finish)):
            return _text(finish)
        case MessageUpdated(prompt_state=prompt_state):
            return prompt_state
        case PartUpdated(part=ToolPart() as part):
            return part.status
        case UsageRecorded(usage=usage):
            return usage.purpose
        case _:
            return None


def session_of(event: SyncEvent) -> str:
    """Return the id of the session that an event belongs to."""
    match event:
        case SessionUpdated(info=info):
            return info.id
        case MessageUpdated(message=message):
            return message.session_id
        case PartUpdated(part=part):
            return part.session_id
        case UsageRecorded(usage=usage):
            return usage.session_id
        case SessionRemoved() | MessageRemoved() | PartRemoved():
            return event.session_id


def payload(event: SyncEvent) -> dict[str, Any]:
    """Return an event as JSON, for a log that keeps payloads; native fields included."""
    match event:
        case SessionUpdated(info=info, origin=origin):
            return {"info": session_to_dict(info), "origin": msgspec.to_builtins(origin)}
        case MessageUpdated(message=message, origin=origin, prompt_state=state):
            written = message_to_dict(message)
            return {"info": written, "origin": msgspec.to_builtins(origin), "promptState": state}
        case PartUpdated(part=part, origin=origin):
            written = part_to_dict(part, native=True)
            return {"part": written, "origin": msgspec.to_builtins(origin)}
        case _:
            whole: dict[str, Any] = msgspec.to_builtins(event)
            return whole


def session_columns(info: SessionInfo) -> dict[str, Any]:
    """Return the typed columns of a session, without the sums over its usage."""
    return {
        "parent_id": _text(info.parent_id),
        "title": _text(info.title),
        "project_id": _text(info.project_id),
        "directory": _text(info.directory),
        "agent": _text(info.agent),
        "provider": _text(info.model.provider_id if info.model else None),
        "model": _text(info.model.id if info.model else None),
        "version": _text(info.version),
        "time_created": _int(info.time.created),
        "time_updated": _int(info.time.updated),
    }


def message_columns(message: Message) -> dict[str, Any]:
    """Return the typed columns of a message."""
    shared = {
        "agent": _text(message.agent),
        "time_created": _int(message.time.created),
        "time_completed": _int(message.time.completed),
    }
    if not isinstance(message, AssistantMessage):
        model = message.model
        return shared | {
            "role": "user",
            "parent_id": None,
            "provider": _text(model.provider_id if model else None),
            "model": _text(model.model_id if model else None),
            "mode": None,
            "is_summary": 0,
            "finish": None,
            "error": None,
            **token_columns(None),
            "cost_recorded_usd": None,
        }
    return shared | {
        "role": "assistant",
        "parent_id": _text(message.parent_id),
        "provider": _text(message.provider_id),
        "model": _text(message.model_id),
        "mode": _text(message.mode),
        "is_summary": int(message.is_summary),
        "finish": _text(message.finish),
        "error": _text(message.error.name if message.error else None),
        **token_columns(message.tokens, finish=message.finish),
        "cost_recorded_usd": message.cost,
    }


def part_columns(part: Part) -> dict[str, Any]:
    """Return the typed columns of a part, native ones included."""
    kind = part.kind
    columns: dict[str, Any] = dict.fromkeys(_PART_COLUMNS)
    columns |= token_columns(None)
    columns |= {
        "message_id": _id(part.message_id),
        "type": _text(str(kind)),
        "attempt": part.attempt,
        "discarded": int(part.discarded),
    }
    match part:
        case TextPart():
            flags = {"synthetic": _flag(part.synthetic), "ignored": _flag(part.ignored)}
            return columns | _prose_columns(part) | flags
        case ReasoningPart():
            return columns | _prose_columns(part)
        case ToolPart():
            return columns | _tool_columns(part)
        case CompactionPart():
            return columns | {
                "auto": _flag(part.auto),
                "overflow": _flag(part.overflow),
                "tail_start_id": _text(part.tail_start_id),
            }
        case StepFinishPart():
            return columns | _step_finish_columns(part)
        case _:
            return columns


def usage_columns(usage: UsageRecord) -> dict[str, Any]:
    """Return the columns of a usage record."""
    prices = usage.cost.prices
    return {
        "message_id": _text(usage.message_id),
        "purpose": usage.purpose,
        "provider": _text(usage.provider_id),
        "model": _text(usage.model_id),
        "attempt": usage.attempt,
        **token_columns(usage.tokens),
        "cost_usd": usage.cost.usd,
        "cost_recorded_usd": usage.cost_recorded_usd,
        "cost_source": usage.cost.source,
        "prices": msgspec.to_builtins(prices) if prices else None,
        "started_ms": _int(usage.started_ms),
        "finished_ms": _int(usage.finished_ms),
        "origin_id": _text(usage.origin_id),
    }


def origin_columns(origin: Origin) -> dict[str, Any]:
    """Return the columns that say where a row comes from; all None for rows written here."""
    return {
        "origin_format": _text(origin.format),
        "origin_hash": _text(origin.source_hash),
        "origin_id": _text(origin.source_id),
    }


def token_columns(tokens: TokenUsage | None, *, finish: str | None = None) -> dict[str, int | None]:
    """Return the six token columns; all None where the report was lost (zeros, finish unknown)."""
    is_lost = tokens is None or (finish == _UNREPORTED_FINISH and not tokens.is_reported)
    kinds = (None,) * 6 if tokens is None or is_lost else (*tokens.kinds, tokens.total)
    return dict(zip(_TOKEN_COLUMNS, map(_int, kinds), strict=True))


def json_text(value: Any) -> str:
    """Return JSON text; NULs and halves of characters are escaped, so that any text survives."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))


_TOKEN_COLUMNS = (
    "tokens_input",
    "tokens_output",
    "tokens_reasoning",
    "tokens_cache_read",
    "tokens_cache_write",
    "tokens_total_reported",
)

_PART_COLUMNS = (
    "message_id",
    "type",
    "tool",
    "call_id",
    "status",
    "reason",
    "cost_recorded_usd",
    "chars",
    "input_chars",
    "synthetic",
    "ignored",
    "auto",
    "overflow",
    "tail_start_id",
    "time_start",
    "time_end",
    "time_compacted",
    "attempt",
    "discarded",
    "cost_source",
    "prices",
)


def _prose_columns(part: TextPart | ReasoningPart) -> dict[str, Any]:
    span = part.time
    return {
        "chars": len(part.text),
        "time_start": _int(span.start if span else None),
        "time_end": _int(span.end if span else None),
    }


def _tool_columns(part: ToolPart) -> dict[str, Any]:
    state = part.state
    columns: dict[str, Any] = {
        "tool": _text(part.tool),
        "call_id": _text(part.call_id),
        "status": part.status,
        "input_chars": len(json_text(state.input)),
    }
    if isinstance(state, ToolPending):
        return columns
    columns |= {"time_start": _int(state.time.start), "time_end": _int(state.time.end)}
    match state:
        case ToolCompleted():
            ended = {"chars": len(state.output), "time_compacted": _int(state.time.compacted)}
            return columns | ended
        case ToolFailed():
            ended = {"chars": len(state.error), "time_compacted": _int(state.time.compacted)}
            return columns | ended
        case _:
            return columns


def _step_finish_columns(part: StepFinishPart) -> dict[str, Any]:
    return {
        "reason": _text(part.reason),
        **token_columns(part.tokens, finish=part.reason),
        "cost_recorded_usd": part.cost,
        "cost_source": _text(part.cost_source),
        "prices": msgspec.to_builtins(part.prices) if part.prices else None,
    }


def _upsert(table: str, row: Message | Part | UsageRecord, values: dict[str, Any]) -> Upsert:
    key = {"session_id": _id(row.session_id), "id": _id(row.id)}
    return Upsert(table, row.session_id, row.id, key | values)


def _flag(value: bool | None) -> int | None:  # noqa: FBT001  one value in, one out
    return None if value is None else int(value)


def _int(value: int | None) -> int | None:
    """Return a whole number that a column can hold; `data` keeps the others."""
    return value if value is not None and -_INT64 <= value < _INT64 else None


def _text(value: str | None) -> str | None:
    """Return text that every database takes: without NULs and halves of characters."""
    if value is None or value.isascii():
        return value.replace("\0", "\ufffd") if value else value
    whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")


def _id(value: str) -> str:
    """Return an id as it is; keys are never changed, so one that cannot be stored is refused."""
    if value != _text(value):
        msg = f"the id {value!r} holds a NUL or half a character; give the row another id"
        raise StoreError(msg, id=value)
    return value
