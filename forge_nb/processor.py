"""One model turn: drain the stream, run the tools, say what comes next.

A turn is one assistant message and one provider call, made again where it failed in a way that may
pass. Whatever happens (an end, an error, a cancelled task) the message leaves here closed: no open
part, a completion time, an error where there was one, and the usage that the provider had reported.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.errors import ProviderError, StoreError, ToolRejectedError
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
    StepStart,
    StreamError,
    TextDelta,
    ToolCall,
    ToolInputStart,
    Usage,
)
from forge_nb.messages.usage import (
    NO_TOKENS,
    ZERO_TOKENS,
    cost_of,
    is_over,
    usable_tokens,
    used_tokens,
)
from forge_nb.messages.wire import ABORTED_MESSAGE, ERROR_ABORTED, ERROR_OVERFLOW
from forge_nb.providers.base import unit_prices
from forge_nb.retry import failure_of, is_retryable, message_error, retry_wait_s
from forge_nb.tools.calls import ToolCalls, fingerprint
from forge_nb.tools.environment import Environment
from forge_nb.tools.registry import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge_nb.events import Purpose, SyncEvent
    from forge_nb.messages.assemble import Change
    from forge_nb.messages.parts import PatchPart
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.messages.usage import Cost, TokenUsage
    from forge_nb.providers.base import ModelRequest, Provider
    from forge_nb.session import Session
    from forge_nb.settings import Settings
    from forge_nb.tools.registry import ToolRegistry

__all__ = ["Outcome", "Processor", "status"]

Outcome = Literal["continue", "stop", "compact"]
"""continue: call the model again; stop: the turn is over; compact: the window is full."""

_ABORTED = MessageError(name=ERROR_ABORTED, data=ErrorData(message=ABORTED_MESSAGE))
_TRUNCATED = StreamError(
    message="the model's stream ended without a finish; send the prompt again", kind="truncated"
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
        Trim, retries and the rest.
    purpose
        What the call is for; recorded with its usage.
    on_finish
        May change the message before it is stored as finished, and add events that commit with
        it (a compaction's boundary does both).
    environment
        What tools have around them.
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
        environment: Environment | None = None,
    ) -> None:
        self.session = session
        self.message = message
        self.overflowed = False
        """Whether the provider refused the request for its length."""
        self._provider = provider
        self._tools = tools
        self._settings = settings
        self._purpose: Purpose = purpose
        self._on_finish = on_finish
        self._environment = environment or Environment()
        self._calls_made = list(self._environment.recent_calls)
        self._model_id = message.model_id or ""
        self._usable = usable_tokens(
            provider.limits(self._model_id), reserved=settings.reserved, parity=settings.parity
        )
        self._started_ms = session.clock()
        self._attempt = 1
        self._waiting = False
        self._snapshot: str | None = None
        self._checkpoint_s = settings.checkpoint_s
        self._checkpoint_at = time.monotonic() + (settings.checkpoint_s or 0)
        self._abort = asyncio.Event()
        self._assembler = PartAssembler(
            session.id,
            message.id,
            session.new_id,
            session.clock,
            price=self._cost,
            trim=settings.trim,
            text_end_hooks=settings.text_end_hooks,
        )
        self._calls = ToolCalls(
            tools, context=self._context, store=self._store, check=self._check_call
        )

    @property
    def rejected(self) -> str | None:
        """Why a person ended the turn by rejecting a call; None when nobody did."""
        return self._calls.rejected

    @property
    def calls_made(self) -> tuple[str, ...]:
        """The turn's calls up to now, those of earlier messages first."""
        return tuple(self._calls_made)

    async def process(self, request: ModelRequest) -> Outcome:
        """Drain the stream of one call, trying again where a failure may pass.

        Returns
        -------
        Outcome
            What the run loop is to do next.

        Raises
        ------
        asyncio.CancelledError
            After the message was closed as aborted.
        """
        self._snapshot = await self._take_snapshot()
        try:
            async with _Ticker():
                error = await self._attempts(request)
        except asyncio.CancelledError:
            self._abort.set()
            await self._calls.cancel()
            await self._close(self._abort_error())
            raise
        await self._calls.cancel()
        await self._close(error)
        return self._outcome()

    async def _attempts(self, request: ModelRequest) -> MessageError | None:
        """Make the call until it ends well, fails for good, or has failed too often."""
        waited_s = 0.0
        while True:
            failure = await self._attempt_once(request)
            if failure is None or await self._went_as_far_as_it_can(failure):
                return None
            wait_s = self._retry_wait(failure, waited_s)
            if wait_s is None:
                return message_error(failure)
            await self._start_attempt()
            await self._pause(failure, wait_s)
            waited_s += wait_s

    async def _attempt_once(self, request: ModelRequest) -> StreamError | None:
        """Drain one stream; whatever the provider raises is a failure too."""
        try:
            return await self._drain(request)
        except StoreError:
            raise  # not the provider's
        except Exception as raised:  # noqa: BLE001  a provider is foreign code
            _log.exception("the provider of message %s failed", self.message.id)
            return failure_of(raised)

    async def _drain(self, request: ModelRequest) -> StreamError | None:
        """Feed the stream to the assembler; return the failure that ended it, if any."""
        feed = self._assembler.feed
        async with aclosing(self._provider.stream(request)) as events:
            async for event in events:
                if type(event) is TextDelta or type(event) is ReasoningDelta:
                    self._send(feed(event))
                elif type(event) is StreamError:
                    return event
                else:
                    await self._take(event)
                if self._calls or self._checkpoint_s:
                    await self._between_events()
        return None if self._assembler.step_finish is not None else _TRUNCATED

    def _send(self, changes: list[Change]) -> None:
        """Pass deltas on; an orphan made none."""
        for change in changes:
            if isinstance(change, AppendDelta):
                self.session.update_part_delta(self.message.id, change)

    async def _between_events(self) -> None:
        """Store the results of calls that are done and, now and then, the text of open blocks."""
        await self._calls.collect(wait=False)
        if self._checkpoint_s and time.monotonic() >= self._checkpoint_at:
            self._checkpoint_at = time.monotonic() + self._checkpoint_s
            await self._write(self._assembler.open_text())

    async def _take(self, event: StreamEvent) -> None:
        """Store what an event at a block's boundary changed."""
        if self.message.is_summary and isinstance(event, ToolInputStart | ToolCall):
            msg = f"a summary may call no tool, and the model called {event.tool!r}"
            raise ProviderError(msg, model=self._model_id)
        if isinstance(event, StepFinish):
            await self._finish_step(event)
            return
        if isinstance(event, StepStart) and event.snapshot is None:
            event = msgspec.structs.replace(event, snapshot=self._snapshot)
        if isinstance(event, ToolInputStart | ToolCall):
            event = msgspec.structs.replace(event, tool=self._tools.repaired(event.tool))
        await self._store(event)
        if isinstance(event, ToolCall):
            self._calls.start(event)

    async def _store(self, event: StreamEvent) -> None:
        await self._write(self._assembler.feed(event))

    async def _write(self, changes: Sequence[SavePart | AppendDelta]) -> None:
        for change in changes:
            if isinstance(change, SavePart):
                await self.session.update_part(change.part)

    # ------------------------------------------------------------------------------ tool calls

    def _context(self, call_id: str, progress: Callable[..., None]) -> ToolContext:
        return ToolContext(
            session_id=self.session.id,
            message_id=self.message.id,
            call_id=call_id,
            abort=self._abort,
            progress=progress,
            ask=functools.partial(self._ask, call_id=call_id),
            workspace=self._environment.workspace,
        )

    async def _check_call(self, call: ToolCall) -> None:
        """Ask a person before the same call is made again and again."""
        self._calls_made.append(fingerprint(call.tool, call.input))
        limit = self._settings.doom_loop
        known = self._calls_made
        if not self._settings.doom_loop_across_steps:
            known = known[len(self._environment.recent_calls) :]
        if limit < 1 or len(known) < limit or len(set(known[-limit:])) > 1:
            return
        what = {"tool": call.tool, "input": call.input}
        await self._ask(
            "doom_loop", (call.tool,), always=(call.tool,), metadata=what, call_id=call.call_id
        )

    async def _ask(
        self, permission: str, patterns: Sequence[str], *, call_id: str, **more: Any
    ) -> None:
        """Ask for leave in the name of a call; no where nobody can be asked."""
        if self._environment.ask is None:
            msg = f"{permission} of {', '.join(patterns)} needs leave, and nobody can give it here"
            raise ToolRejectedError(msg, permission=permission, reason=None)
        await self._environment.ask(
            permission, patterns, message_id=self.message.id, call_id=call_id, **more
        )

    # ---------------------------------------------------------------------------------- retries

    async def _went_as_far_as_it_can(self, failure: StreamError) -> bool:
        """End a broken step as an unfinished one where trying again would do harm.

        Tools that were called have had their effects; making the call anew would repeat them. So
        the step ends with an unknown finish, their results stay, and the turn goes on from there.
        Without `retry_truncated` every broken stream ends like that, as in opencode.
        """
        if self._assembler.step_finish is not None:
            _log.warning("after the end of message %s: %s", self.message.id, failure.message)
            return True
        is_broken = failure.kind in {"truncated", "connection"}
        if self._settings.retry_truncated:
            is_broken = is_retryable(failure) and self._assembler.has_calls
        if not is_broken or not self._assembler.has_started:
            return False
        usage = NO_TOKENS if self._settings.retry_truncated else ZERO_TOKENS
        await self._finish_step(StepFinish(reason="unknown", usage=usage))
        return True

    def _retry_wait(self, failure: StreamError, waited_s: float) -> float | None:
        return retry_wait_s(
            failure,
            self._settings,
            attempt=self._attempt,
            waited_s=waited_s,
            jitter=Random(f"{self.message.id}:{self._attempt}").random(),  # noqa: S311  no secret
            now_ms=self.session.clock(),
        )

    async def _start_attempt(self) -> None:
        """Close what the failed attempt left, mark it, and keep what it cost."""
        self._attempt += 1
        await self._calls.cancel()
        changes = self._assembler.start_attempt(close=self._settings.close_failed_attempts)
        if changes:
            events, self.message = self._billed(changes)
            await self.session.write([*events, MessageUpdated(message=self.message)])

    async def _pause(self, failure: StreamError, wait_s: float) -> None:
        self.session.announce(
            RunStatus(
                session_id=self.session.id,
                state="retry",
                attempt=self._attempt - 1,
                message=failure.message,
                next_ms=self.session.clock() + round(wait_s * 1000),
            )
        )
        self._waiting = True
        await asyncio.sleep(wait_s)
        self._waiting = False
        self.session.announce(status(self.session.id, "busy"))

    # -------------------------------------------------------------------------------- the end

    async def _finish_step(self, event: StepFinish) -> None:
        """Wait for the tools, then store the step's end, its bill and the message as one write."""
        if event.usage.is_reported:
            self._assembler.feed(Usage(usage=event.usage))
        await self._calls.collect(wait=True)
        snapshot = event.snapshot or await self._take_snapshot()
        changes = self._assembler.feed(msgspec.structs.replace(event, snapshot=snapshot))
        await self._write_end(changes, finish=event.reason, error=None)

    async def _take_snapshot(self) -> str | None:
        snapshots = self._environment.snapshots
        return None if snapshots is None else await asyncio.to_thread(snapshots.track)

    async def _patch(self) -> list[PatchPart]:
        """Return what the step changed on disk since its start; nothing a second time."""
        since, self._snapshot = self._snapshot, None
        snapshots = self._environment.snapshots
        if since is None or snapshots is None:
            return []
        files = await asyncio.to_thread(snapshots.changed, since)
        return [self._assembler.patch(since, files)] if files else []

    def _billed(
        self, changes: Sequence[SavePart | AppendDelta]
    ) -> tuple[list[SyncEvent], AssistantMessage]:
        """Return the events that store parts with what they cost, and the message with its bill."""
        message = self.message
        events: list[SyncEvent] = []
        for part in (change.part for change in changes if isinstance(change, SavePart)):
            events.append(PartUpdated(part=part))
            if isinstance(part, StepFinishPart):
                events.append(UsageRecorded(usage=self._usage_record(part)))
                cost = message.cost if part.cost is None else (message.cost or 0) + part.cost
                message = msgspec.structs.replace(message, cost=cost, tokens=part.tokens)
        return events, message

    async def _write_end(
        self,
        changes: Sequence[SavePart | AppendDelta],
        *,
        finish: str | None,
        error: MessageError | None,
    ) -> None:
        """Store closing parts, usage and the message's end in one transaction."""
        events, message = self._billed(changes)
        message = msgspec.structs.replace(message, finish=finish, error=error)
        if self._settings.parity and finish is not None and error is None:
            events.append(MessageUpdated(message=message))  # opencode stores the end in two steps
        events += [PartUpdated(part=part) for part in await self._patch()]
        completed = msgspec.structs.replace(message.time, completed=self.session.clock())
        message = msgspec.structs.replace(message, time=completed)
        message, extra = self._on_finish(message, events)
        self.message = message
        await self.session.write([*events, MessageUpdated(message=message), *extra])

    def _cost(self, tokens: TokenUsage) -> Cost:
        context = tokens.context or 0
        return cost_of(tokens, unit_prices(self._provider, self._model_id, context_tokens=context))

    def _usage_record(self, part: StepFinishPart) -> UsageRecord:
        is_known = part.tokens.is_reported or part.reason != "unknown"
        tokens = part.tokens if is_known else NO_TOKENS
        return UsageRecord(
            id=part.id,
            session_id=self.session.id,
            message_id=self.message.id,
            purpose=self._purpose,
            provider_id=self.message.provider_id,
            model_id=self.message.model_id,
            tokens=tokens,
            cost=self._cost(tokens),
            cost_recorded_usd=part.cost,
            attempt=part.attempt,
            started_ms=self._started_ms,
            finished_ms=self.session.clock(),
        )

    def _abort_error(self) -> MessageError | None:
        """Return the error of an abort; opencode gives none to a call that waits for a retry."""
        return None if self._waiting and not self._settings.finish_on_abort else _ABORTED

    async def _close(self, error: MessageError | None) -> None:
        """Close what is open; an error ends the message with it, whatever had been stored."""
        changes = self._assembler.close()
        is_abort = error is _ABORTED
        if error is not None and error.name == ERROR_OVERFLOW:
            self.overflowed = True
            if self._settings.parity and not self.message.is_summary:
                error = None  # opencode leaves the message without an end, and compacts
        if self._settings.finish_on_abort or not is_abort:
            changes += self._assembler.finish_cut_call()
        if error is not None:
            await self._write_end(changes, finish=self._finish_of(error), error=error)
        elif changes or self.message.time.completed is None:
            await self._write_end(changes, finish=self.message.finish, error=self.message.error)

    def _finish_of(self, error: MessageError) -> str | None:
        """Return a failed call's finish; opencode gives one to a summary that did not fit only."""
        if self._settings.finish_on_abort or error.name == ERROR_OVERFLOW:
            return "error"
        return None

    def _outcome(self) -> Outcome:
        if self.overflowed and not self.message.is_summary:
            return "compact"
        if self.message.error is not None or self.rejected is not None:
            return "stop"
        used = used_tokens(self._assembler.reported, parity=self._settings.parity)
        if not self.message.is_summary and is_over(used, self._usable):
            return "compact"
        goes_on = self.message.finish in CONTINUING_FINISHES
        if self.message.finish == "stop":
            goes_on = self._assembler.has_calls  # some providers stop beside calls
        return "continue" if goes_on else "stop"


class _Ticker:
    """Wakes the loop ten times a second, so that an interrupt is noticed while a call waits."""

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._tick())

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:  # noqa: ASYNC110  waking the loop is the point
            await asyncio.sleep(_TICK_S)


def status(session_id: str, state: Literal["busy", "idle", "compacting"]) -> RunStatus:
    """Return the bus event that tells what a session's runner does."""
    return RunStatus(session_id=session_id, state=state)
