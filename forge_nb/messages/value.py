"""The base of all frozen values, and how unknown fields survive a round trip.

A value keeps what its JSON said beyond its own fields in `extra`: keys it does not know, explicit
nulls, and the same of the objects nested in it. Writing merges `extra` back, so that JSON from a
newer or older program of the family comes out as it went in (`tests/test_codec.py`,
`tests/properties/test_codec.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["EXTRA_KEY", "JSON_NAMES", "Value", "merge", "residue"]

EXTRA_KEY = "$extra"
"""JSON key that `extra` would have; never written."""

JSON_NAMES = {
    "session_id": "sessionID",
    "message_id": "messageID",
    "parent_id": "parentID",
    "project_id": "projectID",
    "workspace_id": "workspaceID",
    "model_id": "modelID",
    "provider_id": "providerID",
    "call_id": "callID",
    "status_code": "statusCode",
    "is_retryable": "isRetryable",
    "response_headers": "responseHeaders",
    "response_body": "responseBody",
    "retry_count": "retryCount",
    "client_name": "clientName",
    "attempt": "$attempt",
    "discarded": "$discarded",
    "prices": "$prices",
    "cost_source": "$costSource",
    "extra": EXTRA_KEY,
}
"""Python attribute → JSON field, where they differ. The names are the family's; a dollar sign marks
what only this package knows."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=JSON_NAMES):
    """A frozen value with JSON field names of the family and snake_case attributes."""


def residue(raw: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Return what `raw` holds and `written` does not, key by key, nested objects included.

    Parameters
    ----------
    raw
        The JSON object as it was read.
    written
        The JSON object that the typed value gives back.

    Examples
    --------
    >>> residue({"a": 1, "t": {"x": 1, "y": None}}, {"a": 1, "t": {"x": 1}})
    {'t': {'y': None}}
    """
    left: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in written:
            left[key] = value
        elif isinstance(value, dict) and isinstance(written[key], dict):
            inner = residue(value, written[key])
            if inner:
                left[key] = inner
    return left


def merge(written: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return `written` with the keys of `extra` that it lacks; typed fields win.

    Examples
    --------
    >>> merge({"a": 1, "t": {"x": 2}}, {"t": {"x": 1, "y": None}, "z": 0})
    {'a': 1, 't': {'x': 2, 'y': None}, 'z': 0}
    """
    whole = dict(written)
    for key, value in extra.items():
        if key not in whole:
            whole[key] = value
        elif isinstance(value, dict) and isinstance(whole[key], dict):
            whole[key] = merge(whole[key], value)
    return whole
