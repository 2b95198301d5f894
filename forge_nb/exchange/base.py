"""What every reader of a foreign format gives, and how all of them read JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import ExchangeError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ForeignSession", "Source", "read_json"]


class ForeignSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a file holds it: plain JSON, not yet checked."""

    info: dict[str, Any]
    messages: list[tuple[dict[str, Any], list[dict[str, Any]]]]
    """Each message's own JSON and its parts', in the order in which they count."""
    format: str
    place: str
    """Where in the file it is, for errors."""
    dropped: tuple[str, ...] = ()
    """Places of what the file holds beside the session, and has no row to go to."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """An open file: which sessions it holds, and the sessions, read one by one."""

    ids: tuple[str, ...]
    sessions: Iterator[ForeignSession]


def read_json(text: str, path: Path, place: str) -> Any:
    """Read JSON that another program wrote.

    Halves of characters are taken, because JavaScript cuts texts between them. What could not be
    given back as it came is refused: a key that stands twice, a number beyond double precision.

    Parameters
    ----------
    text
        The JSON.
    path, place
        Where it stands, for errors.

    Raises
    ------
    ExchangeError
        When it is cut off, damaged, or ambiguous.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number
        )
    except (ValueError, RecursionError) as error:
        msg = f"{path}: {place}: damaged or cut-off JSON ({error}); export the session again"
        raise ExchangeError(msg, path=str(path), place=place) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        where = f"the object with id {found['id']!r}" if "id" in found else "one object"
        msg = f"the key {twice!r} stands twice in {where}"
        raise ValueError(msg)
    return found


def _constant(name: str) -> Any:
    msg = f"{name} is no JSON"
    raise ValueError(msg)


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = f"the number {text[:40]} is too large"
        raise ValueError(msg)
    return number
