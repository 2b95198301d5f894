"""Models behind a network: OpenAI's two protocols, Anthropic's, and servers that speak OpenAI's.

One adapter over pydantic-ai's direct requests. Retries are the run loop's business, where they can
be seen, so the SDKs make none. Each call has a client of its own: a provider belongs to no event
loop, and a call that is cut leaves no connection behind.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from forge_nb.errors import UsageError
from forge_nb.messages.stream import StepStart
from forge_nb.messages.usage import OUTPUT_TOKENS_MAX
from forge_nb.providers.catalog import limits_for, media_for, prices_for
from forge_nb.providers.live_errors import to_stream_error
from forge_nb.providers.live_messages import to_wire_messages
from forge_nb.providers.live_stream import StreamMapper

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

    from forge_nb.messages.stream import StreamEvent
    from forge_nb.messages.usage import ModelLimits, UnitPrices
    from forge_nb.providers.base import ModelRequest

__all__ = ["ENDPOINTS", "Endpoint", "LiveProvider"]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the colon of a model's name."""

    protocol: str
    """chat, responses or anthropic."""
    sdk: str
    """The library that speaks it."""
    catalog: str
    """Under which name prices and limits are listed."""
    key_env: str
    """Where the key is."""
    needs_key: bool = True
    needs_base_url: bool = False


ENDPOINTS: Mapping[str, Endpoint] = {
    "anthropic": Endpoint(
        protocol="anthropic", sdk="anthropic", catalog="anthropic", key_env="ANTHROPIC_API_KEY"
    ),
    "openai": Endpoint(protocol="chat", sdk="openai", catalog="openai", key_env="OPENAI_API_KEY"),
    "openai-compatible": Endpoint(
        protocol="chat",
        sdk="openai",
        catalog="openai-compatible",
        key_env="OPENAI_COMPATIBLE_API_KEY",  # never OpenAI's own: the server is anybody's
        needs_key=False,
        needs_base_url=True,
    ),
    "openai-responses": Endpoint(
        protocol="responses", sdk="openai", catalog="openai", key_env="OPENAI_API_KEY"
    ),
}
"""By what stands before the colon."""

_NO_KEY = "none"  # the SDK insists on some text
_log = logging.getLogger(__name__)


class LiveProvider:
    """Asks a model over the network.

    Parameters
    ----------
    name
        One of `ENDPOINTS`.
    model
        The model's id; ``?base_url=http://…`` behind it names another server.

    Raises
    ------
    UsageError
        When the key, the address or the library is missing, or `models.toml` is damaged.
    """

    def __init__(self, name: str, model: str) -> None:
        self.id = name
        self._endpoint = ENDPOINTS[name]
        self._model_id, self._base_url = _split(name, model)
        if self._endpoint.needs_base_url and self._base_url is None:
            msg = f"{name}:{model} has no address; write {name}:{model}?base_url=http://HOST/v1"
            raise UsageError(msg)
        _check_installed(self._endpoint.sdk)
        self._key = _key(name, self._endpoint)
        # Read now: what is wrong with the user's file is told before a prompt is stored.
        self._limits = limits_for(self._endpoint.catalog, self._model_id)
        self._prices = prices_for(self._endpoint.catalog, self._model_id)
        self.media = media_for(self._endpoint.catalog, self._model_id)
        """Which files the model takes."""

    def limits(self, model_id: str) -> ModelLimits:
        """Return the model's window, as the catalogue had it when the provider was made."""
        del model_id
        return self._limits

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the model's unit prices, as the catalogue had them then."""
        del model_id
        return self._prices

    def prices_at(self, context_tokens: int) -> UnitPrices | None:
        """Return the unit prices of a call with this context: some models have tiers."""
        return prices_for(self._endpoint.catalog, self._model_id, context_tokens=context_tokens)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer as it comes; a failure of any kind is the last event."""
        mapper: StreamMapper | None = None
        try:
            await asyncio.to_thread(_load, self._endpoint.sdk)
            from pydantic_ai.direct import model_request_stream

            async with (
                self._model() as model,
                model_request_stream(
                    model,
                    to_wire_messages(request, protocol=self._endpoint.protocol),
                    model_settings=self._settings(),
                    model_request_parameters=_parameters(request),
                ) as response,
            ):
                yield StepStart()
                mapper = StreamMapper(response, protocol=self._endpoint.protocol)
                async for event in mapper.events():
                    yield event
        except Exception as error:  # noqa: BLE001  a call may fail in any way; the event says which
            for event in mapper.early_usage() if mapper is not None else ():
                yield event
            failure = to_stream_error(error)
            if failure.kind == "unknown":
                _log.exception("a call to %s failed in a way that is not known", self.id)
            yield failure

    def _settings(self) -> ModelSettings:
        """Return the limit of the answer, which the usable window leaves room for, and caching."""
        from pydantic_ai.settings import ModelSettings

        settings = ModelSettings()
        if self._endpoint.protocol == "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModelSettings

            settings = AnthropicModelSettings(anthropic_cache=True)  # prompts share a start
        if self._limits.output is not None:
            settings["max_tokens"] = min(self._limits.output, OUTPUT_TOKENS_MAX)
        return settings

    @asynccontextmanager
    async def _model(self) -> AsyncIterator[Model[Any]]:
        """Return the model with a client for one call."""
        if self._endpoint.sdk == "anthropic":
            import anthropic
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            async with anthropic.AsyncAnthropic(
                api_key=self._key,
                base_url=self._base_url,
                max_retries=0,
                http_client=anthropic.DefaultAsyncHttpxClient(verify=_certificates()),
            ) as client:
                yield AnthropicModel(
                    self._model_id, provider=AnthropicProvider(anthropic_client=client)
                )
            return
        import openai
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        kind = OpenAIChatModel if self._endpoint.protocol == "chat" else OpenAIResponsesModel
        async with openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self._base_url,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=_certificates()),
        ) as client:
            yield kind(self._model_id, provider=OpenAIProvider(openai_client=client))


def _load(sdk: str) -> None:
    """Import what a call needs; it takes seconds, so not on the thread of the event loop."""
    for name in ("pydantic_ai.direct", f"pydantic_ai.models.{sdk}"):
        importlib.import_module(name)
    _certificates()


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return whom to trust; read once, since it takes longer than the rest of a client."""
    import httpx2

    return httpx2.create_ssl_context()


def _parameters(request: ModelRequest) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=spec.name,
            description=spec.description,
            parameters_json_schema=spec.schema,
            strict=False,  # the schema goes out as the tool gave it
        )
        for spec in request.tools
    ]
    any_words = request.tool_choice == "auto" or not tools
    return ModelRequestParameters(function_tools=tools, allow_text_output=any_words)


def _split(name: str, model: str) -> tuple[str, str | None]:
    """Return the model's id and the server's address."""
    model_id, _, query = model.partition("?")
    options = dict(parse_qsl(query))
    base_url = options.pop("base_url", None)
    if options or not model_id:
        msg = f"{name}:{model} is no model; write {name}:MODEL or {name}:MODEL?base_url=http://HOST"
        raise UsageError(msg)
    if base_url is not None:
        _check_address(base_url)
    return model_id, base_url


def _check_address(base_url: str) -> None:
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        msg = f"base_url is {base_url!r}; it has to begin with http:// or https:// and name a host"
        raise UsageError(msg)
    if parts.username or parts.password:
        msg = "base_url holds a name or a password, which would be stored; set the key's variable"
        raise UsageError(msg)


def _check_installed(sdk: str) -> None:
    missing = [name for name in ("pydantic_ai", sdk) if importlib.util.find_spec(name) is None]
    if missing:
        msg = f"{' and '.join(missing)} not installed; pip install 'forge-nb[models]'"
        raise UsageError(msg)


def _key(name: str, endpoint: Endpoint) -> str:
    key = os.environ.get(endpoint.key_env, "").strip()
    if not key and endpoint.needs_key:
        msg = f"no key for {name}; set the environment variable {endpoint.key_env}"
        raise UsageError(msg)
    return key or _NO_KEY
