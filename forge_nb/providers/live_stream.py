"""From pydantic-ai's events of one response to ours.

Its `PartEndEvent` says that another part began, not that this one is complete: where blocks are
interleaved, more deltas follow. Responses and Anthropic say on the wire when a block is done, so
the wire is watched (`WireWatch`). Chat says nothing of the kind: there a new part ends the text and
the reasoning before it, and a call is complete when its input is a whole JSON object, or the
stream has ended.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.messages.stream import (
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepFinish,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
)
from forge_nb.messages.usage import NO_TOKENS, TokenUsage
from forge_nb.providers.live_metadata import to_stored
from forge_nb.providers.live_usage import to_token_usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import Self

    from pydantic_ai import messages as pai
    from pydantic_ai.models import StreamedResponse

    from forge_nb.messages.stream import StreamEvent

__all__ = ["StreamMapper", "WireWatch"]

_FINISH = {
    "stop": "stop",
    "length": "length",
    "tool_call": "tool-calls",
    "content_filter": "content-filter",
    "error": "error",
}
_TRUNCATED = "the stream ended without saying that it was done; send the prompt again"
_BLOCK_DONE = frozenset({"content_block_stop", "response.output_item.done"})
_WIRE = "_response"  # the SDK's stream inside pydantic-ai's; no public name leads to it


class WireWatch:
    """Looks at each event of the SDK before pydantic-ai does.

    Parameters
    ----------
    stream
        An open response; from now on it reads through this object.
    """

    def __init__(self, stream: StreamedResponse) -> None:
        self._source: Any = getattr(stream, _WIRE, None)
        self.is_on = hasattr(self._source, "__anext__")
        """False with a pydantic-ai that keeps its stream elsewhere: then nothing is seen."""
        self.place: int | None = None
        """Which block of the wire the current event belongs to."""
        self.reports: list[Any] = []
        """Usage objects so far."""
        self._done: list[int] = []
        self._just_done: list[int] = []
        if self.is_on:
            setattr(stream, _WIRE, self)

    def __getattr__(self, name: str) -> Any:
        """Be the SDK's stream in every other respect."""
        return getattr(self.__dict__["_source"], name)

    def __aiter__(self) -> Self:
        """Be the SDK's stream."""
        return self

    async def __anext__(self) -> Any:
        """Pass the next event on; what the last one ended is done now."""
        event = await anext(self._source)
        self._done += self._just_done
        self._just_done = []
        self._look_at(event)
        return event

    def _look_at(self, event: Any) -> None:
        place = getattr(event, "index", None)
        self.place = getattr(event, "output_index", None) if place is None else place
        if getattr(event, "type", None) in _BLOCK_DONE and self.place is not None:
            self._just_done.append(self.place)
        for owner in (event, getattr(event, "message", None), getattr(event, "response", None)):
            report = getattr(owner, "usage", None)
            if report is not None:
                self.reports.append(report)

    def take_done(self) -> list[int]:
        """Return the blocks that were done before the current event; each once."""
        done, self._done = self._done, []
        return done


class _Block(msgspec.Struct):
    """A part that is still growing."""

    index: int
    part: Any
    """Its metadata so far; the content is left out."""
    call_id: str = ""
    tool: str = ""
    pieces: list[str] = []
    """Of a call's input."""
    given: dict[str, Any] | None = None
    """A call's input that came whole."""

    @property
    def is_call(self) -> bool:
        return bool(self.call_id)


class StreamMapper:
    """Maps the events of one response.

    Parameters
    ----------
    stream
        An open response of pydantic-ai.
    protocol
        chat, responses or anthropic.
    """

    def __init__(self, stream: StreamedResponse, *, protocol: str) -> None:
        from pydantic_ai import messages as pai

        self._stream = stream
        self._protocol = protocol
        self._is_chat = protocol == "chat"
        self._wire = WireWatch(stream)
        self._open: dict[int, _Block] = {}
        self._places: dict[int, list[int]] = {}
        self._call_ids: set[str] = set()
        self._said: TokenUsage = NO_TOKENS
        self._handlers: dict[type, Callable[[Any], Iterator[StreamEvent]]] = {
            pai.PartStartEvent: self._start,
            pai.PartDeltaEvent: self._delta,
            pai.PartEndEvent: self._end,
        }

    async def events(self) -> AsyncIterator[StreamEvent]:
        """Yield the response's events, its finish last; an error in place of a missing finish."""
        async for event in self._stream:
            for said in self.early_usage():
                yield said
            for place in self._wire.take_done():
                for said in self._close_all(self._places.pop(place, [])):
                    yield said
            handler = self._handlers.get(type(event))
            for said in handler(event) if handler is not None else ():
                yield said
        for said in self._finish():
            yield said

    def early_usage(self) -> Iterator[StreamEvent]:
        """Yield what has been reported by now, so that a call that is cut keeps it."""
        if self._said is NO_TOKENS and self._wire.reports:
            self._said = self._usage()
            if self._said.is_reported:
                yield Usage(usage=self._said)

    def _usage(self) -> TokenUsage:
        return to_token_usage(self._stream.usage, self._wire.reports)

    # ------------------------------------------------------------------------------ the blocks

    def _start(self, event: pai.PartStartEvent) -> Iterator[StreamEvent]:
        from pydantic_ai import messages as pai

        part, index = event.part, event.index
        if index in self._open:  # a part that is sent again, whole
            return
        if isinstance(part, pai.ToolCallPart):
            yield from self._start_call(index, part)
        elif isinstance(part, pai.TextPart | pai.ThinkingPart):
            yield from self._start_words(index, part)
        if index in self._open and self._wire.place is not None:
            self._places.setdefault(self._wire.place, []).append(index)

    def _start_words(
        self, index: int, part: pai.TextPart | pai.ThinkingPart
    ) -> Iterator[StreamEvent]:
        self._open[index] = _Block(index, replace(part, content=""))
        start = TextStart if _is_text(part) else ReasoningStart
        yield start(id=str(index))
        yield from self._words(index, part, part.content)

    def _start_call(self, index: int, part: pai.ToolCallPart) -> Iterator[StreamEvent]:
        call_id = self._unused(part.tool_call_id)
        block = _Block(index, replace(part, args=None), call_id=call_id, tool=part.tool_name)
        self._open[index] = block
        yield ToolInputStart(call_id=call_id, tool=part.tool_name)
        yield from self._grow(block, part.args)

    def _unused(self, call_id: str) -> str:
        """Return an id that no other call of this response has: some servers repeat theirs."""
        name, number = call_id, 1
        while name in self._call_ids:
            number += 1
            name = f"{call_id}_{number}"
        self._call_ids.add(name)
        return name

    def _delta(self, event: pai.PartDeltaEvent) -> Iterator[StreamEvent]:
        from pydantic_ai import messages as pai

        block, delta = self._open.get(event.index), event.delta
        if block is None:
            return
        if isinstance(delta, pai.ToolCallPartDelta):
            block.part = replace(delta, args_delta=None).apply(block.part)
            yield from self._grow(block, delta.args_delta)
        elif isinstance(delta, pai.TextPartDelta):
            if delta.provider_details or delta.provider_name:
                block.part = replace(delta, content_delta="").apply(block.part)
            yield from self._words(event.index, block.part, delta.content_delta)
        elif isinstance(delta, pai.ThinkingPartDelta):
            if delta.signature_delta or delta.provider_details or delta.provider_name:
                block.part = replace(delta, content_delta=None).apply(block.part)
            yield from self._words(event.index, block.part, delta.content_delta)

    def _words(self, index: int, part: Any, text: str | None) -> Iterator[StreamEvent]:
        if text:
            delta = TextDelta if _is_text(part) else ReasoningDelta
            yield delta(id=str(index), text=text)

    def _grow(self, block: _Block, args: str | dict[str, Any] | None) -> Iterator[StreamEvent]:
        if isinstance(args, dict):
            block.given = {**(block.given or {}), **args}
        elif args:
            block.pieces.append(args)
            yield ToolInputDelta(call_id=block.call_id, text=args)

    def _end(self, event: pai.PartEndEvent) -> Iterator[StreamEvent]:
        """Close what a new part of a chat ends; at the stream's end a call waits for the finish."""
        block = self._open.get(event.index)
        if block is None or not self._is_chat:
            return
        is_last = event.next_part_kind is None
        if not block.is_call or (not is_last and _is_whole(block)):
            yield from self._close(block)

    def _close_all(self, indexes: list[int]) -> Iterator[StreamEvent]:
        """Close what the wire says is done; a call that was cut there waits for the finish."""
        for index in indexes:
            block = self._open.get(index)
            if block is not None and (not block.is_call or isinstance(_given(block), dict)):
                yield from self._close(block)

    def _close(self, block: _Block) -> Iterator[StreamEvent]:
        del self._open[block.index]
        if not block.is_call:
            end = TextEnd if _is_text(block.part) else ReasoningEnd
            yield end(id=str(block.index), metadata=to_stored(block.part, self._protocol))
            return
        yield ToolInputEnd(call_id=block.call_id)
        yield ToolCall(
            call_id=block.call_id,
            tool=block.tool,
            input=_given(block),
            metadata=to_stored(block.part, self._protocol),
        )

    # ------------------------------------------------------------------------------ the finish

    def _finish(self) -> Iterator[StreamEvent]:
        response = self._stream.get()
        said = (response.provider_details or {}).get("finish_reason")
        if not said and response.finish_reason != "content_filter":
            yield from self.early_usage()
            yield StreamError(message=_TRUNCATED, kind="truncated")
            return
        reason = _FINISH.get(response.finish_reason or "", "unknown")
        for block in list(self._open.values()):
            if self._is_made(block, reason):
                yield from self._close(block)
        reason = self._mended(reason)
        facts = {
            "response_id": response.provider_response_id,
            "model": response.model_name,
            "provider_details": response.provider_details,
        }
        yield StepFinish(reason=reason, usage=self._usage(), metadata=_plain(facts))

    def _is_made(self, block: _Block, reason: str) -> bool:
        """Return whether a block that is open at the end is to be closed.

        A call whose input was cut off by a limit or a filter was never made.
        """
        if not block.is_call or reason in {"stop", "tool-calls", "unknown"}:
            return True
        return isinstance(_given(block), dict) and bool(block.pieces or block.given)

    def _mended(self, reason: str) -> str:
        """Return ``tool-calls`` for a turn that calls: Responses and some servers say stop.

        A turn that promises calls and has none would be continued for ever.
        """
        if self._call_ids:
            return "tool-calls" if reason == "stop" else reason
        return "unknown" if reason == "tool-calls" else reason


def _is_text(part: Any) -> bool:
    return bool(part.part_kind == "text")


def _given(block: _Block) -> Any:
    """Return a call's input; its very text where that is no JSON, so that the tool can say so."""
    text = "".join(block.pieces)
    if not text.strip():
        return block.given or {}
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_whole(block: _Block) -> bool:
    """Return whether a call's input is a JSON object that has something in it.

    An empty one may be a placeholder that some servers send first.
    """
    is_closed = bool(block.pieces) and block.pieces[-1].rstrip().endswith("}")
    given = _given(block) if is_closed else block.given
    return isinstance(given, dict) and bool(given)


def _plain(facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return what is set, as JSON has it."""
    kept = {name: value for name, value in facts.items() if value}
    return json.loads(json.dumps(kept, default=str)) if kept else None
