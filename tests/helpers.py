"""A provider that says exactly what a test wants, and shorthand for one-off workbenches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forge_nb.clock import FixedClock
from forge_nb.messages.parts import ModelRef
from forge_nb.messages.stream import StepFinish, StepStart, TextDelta, TextEnd, TextStart
from forge_nb.messages.usage import CacheTokens, ModelLimits, TokenUsage, UnitPrices
from forge_nb.providers.registry import register_provider
from forge_nb.settings import Settings
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from forge_nb.agents import Agent
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.providers.base import ModelRequest
    from forge_nb.tools.registry import Tool

USED = TokenUsage(input=100, output=10, reasoning=0, cache=CacheTokens(read=0, write=0))


class Saying:
    """A provider whose n-th answer is the n-th list of events; the last one repeats.

    An event that is a number is a wait in seconds, an exception is raised.
    """

    id = "saying"

    def __init__(
        self,
        *answers: Sequence[StreamEvent | float | Exception],
        limits: ModelLimits | None = None,
    ) -> None:
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []
        self._limits = limits or ModelLimits()

    def limits(self, model_id: str) -> ModelLimits:
        del model_id
        return self._limits

    def prices(self, model_id: str) -> UnitPrices | None:
        del model_id
        return UnitPrices(input=1, output=2)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        place = min(len(self.requests), len(self.answers) - 1)
        self.requests.append(request)
        for event in self.answers[place]:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, int | float):
                await asyncio.sleep(event)
            else:
                yield event


def text(said: str, *, reason: str = "stop", usage: TokenUsage = USED) -> list[StreamEvent]:
    """Return the events of one plain answer."""
    return [
        StepStart(),
        TextStart(),
        TextDelta(text=said),
        TextEnd(),
        StepFinish(reason=reason, usage=usage),
    ]


def workbench(
    provider: Saying,
    *,
    tools: Sequence[Tool] = (),
    settings: Settings | None = None,
    agents: Sequence[Agent] = (),
) -> Workbench:
    """Return a workbench in memory whose model is this provider."""
    register_provider("saying", lambda _model: provider)
    return Workbench(
        ":memory:",
        model="saying:m",
        tools=tools,
        agents=agents,
        settings=settings or Settings(retry_base_s=0),
        clock=FixedClock(),
        seed=3,
    )


async def wait_for(condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  the condition has no event
            await asyncio.sleep(0.005)


REF = ModelRef(provider_id="saying", model_id="m")
