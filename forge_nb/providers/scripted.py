"""A model that follows a script: no key, no network, the same answer every time.

It reports believable usage: the size of the very request at four characters a token plus a fixed
overhead, split into what the previous request had in common with it (served from the prompt cache)
and what is new (written to it). So a compaction shows as what it is, a cache miss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.render import ModelMessage, input_text
from forge_nb.messages.stream import (
    ErrorKind,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepFinish,
    StepStart,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputStart,
)
from forge_nb.messages.usage import CacheTokens, ModelLimits, TokenUsage, UnitPrices
from forge_nb.providers.extractive import summarise

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from forge_nb.messages.stream import StreamEvent
    from forge_nb.providers.base import ModelRequest

__all__ = ["Call", "Script", "ScriptedProvider", "Turn", "last_question"]

OVERHEAD_TOKENS = 400  # stands for a system prompt and tool descriptions
TITLE_WORDS = 8
YIELD_EVERY = 64  # deltas between two chances for others on the loop
PRICES = UnitPrices(
    input=3, output=15, cache_read=0.3, cache_write=3.75, source="scripted, 2026-01"
)


class Call(msgspec.Struct, frozen=True):
    """A tool call in a script."""

    tool: str
    input: dict[str, object]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: thoughts, words, then calls, in this order."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    reason: str | None = None
    """Finish reason; by default ``tool-calls`` with calls, ``stop`` without."""
    error: str | None = None
    """Break off with this error after the text."""
    error_kind: ErrorKind = "api"
    """What kind of error; by default one that is not tried again."""
    retry_after_s: float | None = None
    """How long the error asks to wait."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A named script: what to answer to the n-th request for a turn, from 0."""

    name: str
    about: str
    answer: Callable[[int, Sequence[ModelMessage]], Turn]
    tools: tuple[Callable[..., Any], ...] = ()
    """Functions that the script calls."""
    limits: ModelLimits = ModelLimits(context=32_000, output=4_000)
    pace_s: float = 0.0
    """Wait before each delta."""
    words_per_delta: int = 1


class ScriptedProvider:
    """Answers from a script.

    Parameters
    ----------
    script
        What to say.
    """

    id = "scripted"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.tools = script.tools
        """Functions that the script calls; whoever runs it makes them tools."""
        self._turns = 0
        self._cached: list[str] = []

    def limits(self, model_id: str) -> ModelLimits:
        """Return the script's window."""
        del model_id
        return self.script.limits

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the scripted prices."""
        del model_id
        return PRICES

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the script's next answer; a request to compact gets an extractive summary."""
        if request.purpose == "compaction":
            turn = Turn(text=summarise(request.messages))
        elif request.purpose == "title":
            turn = Turn(text=_title(last_question(request.messages)))
        else:
            turn = self.script.answer(self._turns, request.messages)
            self._turns += 1
        usage = self._usage(request, turn)
        sent = 0
        for event in self._events(turn, usage, attempt=self._turns):
            yield event
            if isinstance(event, TextDelta | ReasoningDelta):
                sent += 1
                if self.script.pace_s or sent % YIELD_EVERY == 0:
                    await asyncio.sleep(self.script.pace_s)

    def _events(self, turn: Turn, usage: TokenUsage, *, attempt: int) -> Iterator[StreamEvent]:
        yield StepStart()
        if turn.reasoning:
            yield ReasoningStart()
            for piece in self._pieces(turn.reasoning):
                yield ReasoningDelta(text=piece)
            yield ReasoningEnd()
        if turn.text:
            yield TextStart()
            for piece in self._pieces(turn.text):
                yield TextDelta(text=piece)
            if turn.error is not None:
                yield StreamError(
                    message=turn.error, kind=turn.error_kind, retry_after_s=turn.retry_after_s
                )
                return
            yield TextEnd()
        for place, call in enumerate(turn.calls):
            call_id = f"call_{attempt}_{place + 1}"
            yield ToolInputStart(call_id=call_id, tool=call.tool)
            yield ToolCall(call_id=call_id, tool=call.tool, input=call.input)
        reason = turn.reason or ("tool-calls" if turn.calls else "stop")
        yield StepFinish(reason=reason, usage=usage)

    def _pieces(self, text: str) -> Iterator[str]:
        """Split a text after every few words; joined it is the text again."""
        size = self.script.words_per_delta
        words = text.split(" ")
        for start in range(0, len(words), size):
            piece = " ".join(words[start : start + size])
            yield piece if start + size >= len(words) else f"{piece} "

    def _usage(self, request: ModelRequest, turn: Turn) -> TokenUsage:
        pieces = _pieces_of(request)
        shared = 0
        for old, new in zip(self._cached, pieces, strict=False):
            if old != new:
                break
            shared += 1
        is_aside = request.purpose != "turn"
        read = 0 if is_aside or not shared else OVERHEAD_TOKENS + _weigh(pieces[:shared])
        written = _weigh(pieces) + OVERHEAD_TOKENS - read
        if not is_aside:
            self._cached = pieces
        answer = turn.text + "".join(f"{call.tool}{call.input}" for call in turn.calls)
        return TokenUsage(
            input=3,
            output=max(1, estimate_tokens(answer)),
            reasoning=estimate_tokens(turn.reasoning),
            cache=CacheTokens(read=read, write=written),
        )


def _pieces_of(request: ModelRequest) -> list[str]:
    return [
        f"{message.role}:{part.kind}:{input_text(part)}:{part.text}"
        for message in request.messages
        for part in message.parts
    ]


def _weigh(pieces: Sequence[str]) -> int:
    return sum(estimate_tokens(piece) for piece in pieces)


def _title(asked: str) -> str:
    """Return the first words of a question, which stand behind the request's first line."""
    words = asked.partition("\n")[2].split()
    return " ".join(words[:TITLE_WORDS])


def last_question(messages: Sequence[ModelMessage]) -> str:
    """Return the text of the last user message."""
    for message in reversed(messages):
        if message.role == "user":
            return " ".join(part.text for part in message.parts if part.kind == "text")
    return ""
