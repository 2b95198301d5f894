"""Real models, through pydantic-ai's direct requests: the only module that listens to a vendor.

pydantic-ai knows the wire formats; its events become ours here. Retries, tools and everything that
is stored stay with the Processor, so the vendors' own retries are switched off.
"""

from __future__ import annotations

import json
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from forge_nb.messages.stream import (
    ErrorKind,
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
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
)
from forge_nb.messages.usage import NO_TOKENS, CacheTokens, ModelLimits, TokenUsage, UnitPrices
from forge_nb.providers.catalog import limits_for, prices_for
from forge_nb.providers.live_messages import (
    reasoning_metadata,
    tool_definitions,
    wire_messages,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from forge_nb.messages.stream import StreamEvent
    from forge_nb.providers.base import ModelRequest

__all__ = ["LiveProvider", "error_event", "token_usage"]

_FINISHES = {
    "stop": "stop",
    "length": "length",
    "tool_call": "tool-calls",
    "content_filter": "content-filter",
    "error": "error",
}
_OVERFLOW = re.compile(
    r"context[ _]?(?:length|window|size)|prompt is too long|input is too long|input token count"
    r"|maximum prompt length|reduce the length|too many (?:input )?tokens"
    r"|exceeded model token limit",
    re.IGNORECASE,
)
_OVERFLOW_STATUSES = frozenset({400, 413, 422})
_TOO_LARGE = 413
_BODY_CHARS = 4_096
_SECRET_HEADERS = re.compile(r"auth|cookie|key|token|secret|organization", re.IGNORECASE)
_HARMLESS_HEADERS = re.compile(r"ratelimit|retry-after", re.IGNORECASE)


class LiveProvider:
    """A vendor's models.

    Parameters
    ----------
    provider_id
        The name that is stored with messages.
    make_model
        Makes pydantic-ai's model of a name; called once a name.
    limits, prices
        What to know of a model; from the catalogue by default.
    settings
        pydantic-ai's model settings: temperature, max_tokens and the like.
    """

    def __init__(
        self,
        provider_id: str,
        make_model: Callable[[str], Any],
        *,
        limits: Callable[[str], ModelLimits] | None = None,
        prices: Callable[[str], UnitPrices | None] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.id = provider_id
        self._make_model = make_model
        self._limits = limits
        self._prices = prices
        self._settings = settings or {}
        self._models: dict[str, Any] = {}

    def limits(self, model_id: str) -> ModelLimits:
        """Return the model's window; every field None when unknown."""
        return self._limits(model_id) if self._limits else limits_for(self.id, model_id)

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return the model's unit prices; None when unknown."""
        return self._prices(model_id) if self._prices else prices_for(self.id, model_id)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer as it comes; closing the generator hangs up."""
        try:
            async with aclosing(self._events(request)) as events:
                async for event in events:
                    yield event
        except Exception as error:  # noqa: BLE001  a vendor's library is foreign code
            yield error_event(error)

    async def _events(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.models import ModelRequestParameters

        model = self._model(request.model.model_id)
        parameters = ModelRequestParameters(
            function_tools=tool_definitions(request.tools),
            allow_text_output=request.tool_choice == "auto" or not request.tools,
        )
        messages = wire_messages(request.system, request.messages, provider_name=model.system)
        reading = _Reading()
        async with model_request_stream(
            model,
            messages,
            model_settings=self._settings or None,  # type: ignore[arg-type]  # a typed dict
            model_request_parameters=parameters,
        ) as stream:
            yield StepStart()
            async for event in stream:
                for ours in (*reading.take(event), *reading.news(stream)):
                    yield ours
            for ours in reading.end(stream.get()):
                yield ours

    def _model(self, name: str) -> Any:
        if name not in self._models:
            self._models[name] = self._make_model(name)
        return self._models[name]


class _Input:
    """Reads a call's input as it comes and tells when its JSON object is complete: linear."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.pieces: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_open = True

    def feed(self, text: str) -> bool:
        """Take more text; return whether the object's last brace is in it."""
        self.pieces.append(text)
        closings = [self._closes(character) for character in text]
        if not any(closings) or not self._is_open:
            return False
        self._is_open = False
        return True

    def _closes(self, character: str) -> bool:
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
            return False
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        return False


class _Reading:
    """Turns one stream's events into ours.

    A call is passed on as soon as its input is complete, while the model still speaks; where that
    cannot be told, at the end.
    """

    def __init__(self) -> None:
        self.usage = NO_TOKENS
        self._inputs: dict[str, _Input] = {}
        self._called: set[str] = set()

    def news(self, stream: Any) -> Iterator[StreamEvent]:
        """Yield the usage where the provider has reported more than before."""
        reported = token_usage(_usage_of(stream))
        if reported.is_reported and reported != self.usage:
            self.usage = reported
            yield Usage(usage=reported)

    def take(self, event: Any) -> Iterator[StreamEvent]:
        """Yield our events for one of pydantic-ai's."""
        match event.event_kind:
            case "part_start":
                yield from self._start(event.index, event.part)
            case "part_delta":
                yield from self._delta(event.index, event.delta)
            case "part_end":
                yield from self._end(event.index, event.part)
            case _:
                pass  # newer versions may add events

    def _start(self, index: int, part: Any) -> Iterator[StreamEvent]:
        match part.part_kind:
            case "text":
                yield TextStart(id=str(index))
                if part.content:
                    yield TextDelta(id=str(index), text=part.content)
            case "thinking":
                yield ReasoningStart(id=str(index), metadata=reasoning_metadata(part))
                if part.content:
                    yield ReasoningDelta(id=str(index), text=part.content)
            case "tool-call":
                self._inputs[part.tool_call_id] = _Input(part.tool_name)
                yield ToolInputStart(call_id=part.tool_call_id, tool=part.tool_name)
                if isinstance(part.args, str) and part.args:
                    yield from self._more(part.tool_call_id, part.args)
            case _:
                pass  # a tool that the provider runs itself

    def _delta(self, index: int, delta: Any) -> Iterator[StreamEvent]:
        match delta.part_delta_kind:
            case "text" if delta.content_delta:
                yield TextDelta(id=str(index), text=delta.content_delta)
            case "thinking" if delta.content_delta:
                yield ReasoningDelta(id=str(index), text=delta.content_delta)
            case "tool_call" if isinstance(delta.args_delta, str) and delta.args_delta:
                yield from self._more(delta.tool_call_id, delta.args_delta)
            case _:
                pass

    def _more(self, call_id: str, text: str) -> Iterator[StreamEvent]:
        """Yield more of a call's input, and the call once it is whole."""
        yield ToolInputDelta(call_id=call_id, text=text)
        known = self._inputs.get(call_id)
        if known is None or not known.feed(text):
            return
        try:
            given = json.loads("".join(known.pieces))
        except ValueError:
            return  # told at the end, with the input as it came
        self._called.add(call_id)
        yield ToolInputEnd(call_id=call_id)
        yield ToolCall(call_id=call_id, tool=known.tool, input=given)

    def _end(self, index: int, part: Any) -> Iterator[StreamEvent]:
        if part.part_kind == "text":
            yield TextEnd(id=str(index))
        elif part.part_kind == "thinking":
            yield ReasoningEnd(id=str(index), metadata=reasoning_metadata(part))

    def end(self, response: Any) -> Iterator[StreamEvent]:
        """Yield the calls that are complete only now, and the end of the step."""
        calls = [part for part in response.parts if part.part_kind == "tool-call"]
        reason = (response.provider_details or {}).get("finish_reason")
        if response.state == "incomplete" or not reason:
            yield StreamError(
                message="the stream ended without saying that the answer is complete",
                kind="truncated",
            )
            return
        for part in (part for part in calls if part.tool_call_id not in self._called):
            yield ToolInputEnd(call_id=part.tool_call_id)
            yield ToolCall(call_id=part.tool_call_id, tool=part.tool_name, input=_arguments(part))
        finish = _FINISHES.get(response.finish_reason, "unknown")
        if calls and finish == "stop":
            finish = "tool-calls"  # what the Responses protocol reports for a turn with calls
        yield StepFinish(reason=finish, usage=token_usage(response.usage))


def _usage_of(stream: Any) -> Any:
    usage = stream.usage
    return usage() if callable(usage) else usage


def _arguments(part: Any) -> Any:
    """Return a call's input; the model's own text where it is no JSON object."""
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError, TypeError):
        return part.args


def token_usage(usage: Any) -> TokenUsage:
    """Return the five disjoint kinds of a usage of pydantic-ai.

    Its input includes cache traffic and its output includes reasoning; a request whose usage the
    provider did not send counts as unmeasured and gives no tokens at all.
    """
    if getattr(usage, "unmeasured_requests", 0):
        return NO_TOKENS
    read, written = usage.cache_read_tokens, usage.cache_write_tokens
    reasoning = getattr(usage, "output_reasoning_tokens", None)
    if reasoning is None:
        reasoning = (usage.details or {}).get("reasoning_tokens", 0)
    return TokenUsage(
        input=max(0, usage.input_tokens - read - written),
        output=max(0, usage.output_tokens - reasoning),
        reasoning=reasoning,
        cache=CacheTokens(read=read, write=written),
        total=usage.input_tokens + usage.output_tokens,
    )


def error_event(error: Exception) -> StreamError:
    """Return a failure as an event: by class and status, by words only for an overflow."""
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    headers = getattr(error, "headers", None)
    return StreamError(
        message=_message(error, body),
        kind=_kind(error, status, str(body or "")),
        status=status if isinstance(status, int) else None,
        retry_after_s=getattr(error, "retry_after", None),
        headers=None if headers is None else _public(headers),
        body=None if body is None else _text(body)[:_BODY_CHARS],
    )


def _kind(error: Exception, status: int | None, body: str) -> ErrorKind:
    from pydantic_ai import exceptions

    if isinstance(error, exceptions.ModelContextWindowExceededError) or status == _TOO_LARGE:
        return "overflow"
    if status in _OVERFLOW_STATUSES and _OVERFLOW.search(body):
        return "overflow"
    kinds: list[tuple[type[Exception], ErrorKind]] = [
        (exceptions.ModelRateLimitError, "rate-limit"),
        (exceptions.ModelQuotaExceededError, "quota"),
        (exceptions.ModelAuthenticationError, "auth"),
        (exceptions.ModelNotFoundError, "not-found"),
        (exceptions.ModelUnavailableError, "overloaded"),
        (exceptions.ModelServerError, "server"),
        (exceptions.ModelTimeoutError, "timeout"),
        (exceptions.ModelRequestTimeout, "timeout"),
        (exceptions.ModelConnectionError, "connection"),
        (exceptions.ModelRequestRejectedError, "rejected"),
        (exceptions.ModelAPIError, "api"),
    ]
    return next((kind for known, kind in kinds if isinstance(error, known)), "unknown")


def _message(error: Exception, body: object) -> str:
    """Return the provider's own words where it sent some, else the library's."""
    found = body.get("error", body) if isinstance(body, dict) else None
    words = found.get("message") if isinstance(found, dict) else None
    return str(words) if words else str(error) or type(error).__name__


def _public(headers: Any) -> dict[str, str]:
    return {
        str(name): str(value)
        for name, value in headers.items()
        if not _SECRET_HEADERS.search(name) or _HARMLESS_HEADERS.search(name)
    }


def _text(body: object) -> str:
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)
