"""Real protocols over real HTTP: what each vendor says becomes the same events and rows."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import forge_nb
from forge_nb.errors import UsageError
from forge_nb.events import PartDelta
from forge_nb.files import parse_data_url
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import (
    ReasoningPart,
    StepFinishPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    is_open,
)
from forge_nb.messages.usage import ModelLimits, UnitPrices
from forge_nb.providers.live import LiveProvider
from forge_nb.providers.registry import register_provider, resolve_model
from forge_nb.providers.vendors import wire_model
from forge_nb.settings import Settings
from forge_nb.workbench import Workbench
from tests.helpers import wait_for
from tests.wire.server import Reply, Said, Served, WireServer, anthropic, chat, responses

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("pydantic_ai", reason="the extra `models` is not installed")

SPEAKERS: dict[str, Callable[[Said], Reply]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
}
every_protocol = pytest.mark.parametrize("protocol", SPEAKERS)
AT_ONCE = Settings(retry_base_s=0)


@forge_nb.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def provider_for(server: WireServer, protocol: str) -> LiveProvider:
    url = server.root_url if protocol == "anthropic" else server.base_url
    return LiveProvider(
        "wire",
        lambda name: wire_model(protocol, name, base_url=url, api_key="k"),
        limits=lambda _: ModelLimits(context=200_000, output=8_000),
        prices=lambda _: UnitPrices(input=3, output=15, cache_read=0.3, cache_write=3.75),
    )


async def talk(
    protocol: str,
    *replies: Reply,
    prompts: tuple[str, ...] = ("go",),
    settings: Settings = AT_ONCE,
) -> tuple[Any, list[Any], list[Served]]:
    """Prompt over the wire; return the last result, all messages, and what the server got."""
    async with WireServer(replies) as server:
        register_provider("wire", lambda _: provider_for(server, protocol))
        with Workbench(":memory:", model="wire:gpt-5", tools=[add], settings=settings) as wb:
            conversation = wb.session("t")
            results = [await conversation.prompt(text, show=False) for text in prompts]
            messages = conversation.messages()
            assert not [one for one in wb.verify() if one.level == "failure"]
            return results[-1], messages, server.requests


def parts_of(messages: list[Any], kind: type[Any]) -> list[Any]:
    return [part for item in messages for part in item.parts if isinstance(part, kind)]


def answers(messages: list[Any]) -> list[AssistantMessage]:
    return [one.message for one in messages if isinstance(one.message, AssistantMessage)]


@every_protocol
async def test_text_reasoning_and_usage_arrive_whole(protocol: str) -> None:
    said = Said(reasoning="think about it", text="the answer is 42")
    result, messages, _ = await talk(protocol, SPEAKERS[protocol](said))
    assert result.text == "the answer is 42"
    assert [part.text for part in parts_of(messages, ReasoningPart)] == ["think about it"]
    [answer] = answers(messages)
    assert answer.finish == "stop"
    tokens = answer.tokens
    if protocol == "anthropic":
        assert (tokens.input, tokens.cache_read, tokens.cache_write) == (120, 800, 80)
        assert (tokens.output, tokens.reasoning) == (50, 0)
    else:
        assert (tokens.input, tokens.cache_read, tokens.cache_write) == (200, 800, 0)
        assert (tokens.output, tokens.reasoning) == (30, 20)
    assert tokens.total == 1050
    assert answer.cost is not None


@every_protocol
async def test_calls_that_are_sent_side_by_side_are_kept_apart(protocol: str) -> None:
    calls = [("call_1", "add", '{"a": 1, "b": 22}'), ("call_2", "add", '{"a": 333, "b": 4}')]
    first = SPEAKERS[protocol](Said(text="adding", calls=calls))
    result, messages, requests = await talk(protocol, first, SPEAKERS[protocol](Said(text="ok")))
    states = [part.state for part in parts_of(messages, ToolPart)]
    assert [state.output for state in states] == ["23", "337"]
    assert all(isinstance(state, ToolCompleted) for state in states)
    assert answers(messages)[0].finish == "tool-calls"
    assert result.text == "ok"
    sent = json.dumps(requests[1].json)
    assert "call_1" in sent
    assert "337" in sent


@every_protocol
async def test_an_input_that_is_no_json_is_an_error_the_model_hears_of(protocol: str) -> None:
    broken = SPEAKERS[protocol](Said(calls=[("call_1", "add", '{"a": 1, "b":')]))
    _, messages, requests = await talk(protocol, broken, SPEAKERS[protocol](Said(text="sorry")))
    [call] = parts_of(messages, ToolPart)
    assert isinstance(call.state, ToolFailed)
    assert len(requests) == 2


@pytest.mark.parametrize("protocol", ["responses", "anthropic"])
async def test_signed_reasoning_goes_back_as_it_came(protocol: str) -> None:
    first = Said(reasoning="secretly", signature="ENC==", calls=[("c1", "add", '{"a":1,"b":2}')])
    speak = SPEAKERS[protocol]
    _, messages, requests = await talk(protocol, speak(first), speak(Said(text="3")))
    [thought] = parts_of(messages, ReasoningPart)
    assert "ENC==" in json.dumps(thought.metadata)
    assert "ENC==" in json.dumps(requests[1].json)


async def test_reasoning_of_a_chat_completion_goes_back_in_its_field() -> None:
    first = Said(reasoning="openly", calls=[("c1", "add", '{"a":1,"b":2}')])
    _, _, requests = await talk("chat", chat(first), chat(Said(text="3")))
    said = [one for one in requests[1].json["messages"] if one["role"] == "assistant"]
    assert said[0]["reasoning_content"] == "openly"


ERRORS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "chat": lambda message, code: {"error": {"message": message, "code": code, "type": code}},
    "responses": lambda message, code: {"error": {"message": message, "code": code}},
    "anthropic": lambda message, code: {
        "type": "error",
        "error": {"type": code, "message": message},
    },
}


def failing(protocol: str, status: int, message: str, code: str, **headers: str) -> Reply:
    body = json.dumps(ERRORS[protocol](message, code))
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, body=body, headers=renamed)


@every_protocol
async def test_a_rate_limit_is_waited_for_as_long_as_the_provider_says(protocol: str) -> None:
    limited = failing(
        protocol, 429, "slow down", "rate_limit_error", retry_after="0", x_api_key="hidden"
    )
    result, messages, requests = await talk(
        protocol, limited, SPEAKERS[protocol](Said(text="there"))
    )
    assert result.text == "there"
    assert len(requests) == 2
    assert answers(messages)[0].error is None


@every_protocol
@pytest.mark.parametrize(
    ("refused", "name"),
    [
        ((400, "bad field", "invalid_request_error"), "APIError"),
        ((401, "bad key", "authentication_error"), "APIError"),
        ((404, "no such model", "not_found_error"), "APIError"),
        ((413, "too large", "request_too_large"), "ContextOverflowError"),
        ((400, "prompt is too long: 9 > 8", "invalid_request_error"), "ContextOverflowError"),
    ],
)
async def test_what_cannot_pass_ends_the_call_at_once(
    protocol: str, refused: tuple[int, str, str], name: str
) -> None:
    status, message, code = refused
    refusal = failing(protocol, status, message, code, set_cookie="secret=1")
    settings = Settings(auto_compact=False)
    result, messages, requests = await talk(protocol, refusal, settings=settings)
    [answer] = answers(messages)
    assert result.outcome == "failed"
    assert len(requests) == 1
    assert answer.error is not None
    assert answer.error.name == name
    assert message in (answer.error.data.message or "")
    assert "secret=1" not in json.dumps(answer.error.data.response_headers)


@every_protocol
async def test_a_server_in_trouble_is_asked_again(protocol: str) -> None:
    trouble = failing(protocol, 500, "oops", "api_error")
    result, _, requests = await talk(protocol, trouble, SPEAKERS[protocol](Said(text="there")))
    assert result.text == "there"
    assert len(requests) == 2


@every_protocol
async def test_a_dropped_connection_is_tried_again_and_its_text_is_not_sent(protocol: str) -> None:
    whole = SPEAKERS[protocol](Said(text="a long enough answer"))
    cut = Reply(
        chunks=whole.chunks, named=whole.named, done=whole.done, drop_after=len(whole.chunks) - 2
    )
    result, messages, requests = await talk(protocol, cut, whole, whole, prompts=("go", "more"))
    assert result.outcome == "completed"
    texts = parts_of(messages, TextPart)
    assert not [part for item in messages for part in item.parts if is_open(part)]
    assert [part.discarded for part in texts if part.text.startswith("a long")][-1] is False
    assert any(part.discarded for part in texts)
    assert len(requests) == 3


@every_protocol
async def test_a_stream_that_ends_without_a_finish_is_tried_again(protocol: str) -> None:
    whole = SPEAKERS[protocol](Said(text="a long enough answer"))
    cut = Reply(chunks=whole.chunks[:-2], named=whole.named, done=False)
    if protocol == "chat":
        cut.chunks = whole.chunks[:-3]
    result, _, requests = await talk(protocol, cut, whole)
    assert result.text == "a long enough answer"
    assert len(requests) == 2


@every_protocol
async def test_stopping_hangs_up_and_keeps_what_was_said(protocol: str) -> None:
    whole = SPEAKERS[protocol](Said(text="a long enough answer"))
    held = Reply(chunks=whole.chunks, named=whole.named, hold_after=len(whole.chunks) - 3)
    async with WireServer([held]) as server:
        register_provider("wire", lambda _: provider_for(server, protocol))
        with (
            Workbench(":memory:", model="wire:m", settings=AT_ONCE) as wb,
            wb.bus.subscribe() as subscription,
        ):
            conversation = wb.session("t")
            task = asyncio.ensure_future(conversation.prompt("go", show=False))
            await wait_for(lambda: bool(server.requests) and server.requests[0].holding)
            await wait_for(lambda: isinstance(subscription.get_nowait(), PartDelta))
            conversation.abort()
            result = await task
            await wait_for(lambda: server.requests[0].hung_up, timeout_s=1)
            messages = conversation.messages()
    assert result.outcome == "aborted"
    assert [part.text for part in parts_of(messages, TextPart)][-1].startswith("a lo")
    if protocol == "anthropic":  # the input is billed from the first chunk on, and kept
        [finish] = parts_of(messages, StepFinishPart)
        assert finish.tokens.input == 120


@every_protocol
async def test_usage_that_was_not_sent_is_unknown(protocol: str) -> None:
    if protocol != "chat":
        return
    _, messages, _ = await talk(protocol, chat(Said(text="hi", usage=False)))
    assert answers(messages)[0].tokens.input is None
    assert answers(messages)[0].cost is None


async def test_the_system_prompt_tools_and_files_reach_the_wire() -> None:
    settings = Settings(system=("Be brief.",))
    _, _, requests = await talk("chat", chat(Said(text="hi")), settings=settings)
    [served] = requests
    assert served.path == "/v1/chat/completions"
    assert served.json["messages"][0] == {"role": "system", "content": "Be brief."}
    assert served.json["tools"][0]["function"]["name"] == "add"


# ------------------------------------------------------------------------------------- specs


def test_a_model_without_its_key_says_which_variable_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        resolve_model("openai:gpt-5")


def test_a_compatible_server_needs_an_address() -> None:
    with pytest.raises(UsageError, match="base_url"):
        resolve_model("openai-compatible:qwen3")


def test_options_stand_behind_the_model_and_are_no_part_of_its_name() -> None:
    spec = "openai-compatible:qwen3?base_url=http://127.0.0.1:1/v1&max_tokens=5"
    provider, model = resolve_model(spec)
    assert model.model_id == "qwen3"
    assert provider.limits("qwen3") == ModelLimits()
    assert provider.prices("qwen3") is None
    with pytest.raises(UsageError, match="temperature='hot'"):
        resolve_model("openai-compatible:q?base_url=http://127.0.0.1:1&temperature=hot")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("data:text/plain;base64,aGk=", b"hi"),
        ("data:,a%20b", b"a b"),
        ("data:;base64,%%%", None),
        ("data:", None),
    ],
)
def test_a_data_url_is_read_or_refused(url: str, expected: bytes | None) -> None:
    assert parse_data_url(url) == expected
