"""The user's `models.toml` goes before the published tables, field by field."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from forge_nb.errors import UsageError
from forge_nb.messages.usage import CacheTokens, ModelLimits, TokenUsage, cost_of
from forge_nb.providers.catalog import limits_for, media_for, prices_for
from forge_nb.providers.registry import resolve_model

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = ("anthropic", "claude-sonnet-4-5")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORGE_MODELS", raising=False)
    return tmp_path / "models.toml"


def test_without_a_file_the_tables_speak(file: Path) -> None:
    assert not file.exists()
    prices = prices_for(*KNOWN)
    assert prices is not None
    assert (prices.source or "").startswith("genai-prices ")


def test_a_model_that_no_table_knows_has_the_files_window_and_prices(file: Path) -> None:
    file.write_text(
        '[openai-compatible.models."llama-3"]\n'
        'name = "Llama"\n'
        "limit = { context = 32000, input = 30000, output = 4000 }\n"
        "cost = { input = 1.5, output = 2, cache_read = 0 }\n"
    )
    limits = limits_for("openai-compatible", "llama-3")
    assert limits == ModelLimits(context=32_000, input=30_000, output=4_000)
    prices = prices_for("openai-compatible", "llama-3")
    assert prices is not None
    assert (prices.input, prices.output, prices.cache_read) == (1.5, 2.0, 0.0)
    assert prices.cache_write is None
    assert prices.source == "models.toml"
    assert prices_for("openai-compatible", "other") is None


def test_single_fields_go_before_the_table_and_both_sources_are_named(file: Path) -> None:
    published, limits = prices_for(*KNOWN), limits_for(*KNOWN)
    file.write_text(
        '[anthropic.models."claude-sonnet-4-5"]\nlimit.output = 9000\ncost.output = 99\n'
    )
    prices = prices_for(*KNOWN)
    assert prices is not None
    assert published is not None
    assert (prices.input, prices.output) == (published.input, 99)
    assert prices.source == f"models.toml + {published.source}"
    assert limits_for(*KNOWN) == ModelLimits(context=limits.context, output=9_000)


def test_a_price_of_zero_is_a_price_and_a_missing_one_is_none(file: Path) -> None:
    used = TokenUsage(input=100, output=10, cache=CacheTokens(read=5))
    file.write_text("[mine.models.free]\ncost = { input = 0, output = 0 }\n[mine.models.bare]\n")
    assert cost_of(used, prices_for("mine", "free")).usd == 0
    assert cost_of(used, prices_for("mine", "bare")).usd is None
    file.write_text("[mine.models.free]\ncost = { input = 0 }\n")
    assert cost_of(used, prices_for("mine", "free")).usd is None


def test_a_tier_bills_the_whole_call(file: Path) -> None:
    file.write_text(
        "[mine.models.tiered.cost]\n"
        "input = 1\noutput = 2\ncontext_over_200k = { input = 3 }\n"
        "[[mine.models.tiered.cost.tiers]]\ninput = 9\ntier = { type = 'context', size = 500000 }\n"
    )

    def input_price(context: int) -> float | None:
        prices = prices_for("mine", "tiered", context_tokens=context)
        assert prices is not None
        assert prices.output == 2
        return prices.input

    assert [input_price(n) for n in (200_000, 200_001, 500_000, 500_001)] == [1, 3, 3, 9]


def test_the_named_file_goes_before_the_one_in_the_folder_and_has_to_exist(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[mine.models.m]\nlimit.context = 1000\n")
    other = file.with_name("other.toml")
    monkeypatch.setenv("FORGE_MODELS", str(other))
    with pytest.raises(UsageError, match=r"other\.toml: no such file"):
        limits_for("mine", "m")
    other.write_text("[mine.models.m]\nlimit.context = 2000\n")
    assert limits_for("mine", "m").context == 2_000


def test_a_change_of_the_file_is_seen(file: Path) -> None:
    file.write_text("[mine.models.m]\nlimit.context = 1000\n")
    assert limits_for("mine", "m").context == 1_000
    file.write_text("[mine.models.m]\nlimit.context = 2000\n")
    os.utime(file, ns=(1, 1))
    assert limits_for("mine", "m").context == 2_000


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[mine\n", r"line 1"),
        ("mine = 3\n", r"mine is 3"),
        ("[mine]\nmodels = 3\n", r"mine\.models is 3"),
        ("[mine.models]\nm = 3\n", r'mine\.models\."m" is 3'),
        ("[mine.models.m]\nlimit = 3\n", r'"m"\.limit is 3'),
        ("[mine.models.m]\nlimit.context = 0\n", r"limit\.context is 0"),
        ("[mine.models.m]\nlimit.context = 1.5\n", r"limit\.context is 1\.5"),
        ("[mine.models.m]\nlimit.contxt = 5\n", r"limit\.contxt is 5.*context"),
        ("[mine.models.m]\ncost.input = '3'\n", r"cost\.input is '3'"),
        ("[mine.models.m]\ncost.input = -1\n", r"cost\.input is -1"),
        ("[mine.models.m]\ncost.input = nan\n", r"cost\.input is nan"),
        ("[mine.models.m]\ncost.input = true\n", r"cost\.input is True"),
        ("[mine.models.m]\ncost.ouput = 1\n", r"cost\.ouput is 1.*output"),
        ("[mine.models.m]\ncost.tiers = 1\n", r"cost\.tiers is 1"),
        ("[mine.models.m]\nmodalities.input = ['smell']\n", r"modalities\.input is \['smell'\]"),
        ("[mine.models.m]\nmodalities = 3\n", r"modalities is 3"),
        ("[mine.models.m]\ncost.tiers = [{ input = 1 }]\n", r"tiers\[0\]\.tier is None"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(
    file: Path, content: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(content)
    with pytest.raises(UsageError, match=rf"models\.toml: .*{place}"):
        prices_for(*KNOWN)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with pytest.raises(UsageError, match=r"models\.toml"):
        resolve_model("openai:gpt-5")  # so before a prompt is stored


def test_a_file_may_say_what_a_model_takes(file: Path) -> None:
    assert media_for("mine", "m").takes("image/png")
    file.write_text("[mine.models.m]\nmodalities = { input = ['text', 'pdf'] }\n")
    takes = media_for("mine", "m").takes
    assert [takes(mime) for mime in ("text/csv", "application/pdf", "image/png")] == [
        True,
        True,
        False,
    ]


def test_bytes_that_are_no_text_are_no_toml(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"models\.toml"):
        limits_for(*KNOWN)
