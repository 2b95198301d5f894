"""Tapes as models: what stands behind ``tape:`` and ``record:``, and functions that write it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote

import msgspec

from forge_nb.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forge_nb.providers.tape import TapeMatch, TapeTools

__all__ = ["PlayOptions", "record", "recording_of", "replay", "replay_of"]

_READABLE = "/:?=,.-_~%"  # of a value that is a model's name; & and + would mean something else


class PlayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may stand behind the question mark of ``tape:FILE?…``."""

    match: str = "auto"
    speed: float = 0.0
    tools: str = "recorded"
    fork_at: int | None = None
    then: str | None = None


def record(path: str | Path, *, model: str) -> str:
    """Return the name of a model that is another one, with everything it says put on a tape.

    What tools give is recorded too, so that a replay needs neither the model nor the tools. Keys
    and passwords are taken out. An existing tape is gone on with; one that is damaged is refused.

    Parameters
    ----------
    path
        The tape, a file of JSON lines.
    model
        Who answers, as ``provider:model``.

    Examples
    --------
    >>> record("run.jsonl", model="scripted:tour")
    'record:run.jsonl?of=scripted:tour'

    >>> import forge_nb as forge
    >>> wb = forge.open(":memory:", model=forge.record("run.jsonl", model="scripted:tour"))
    >>> wb.close()
    """
    return f"record:{_path(path)}?of={quote(model, safe=_READABLE)}"


def replay(  # every option of a tape in one place
    path: str | Path,
    *,
    match: TapeMatch = "auto",
    speed: float = 0.0,
    tools: TapeTools = "recorded",
    fork_at: int | None = None,
    then: str | None = None,
) -> str:
    """Return the name of a model that answers from a tape.

    Parameters
    ----------
    path
        The tape.
    match
        ``key`` plays only what was asked in the same words and raises `TapeError` else, naming the
        first difference; ``sequence`` plays turn after turn; ``auto`` tries one, then the other.
    speed
        0 without waits, 1 at the recorded pace, 0.5 at twice the pace.
    tools
        ``recorded`` gives recorded results and runs no tool, ``run`` runs them.
    fork_at
        The first turn that is not played, from 0 over all calls on the tape.
    then
        Who answers from there on, as ``provider:model``; None stops the run there as an abort
        does, and the next prompt goes on with whatever model and settings it has.

    Examples
    --------
    >>> replay("run.jsonl")
    'tape:run.jsonl'
    >>> replay("run.jsonl", match="key", fork_at=3, then="scripted:flood?n=9")
    'tape:run.jsonl?match=key&fork_at=3&then=scripted:flood?n=9'
    """
    given = PlayOptions(match=match, speed=speed, tools=tools, fork_at=fork_at, then=then)
    words = [
        f"{name}={quote(str(value), safe=_READABLE)}"
        for name, value in msgspec.structs.asdict(given).items()
        if value != getattr(PlayOptions(), name)
    ]
    return f"tape:{_path(path)}" + (f"?{'&'.join(words)}" if words else "")


def _path(path: str | Path) -> str:
    text = str(path)
    if "?" in text:
        msg = f"{text!r} has a question mark, which a model's name cannot carry; rename the file"
        raise UsageError(msg)
    return text


def replay_of(model: str) -> tuple[str, PlayOptions]:
    """Return the file and the options of what stands behind ``tape:``.

    Raises
    ------
    UsageError
        When there is no such option, or its value cannot be right.
    """
    path, given = _split(model, PlayOptions.__struct_fields__)
    try:
        return path, msgspec.convert(given, PlayOptions, strict=False)
    except msgspec.ValidationError as error:
        msg = f"tape:{model}: {error}; speed takes a number, fork_at the number of a turn"
        raise UsageError(msg) from error


def recording_of(model: str) -> tuple[str, str]:
    """Return the file and the recorded model of what stands behind ``record:``.

    Raises
    ------
    UsageError
        When it does not say which model is recorded, or says more than that.
    """
    path, given = _split(model, ("of",))
    if "of" not in given:
        msg = f"record:{model}: who is recorded? write record:FILE?of=PROVIDER:MODEL"
        raise UsageError(msg)
    return path, given["of"]


def _split(model: str, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    path, _, query = model.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - set(names))
    if unknown or not path:
        msg = f"{model!r} has {unknown or 'no file'}; a file takes the options {sorted(names)}"
        raise UsageError(msg)
    return path, given
