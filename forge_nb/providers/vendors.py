"""From ``openai:gpt-5`` to a model that pydantic-ai can call; vendors' clients are made here.

Keys come from the environment, as the vendors' own libraries read them; none is stored or printed.
"""

from __future__ import annotations

import functools
import os
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from forge_nb.errors import UsageError
from forge_nb.providers.catalog import limits_for, prices_for
from forge_nb.providers.live import LiveProvider

__all__ = ["APIS", "live_provider", "model_name", "wire_model"]


class _Api(msgspec.Struct, frozen=True):
    """A wire protocol and where it is spoken by default."""

    protocol: str
    key_variable: str
    prices: str


APIS = {
    "anthropic": _Api("anthropic", "ANTHROPIC_API_KEY", "anthropic"),
    "openai": _Api("chat", "OPENAI_API_KEY", "openai"),
    "openai-compatible": _Api("chat", "OPENAI_COMPATIBLE_API_KEY", "openai-compatible"),
    "openai-responses": _Api("responses", "OPENAI_API_KEY", "openai"),
}
"""What may stand before the colon: vendor, wire protocol, and the variable that holds the key."""


def model_name(model: str) -> str:
    """Return a model's name without the options behind it.

    Examples
    --------
    >>> model_name("qwen3?base_url=http://127.0.0.1:8080/v1")
    'qwen3'
    """
    return model.partition("?")[0]


def live_provider(name: str, model: str) -> LiveProvider:
    """Return the provider of a spec such as ``openai-compatible:qwen3?base_url=http://…/v1``.

    Parameters
    ----------
    name
        One of `APIS`.
    model
        The model, with options: ``base_url``, and every number is a setting of the call, such as
        ``max_tokens=500`` or ``temperature=0``.

    Raises
    ------
    UsageError
        When the library or the key is missing, or an option is none.
    """
    api = APIS[name]
    options = dict(parse_qsl(model.partition("?")[2]))
    base_url = options.pop("base_url", None)
    if name == "openai-compatible" and base_url is None:
        msg = (
            f"{name}:{model} does not say where; write "
            f"{name}:{model_name(model)}?base_url=http://127.0.0.1:8080/v1"
        )
        raise UsageError(msg)
    key = os.environ.get(api.key_variable)
    if not key and base_url is None:
        msg = f"{name} needs a key; set the environment variable {api.key_variable} and try again"
        raise UsageError(msg, variable=api.key_variable)
    wire_model(api.protocol, model_name(model), base_url=base_url, api_key=key or "none")
    return LiveProvider(
        name,
        lambda wanted: wire_model(api.protocol, wanted, base_url=base_url, api_key=key or "none"),
        limits=functools.partial(limits_for, api.prices),
        prices=functools.partial(prices_for, api.prices),
        settings=_settings(options),
    )


def _settings(options: dict[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in options.items():
        try:
            settings[name] = float(value) if "." in value else int(value)
        except ValueError:
            msg = f"the option {name}={value!r} is no number; known besides: base_url"
            raise UsageError(msg, option=name) from None
    return settings


def wire_model(protocol: str, model: str, *, base_url: str | None, api_key: str) -> Any:
    """Return pydantic-ai's model that speaks a protocol; its client never retries by itself.

    Parameters
    ----------
    protocol
        ``chat``, ``responses`` or ``anthropic``.
    model
        The model's name there.
    base_url
        Where it is spoken; None for the vendor's own address.
    api_key
        The key.

    Raises
    ------
    UsageError
        When the extra ``models`` is not installed.
    """
    try:
        if protocol == "anthropic":
            return _anthropic(model, base_url, api_key)
        return _openai(protocol, model, base_url, api_key)
    except ImportError as error:
        msg = (
            f"real models need more libraries ({error.name} is missing); "
            "install them: pip install 'forge-nb[models]'"
        )
        raise UsageError(msg) from error


def _openai(protocol: str, model: str, base_url: str | None, api_key: str) -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    provider = OpenAIProvider(openai_client=client)
    if protocol == "responses":
        return OpenAIResponsesModel(model, provider=provider)
    return OpenAIChatModel(model, provider=provider)


def _anthropic(model: str, base_url: str | None, api_key: str) -> Any:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0)
    return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))
