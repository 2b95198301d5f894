"""What a provider is asked, and what it promises.

A provider translates a request into its wire format and the answer into stream events. It never
runs tools and never writes: the Processor does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from forge_nb.events import Purpose
from forge_nb.messages.parts import ModelRef
from forge_nb.messages.render import ModelMessage, ToolSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from forge_nb.messages.stream import StreamEvent
    from forge_nb.messages.usage import ModelLimits, UnitPrices

__all__ = ["ModelRequest", "Provider", "unit_prices"]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one call sends."""

    model: ModelRef
    system: list[str]
    messages: list[ModelMessage]
    tools: list[ToolSpec]
    purpose: Purpose
    tool_choice: Literal["auto", "required"] = "auto"
    """Whether the model has to call a tool."""


class Provider(Protocol):
    """Where stream events come from."""

    id: str

    def limits(self, model_id: str) -> ModelLimits:
        """Return the model's window; empty where unknown."""
        ...

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the model's unit prices; None where unknown."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer as it comes; closing the generator hangs up.

        Ends with a `StepFinish`, or with a `StreamError` when the call failed.
        """
        ...


def unit_prices(provider: Provider, model_id: str, *, context_tokens: int) -> UnitPrices | None:
    """Return what a call costs by the unit; of the tier that its context falls into.

    A provider whose prices depend on the context has a method ``prices_at(context_tokens)``.

    Parameters
    ----------
    provider
        Whose prices.
    model_id
        Of which model.
    context_tokens
        Input tokens of the call, cache included.
    """
    prices_at: Callable[[int], UnitPrices | None] | None = getattr(provider, "prices_at", None)
    return provider.prices(model_id) if prices_at is None else prices_at(context_tokens)
