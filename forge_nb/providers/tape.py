"""Play an event tape: the answers of a recorded run, without its model.

`forge_nb.providers.recorder` writes tapes, `tape_rows` says what is on them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from forge_nb.errors import TapeError, UsageError
from forge_nb.messages.stream import StepFinish, StreamError, Usage
from forge_nb.messages.usage import ModelLimits
from forge_nb.providers.tape_requests import asked_of, first_difference, key_of
from forge_nb.providers.tape_rows import read_tape

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from forge_nb.messages.parts import ModelRef
    from forge_nb.messages.render import ToolSpec
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.messages.usage import UnitPrices
    from forge_nb.providers.base import ModelRequest, Provider
    from forge_nb.providers.tape_rows import TapeTurn, ToolEvent

__all__ = ["TapeMatch", "TapeProvider", "TapeTools"]

TapeMatch = Literal["auto", "key", "sequence"]
TapeTools = Literal["recorded", "run"]

_SETTLE_ROUNDS = 1000  # turns of the loop that recorded results may take to be stored
_log = logging.getLogger(__name__)


class TapeProvider:
    """Answers from a tape.

    Parameters
    ----------
    path
        The tape.
    match
        ``key`` finds the turn by what is asked and fails when there is none; ``sequence`` plays
        turn after turn, those of each purpose by themselves; ``auto`` tries the first, then the
        second, and notes what differed.
    speed
        0 without waits, 1 at the recorded pace, 0.5 at twice the pace.
    tools
        ``recorded`` gives the recorded results of tool calls in place of running tools; ``run``
        runs them. A call without a recorded result is run in either case.
    fork_at
        Number of a turn, from 0 over all calls on the tape: it and those behind it are not played.
    then
        Provider and model that answer from there on. None stops the run at the fork as an abort
        does; the next prompt goes on from there, with whatever model and settings it has.

    Raises
    ------
    TapeError
        When the file is missing, is no tape, has no turn, or a line of it is damaged; names the
        line.
    UsageError
        When an option cannot be right.
    """

    id = "tape"

    def __init__(
        self,
        path: str | Path,
        *,
        match: TapeMatch = "auto",
        speed: float = 0.0,
        tools: TapeTools = "recorded",
        fork_at: int | None = None,
        then: tuple[Provider, ModelRef] | None = None,
    ) -> None:
        _check(match, speed, tools, fork_at=fork_at, has_then=then is not None)
        self._tape = read_tape(Path(path))
        if not self._tape.turns:
            raise TapeError(f"{path}: the tape has no turn; record one first", path=str(path))
        self.notes = list(self._tape.notes)
        """What was odd about the tape, and which requests were not the recorded ones."""
        for note in self.notes:
            _log.warning("%s: %s", path, note)
        self.tools = getattr(then[0], "tools", ()) if then else ()
        """Functions that the provider behind the fork calls."""
        is_recorded = tools == "recorded"
        self.tool_specs: list[ToolSpec] = self._tape.tool_specs() if is_recorded else []
        """Tools that the recorded model was told of; it is told of them again."""
        self.tool_source = self._tool_rows if is_recorded else None
        """Gives what became of a recorded call, or None to run it."""
        self._match = match
        self._speed = speed
        self._fork_at = fork_at
        self._then = then
        self._model = self._tape.model()
        end = math.inf if fork_at is None else fork_at
        self._unused = [turn for n, turn in sorted(self._tape.turns.items()) if n < end]
        self._results: dict[str, list[tuple[float, ToolEvent | None]]] = {}

    def limits(self, model_id: str) -> ModelLimits:
        """Return the recorded model's window, behind a fork the next one's; empty if unknown."""
        if self._then is not None and self._is_past_fork():
            return self._then[0].limits(self._then[1].model_id)
        del model_id
        return ModelLimits() if self._model is None else self._model.limits

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the recorded model's prices, behind a fork the next one's; None if unknown."""
        if self._then is not None and self._is_past_fork():
            return self._then[0].prices(self._then[1].model_id)
        del model_id
        return None if self._model is None else self._model.prices

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of the matching turn.

        One that was cancelled ends as a cancelled task does, one whose recording was cut with an
        error.
        """
        turn = self._find(request)
        played = self._play(turn) if turn is not None else self._go_on(request)
        async with aclosing(played) as events:
            async for event in events:
                yield event

    async def _play(self, turn: TapeTurn) -> AsyncGenerator[StreamEvent, None]:
        self._unused.remove(turn)
        self._results.update({call: list(rows) for call, rows in turn.tools.items()})
        loop = asyncio.get_running_loop()
        started = loop.time()
        for at_ms, event in turn.events:
            if self._speed:
                await asyncio.sleep(started + at_ms / 1e3 * self._speed - loop.time())
            if turn.was_cancelled and isinstance(event, StepFinish):
                if event.usage.is_reported:  # it was stopped while its tools ran
                    yield Usage(usage=event.usage)
            elif isinstance(event, StreamError):
                await self._settle(turn)
                yield self._without_wait(event, turn)
            else:
                yield event
        if turn.was_cancelled:
            await self._settle(turn)
            yield _stopped(turn.row.purpose, "the recording of this turn ends here: cancelled")
        elif turn.how != "done" and not turn.has_ended:
            yield StreamError(message=f"the recording of this turn was cut (line {turn.line})")

    async def _settle(self, turn: TapeTurn) -> None:
        """Let the recorded results be stored that were there by the end of a turn."""
        done = [call for call, rows in turn.tools.items() if rows[-1][1] is not None]
        for _ in range(_SETTLE_ROUNDS):
            if self.tool_source is None or not any(call in self._results for call in done):
                return
            await asyncio.sleep(0)

    def _without_wait(self, event: StreamError, turn: TapeTurn) -> StreamError:
        """Take the wait out of a failure that was tried again, where nothing else waits either."""
        was_retried = any(other.row.key == turn.row.key for other in self._unused)
        if self._speed or not was_retried:
            return event
        return msgspec.structs.replace(event, retry_after_s=0.0, headers=None)

    async def _go_on(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Answer behind the fork."""
        if self._then is None:
            yield _stopped(request.purpose, f"the tape is forked at turn {self._fork_at}")
            return
        provider, model = self._then
        asked = msgspec.structs.replace(request, model=model)
        async with aclosing(provider.stream(asked)) as events:
            async for event in events:
                yield event

    def _is_past_fork(self) -> bool:
        return not any(turn.row.purpose == "turn" for turn in self._unused)

    def _find(self, request: ModelRequest) -> TapeTurn | None:
        """Return the turn to play; None behind the fork."""
        unused = [turn for turn in self._unused if turn.row.purpose == request.purpose]
        if not unused and self._fork_at is not None:
            return None
        if self._match == "sequence" and unused:
            return unused[0]
        asked = asked_of(request)
        key = key_of(asked)
        found = next((turn for turn in unused if turn.row.key == key), None)
        if found is not None:
            return found
        if not unused:
            msg = (
                f"{self._tape.path}: every turn is played that answers a request of purpose "
                f"{request.purpose!r}, and now comes {key!r}; fork the tape to go on (then=…)"
            )
            raise TapeError(msg, path=str(self._tape.path), got=key)
        difference = self._difference(unused[0], asked)
        if self._match == "key":
            raise self._miss(unused[0], key, difference)
        note = f"turn {unused[0].n} answers another request than its own: {difference}"
        self.notes.append(note)
        _log.warning("%s: %s", self._tape.path, note)
        return unused[0]

    def _difference(self, turn: TapeTurn, asked: dict[str, object]) -> str:
        recorded = self._tape.request_of(turn)
        if recorded is None:
            return f"key {turn.row.key!r} (the tape does not hold what was asked)"
        return first_difference(recorded, asked) or "the same words, another key"

    def _miss(self, turn: TapeTurn, key: str, difference: str) -> TapeError:
        msg = (
            f"{self._tape.path}: no turn for request {key!r}; next on the tape is turn {turn.n} "
            f"(line {turn.line}), key {turn.row.key!r}. First difference: {difference}. "
            "Play with match=auto or match=sequence, or record the run again"
        )
        return TapeError(
            msg,
            path=str(self._tape.path),
            line=turn.line,
            expected=turn.row.key,
            got=key,
            difference=difference,
        )

    def _tool_rows(self, call_id: str) -> list[tuple[float, ToolEvent | None]] | None:
        """Return what became of a call of a turn that was played: waits in seconds, events."""
        rows = self._results.pop(call_id, None)
        if rows is None:
            return None
        return [(at_ms / 1e3 * self._speed, event) for at_ms, event in rows]


def _stopped(purpose: str, words: str) -> StreamError:
    """Stop the run as an abort does; a title, which runs beside it, only fails.

    Raises
    ------
    asyncio.CancelledError
        For everything but a title.
    """
    if purpose != "title":
        raise asyncio.CancelledError
    return StreamError(message=words)


def _check(match: str, speed: float, tools: str, *, fork_at: int | None, has_then: bool) -> None:
    if match not in {"auto", "key", "sequence"}:
        msg = f"match={match!r} is none of auto, key, sequence"
        raise UsageError(msg)
    if not 0 <= speed < math.inf:
        msg = f"speed={speed!r} must be 0 (no waits) or more; 1 is the recorded pace"
        raise UsageError(msg)
    if tools not in {"recorded", "run"}:
        msg = f"tools={tools!r} is none of recorded, run"
        raise UsageError(msg)
    if fork_at is not None and fork_at < 0:
        msg = f"fork_at={fork_at!r} must be the number of a turn, from 0"
        raise UsageError(msg)
    if has_then and fork_at is None:
        msg = "then= says who answers behind a fork; say where it is with fork_at="
        raise UsageError(msg)
