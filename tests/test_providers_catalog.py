"""Prices that depend on the hour, and the summariser on any text."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from genai_prices import Usage, calc_price
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.errors import UsageError
from forge_nb.messages.render import ModelMessage, ModelPart
from forge_nb.messages.usage import CacheTokens, TokenUsage, cost_of
from forge_nb.providers.catalog import prices_for
from forge_nb.providers.extractive import summarise
from forge_nb.providers.registry import resolve_model

MILLION = 1_000_000


def said(*texts: str) -> list[ModelMessage]:
    """Return messages of the two sides in turn, and the request for a summary."""
    return [
        ModelMessage(
            id="m",
            role="assistant" if n % 2 else "user",
            parts=(ModelPart(id="p", kind="text", text=text),),
        )
        for n, text in enumerate([*texts, "Summarise."])
    ]


@pytest.mark.parametrize("hour", range(24))
@pytest.mark.parametrize("model", ["deepseek-chat", "deepseek-v4-pro", "deepseek-reasoner"])
def test_a_price_that_depends_on_the_hour_is_the_price_of_that_hour(model: str, hour: int) -> None:
    moment = datetime(2026, 6, 1, hour, 45, tzinfo=UTC)
    usage = Usage(input_tokens=MILLION, output_tokens=MILLION)
    expected = calc_price(
        usage, model, provider_id="deepseek", genai_request_timestamp=moment
    ).total_price
    prices = prices_for("deepseek", model, at_ms=int(moment.timestamp() * 1e3))
    used = TokenUsage(
        input=MILLION, output=MILLION, reasoning=0, cache=CacheTokens(read=0, write=0)
    )
    assert cost_of(used, prices).usd == pytest.approx(float(expected))


@pytest.mark.parametrize("at_ms", [-1, -(10**18), 10**18, 0])
def test_an_impossible_time_has_a_price_all_the_same(at_ms: int) -> None:
    assert prices_for("anthropic", "claude-sonnet-4-5", at_ms=at_ms) is not None


@pytest.mark.parametrize("number", ["²", "-1", "1.5", "x"])
def test_flood_takes_a_number_and_nothing_else(number: str) -> None:
    with pytest.raises(UsageError, match="n=NUMBER"):
        resolve_model(f"scripted:flood?n={number}")


@given(st.lists(st.text(max_size=300), max_size=5))
def test_a_summary_is_shorter_than_its_source(texts: list[str]) -> None:
    size = sum(map(len, texts))
    summary = summarise(said(*texts))
    assert len(summary) < size or not summary


@pytest.mark.parametrize("piece", ["a-", "a.", "a/", "-", "/", "a_", ". ", "\n"])
def test_summarising_takes_linear_time_on_any_text(piece: str) -> None:
    started = time.process_time()
    summarise(said(piece * 200_000))
    assert time.process_time() - started < 5  # quadratic search takes minutes


def test_paths_are_named_whole() -> None:
    text = "Look at /srv/app/main.py, src/a.b/c.toml. Not https://example.org/x.html or v1.2.3."
    files = summarise(said(text, "I looked at them all. " * 30)).partition("## Relevant Files\n")[2]
    assert files.splitlines() == ["- /srv/app/main.py", "- src/a.b/c.toml"]
