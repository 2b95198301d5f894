"""From rows back to values, and JSON columns in and out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import ForgeError, StoreError
from forge_nb.events import Origin, UsageRecord
from forge_nb.messages.codec import message_from_dict, part_from_dict, session_from_dict
from forge_nb.messages.message import MessageWithParts
from forge_nb.messages.parts import StepFinishPart
from forge_nb.messages.usage import CacheTokens, Cost, TokenUsage, UnitPrices
from forge_nb.store.base import StoredSession

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge_nb.messages.message import Message
    from forge_nb.messages.parts import Part

__all__ = [
    "json_value",
    "message_of",
    "origin_of",
    "part_of",
    "prices_of",
    "session_of_row",
    "tokens_of",
    "usage_of",
    "with_parts",
]


def json_value(text: str | bytes) -> Any:
    """Read JSON text that `projection.json_text` wrote."""
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return json.loads(text)  # takes halves of characters, which msgspec refuses


def message_of(row: Any) -> Message:
    """Return the message of a row with `data`."""
    try:
        return message_from_dict(row.data)
    except ForgeError as error:
        raise _damaged("message", row.id, error) from error


def part_of(row: Any) -> Part:
    """Return the part of a row; what only this package knows comes from the columns."""
    try:
        part = part_from_dict(row.data)
    except ForgeError as error:
        raise _damaged("part", row.id, error) from error
    native: dict[str, Any] = {}
    if row.attempt != 1 or row.discarded:
        native = {"attempt": row.attempt, "discarded": bool(row.discarded)}
    if isinstance(part, StepFinishPart) and (row.prices or row.cost_source):
        native["prices"] = prices_of(row.prices)
        native["cost_source"] = row.cost_source
    return msgspec.structs.replace(part, **native) if native else part


def with_parts(rows: Iterable[Any], part_rows: Iterable[Any]) -> tuple[MessageWithParts, ...]:
    """Return messages in the order of `rows`, each with its parts in the order of `part_rows`."""
    parts: dict[str, list[Any]] = {}
    for row in part_rows:
        parts.setdefault(row.message_id, []).append(row)
    return tuple(
        MessageWithParts(
            message=message_of(row),
            parts=tuple(part_of(part) for part in parts.get(row.id, ())),
            seq=row.seq,
            part_seqs=tuple(part.seq for part in parts.get(row.id, ())),
        )
        for row in rows
    )


def session_of_row(row: Any) -> StoredSession:
    """Return a session row."""
    try:
        info = session_from_dict(row.data)
    except ForgeError as error:
        raise _damaged("session", row.id, error) from error
    return StoredSession(
        info=info,
        origin=origin_of(row),
        seq=row.seq,
        rev=row.rev,
        tokens=tokens_of(row),
        cost_usd=row.cost_usd,
        has_local_rows=bool(row.has_local_rows),
    )


def usage_of(row: Any) -> UsageRecord:
    """Return a usage record."""
    return UsageRecord(
        id=row.id,
        session_id=row.session_id,
        message_id=row.message_id,
        purpose=row.purpose,
        provider_id=row.provider,
        model_id=row.model,
        tokens=tokens_of(row),
        cost=Cost(
            usd=row.cost_usd, source=row.cost_source or "unknown", prices=prices_of(row.prices)
        ),
        cost_recorded_usd=row.cost_recorded_usd,
        attempt=row.attempt,
        started_ms=row.started_ms,
        finished_ms=row.finished_ms,
        origin_id=row.origin_id,
    )


def tokens_of(row: Any) -> TokenUsage:
    """Return the typed token columns of a row as a value."""
    return TokenUsage(
        input=row.tokens_input,
        output=row.tokens_output,
        reasoning=row.tokens_reasoning,
        cache=CacheTokens(read=row.tokens_cache_read, write=row.tokens_cache_write),
        total=row.tokens_total_reported,
    )


def origin_of(row: Any) -> Origin:
    """Return where a row comes from."""
    return Origin(format=row.origin_format, source_hash=row.origin_hash, source_id=row.origin_id)


def prices_of(raw: dict[str, Any] | None) -> UnitPrices | None:
    """Return unit prices of a JSON column."""
    return None if raw is None else msgspec.convert(raw, UnitPrices)


def _damaged(kind: str, key: str, error: ForgeError) -> StoreError:
    msg = f"the stored {kind} {key!r} cannot be read: {error}; run verify on the store"
    return StoreError(msg, kind=kind, id=key)
