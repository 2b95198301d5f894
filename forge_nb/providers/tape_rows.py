"""The rows of an event tape, and how a tape is read: JSON lines, each written when it happens.

====== ==================================================================================
row    what it says
====== ==================================================================================
tape   the first line: version
model  a model that was asked, with its window and its prices
piece  a message, a system prompt or a tool, once; requests name it by its hash
turn   a request began: its number, its key, its purpose, its pieces
ev     what the provider said: milliseconds since the turn began, the stream event
tool   what became of a tool call: milliseconds since it began, progress, result or failure
end    how the turn ended: done, error, cancelled
====== ==================================================================================

Rows of turns that ran side by side are mixed; `n` tells them apart. A process that dies leaves a
last line that is cut and a turn without an end: both are taken as they are, with a note. A line
that is damaged in any other way is an error that names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.errors import TapeError
from forge_nb.events import Purpose
from forge_nb.messages.render import ToolSpec
from forge_nb.messages.stream import (
    StepFinish,
    StreamError,
    StreamEvent,
    ToolFailure,
    ToolProgress,
    ToolResult,
)
from forge_nb.messages.usage import ModelLimits, UnitPrices

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "TAPE_VERSION",
    "EndRow",
    "EventRow",
    "Head",
    "ModelRow",
    "PieceRow",
    "Pieces",
    "Tape",
    "TapeTurn",
    "ToolEvent",
    "ToolRow",
    "TurnEnd",
    "TurnRow",
    "read_tape",
]

TAPE_VERSION = 1

ToolEvent = ToolProgress | ToolResult | ToolFailure
TurnEnd = Literal["done", "error", "cancelled"]


class _Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="k"):
    """Base of all rows."""


class Head(_Row, frozen=True, kw_only=True, tag="tape"):
    """The first line."""

    v: int


class ModelRow(_Row, frozen=True, kw_only=True, tag="model"):
    """A model that was asked."""

    provider: str
    id: str
    limits: ModelLimits
    prices: UnitPrices | None = None


class PieceRow(_Row, frozen=True, kw_only=True, tag="piece"):
    """A piece of requests: a message, a system prompt, a tool."""

    h: str
    v: Any


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """A request by the hashes of its pieces."""

    system: tuple[str, ...]
    messages: tuple[str, ...]
    tools: tuple[str, ...]
    tool_choice: str


class TurnRow(_Row, frozen=True, kw_only=True, tag="turn"):
    """A request began."""

    key: str
    n: int | None = None
    purpose: Purpose = "turn"
    model: tuple[str, str] | None = None
    """Provider and id."""
    req: Pieces | None = None
    """None where only the key was kept."""


class EventRow(_Row, frozen=True, kw_only=True, tag="ev"):
    """The provider said something."""

    t: float
    e: StreamEvent
    n: int | None = None
    """Of which turn; None for the last one that began."""


class ToolRow(_Row, frozen=True, kw_only=True, tag="tool"):
    """Something became of a tool call."""

    n: int
    id: str
    """The call."""
    t: float
    e: ToolEvent | None = None
    """None: it was cancelled."""


class EndRow(_Row, frozen=True, kw_only=True, tag="end"):
    """The turn ended."""

    how: TurnEnd
    n: int | None = None


_AnyRow = Head | ModelRow | PieceRow | TurnRow | EventRow | ToolRow | EndRow
_decoder = msgspec.json.Decoder(_AnyRow)


class TapeTurn(msgspec.Struct, kw_only=True):
    """One request and everything that was heard of it."""

    n: int
    line: int
    """Where it begins."""
    row: TurnRow
    events: list[tuple[float, StreamEvent]] = []
    tools: dict[str, list[tuple[float, ToolEvent | None]]] = {}
    """By call, what became of it."""
    how: TurnEnd | None = None
    """None when the recording was cut."""

    @property
    def has_ended(self) -> bool:
        """Whether its last event is one that ends a turn."""
        return bool(self.events) and isinstance(self.events[-1][1], StepFinish | StreamError)

    @property
    def was_cancelled(self) -> bool:
        """Whether somebody stopped it, in its answer or while its tools ran."""
        if self.how == "cancelled":
            return True
        is_whole = self.has_ended and isinstance(self.events[-1][1], StepFinish)
        return is_whole and any(rows[-1][1] is None for rows in self.tools.values())


class Tape(msgspec.Struct, kw_only=True):
    """What a tape holds."""

    path: Path
    turns: dict[int, TapeTurn] = {}
    models: dict[tuple[str, str], ModelRow] = {}
    pieces: dict[str, Any] = {}
    notes: list[str] = []
    """What is odd about it and does not stop it from being played."""
    whole_bytes: int = 0
    """Bytes of the lines that are whole."""

    def request_of(self, turn: TapeTurn) -> dict[str, Any] | None:
        """Return what was asked, in the form of `asked_of`; None where the tape does not say."""
        pieces = turn.row.req
        named = () if pieces is None else (*pieces.system, *pieces.messages, *pieces.tools)
        if pieces is None or any(name not in self.pieces for name in named):
            return None
        return {
            "purpose": turn.row.purpose,
            "system": self._values(pieces.system),
            "messages": self._values(pieces.messages),
            "tools": [spec["name"] for spec in self._values(pieces.tools)],
            "tool_choice": pieces.tool_choice,
        }

    def tool_specs(self) -> list[ToolSpec]:
        """Return the tools that models were told of in turns, by name."""
        hashes = [turn.row.req.tools for turn in self.turns.values() if turn.row.req is not None]
        names = dict.fromkeys(name for some in hashes for name in some if name in self.pieces)
        specs = [msgspec.convert(self.pieces[name], ToolSpec) for name in names]
        return sorted(specs, key=lambda spec: spec.name)

    def model(self) -> ModelRow | None:
        """Return the model that answered the first turn; the first one asked without a turn."""
        asked = [turn.row.model for turn in self.turns.values() if turn.row.purpose == "turn"]
        known = [self.models[key] for key in asked if key in self.models]
        return next(iter([*known, *self.models.values()]), None)

    def _values(self, names: Sequence[str]) -> list[Any]:
        return [self.pieces[name] for name in names]


def read_tape(path: Path) -> Tape:
    """Read a tape.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    TapeError
        When there is no such file, when it is no tape of this version, or when a line is damaged
        (`path`, `line`).
    """
    if not path.is_file():
        msg = f"{path}: no such tape; record one with the model 'record:{path}?of=PROVIDER:MODEL'"
        raise TapeError(msg, path=str(path))
    tape = Tape(path=path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            _read_line(tape, number, line)
    for turn in tape.turns.values():
        if turn.how is None:
            tape.notes.append(f"turn {turn.n} (line {turn.line}) has no end: it was cut")
    return tape


def _read_line(tape: Tape, number: int, line: bytes) -> None:
    """Take one line; a last one that was cut is noted."""
    if number == 1:
        _check_head(tape.path, line)
    try:
        _take(tape, number, _decoder.decode(line))
    except (msgspec.MsgspecError, LookupError, UnicodeDecodeError) as error:
        is_cut = not isinstance(error, msgspec.ValidationError | LookupError)
        if is_cut and not line.endswith(b"\n"):
            tape.notes.append(f"line {number} was cut and is left out")
            return
        msg = f"{tape.path}: line {number} is damaged ({error}); remove it or record the tape again"
        raise TapeError(msg, path=str(tape.path), line=number) from error
    tape.whole_bytes += len(line)


def _check_head(path: Path, line: bytes) -> None:
    try:
        head = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        head = None
    if not isinstance(head, Head) or head.v != TAPE_VERSION:
        msg = f"{path}: line 1 says that this is no tape of version {TAPE_VERSION}"
        raise TapeError(msg, path=str(path), line=1)


def _take(tape: Tape, number: int, row: _AnyRow) -> None:
    match row:
        case Head():
            pass
        case ModelRow():
            tape.models.setdefault((row.provider, row.id), row)
        case PieceRow():
            tape.pieces[row.h] = row.v
        case TurnRow():
            n = len(tape.turns) if row.n is None else row.n
            tape.turns[n] = TapeTurn(n=n, line=number, row=row)
        case EventRow():
            _turn(tape, row.n).events.append((row.t, row.e))
        case ToolRow():
            _turn(tape, row.n).tools.setdefault(row.id, []).append((row.t, row.e))
        case EndRow():
            _turn(tape, row.n).how = row.how


def _turn(tape: Tape, n: int | None) -> TapeTurn:
    """Return the turn that a row belongs to."""
    known = max(tape.turns, default=-1) if n is None else n
    if known not in tape.turns:
        msg = "no turn has begun" if n is None else f"turn {n} has not begun"
        raise LookupError(msg)
    return tape.turns[known]
