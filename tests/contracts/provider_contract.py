"""What every provider must do; a test module subclasses it and gives a `make_provider`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from forge_nb.messages.parts import ModelRef
from forge_nb.messages.render import ModelMessage, ModelPart
from forge_nb.messages.stream import (
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
    ToolFailure,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolProgress,
    ToolResult,
)
from forge_nb.messages.usage import ModelLimits, UnitPrices
from forge_nb.providers.base import ModelRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge_nb.events import Purpose
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.providers.base import Provider

    MakeProvider = Callable[[], Provider]

__all__ = ["MakeProvider", "ProviderContract", "asked", "drain", "is_well_formed"]


def asked(*texts: str, purpose: Purpose = "turn") -> ModelRequest:
    """Return a request whose messages are these texts of the user."""
    messages = [
        ModelMessage(
            id=f"m{n}", role="user", parts=(ModelPart(id=f"p{n}", kind="text", text=text),)
        )
        for n, text in enumerate(texts)
    ]
    model = ModelRef(provider_id="any", model_id="any")
    return ModelRequest(model=model, system=[], messages=messages, tools=[], purpose=purpose)


async def drain(provider: Provider, request: ModelRequest) -> list[StreamEvent]:
    """Return every event of one answer."""
    async with aclosing(provider.stream(request)) as events:
        return [event async for event in events]


def is_well_formed(events: Sequence[StreamEvent]) -> bool:
    """Return whether every delta and end belongs to a block that is open."""
    open_blocks: set[tuple[str, str]] = set()
    for event in events:
        match event:
            case TextStart(id=name) | ReasoningStart(id=name):
                block = (_kind(event), name)
                if block in open_blocks:
                    return False
                open_blocks.add(block)
            case TextDelta(id=name) | ReasoningDelta(id=name):
                if (_kind(event), name) not in open_blocks:
                    return False
            case TextEnd(id=name) | ReasoningEnd(id=name):
                if (_kind(event), name) not in open_blocks:
                    return False
                open_blocks.discard((_kind(event), name))
            case _:
                pass
    return not open_blocks or isinstance(events[-1], StreamError)


def _kind(event: StreamEvent) -> str:
    return "text" if isinstance(event, TextStart | TextDelta | TextEnd) else "reasoning"


class ProviderContract:
    """Subclasses give `make_provider`, a function that makes a fresh provider."""

    async def test_an_answer_begins_with_a_step_and_ends_with_its_finish_or_an_error(
        self, make_provider: MakeProvider
    ) -> None:
        events = await drain(make_provider(), asked("why?"))
        assert isinstance(events[0], StepStart)
        assert isinstance(events[-1], StepFinish | StreamError)
        assert sum(isinstance(event, StepFinish | StreamError) for event in events) == 1

    async def test_deltas_stand_in_open_blocks_and_none_stays_open(
        self, make_provider: MakeProvider
    ) -> None:
        assert is_well_formed(await drain(make_provider(), asked("why?")))

    async def test_every_call_has_begun_and_none_is_answered_by_the_provider(
        self, make_provider: MakeProvider
    ) -> None:
        begun: set[str] = set()
        for event in await drain(make_provider(), asked("why?")):
            assert not isinstance(event, ToolResult | ToolFailure | ToolProgress)
            if isinstance(event, ToolInputStart):
                assert event.call_id not in begun
                begun.add(event.call_id)
            elif isinstance(event, ToolInputDelta | ToolInputEnd | ToolCall):
                assert event.call_id in begun

    async def test_a_hang_up_in_mid_stream_ends_the_stream(
        self, make_provider: MakeProvider
    ) -> None:
        stream = make_provider().stream(asked("why?"))
        heard = [await anext(stream), await anext(stream)]
        await stream.aclose()
        assert [event async for event in stream] == []
        assert len(heard) == 2

    async def test_the_same_requests_give_the_same_answers(
        self, make_provider: MakeProvider
    ) -> None:
        first, second = make_provider(), make_provider()
        assert await drain(first, asked("why?")) == await drain(second, asked("why?"))

    def test_it_has_a_name_and_says_what_it_knows_of_a_model(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider()
        assert provider.id
        assert isinstance(provider.limits("any"), ModelLimits)
        assert isinstance(provider.prices("any"), UnitPrices | None)
