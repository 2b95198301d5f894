"""What every reader of a foreign format gives."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ForeignSession"]


class ForeignSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a file holds it: plain JSON, not yet checked."""

    info: dict[str, Any]
    messages: list[tuple[dict[str, Any], list[dict[str, Any]]]]
    """Each message's own JSON and its parts', in the order in which they count."""
    format: str
    place: str
    """Where in the file it is, for errors."""
