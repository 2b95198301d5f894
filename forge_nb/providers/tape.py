"""Event tapes: a recorded stream as JSON lines, to be played back without the model.

One file per session. Rows: ``tape`` (version, the model with its window and prices), ``turn``
(number, key of the request, purpose), ``ev`` (milliseconds since the turn began, the event),
``end`` (how it ended). The key is the SHA-256 of the request without ids, so that a replay finds
its answer by what was asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.errors import TapeError
from forge_nb.messages.stream import StepFinish, StreamError, StreamEvent
from forge_nb.messages.usage import ModelLimits, UnitPrices

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from forge_nb.providers.base import ModelRequest, Provider

__all__ = ["Recorder", "TapeProvider", "request_key"]

TAPE_VERSION = 1
_KEY_CHARS = 16
_Match = Literal["auto", "key", "sequence"]


class _Turn(msgspec.Struct):
    key: str
    events: list[tuple[float, StreamEvent]]
    how: str | None = None
    """How it ended; None for a tape that was cut."""
    is_used: bool = False


class _Head(msgspec.Struct):
    """What the tape says of the model."""

    limits: ModelLimits = ModelLimits()
    prices: UnitPrices | None = None


class _Tape(msgspec.Struct):
    head: _Head
    turns: list[_Turn]


def request_key(request: ModelRequest) -> str:
    """Return a short hash of what a request asks; ids of messages, parts and calls left out."""
    asked = [
        (message.role, [(part.kind, part.text, part.tool, part.input) for part in message.parts])
        for message in request.messages
    ]
    whole = [request.purpose, request.system, asked, [spec.name for spec in request.tools]]
    return hashlib.sha256(_encoded(whole)).hexdigest()[:_KEY_CHARS]


def _encoded(row: Any) -> bytes:
    """Write a row; half a character, which no encoder takes, becomes a question mark."""
    try:
        return msgspec.json.encode(row)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(row), ensure_ascii=False).encode("utf-8", "replace")


class Recorder:
    """A provider that passes another's stream on and writes it to a tape.

    Parameters
    ----------
    provider
        Who answers.
    path
        The tape; a new file, or one to go on with.

    Raises
    ------
    TapeError
        When there is a file that is no whole tape: nothing is added to it.
    """

    def __init__(self, provider: Provider, path: str | Path) -> None:
        self.id = provider.id
        self.tools = getattr(provider, "tools", ())
        self._provider = provider
        self._path = Path(path)
        self._is_new = not self._path.exists() or not self._path.stat().st_size
        self._turn = 0 if self._is_new else len(_read(self._path).turns)

    def limits(self, model_id: str) -> ModelLimits:
        """Return the answering provider's window."""
        return self._provider.limits(model_id)

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the answering provider's prices."""
        return self._provider.prices(model_id)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer and write it down; a turn is written whole, when it has ended."""
        started = time.monotonic()
        rows: list[Any] = [
            {
                "k": "turn",
                "n": self._turn,
                "key": request_key(request),
                "purpose": request.purpose,
            }
        ]
        self._turn += 1
        how = "cancelled"
        try:
            async with aclosing(self._provider.stream(request)) as events:
                async for event in events:
                    at = round((time.monotonic() - started) * 1e3, 1)
                    rows.append({"k": "ev", "t": at, "e": event})
                    # Whoever hangs up after the last event has heard everything.
                    how = "done" if isinstance(event, StepFinish | StreamError) else how
                    yield event
            how = "done"
        except Exception:
            how = "error"
            raise
        finally:
            rows.append({"k": "end", "how": how})
            self._write([*self._head(request), *rows])

    def _head(self, request: ModelRequest) -> list[Any]:
        """Return a new tape's first row, which says whose answers it holds."""
        if not self._is_new:
            return []
        self._is_new = False
        model_id = request.model.model_id
        return [
            {
                "k": "tape",
                "v": TAPE_VERSION,
                "model": {"provider": request.model.provider_id, "id": model_id},
                "limits": self.limits(model_id),
                "prices": self.prices(model_id),
            }
        ]

    def _write(self, rows: list[Any]) -> None:
        with self._path.open("ab") as file:
            file.writelines(_encoded(row) + b"\n" for row in rows)


class TapeProvider:
    """Answers from a tape.

    Parameters
    ----------
    path
        The tape.
    match
        ``key`` finds the turn by what is asked and fails when there is none; ``sequence`` plays
        turn after turn; ``auto`` tries the first, then the second.
    speed
        0 without waits, 1 at the recorded pace, 0.5 at twice the pace.

    Raises
    ------
    TapeError
        When the file is missing, is no tape, ends in the middle of a turn, or a line of it is
        damaged; names the line.
    """

    id = "tape"

    def __init__(self, path: str | Path, *, match: _Match = "auto", speed: float = 0.0) -> None:
        self._path = Path(path)
        self._match = match
        self._speed = speed
        tape = _read(self._path)
        if not tape.turns:
            raise TapeError(f"{path}: the tape has no turn; record one first", path=str(path))
        self._head = tape.head
        self._turns = tape.turns

    def limits(self, model_id: str) -> ModelLimits:
        """Return the recorded model's window; empty where the tape does not say."""
        del model_id
        return self._head.limits

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the recorded model's prices; None where the tape does not say."""
        del model_id
        return self._head.prices

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of the matching turn; one that was broken off ends with an error."""
        turn = self._find(request_key(request))
        turn.is_used = True
        last_ms = 0.0
        for at_ms, event in turn.events:
            if self._speed:
                await asyncio.sleep((at_ms - last_ms) / 1e3 * self._speed)
            last_ms = at_ms
            yield event
        if turn.how != "done":
            yield StreamError(message=f"the recording of this turn ends here: {turn.how}")

    def _find(self, key: str) -> _Turn:
        unused = [turn for turn in self._turns if not turn.is_used]
        if self._match != "sequence":
            for turn in unused:
                if turn.key == key:
                    return turn
        if self._match == "key" or not unused:
            expected = unused[0].key if unused else "nothing: every turn is played"
            msg = f"{self._path}: no turn for request {key!r}; next on the tape is {expected!r}"
            raise TapeError(msg, path=str(self._path), got=key)
        return unused[0]


def _read(path: Path) -> _Tape:
    if not path.is_file():
        msg = f"{path}: no such tape; record one with Recorder(provider, path)"
        raise TapeError(msg, path=str(path))
    tape = _Tape(_Head(), [])
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            _take(tape, path, number, line)
    if tape.turns and tape.turns[-1].how is None:
        msg = (
            f"{path}: the tape stops after line {number}, in the middle of a turn; record it again"
        )
        raise TapeError(msg, path=str(path), line=number)
    return tape


def _take(tape: _Tape, path: Path, number: int, line: bytes) -> None:
    """Take one line of a tape."""
    try:
        row = msgspec.json.decode(line)
        kind = row["k"]
        if number == 1 and (kind != "tape" or row["v"] != TAPE_VERSION):
            raise TapeError(f"{path}: not a tape of version {TAPE_VERSION}", path=str(path), line=1)
        if kind == "tape":
            tape.head = msgspec.convert(row, _Head)
        elif kind == "turn":
            tape.turns.append(_Turn(key=str(row["key"]), events=[]))
        elif kind == "ev":
            event = msgspec.convert(row["e"], StreamEvent)
            tape.turns[-1].events.append((float(row["t"]), event))
        elif kind == "end":
            tape.turns[-1].how = str(row["how"])
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, TapeError):
            raise
        msg = f"{path}: line {number} is damaged ({error}); record the tape again"
        raise TapeError(msg, path=str(path), line=number) from error
