"""What a provider needs back with a part, as opencode's family stores it.

Under the provider's name: Anthropic's signature of reasoning, OpenAI's ids of items and encrypted
reasoning. Sessions that opencode wrote can so be gone on with here, and ours there.

=================================  ==========================================================
pydantic-ai                        stored
=================================  ==========================================================
``signature`` (Anthropic)          ``{"anthropic": {"signature"}}``
``id="redacted_thinking"``         ``{"anthropic": {"redactedData"}}``: the signature is all of it
``id``, ``signature`` (Responses)  ``{"openai": {"itemId", "reasoningEncryptedContent"}}``
``id`` of a chat's reasoning       nothing where it is the usual field, else
                                   ``{"openai": {"reasoningField"}}``
``provider_details``               ``"providerDetails"`` beside the others
=================================  ==========================================================
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CHAT_FIELD", "from_stored", "to_stored"]

CHAT_FIELD = "reasoning_content"
"""Where most servers that speak chat completions put reasoning."""

_REDACTED = "redacted_thinking"  # pydantic-ai's id of it
_PROVIDERS = ("anthropic", "openai")


def to_stored(part: Any, protocol: str) -> dict[str, Any] | None:
    """Return a pydantic-ai part's metadata as it is stored; None when it says nothing."""
    part_id, signature = getattr(part, "id", None), getattr(part, "signature", None)
    details = getattr(part, "provider_details", None)
    if protocol == "anthropic":
        name = "redactedData" if part_id == _REDACTED else "signature"
        facts = {name: signature}
    elif protocol == "responses":
        facts = {"itemId": part_id, "reasoningEncryptedContent": signature}
    else:
        facts = {"reasoningField": None if part_id == CHAT_FIELD else part_id}
    kept = {key: value for key, value in {**facts, "providerDetails": details}.items() if value}
    provider = "anthropic" if protocol == "anthropic" else "openai"
    return json.loads(json.dumps({provider: kept}, default=str)) if kept else None


def from_stored(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return pydantic-ai's fields of stored metadata; what has the wrong type is left out."""
    for provider in _PROVIDERS:
        facts = (metadata or {}).get(provider)
        if isinstance(facts, dict):
            return _read(provider, facts)
    return {}


def _read(provider: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: value for name, value in facts.items() if value and isinstance(value, str)}
    redacted = texts.get("redactedData")
    read = {
        "id": _REDACTED if redacted else texts.get("itemId") or texts.get("reasoningField"),
        "signature": (redacted or texts.get("signature") or texts.get("reasoningEncryptedContent")),
    }
    found: dict[str, Any] = {name: value for name, value in read.items() if value}
    details = facts.get("providerDetails")
    if isinstance(details, dict) and details:
        found["provider_details"] = details
    return {**found, "provider_name": provider} if found else {}
