"""Tokens, money and the arithmetic of the window.

Five disjoint kinds of tokens: input (without cache), output (without reasoning), reasoning, cache
read, cache write. A kind that the provider did not report is None, never 0; so is a cost without
a known price.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from forge_nb.messages.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "NO_TOKENS",
    "OUTPUT_TOKENS_MAX",
    "TOKEN_KINDS",
    "ZERO_TOKENS",
    "CacheTokens",
    "Cost",
    "CostSource",
    "ModelLimits",
    "TokenUsage",
    "UnitPrices",
    "add",
    "cost_of",
    "is_over",
    "usable_tokens",
    "used_tokens",
]

TOKEN_KINDS = ("input", "output", "reasoning", "cache_read", "cache_write")
"""The five disjoint kinds, in the order in which they are always listed."""

OUTPUT_TOKENS_MAX = 32_000  # most output tokens that opencode asks a model for
RESERVE_TOKENS_MAX = 20_000  # head-room that opencode keeps free when input has its own limit
USABLE_FLOOR = 0.5  # share of the window that is always usable (opencode has no floor: #49965)

CostSource = Literal["recorded", "computed", "unpriced", "unknown"]
"""Where a cost comes from: the recording, our price table, or nowhere."""


class CacheTokens(Value, frozen=True, kw_only=True):
    """Prompt-cache traffic of one call."""

    read: int | None = None
    """Tokens served from the provider's cache."""
    write: int | None = None
    """Tokens written to it."""


class TokenUsage(Value, frozen=True, kw_only=True):
    """What one provider call reported."""

    input: int | None = None
    """Fresh input tokens, cache excluded."""
    output: int | None = None
    """Output tokens, reasoning excluded where the provider tells them apart."""
    reasoning: int | None = None
    """Reasoning tokens."""
    cache: CacheTokens = CacheTokens()
    """Prompt-cache traffic."""
    total: int | None = None
    """The provider's own total, unchecked."""

    @property
    def cache_read(self) -> int | None:
        """Tokens read from the cache."""
        return self.cache.read

    @property
    def cache_write(self) -> int | None:
        """Tokens written to the cache."""
        return self.cache.write

    @property
    def kinds(self) -> tuple[int | None, int | None, int | None, int | None, int | None]:
        """The five kinds in the order of `TOKEN_KINDS`."""
        return (self.input, self.output, self.reasoning, self.cache.read, self.cache.write)

    @property
    def is_reported(self) -> bool:
        """Whether any kind is more than 0: all zeros is what a lost report looks like."""
        return any(self.kinds)

    @property
    def sum(self) -> int | None:
        """Sum of the kinds that are known; None when none is."""
        return _sum_known(self.kinds)

    @property
    def context(self) -> int | None:
        """Tokens that the call put into the window: input + cache read + cache write."""
        return _sum_known((self.input, self.cache.read, self.cache.write))


NO_TOKENS = TokenUsage()
"""Nothing reported."""

ZERO_TOKENS = TokenUsage(input=0, output=0, reasoning=0, cache=CacheTokens(read=0, write=0))
"""What opencode stores where nothing was reported."""


class UnitPrices(Value, frozen=True, kw_only=True):
    """Prices that were used for one call, US dollars per million tokens."""

    input: float | None = None
    output: float | None = None
    reasoning: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None
    source: str | None = None
    """Where they come from, with its version: ``genai-prices 0.2.3``, ``scripted`` …"""


class Cost(Value, frozen=True, kw_only=True):
    """Money for one call; `usd` is None when the price is unknown."""

    usd: float | None = None
    source: CostSource = "unknown"
    prices: UnitPrices | None = None


class ModelLimits(Value, frozen=True, kw_only=True):
    """Window of a model in tokens; None where unknown."""

    context: int | None = None
    input: int | None = None
    output: int | None = None


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def add(left: TokenUsage, right: TokenUsage) -> TokenUsage:
    """Return the sum kind by kind; None only where both are None."""
    kinds = [_sum_known(pair) for pair in zip(left.kinds, right.kinds, strict=True)]
    return TokenUsage(
        input=kinds[0],
        output=kinds[1],
        reasoning=kinds[2],
        cache=CacheTokens(read=kinds[3], write=kinds[4]),
        total=_sum_known((left.total, right.total)),
    )


def cost_of(tokens: TokenUsage, prices: UnitPrices | None) -> Cost:
    """Return what a call cost: each kind times its unit price, over a million.

    Reasoning is billed like output, and cache traffic like input, where they have no price of
    their own (rule of genai-prices). Without a price for a kind that was used the cost is unknown.

    Parameters
    ----------
    tokens
        What the provider reported.
    prices
        US dollars per million tokens, or None.
    """
    if prices is None or prices.input is None or prices.output is None:
        return Cost(usd=None, source="unpriced", prices=prices)
    if not any(kind is not None for kind in tokens.kinds):
        return Cost(usd=None, source="unknown", prices=prices)
    units = (
        prices.input,
        prices.output,
        prices.output if prices.reasoning is None else prices.reasoning,
        prices.input if prices.cache_read is None else prices.cache_read,
        prices.input if prices.cache_write is None else prices.cache_write,
    )
    usd = sum((n or 0) * unit for n, unit in zip(tokens.kinds, units, strict=True)) / 1e6
    return Cost(usd=usd, source="computed", prices=prices)


def usable_tokens(
    limits: ModelLimits, *, reserved: int | None = None, parity: bool = False
) -> int | None:
    """Return how many tokens of context a session may use before it is compacted.

    The window less what is kept free. The window is the input's own limit where there is one, else
    the context. Free is by default what the answer may need, ``min(limits.output or 32000,
    32000)``; where the input has its own limit at most 20,000 of that (both as in opencode). Never
    less than half of the window, so that a model whose output limit equals its window is still
    usable. A `reserved` of the user's own goes below that half, as long as it leaves anything.

    Parameters
    ----------
    limits
        The model's window.
    reserved
        Tokens to keep free, instead of the defaults above.
    parity
        As opencode: no floor, and `reserved` counts only where the input has its own limit.

    Returns
    -------
    int or None
        None when the window is unknown: overflow is then never predicted.

    Examples
    --------
    >>> usable_tokens(ModelLimits(context=200_000, output=64_000))
    168000
    """
    window = limits.input or limits.context
    if not window or (parity and not limits.context):
        return None
    answer = min(limits.output or OUTPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX)
    free = min(RESERVE_TOKENS_MAX, answer) if limits.input else answer
    if parity:
        return max(window - (reserved if reserved is not None and limits.input else free), 0)
    if reserved is not None and 0 <= reserved < window:
        return window - reserved
    return max(window - free, int(window * USABLE_FLOOR))


def used_tokens(tokens: TokenUsage, *, parity: bool = False) -> int | None:
    """Return how many tokens of the window a call has used, its answer included.

    The greater of the provider's total and our sum. In parity as opencode counts: the total, else
    the sum without reasoning.

    Examples
    --------
    >>> used_tokens(TokenUsage(input=100, output=10, reasoning=5, total=110))
    115
    """
    if parity:
        kinds = (tokens.input, tokens.output, tokens.cache.read, tokens.cache.write)
        return tokens.total or _sum_known(kinds)
    return max((n for n in (tokens.total, tokens.sum) if n is not None), default=None)


def is_over(used: int | None, usable: int | None) -> bool:
    """Return whether the context has reached the usable window; False when either is unknown."""
    return used is not None and usable is not None and used >= usable
