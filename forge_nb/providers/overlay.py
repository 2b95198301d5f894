"""Windows and prices that the user knows better: a file `models.toml` in the shape of models.dev.

The file is the one that the environment variable ``FORGE_MODELS`` names; without it `models.toml`
in the current folder, which need not exist. It is read again whenever it changes::

    [openai-compatible.models."llama-3"]
    limit = { context = 32000, output = 4000 }
    cost = { input = 0, output = 0 }
    modalities = { input = ["text", "image"] }

Prices are US dollars per million tokens. A 0 is a price; what is left out is unknown.
"""

from __future__ import annotations

import functools
import math
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import UsageError
from forge_nb.messages.usage import ModelLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ModelEntry", "entry_for", "overlay_path"]

_LIMITS = ("context", "input", "output")
_PRICES = ("input", "output", "reasoning", "cache_read", "cache_write")
_OTHER_PRICES = frozenset({"cache_write_1h", "input_audio", "output_audio"})  # known, not used yet
_MODALITIES = {
    "audio": ("audio/*",),
    "image": ("image/*",),
    "pdf": ("application/pdf",),
    "text": ("text/*",),
    "video": ("video/*",),
}
_OVER_200K = 200_000  # models.dev: `context_over_200k`


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says of one model."""

    limits: ModelLimits = ModelLimits()
    prices: dict[str, float] = {}
    """By the names of `UnitPrices`."""
    tiers: tuple[tuple[int, dict[str, float]], ...] = ()
    """Prices of calls whose context is over so many tokens, ascending."""
    media: tuple[str, ...] | None = None
    """MIME types that the model takes; None where the file does not say."""
    source: str = ""
    """The file's name."""

    def prices_at(self, context_tokens: int) -> dict[str, float]:
        """Return the prices of a call with this context; a tier bills the whole call."""
        prices = self.prices
        for start, tier in self.tiers:
            if context_tokens > start:
                prices = {**self.prices, **tier}
        return prices


def overlay_path() -> Path:
    """Return which file is read."""
    return Path(os.environ.get("FORGE_MODELS") or "models.toml")


def entry_for(provider: str, model: str) -> ModelEntry | None:
    """Return what the file says of a model; None when it says nothing.

    Raises
    ------
    UsageError
        When the file that `FORGE_MODELS` names is missing, is no TOML, or a value in it cannot be
        right; names the file and the place.
    """
    path = overlay_path()
    try:
        stat = path.stat()
    except OSError as error:
        if "FORGE_MODELS" not in os.environ:
            return None
        msg = f"{path}: no such file; create it, or unset FORGE_MODELS"
        raise UsageError(msg, path=str(path)) from error
    return _read(path.resolve(), stat.st_mtime_ns, stat.st_size).get((provider, model))


@functools.lru_cache(maxsize=8)
def _read(path: Path, mtime_ns: int, size: int) -> Mapping[tuple[str, str], ModelEntry]:
    """Read a file; it is known again by its time and size."""
    del mtime_ns, size
    try:
        whole = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        msg = f"{path}: not TOML: {error}; correct that place or remove the file"
        raise UsageError(msg, path=str(path)) from error
    entries: dict[tuple[str, str], ModelEntry] = {}
    for provider, facts in whole.items():
        models = _Place(path, provider).table(facts).get("models", {})
        for model, entry in _Place(path, f"{provider}.models").table(models).items():
            place = _Place(path, f'{provider}.models."{model}"')
            entries[provider, model] = _entry(place, place.table(entry))
    return entries


class _Place:
    """Where in the file a value stands; for errors that name it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    def at(self, name: str) -> _Place:
        return _Place(self.path, f"{self.name}.{name}")

    def error(self, value: object, expected: str) -> UsageError:
        msg = f"{self.path}: {self.name} is {value!r}; it has to be {expected}"
        return UsageError(msg, path=str(self.path), place=self.name)

    def table(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(value, "a table")
        return value

    def price(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(value, "a number: US dollars per million tokens")
        if not math.isfinite(value) or value < 0:
            raise self.error(value, "0 or more: US dollars per million tokens")
        return float(value)

    def tokens(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(value, "a number of tokens, 1 or more")
        return value

    def only(self, table: dict[str, Any], known: frozenset[str]) -> None:
        for name, value in table.items():
            if name not in known:
                raise self.at(name).error(value, f"left out; known are {sorted(known)}")


def _entry(place: _Place, facts: dict[str, Any]) -> ModelEntry:
    limit, cost = place.at("limit"), place.at("cost")
    limits = limit.table(facts.get("limit", {}))
    limit.only(limits, frozenset(_LIMITS))
    costs = cost.table(facts.get("cost", {}))
    cost.only(costs, _OTHER_PRICES | {*_PRICES, "context_over_200k", "tiers"})
    return ModelEntry(
        limits=ModelLimits(
            **{name: limit.at(name).tokens(limits[name]) for name in _LIMITS if name in limits}
        ),
        prices=_prices(cost, costs),
        tiers=_tiers(cost, costs),
        media=_media(place.at("modalities"), facts.get("modalities")),
        source=place.path.name,
    )


def _media(place: _Place, facts: Any) -> tuple[str, ...] | None:
    """Read what a model takes: models.dev's `modalities.input`."""
    if facts is None:
        return None
    given = place.table(facts).get("input")
    if not isinstance(given, list) or not all(one in _MODALITIES for one in given):
        raise place.at("input").error(given, f"a list of {sorted(_MODALITIES)}")
    return tuple(mime for one in given for mime in _MODALITIES[one])


def _prices(place: _Place, costs: dict[str, Any]) -> dict[str, float]:
    return {name: place.at(name).price(costs[name]) for name in _PRICES if name in costs}


def _tiers(place: _Place, costs: dict[str, Any]) -> tuple[tuple[int, dict[str, float]], ...]:
    """Read both of models.dev's forms: a list of tiers, and the one above 200,000 tokens."""
    found: list[tuple[int, dict[str, float]]] = []
    if "context_over_200k" in costs:
        over = place.at("context_over_200k")
        found.append((_OVER_200K, _prices(over, over.table(costs["context_over_200k"]))))
    tiers = place.at("tiers")
    listed = costs.get("tiers", [])
    if not isinstance(listed, list):
        raise tiers.error(listed, "a list of tables")
    for number, one in enumerate(listed):
        tier = place.at(f"tiers[{number}]")
        facts = tier.table(one)
        where = tier.at("tier")
        start = where.at("size").tokens(where.table(facts.get("tier")).get("size"))
        found.append((start, _prices(tier, facts)))
    return tuple(sorted(found, key=lambda pair: pair[0]))
