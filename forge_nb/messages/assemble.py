"""Grow parts out of a stream: one stream event in, a list of changes out.

Pure: ids and time come from callables. Text is kept as a list of pieces and joined once, at the
end of its block, so that assembling is linear in the length of the text.

Invariants, proved in `tests/properties/test_assemble.py`: any split of a text into deltas gives
the same part; the deltas' offsets tile the text; after `close` no part is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.messages import stream
from forge_nb.messages.parts import (
    Part,
    PatchPart,
    ReasoningPart,
    Span,
    StepFinishPart,
    StepStartPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolRunning,
    ToolSpan,
)
from forge_nb.messages.usage import NO_TOKENS, Cost, TokenUsage
from forge_nb.messages.wire import INTERRUPTED_KEY, TOOL_ABORTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge_nb.messages.ids import Prefix

__all__ = ["AppendDelta", "Change", "PartAssembler", "SavePart"]


class SavePart(msgspec.Struct, frozen=True):
    """The whole part is to be stored."""

    part: Part


class AppendDelta(msgspec.Struct, frozen=True, gc=False):
    """More text for a part that is open; for the bus only."""

    part_id: str
    field: str
    delta: str
    offset: int
    """Code points of the part's text before this delta."""


Change = SavePart | AppendDelta


class _Block:
    """An open text or reasoning block and the pieces of its text so far."""

    __slots__ = ("length", "part", "pieces")

    def __init__(self, part: TextPart | ReasoningPart) -> None:
        self.part = part
        self.pieces: list[str] = []
        self.length = 0

    def part_so_far(self) -> TextPart | ReasoningPart:
        """Return the part with the text that has arrived; the pieces become one."""
        self.pieces = ["".join(self.pieces)]
        return msgspec.structs.replace(self.part, text=self.pieces[0])


def _no_price(tokens: TokenUsage) -> Cost:
    del tokens
    return Cost()


class PartAssembler:
    """Assembles the parts of one assistant message.

    Parameters
    ----------
    session_id, message_id
        Where the parts belong.
    new_id
        Makes ids.
    clock
        Returns milliseconds UTC; read only when a block starts or ends.
    price
        What a call with this usage costs.
    trim
        Whether blanks at the end of a text block are cut at its end.
    text_end_hooks
        Functions that may rewrite a text when its block ends, in order.
    attempt
        Which attempt of the step this is, from 1.
    """

    def __init__(
        self,
        session_id: str,
        message_id: str,
        new_id: Callable[[Prefix], str],
        clock: Callable[[], int],
        *,
        price: Callable[[TokenUsage], Cost] = _no_price,
        trim: bool = True,
        text_end_hooks: Sequence[Callable[[str], str]] = (),
        attempt: int = 1,
    ) -> None:
        self._base: dict[str, Any] = {
            "session_id": session_id,
            "message_id": message_id,
            "attempt": attempt,
        }
        self._new_id = new_id
        self._clock = clock
        self._price = price
        self._trim = trim
        self._hooks = tuple(text_end_hooks)
        self._blocks: dict[tuple[str, str], _Block] = {}
        self._tools: dict[str, ToolPart] = {}
        self._saved: dict[str, Part] = {}
        self.reported: TokenUsage = NO_TOKENS
        """What the provider has reported of this call so far."""
        self.step_finish: StepFinishPart | None = None
        """The step-finish part, once the call ended."""
        self._handlers: dict[type, Callable[[Any], list[Change]]] = {
            stream.StepStart: self._step_start,
            stream.TextStart: self._text_start,
            stream.TextDelta: self._text_delta,
            stream.TextEnd: self._text_end,
            stream.ReasoningStart: self._reasoning_start,
            stream.ReasoningDelta: self._reasoning_delta,
            stream.ReasoningEnd: self._reasoning_end,
            stream.ToolInputStart: self._tool_input,
            stream.ToolInputDelta: self._nothing,
            stream.ToolInputEnd: self._nothing,
            stream.ToolCall: self._tool_call,
            stream.ToolProgress: self._tool_progress,
            stream.ToolResult: self._tool_result,
            stream.ToolFailure: self._tool_failure,
            stream.Usage: self._usage,
            stream.StepFinish: self._step_finish,
            stream.StreamError: self._nothing,
        }

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of the calls that are pending or running, in order of appearance."""
        return tuple(
            call_id
            for call_id, part in self._tools.items()
            if isinstance(part.state, ToolPending | ToolRunning)
        )

    def feed(self, event: stream.StreamEvent) -> list[Change]:
        """Take one stream event; return what is to be stored or sent, in order.

        An orphan (a delta or end without a start, a result for an unknown call) changes nothing.
        """
        changes = self._handlers[type(event)](event)
        for change in changes:
            if type(change) is SavePart:
                self._saved[change.part.id] = change.part
        return changes

    def open_text(self) -> list[SavePart]:
        """Return the open text and reasoning parts with what has arrived so far; still open."""
        return [SavePart(block.part_so_far()) for block in self._blocks.values()]

    def start_attempt(self, *, close: bool = True) -> list[SavePart]:
        """Begin the call again after a failure.

        Parameters
        ----------
        close
            Whether the parts of the failed attempt are closed and marked as discarded. False
            forgets the open blocks and leaves their rows as they are, as opencode does.

        Returns
        -------
        list of SavePart
            The discarded parts, a step-finish with the usage that was reported among them.
        """
        discarded: list[SavePart] = []
        if close:
            for change in [*self.close(), *self.finish_cut_call()]:
                self._saved[change.part.id] = change.part
            discarded = [
                SavePart(msgspec.structs.replace(part, discarded=True))
                for part in self._saved.values()
            ]
            self._tools.clear()
        self._blocks.clear()
        self._saved.clear()
        self.reported, self.step_finish = NO_TOKENS, None
        self._base["attempt"] += 1
        return discarded

    @property
    def has_started(self) -> bool:
        """Whether anything of this attempt was stored."""
        return bool(self._saved)

    def patch(self, since: str, files: list[str]) -> PatchPart:
        """Return the part that names the files that changed since a snapshot."""
        return PatchPart(id=self._new_id("prt"), hash=since, files=files, **self._base)

    @property
    def has_calls(self) -> bool:
        """Whether a tool of this attempt was called: pending calls do not count."""
        return any(not isinstance(part.state, ToolPending) for part in self._tools.values())

    def close(self) -> list[SavePart]:
        """Close whatever is open: text keeps what has arrived, tools fail as aborted.

        Returns
        -------
        list of SavePart
            The closed parts; empty when nothing was open, so closing twice is harmless.
        """
        closed = [self._close_block(key) for key in list(self._blocks)]
        closed += [self._abort_tool(call_id) for call_id in self.open_calls]
        return closed

    def finish_cut_call(self) -> list[SavePart]:
        """Return a step-finish for a call that was cut after the provider reported usage.

        Usage that was reported is money that was spent. Empty when nothing was reported, or when
        the call has ended already.
        """
        if self.step_finish is not None or not self.reported.is_reported:
            return []
        return [self._save_step_finish("error", snapshot=None)]

    def _nothing(self, event: object) -> list[Change]:
        del event
        return []

    def _usage(self, event: stream.Usage) -> list[Change]:
        self.reported = event.usage
        return []

    def _step_start(self, event: stream.StepStart) -> list[Change]:
        part = StepStartPart(id=self._new_id("prt"), snapshot=event.snapshot, **self._base)
        return [SavePart(part)]

    def _text_start(self, event: stream.TextStart) -> list[Change]:
        part = TextPart(
            id=self._new_id("prt"),
            text="",
            time=Span(start=self._clock()),
            metadata=event.metadata,
            **self._base,
        )
        return self._open(("text", event.id), part)

    def _reasoning_start(self, event: stream.ReasoningStart) -> list[Change]:
        part = ReasoningPart(
            id=self._new_id("prt"),
            text="",
            time=Span(start=self._clock()),
            metadata=event.metadata,
            **self._base,
        )
        return self._open(("reasoning", event.id), part)

    def _open(self, key: tuple[str, str], part: TextPart | ReasoningPart) -> list[Change]:
        changes: list[Change] = [self._close_block(key)] if key in self._blocks else []
        self._blocks[key] = _Block(part)
        changes.append(SavePart(part))
        return changes

    def _text_delta(self, event: stream.TextDelta) -> list[Change]:
        return self._append(("text", event.id), event)

    def _reasoning_delta(self, event: stream.ReasoningDelta) -> list[Change]:
        return self._append(("reasoning", event.id), event)

    def _append(
        self, key: tuple[str, str], event: stream.TextDelta | stream.ReasoningDelta
    ) -> list[Change]:
        block = self._blocks.get(key)
        if block is None:
            return []
        if event.metadata is not None:
            block.part = msgspec.structs.replace(block.part, metadata=event.metadata)
        text = event.text
        offset = block.length
        block.pieces.append(text)
        block.length = offset + len(text)
        return [AppendDelta(block.part.id, "text", text, offset)]

    def _text_end(self, event: stream.TextEnd) -> list[Change]:
        return self._end(("text", event.id), event.metadata)

    def _reasoning_end(self, event: stream.ReasoningEnd) -> list[Change]:
        return self._end(("reasoning", event.id), event.metadata)

    def _end(self, key: tuple[str, str], metadata: dict[str, Any] | None) -> list[Change]:
        if key not in self._blocks:
            return []
        return [self._close_block(key, metadata=metadata, ended=True)]

    def _close_block(
        self, key: tuple[str, str], *, metadata: dict[str, Any] | None = None, ended: bool = False
    ) -> SavePart:
        """Store a block's whole text; hooks run only on text that reached its own end."""
        block = self._blocks.pop(key)
        part = block.part
        text = "".join(block.pieces)
        if isinstance(part, TextPart):
            text = text.rstrip() if self._trim else text
            for hook in self._hooks if ended else ():
                text = hook(text)
        start = part.time.start if part.time else self._clock()
        closed = msgspec.structs.replace(
            part,
            text=text,
            time=Span(start=start, end=self._clock()),
            metadata=part.metadata if metadata is None else metadata,
        )
        return SavePart(closed)

    def _tool_input(self, event: stream.ToolInputStart) -> list[Change]:
        if event.call_id in self._tools:
            return []
        return [self._save_tool(self._pending(event.call_id, event.tool))]

    def _pending(self, call_id: str, tool: str) -> ToolPart:
        return ToolPart(
            id=self._new_id("prt"),
            call_id=call_id,
            tool=tool,
            state=ToolPending(input={}, raw=""),
            **self._base,
        )

    def _tool_call(self, event: stream.ToolCall) -> list[Change]:
        changes: list[Change] = []
        known = self._tools.get(event.call_id)
        if known is None:
            known = self._pending(event.call_id, event.tool)
            changes.append(SavePart(known))
        if not isinstance(known.state, ToolPending | ToolRunning):
            return changes
        start = known.state.time.start if isinstance(known.state, ToolRunning) else self._clock()
        given = event.input if isinstance(event.input, dict) else {"value": event.input}
        running = msgspec.structs.replace(
            known,
            tool=event.tool,
            state=ToolRunning(input=given, time=Span(start=start)),
            metadata=known.metadata if event.metadata is None else event.metadata,
        )
        changes.append(self._save_tool(running))
        return changes

    def _running(self, call_id: str) -> tuple[ToolPart, ToolRunning] | None:
        part = self._tools.get(call_id)
        if part is None or not isinstance(part.state, ToolRunning):
            return None
        return part, part.state

    def _tool_progress(self, event: stream.ToolProgress) -> list[Change]:
        found = self._running(event.call_id)
        if found is None:
            return []
        part, state = found
        state = msgspec.structs.replace(
            state,
            title=state.title if event.title is None else event.title,
            metadata={**(state.metadata or {}), **(event.metadata or {})} or None,
        )
        return [self._save_tool(msgspec.structs.replace(part, state=state))]

    def _tool_result(self, event: stream.ToolResult) -> list[Change]:
        found = self._running(event.call_id)
        if found is None:
            return []
        part, state = found
        done = ToolCompleted(
            input=state.input,
            output=event.output,
            title=event.title if event.title is not None else (state.title or part.tool),
            metadata={**(state.metadata or {}), **(event.metadata or {})},
            time=ToolSpan(start=state.time.start, end=self._clock()),
            attachments=event.attachments,
        )
        return [self._save_tool(msgspec.structs.replace(part, state=done))]

    def _tool_failure(self, event: stream.ToolFailure) -> list[Change]:
        found = self._running(event.call_id)
        if found is None:
            return []
        part, state = found
        failed = ToolFailed(
            input=state.input,
            error=event.error,
            metadata={**(state.metadata or {}), **(event.metadata or {})} or None,
            time=ToolSpan(start=state.time.start, end=self._clock()),
        )
        return [self._save_tool(msgspec.structs.replace(part, state=failed))]

    def _abort_tool(self, call_id: str) -> SavePart:
        part = self._tools[call_id]
        now = self._clock()
        state = part.state
        start = state.time.start if isinstance(state, ToolRunning) else now
        known = (state.metadata or {}) if isinstance(state, ToolRunning) else {}
        failed = ToolFailed(
            input=state.input,
            error=TOOL_ABORTED,
            metadata={**known, INTERRUPTED_KEY: True},
            time=ToolSpan(start=start, end=now),
        )
        return self._save_tool(msgspec.structs.replace(part, state=failed))

    def _save_tool(self, part: ToolPart) -> SavePart:
        self._tools[part.call_id] = part
        return SavePart(part)

    def _step_finish(self, event: stream.StepFinish) -> list[Change]:
        if event.usage.is_reported or not self.reported.is_reported:
            self.reported = event.usage
        changes: list[Change] = [self._close_block(key) for key in list(self._blocks)]
        changes.append(self._save_step_finish(event.reason, snapshot=event.snapshot))
        return changes

    def _save_step_finish(self, reason: str, *, snapshot: str | None) -> SavePart:
        cost = self._price(self.reported)
        self.step_finish = StepFinishPart(
            id=self._new_id("prt"),
            reason=reason,
            snapshot=snapshot,
            tokens=self.reported,
            cost=cost.usd,
            prices=cost.prices,
            cost_source=cost.source,
            **self._base,
        )
        return SavePart(self.step_finish)
