"""Registries that record what becomes of tool calls, or give what was recorded.

A tape is no concern of the Processor: a provider that records or plays says so by ``tool_sink`` or
``tool_source``, and whoever sets up a run wraps the tools.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import ToolError, ToolRejectedError
from forge_nb.messages.stream import ToolFailure, ToolProgress, ToolResult
from forge_nb.tools.registry import ToolContext, ToolOutput, ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.messages.render import ToolSpec
    from forge_nb.tools.registry import Tool

__all__ = ["RecordedTools", "RecordingTools", "ToolEvent", "taped"]

ToolEvent = ToolProgress | ToolResult | ToolFailure
Sink = Callable[[str, float, ToolEvent | None], None]
Source = Callable[[str], list[tuple[float, ToolEvent | None]] | None]

_REJECTED = "rejected"


def taped(registry: ToolRegistry, provider: object) -> ToolRegistry:
    """Return the tools of a run whose provider records to a tape, or plays one.

    Parameters
    ----------
    registry
        The tools.
    provider
        Who answers; any provider that has nothing to do with tapes leaves the tools as they are.
    """
    source: Source | None = getattr(provider, "tool_source", None)
    sink: Sink | None = getattr(provider, "tool_sink", None)
    if source is not None:
        registry = RecordedTools(registry, source, getattr(provider, "tool_specs", ()))
    return registry if sink is None else RecordingTools(registry, sink)


class _Wrapped(ToolRegistry):
    """A registry that passes everything on to another one."""

    def __init__(self, registry: ToolRegistry) -> None:
        super().__init__(())
        self._registry = registry

    def _with(self, registry: ToolRegistry) -> ToolRegistry:
        raise NotImplementedError

    def plus(self, *tools: Tool) -> ToolRegistry:
        """Return a registry with these tools too."""
        return self._with(self._registry.plus(*tools))

    def only(self, names: Iterable[str] | None) -> ToolRegistry:
        """Return a registry with the tools of these names; with all for None."""
        return self._with(self._registry.only(names))

    def specs(self) -> list[ToolSpec]:
        """Return what the model is told, by name."""
        return self._registry.specs()

    def get(self, name: str) -> Tool:
        """Return a tool."""
        return self._registry.get(name)

    def repaired(self, name: str) -> str:
        """Return the name of the tool that a model meant."""
        return self._registry.repaired(name)


class RecordingTools(_Wrapped):
    """Runs tools and tells what becomes of each call.

    Parameters
    ----------
    registry
        The tools.
    sink
        Takes the call, the milliseconds since it began, and what happened; None when it was
        cancelled.
    """

    def __init__(self, registry: ToolRegistry, sink: Sink) -> None:
        super().__init__(registry)
        self._sink = sink

    def _with(self, registry: ToolRegistry) -> ToolRegistry:
        return RecordingTools(registry, self._sink)

    async def run(self, name: str, given: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run a tool, and tell how it ended.

        Raises
        ------
        ToolError
            What the tool raised.
        """
        call_id, started = context.call_id, time.monotonic()

        def tell(event: ToolEvent | None) -> None:
            self._sink(call_id, round((time.monotonic() - started) * 1e3, 1), event)

        progress = functools.partial(_told_progress, tell, context)
        watched = msgspec.structs.replace(context, progress=progress)
        try:
            result = await self._registry.run(name, given, watched)
        except ToolError as error:
            tell(ToolFailure(call_id=call_id, error=str(error), metadata=_marks(error)))
            raise
        except asyncio.CancelledError:
            tell(None)
            raise
        tell(ToolResult(call_id=call_id, **msgspec.structs.asdict(result)))
        return result


def _told_progress(
    tell: Callable[[ToolEvent], None],
    context: ToolContext,
    title: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    tell(ToolProgress(call_id=context.call_id, title=title, metadata=metadata))
    context.progress(title=title, metadata=metadata)


def _marks(error: ToolError) -> dict[str, Any] | None:
    """Return what a tape keeps of an error beside its words."""
    if not isinstance(error, ToolRejectedError):
        return None
    return {_REJECTED: True, "reason": error.fields.get("reason")}


class RecordedTools(_Wrapped):
    """Gives the recorded results of calls; runs a call that has none, as behind a fork.

    Parameters
    ----------
    registry
        The tools; those added later (`plus`) always run, since what they give is used elsewhere.
    source
        Gives what became of a call, with waits in seconds, or None.
    specs
        Tools that the recorded model was told of; those that are not registered are told again.
    live
        Names that always run.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        source: Source,
        specs: Sequence[ToolSpec] = (),
        *,
        live: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(registry)
        self._source = source
        self._recorded = {spec.name: spec for spec in specs}
        self._live = live

    def _with(self, registry: ToolRegistry) -> ToolRegistry:
        specs = list(self._recorded.values())
        return RecordedTools(registry, self._source, specs, live=self._live)

    def plus(self, *tools: Tool) -> ToolRegistry:
        """Return a registry with these tools too, which are run."""
        live = self._live | {one.name for one in tools}
        specs = list(self._recorded.values())
        return RecordedTools(self._registry.plus(*tools), self._source, specs, live=live)

    def specs(self) -> list[ToolSpec]:
        """Return what the model is told: the tools there are, and those that were recorded."""
        own = {spec.name: spec for spec in self._registry.specs()}
        return [spec for _, spec in sorted({**self._recorded, **own}.items())]

    def repaired(self, name: str) -> str:
        """Return the name of the tool that a model meant, a recorded one too."""
        if name in self._recorded:
            return name
        known = {spec.lower(): spec for spec in self._recorded}
        return known.get(name.lower(), self._registry.repaired(name))

    async def run(self, name: str, given: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Return what the recorded call gave.

        Raises
        ------
        ToolError
            What the recorded call, or the tool, raised.
        """
        rows = None if name in self._live else self._source(context.call_id)
        if rows is None:
            return await self._registry.run(name, given, context)
        started = asyncio.get_running_loop().time()
        for wait_s, event in rows:
            if wait_s:
                await asyncio.sleep(started + wait_s - asyncio.get_running_loop().time())
            match event:
                case ToolProgress():
                    context.progress(title=event.title, metadata=event.metadata)
                case ToolResult():
                    return _output(event)
                case ToolFailure():
                    raise _error(event, name)
                case None:
                    break
        await asyncio.Event().wait()  # it never ended; whoever stopped it then does so again
        raise AssertionError  # not reached


def _output(event: ToolResult) -> ToolOutput:
    return ToolOutput(
        output=event.output,
        title=event.title,
        metadata=event.metadata,
        attachments=event.attachments,
    )


def _error(event: ToolFailure, name: str) -> ToolError:
    marks = event.metadata or {}
    if marks.get(_REJECTED):
        return ToolRejectedError(event.error, tool=name, reason=marks.get("reason"))
    return ToolError(event.error, tool=name)
