"""Give sessions back as the family's JSON: key for key what came in, and what was added here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_nb.messages.codec import message_to_dict, part_to_dict, session_to_dict
from forge_nb.messages.message import AssistantMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.store.base import Store, StoredSession

__all__ = ["export_session"]

_NO_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}


def export_session(
    store: Store, session_id: str, *, as_imported: bool = False, native: bool = False
) -> dict[str, Any]:
    """Return a session in the shape of ``opencode export``.

    Parameters
    ----------
    store
        Where it lives.
    session_id
        Which session.
    as_imported
        Leave out what was written here, and give the metadata as it came.
    native
        Add what only this package knows, in keys that begin with a dollar sign.

    Returns
    -------
    dict
        ``{"info": …, "messages": [{"info": …, "parts": […]}]}``; messages in their order.
    """
    stored = store.session(session_id)
    imported = store.imported_ids(session_id)
    messages = list(store.messages(session_id))[::-1]
    if as_imported:
        messages = [item for item in messages if item.message.id in imported]
    return {
        "info": _info(store, stored, as_imported=as_imported),
        "messages": [_message(item, imported, native=native) for item in messages],
    }


def _info(store: Store, stored: StoredSession, *, as_imported: bool) -> dict[str, Any]:
    """Return the metadata; a session that was written to here carries its own sums."""
    if as_imported:
        return store.imported_info(stored.info.id) or session_to_dict(stored.info)
    info = session_to_dict(stored.info)
    if not stored.has_local_rows:
        return info
    tokens = stored.tokens
    info["cost"] = stored.cost_usd or 0
    info["tokens"] = {
        "input": tokens.input or 0,
        "output": tokens.output or 0,
        "reasoning": tokens.reasoning or 0,
        "cache": {"read": tokens.cache_read or 0, "write": tokens.cache_write or 0},
    }
    return info


def _message(item: MessageWithParts, imported: Iterable[str], *, native: bool) -> dict[str, Any]:
    info = message_to_dict(item.message)
    if item.message.id not in imported and isinstance(item.message, AssistantMessage):
        info = _filled(info)
    parts = [part_to_dict(part, native=native) for part in item.parts]
    parts = [
        _filled(part) if part["type"] == "step-finish" and part["id"] not in imported else part
        for part in parts
    ]
    return {"info": info, "parts": parts}


def _filled(raw: dict[str, Any]) -> dict[str, Any]:
    """Add the numbers that the family requires and we do not know; there they are 0."""
    tokens = raw.get("tokens") or {}
    cache = _NO_TOKENS["cache"] | tokens.get("cache", {})
    return raw | {"cost": raw.get("cost", 0), "tokens": _NO_TOKENS | tokens | {"cache": cache}}
