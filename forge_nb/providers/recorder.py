"""Record what a provider says, and what became of the tools that it called, on an event tape.

Every row is written when it happens and as one line, so that a process that dies loses at most the
line it was writing. A tape that cannot be written any more (a full disk) ends the recording, never
the run.
"""

from __future__ import annotations

import logging
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from forge_nb.errors import TapeError
from forge_nb.messages.stream import StepFinish, StreamError, ToolCall
from forge_nb.providers.secrets import Secrets, harmless_headers
from forge_nb.providers.tape_requests import asked_of, encoded, key_of, piece_hash
from forge_nb.providers.tape_rows import (
    TAPE_VERSION,
    EndRow,
    EventRow,
    Head,
    ModelRow,
    PieceRow,
    Pieces,
    ToolRow,
    TurnRow,
    read_tape,
)
from forge_nb.retry import failure_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from forge_nb.messages.parts import ModelRef
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.messages.usage import ModelLimits, UnitPrices
    from forge_nb.providers.base import ModelRequest, Provider
    from forge_nb.providers.tape_rows import ToolEvent, TurnEnd

__all__ = ["Recorder", "TapeWriter", "tape_writer"]

_log = logging.getLogger(__name__)
_writers: WeakValueDictionary[Path, TapeWriter] = WeakValueDictionary()


class TapeWriter:
    """Appends rows to a tape; every recorder of this process that writes to a file shares one.

    Parameters
    ----------
    path
        A new file, or a tape to go on with. What a crash has cut off is cleared away first.

    Raises
    ------
    TapeError
        When there is a file that is no tape or is damaged (nothing is added to it), or when the
        folder does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure: str | None = None
        """Why nothing is written any more."""
        self._next = 0
        self._pieces: set[str] = set()
        self._models: set[tuple[str, str]] = set()
        self._turn_of: dict[str, int] = {}
        self._secrets = Secrets()
        if not path.parent.is_dir():
            msg = f"{path}: there is no folder {str(path.parent)!r}; make it first"
            raise TapeError(msg, path=str(path))
        if path.exists() and path.stat().st_size:
            self._go_on()

    def _go_on(self) -> None:
        tape = read_tape(self.path)
        if tape.whole_bytes < self.path.stat().st_size:
            with self.path.open("r+b") as file:
                file.truncate(tape.whole_bytes)
        self._next = max(tape.turns, default=-1) + 1
        self._pieces = set(tape.pieces)
        self._models = set(tape.models)
        if tape.whole_bytes and not _ends_a_line(self.path):
            self._append(b"\n")
        cut = (turn.n for turn in tape.turns.values() if turn.how is None)
        self._write(EndRow(n=n, how="error") for n in cut)

    def begin(self, request: ModelRequest, provider: Provider) -> int:
        """Write that a request began; return its number."""
        if not self.path.exists() or not self.path.stat().st_size:
            self._pieces.clear()
            self._models.clear()
            self._write([Head(v=TAPE_VERSION)])
        n, self._next = self._next, self._next + 1
        asked = asked_of(request)
        key = key_of(asked)
        specs = self._secrets.without(msgspec.to_builtins(request.tools))
        model = (request.model.provider_id, request.model.model_id)
        if model not in self._models:
            self._models.add(model)
            self._write([self._model_row(request.model, provider)])
        pieces = Pieces(
            system=self._piece_names(asked["system"]),
            messages=self._piece_names(asked["messages"]),
            tools=self._piece_names(specs),
            tool_choice=request.tool_choice,
        )
        self._write([TurnRow(n=n, key=key, purpose=request.purpose, model=model, req=pieces)])
        return n

    def _model_row(self, model: ModelRef, provider: Provider) -> ModelRow:
        return ModelRow(
            provider=model.provider_id,
            id=model.model_id,
            limits=provider.limits(model.model_id),
            prices=provider.prices(model.model_id),
        )

    def _piece_names(self, values: list[Any]) -> tuple[str, ...]:
        """Write the pieces that the tape does not hold yet; return the names of all."""
        names = []
        for value in values:
            name = piece_hash(value)
            if name not in self._pieces:
                self._pieces.add(name)
                self._write([PieceRow(h=name, v=value)])
            names.append(name)
        return tuple(names)

    def say(self, n: int, at_ms: float, event: StreamEvent) -> None:
        """Write what a provider said in a turn."""
        if isinstance(event, ToolCall):
            self._turn_of[event.call_id] = n
        if isinstance(event, StreamError):
            event = msgspec.structs.replace(event, headers=harmless_headers(event.headers))
        self._write([EventRow(n=n, t=at_ms, e=event)])

    def tool(self, call_id: str, at_ms: float, event: ToolEvent | None) -> None:
        """Write what became of a tool call; None for one that was cancelled."""
        n = self._turn_of.get(call_id)
        if n is not None:
            self._write([ToolRow(n=n, id=call_id, t=at_ms, e=event)])

    def end(self, n: int, how: TurnEnd) -> None:
        """Write how a turn ended."""
        self._write([EndRow(n=n, how=how)])

    def _write(self, rows: Iterable[Any]) -> None:
        for row in rows:
            line = encoded(row)
            cleaned = self._secrets.without(msgspec.json.decode(line))
            self._append(encoded(cleaned) + b"\n")

    def _append(self, line: bytes) -> None:
        """Add bytes in one write, so that they are there whole or cut at their end."""
        if self.failure is not None:
            return
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            self.failure = f"{self.path} cannot be written: {error.strerror}"
            _log.error("the recording ends here, the run goes on: %s", self.failure)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def tape_writer(path: str | Path) -> TapeWriter:
    """Return the writer of a tape, the same one for everybody who records on it now."""
    place = Path(path).absolute()
    found = _writers.get(place)
    if found is None:
        found = _writers[place] = TapeWriter(Path(path))
    return found


class Recorder:
    """A provider that passes another's stream on and writes it to a tape.

    In a workbench the model ``record:FILE?of=PROVIDER:MODEL`` is one; there the results of tools
    are recorded too.

    Parameters
    ----------
    provider
        Who answers.
    path
        The tape; a new file, or one to go on with.
    ref
        Which model answers, as sessions store it; None leaves it to who asks.

    Raises
    ------
    TapeError
        When there is a file that is no tape or is damaged: nothing is added to it.
    """

    def __init__(
        self, provider: Provider, path: str | Path, *, ref: ModelRef | None = None
    ) -> None:
        self.id = provider.id
        self.ref = ref
        self.tools = getattr(provider, "tools", ())
        self.tool_source = getattr(provider, "tool_source", None)
        """Where results of tools come from in place of running them: a tape that is recorded."""
        self.tool_specs = getattr(provider, "tool_specs", ())
        self._provider = provider
        self._tape = tape_writer(path)
        self.tool_sink = self._tape.tool
        """Takes what becomes of tool calls."""

    def limits(self, model_id: str) -> ModelLimits:
        """Return the answering provider's window."""
        return self._provider.limits(model_id)

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the answering provider's prices."""
        return self._provider.prices(model_id)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer, and write it down as it comes."""
        n = self._tape.begin(request, self._provider)
        started = time.monotonic()
        how: TurnEnd = "cancelled"
        try:
            async with aclosing(self._provider.stream(request)) as events:
                async for event in events:
                    self._tape.say(n, _ms_since(started), event)
                    # Whoever hangs up after the last event has heard everything.
                    how = "done" if isinstance(event, StepFinish | StreamError) else how
                    yield event
            how = "done"
        except Exception as error:
            how = "error"
            self._tape.say(n, _ms_since(started), failure_of(error))
            raise
        finally:
            self._tape.end(n, how)


def _ms_since(started: float) -> float:
    return round((time.monotonic() - started) * 1e3, 1)
