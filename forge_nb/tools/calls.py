"""The tool calls of one message while they run: started, watched, collected, cancelled.

What happens to a call is told as stream events (`ToolProgress`, `ToolResult`, `ToolFailure`), the
same that a provider sends for tools it runs itself, so that everything is stored in one way.
"""

from __future__ import annotations

import asyncio
import functools
import json
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ToolError, ToolRejectedError
from forge_nb.messages.stream import ToolFailure, ToolProgress, ToolResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from forge_nb.messages.stream import StreamEvent, ToolCall
    from forge_nb.tools.registry import ToolContext, ToolRegistry

__all__ = ["SETTLE_S", "ToolCalls", "fingerprint"]

SETTLE_S = 0.25  # how long a cancelled call may take to say how it ended (opencode)
_TICK_S = 0.1  # how often a waiting runner looks for progress


def fingerprint(tool: str, given: object) -> str:
    """Return a text that two calls share exactly when they ask for the same."""
    return f"{tool} {json.dumps(given, sort_keys=True, default=str)}"


def _object(call: ToolCall) -> dict[str, Any]:
    """Return a call's input; a tool is never run with what is no JSON object."""
    if isinstance(call.input, dict):
        return call.input
    msg = f"the input of {call.tool} is no JSON object; call it again with one"
    raise ToolError(msg, tool=call.tool)


class ToolCalls:
    """Runs calls side by side and hands what happens to whoever stores it.

    Parameters
    ----------
    registry
        The tools.
    context
        Makes a call's context, given its id and what takes its progress.
    store
        Stores what an event changed.
    check
        Is awaited before a call runs; raises ToolError to refuse it.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        context: Callable[[str, Callable[..., None]], ToolContext],
        store: Callable[[StreamEvent], Awaitable[None]],
        check: Callable[[ToolCall], Awaitable[None]],
    ) -> None:
        self.rejected: str | None = None
        """Why a call was rejected without a word to the model; then the turn is over."""
        self._registry = registry
        self._context = context
        self._store = store
        self._check = check
        self._running: dict[str, asyncio.Task[StreamEvent]] = {}
        self._progress: list[ToolProgress] = []

    def __bool__(self) -> bool:
        """Whether any call runs."""
        return bool(self._running)

    def start(self, call: ToolCall) -> None:
        """Run a call in the background; a call that runs already is left alone."""
        if call.call_id not in self._running:
            self._running[call.call_id] = asyncio.ensure_future(self._run(call))

    async def _run(self, call: ToolCall) -> StreamEvent:
        context = self._context(call.call_id, functools.partial(self._note, call.call_id))
        try:
            given = _object(call)
            await self._check(call)
            result = await self._registry.run(call.tool, given, context)
        except ToolRejectedError as error:
            if error.fields.get("reason") is None:
                self.rejected = str(error)
            return ToolFailure(call_id=call.call_id, error=str(error))
        except ToolError as error:
            return ToolFailure(call_id=call.call_id, error=str(error))
        return ToolResult(
            call_id=call.call_id,
            output=result.output,
            title=result.title,
            metadata=result.metadata,
            attachments=result.attachments,
        )

    def _note(
        self, call_id: str, title: str | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        self._progress.append(ToolProgress(call_id=call_id, title=title, metadata=metadata))

    async def collect(self, *, wait: bool) -> None:
        """Store the results of the calls that are done, in the order in which they ended.

        Parameters
        ----------
        wait
            Whether to stay until all are done.
        """
        while self._running:
            done, _ = await asyncio.wait(
                self._running.values(),
                timeout=_TICK_S if wait else 0,
                return_when=asyncio.FIRST_COMPLETED,
            )
            await self._store_progress()
            for call_id in [key for key, task in self._running.items() if task in done]:
                await self._store(self._running.pop(call_id).result())
            if not wait:
                return

    async def _store_progress(self) -> None:
        events, self._progress = self._progress, []
        for event in events:
            await self._store(event)

    async def cancel(self) -> None:
        """Cancel what still runs and give it a moment to say how it ended."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=SETTLE_S)
        await self._store_progress()
        for task in self._running.values():
            if task.done() and not task.cancelled():
                await self._store(task.result())
        self._running.clear()
