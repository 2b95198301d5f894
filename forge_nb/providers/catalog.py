"""Prices and windows of models: the user's `models.toml`, then the tables of genai-prices.

Never from the network. What the user's file says of a model goes first, field by field; the tables
fill in the rest. An unknown model has no price and no window, not a price of 0. Where a price has
tiers, the whole call is billed at the tier of its context, as the providers do.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.messages.render import MediaSupport
from forge_nb.messages.usage import TOKEN_KINDS, ModelLimits, UnitPrices
from forge_nb.providers.overlay import entry_for

if TYPE_CHECKING:
    from decimal import Decimal

__all__ = ["limits_for", "media_for", "prices_for"]

_MINUTE_MS = 60_000  # the finest step at which a price changes: some depend on the hour
_LAST_MOMENT = datetime(9999, 12, 31, 12, tzinfo=UTC)
_LAST_MINUTE = int(_LAST_MOMENT.timestamp() * 1e3) // _MINUTE_MS


def prices_for(
    provider_id: str | None,
    model_id: str | None,
    *,
    at_ms: int | None = None,
    context_tokens: int = 0,
) -> UnitPrices | None:
    """Return a model's unit prices in US dollars per million tokens; None when unknown.

    Parameters
    ----------
    provider_id, model_id
        As the provider names them.
    at_ms
        When the call was made, milliseconds UTC: prices change, and some depend on the hour. None
        for the newest table, at noon UTC.
    context_tokens
        Input tokens of the call, cache included; chooses the tier.

    Raises
    ------
    UsageError
        When the user's file is damaged.
    """
    if provider_id is None or model_id is None:
        return None
    published = _published(provider_id, model_id, at_ms=at_ms, context_tokens=context_tokens)
    entry = entry_for(provider_id, model_id)
    own = {} if entry is None else entry.prices_at(context_tokens)
    if entry is None or not own:
        return published
    if published is None:
        return UnitPrices(**own, source=entry.source)
    filled = any(name not in own and getattr(published, name) is not None for name in TOKEN_KINDS)
    source = f"{entry.source} + {published.source}" if filled else entry.source
    return msgspec.structs.replace(published, **own, source=source)


def _published(
    provider_id: str, model_id: str, *, at_ms: int | None, context_tokens: int
) -> UnitPrices | None:
    """Return the prices of the tables."""
    minute = None if at_ms is None else at_ms // _MINUTE_MS
    found = _model_price(provider_id, model_id, minute)
    if found is None:
        return None
    price, source = found

    def unit(name: str) -> float | None:
        return _unit(getattr(price, name, None), context_tokens)

    return UnitPrices(
        input=unit("input_mtok"),
        output=unit("output_mtok"),
        reasoning=unit("output_reasoning_mtok"),
        cache_read=unit("cache_read_mtok"),
        cache_write=unit("cache_write_mtok"),
        source=source,
    )


def limits_for(provider_id: str | None, model_id: str | None) -> ModelLimits:
    """Return a model's window; every field None when unknown."""
    if provider_id is None or model_id is None:
        return ModelLimits()
    model = _find(provider_id, model_id)
    published = ModelLimits(context=None if model is None else model.context_window)
    entry = entry_for(provider_id, model_id)
    if entry is None:
        return published
    own = entry.limits
    return ModelLimits(
        context=published.context if own.context is None else own.context,
        input=own.input,
        output=own.output,
    )


def media_for(provider_id: str, model_id: str) -> MediaSupport:
    """Return which files a model takes: all, unless the user's file says otherwise."""
    entry = entry_for(provider_id, model_id)
    if entry is None or entry.media is None:
        return MediaSupport()
    return MediaSupport(asked=entry.media)


@functools.lru_cache(maxsize=4096)
def _model_price(provider_id: str, model_id: str, minute: int | None) -> tuple[Any, str] | None:
    from importlib.metadata import version  # noqa: PLC0415  only where a price is asked

    model = _find(provider_id, model_id)
    if model is None:
        return None
    price = model.get_prices(_moment(minute))
    return price, f"genai-prices {version('genai-prices')}"


def _moment(minute: int | None) -> datetime:
    """Return a moment; of the newest table for None, the nearest for an impossible one."""
    if minute is None:
        return _LAST_MOMENT
    return datetime.fromtimestamp(min(max(minute, 0), _LAST_MINUTE) * 60, tz=UTC)


@functools.lru_cache(maxsize=4096)
def _find(provider_id: str, model_id: str) -> Any:
    """Return the table's entry of a model, None when it has none."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, model = get_snapshot().find_provider_model(model_id, None, provider_id, None)
    except LookupError:
        return None
    return model


def _unit(price: Any, context_tokens: int) -> float | None:
    """Return a price of one kind; of the tier that the context falls into."""
    if price is None:
        return None
    base: Decimal | float = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):
        if context_tokens > tier.start:
            base = tier.price
    return float(base)
