"""One model turn: drain the stream, run the tools, say what comes next.

A turn is one assistant message and one provider call. Whatever happens (an end, an error, a
cancelled task) the message leaves here closed: no open part, a completion time, an error where
there was one, and the usage that the provider had reported.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

import msgspec

from forge_nb.errors import ContextOverflowError, ProviderError, ToolError
from forge_nb.events import MessageUpdated, PartUpdated, RunStatus, UsageRecord, UsageRecorded
from forge_nb.messages.assemble import AppendDelta, PartAssembler, SavePart
from forge_nb.messages.message import (
    CONTINUING_FINISHES,
    AssistantMessage,
    ErrorData,
    MessageError,
)
from forge_nb.messages.parts import StepFinishPart
from forge_nb.messages.stream import (
    ReasoningDelta,
    StepFinish,
    StreamError,
    TextDelta,
    ToolCall,
    ToolFailure,
    ToolProgress,
    ToolResult,
    Usage,
)
from forge_nb.messages.usage import cost_of, is_over, usable_tokens
from forge_nb.messages.wire import (
    ABORTED_MESSAGE,
    ERROR_ABORTED,
    ERROR_API,
    ERROR_OVERFLOW,
    ERROR_UNKNOWN,
)
from forge_nb.tools.registry import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge_nb.events import Purpose, SyncEvent
    from forge_nb.messages.assemble import Change
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.providers.base import ModelRequest, Provider
    from forge_nb.session import Session
    from forge_nb.settings import Settings
    from forge_nb.tools.registry import ToolRegistry

__all__ = ["Outcome", "Processor"]

Outcome = Literal["continue", "stop", "compact"]
"""continue: call the model again; stop: the turn is over; compact: the window is full."""

_ABORTED = MessageError(name=ERROR_ABORTED, data=ErrorData(message=ABORTED_MESSAGE))
_CUT = MessageError(
    name=ERROR_API,
    data=ErrorData(
        message="the model's stream ended without a finish; send the prompt again",
        is_retryable=True,
    ),
)
_log = logging.getLogger(__name__)
_TICK_S = 0.1  # an awaiting kernel notices SIGINT only when its loop wakes (ipykernel 7.4)


class Processor:
    """Runs one assistant message.

    Parameters
    ----------
    session
        Where everything is written.
    provider
        Where the stream comes from.
    message
        The assistant message; its row exists already.
    tools
        What the model may call.
    settings
        Trim and the rest.
    purpose
        What the call is for; recorded with its usage.
    on_finish
        May change the message before it is stored as finished, and add events that commit with
        it (a compaction's boundary does both).
    """

    def __init__(
        self,
        session: Session,
        provider: Provider,
        message: AssistantMessage,
        *,
        tools: ToolRegistry,
        settings: Settings,
        purpose: Purpose = "turn",
        on_finish: Callable[
            [AssistantMessage, Sequence[SyncEvent]], tuple[AssistantMessage, list[SyncEvent]]
        ] = lambda message, _events: (message, []),
    ) -> None:
        self.session = session
        self.message = message
        self.overflowed = False
        """Whether the provider refused the request for its length."""
        self._provider = provider
        self._tools = tools
        self._purpose: Purpose = purpose
        self._on_finish = on_finish
        self._model_id = message.model_id or ""
        self._prices = provider.prices(self._model_id)
        self._usable = usable_tokens(provider.limits(self._model_id))
        self._started_ms = session.clock()
        self._assembler = PartAssembler(
            session.id,
            message.id,
            session.new_id,
            session.clock,
            price=lambda tokens: cost_of(tokens, self._prices),
            trim=settings.trim,
        )
        self._running: dict[str, asyncio.Task[StreamEvent]] = {}
        self._progress: list[ToolProgress] = []
        self._abort = asyncio.Event()

    async def process(self, request: ModelRequest) -> Outcome:
        """Drain the stream of one call.

        Returns
        -------
        Outcome
            What the run loop is to do next.

        Raises
        ------
        asyncio.CancelledError
            After the message was closed as aborted.
        """
        try:
            async with _Ticker():
                error = await self._drain(request)
        except asyncio.CancelledError:
            self._abort.set()
            await self._settle_tools()
            await self._close(_ABORTED)
            raise
        except Exception as raised:  # noqa: BLE001  a provider is foreign code
            _log.exception("the provider of message %s failed", self.message.id)
            error = _raised(raised)
        await self._settle_tools()
        await self._close(error)
        return self._outcome()

    async def _drain(self, request: ModelRequest) -> MessageError | None:
        """Feed the stream to the assembler; return the error that ended it, if any."""
        feed = self._assembler.feed
        async with aclosing(self._provider.stream(request)) as events:
            async for event in events:
                if type(event) is TextDelta or type(event) is ReasoningDelta:
                    self._send(feed(event))
                elif type(event) is StreamError:
                    return self._error_of(event)
                else:
                    await self._take(event)
                if self._running:
                    await self._collect_tools(wait=False)
        return None if self._assembler.step_finish is not None else _CUT

    def _send(self, changes: list[Change]) -> None:
        """Pass deltas on; an orphan made none."""
        for change in changes:
            if isinstance(change, AppendDelta):
                self.session.update_part_delta(self.message.id, change)

    async def _take(self, event: StreamEvent) -> None:
        """Store what an event at a block's boundary changed."""
        if isinstance(event, StepFinish):
            await self._finish_step(event)
            return
        await self._write(self._assembler.feed(event))
        if isinstance(event, ToolCall):
            self._start_tool(event)

    async def _save(self, change: SavePart | AppendDelta) -> None:
        if isinstance(change, SavePart):
            await self.session.update_part(change.part)

    def _error_of(self, event: StreamError) -> MessageError:
        name = ERROR_OVERFLOW if event.kind == "overflow" else ERROR_API
        data = ErrorData(
            message=event.message,
            status_code=event.status,
            is_retryable=event.kind in {"rate-limit", "overloaded", "connection"},
        )
        return MessageError(name=name, data=data)

    def _start_tool(self, event: ToolCall) -> None:
        context = ToolContext(
            session_id=self.session.id,
            message_id=self.message.id,
            call_id=event.call_id,
            abort=self._abort,
            progress=lambda title=None, metadata=None: self._progress.append(
                ToolProgress(call_id=event.call_id, title=title, metadata=metadata)
            ),
        )
        task = asyncio.ensure_future(self._call_tool(event, context))
        self._running[event.call_id] = task

    async def _call_tool(self, event: ToolCall, context: ToolContext) -> StreamEvent:
        given = event.input if isinstance(event.input, dict) else {"value": event.input}
        try:
            result = await self._tools.run(event.tool, given, context)
        except ToolError as error:
            return ToolFailure(call_id=event.call_id, error=str(error))
        return ToolResult(
            call_id=event.call_id,
            output=result.output,
            title=result.title,
            metadata=result.metadata,
            attachments=result.attachments,
        )

    async def _collect_tools(self, *, wait: bool) -> None:
        """Store the results of the calls that are done, in the order in which they ended."""
        while self._running:
            pending = self._running.values()
            done, _ = await asyncio.wait(
                pending, timeout=_TICK_S if wait else 0, return_when=asyncio.FIRST_COMPLETED
            )
            await self._write_progress()
            for call_id in [key for key, task in self._running.items() if task in done]:
                event = self._running.pop(call_id).result()
                await self._write(self._assembler.feed(event))
            if not wait:
                return

    async def _write_progress(self) -> None:
        events, self._progress = self._progress, []
        for event in events:
            await self._write(self._assembler.feed(event))

    async def _write(self, changes: Sequence[SavePart | AppendDelta]) -> None:
        for change in changes:
            await self._save(change)

    async def _finish_step(self, event: StepFinish) -> None:
        """Wait for the tools, then store the step's end, its bill and the message as one write."""
        if event.usage.is_reported:
            self._assembler.feed(Usage(usage=event.usage))
        await self._collect_tools(wait=True)
        changes = self._assembler.feed(event)
        await self._write_end(changes, finish=event.reason, error=None)

    async def _write_end(
        self,
        changes: Sequence[SavePart | AppendDelta],
        *,
        finish: str | None,
        error: MessageError | None,
    ) -> None:
        """Store closing parts, usage and the message's end in one transaction."""
        parts = [change.part for change in changes if isinstance(change, SavePart)]
        events: list[SyncEvent] = [PartUpdated(part=part) for part in parts]
        message = self.message
        for part in parts:
            if isinstance(part, StepFinishPart):
                events.append(UsageRecorded(usage=self._usage_record(part)))
                cost = None if part.cost is None else (message.cost or 0) + part.cost
                message = msgspec.structs.replace(message, cost=cost, tokens=part.tokens)
        time = msgspec.structs.replace(message.time, completed=self.session.clock())
        message = msgspec.structs.replace(message, finish=finish, error=error, time=time)
        message, extra = self._on_finish(message, events)
        self.message = message
        await self.session.write([*events, *extra, MessageUpdated(message=message)])

    def _usage_record(self, part: StepFinishPart) -> UsageRecord:
        return UsageRecord(
            id=part.id,
            session_id=self.session.id,
            message_id=self.message.id,
            purpose=self._purpose,
            provider_id=self.message.provider_id,
            model_id=self.message.model_id,
            tokens=part.tokens,
            cost=cost_of(part.tokens, self._prices),
            cost_recorded_usd=part.cost,
            attempt=part.attempt,
            started_ms=self._started_ms,
            finished_ms=self.session.clock(),
        )

    async def _settle_tools(self) -> None:
        """Cancel the calls that still run and let them end."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=_TICK_S)
        for task in self._running.values():
            if task.done() and not task.cancelled():
                await self._write(self._assembler.feed(task.result()))
        self._running.clear()

    async def _close(self, error: MessageError | None) -> None:
        """Close what is open; an error ends the message with it, whatever had been stored."""
        if error is not None and error.name == ERROR_OVERFLOW:
            self.overflowed = True
        changes = [*self._assembler.close(), *self._assembler.finish_cut_call()]
        if error is not None:
            await self._write_end(changes, finish="error", error=error)
        elif changes:
            await self._write_end(changes, finish=self.message.finish, error=self.message.error)

    def _outcome(self) -> Outcome:
        if self.overflowed and not self.message.is_summary:
            return "compact"
        if self.message.error is not None:
            return "stop"
        tokens = self._assembler.reported
        if not self.message.is_summary and is_over(tokens.total or tokens.sum, self._usable):
            return "compact"
        return "continue" if self.message.finish in CONTINUING_FINISHES else "stop"


class _Ticker:
    """Wakes the loop ten times a second, so that an interrupt is noticed while a call waits."""

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._tick())

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:  # noqa: ASYNC110  waking the loop is the point
            await asyncio.sleep(_TICK_S)


def _raised(error: Exception) -> MessageError:
    """Return the message's error for something that a provider raised."""
    name = ERROR_API if isinstance(error, ProviderError) else ERROR_UNKNOWN
    if isinstance(error, ContextOverflowError):
        name = ERROR_OVERFLOW
    return MessageError(name=name, data=ErrorData(message=f"{type(error).__name__}: {error}"))


def status(session_id: str, state: Literal["busy", "idle", "compacting"]) -> RunStatus:
    """Return the bus event that tells what a session's runner does."""
    return RunStatus(session_id=session_id, state=state)
