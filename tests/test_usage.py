"""Tokens, money and windows: unknown stays unknown."""

from __future__ import annotations

import pytest

from forge_nb.messages.usage import (
    NO_TOKENS,
    CacheTokens,
    ModelLimits,
    TokenUsage,
    UnitPrices,
    add,
    cost_of,
    is_over,
    usable_tokens,
    used_tokens,
)

USED = TokenUsage(
    input=30_000, output=2_000, reasoning=1_000, cache=CacheTokens(read=100_000, write=20_000)
)
PRICES = UnitPrices(input=3, output=15, cache_read=0.3, cache_write=3.75)


def test_the_five_kinds_are_priced_apart() -> None:
    cost = cost_of(USED, PRICES)
    assert cost.usd == pytest.approx(0.09 + 0.03 + 0.015 + 0.03 + 0.075)
    assert cost.source == "computed"


def test_without_a_price_or_a_report_the_cost_is_unknown() -> None:
    assert cost_of(USED, None).usd is None
    assert cost_of(USED, UnitPrices(input=3)).source == "unpriced"
    assert cost_of(NO_TOKENS, PRICES).usd is None


def test_a_price_of_zero_is_known_to_be_free() -> None:
    assert cost_of(USED, UnitPrices(input=0, output=0)).usd == 0


def test_sums_are_unknown_only_when_every_part_is() -> None:
    assert NO_TOKENS.sum is None
    assert NO_TOKENS.context is None
    assert TokenUsage(input=3).sum == 3
    assert USED.context == 150_000
    assert add(TokenUsage(input=1), TokenUsage(output=2)) == TokenUsage(input=1, output=2)


@pytest.mark.parametrize(
    ("limits", "usable"),
    [
        (ModelLimits(context=200_000, output=64_000), 168_000),
        (ModelLimits(context=200_000, input=200_000, output=64_000), 180_000),
        (ModelLimits(context=400_000, input=272_000, output=128_000), 252_000),
        (ModelLimits(context=32_768, output=32_768), 16_384),
        (ModelLimits(context=8_192, output=8_192), 4_096),
        (ModelLimits(), None),
    ],
)
def test_the_usable_window_has_a_floor(limits: ModelLimits, usable: int | None) -> None:
    """The first three are opencode's worked values; where output equals context it gets 0."""
    assert usable_tokens(limits) == usable


@pytest.mark.parametrize(
    ("limits", "reserved", "usable", "in_parity"),
    [
        (ModelLimits(context=200_000, output=64_000), 30_000, 170_000, 168_000),
        (ModelLimits(context=400_000, input=272_000, output=128_000), 30_000, 242_000, 242_000),
        (ModelLimits(context=10_000, output=2_000), 9_000, 1_000, 8_000),
        (ModelLimits(context=10_000, output=2_000), 0, 10_000, 8_000),
        (ModelLimits(context=10_000, output=2_000), 10_000, 8_000, 8_000),
        (ModelLimits(context=10_000, output=2_000), -5, 8_000, 8_000),
        (ModelLimits(context=32_768, output=32_768), None, 16_384, 768),
        (ModelLimits(context=8_192, output=8_192), None, 4_096, 0),
        (ModelLimits(context=8_192, input=8_192), 9_000, 4_096, 0),
        (ModelLimits(input=100_000), None, 80_000, None),
        (ModelLimits(context=0), None, None, None),
    ],
)
def test_what_is_reserved_counts_with_and_without_an_input_limit(
    *, limits: ModelLimits, reserved: int | None, usable: int | None, in_parity: int | None
) -> None:
    """In parity it counts with one only, and nothing bounds the window from below."""
    assert usable_tokens(limits, reserved=reserved) == usable
    assert usable_tokens(limits, reserved=reserved, parity=True) == in_parity


@pytest.mark.parametrize(
    ("tokens", "used", "in_parity"),
    [
        (USED, 153_000, 152_000),
        (TokenUsage(input=10, output=2, total=90), 90, 90),
        (TokenUsage(input=10, output=2, reasoning=5, total=12), 17, 12),
        (TokenUsage(total=7), 7, 7),
        (NO_TOKENS, None, None),
    ],
)
def test_what_a_call_used_is_the_greater_of_total_and_sum(
    tokens: TokenUsage, used: int | None, in_parity: int | None
) -> None:
    assert used_tokens(tokens) == used
    assert used_tokens(tokens, parity=True) == in_parity


def test_overflow_begins_at_the_usable_window_and_never_on_unknown_numbers() -> None:
    assert is_over(168_000, 168_000)
    assert not is_over(167_999, 168_000)
    assert not is_over(None, 168_000)
    assert not is_over(168_000, None)
