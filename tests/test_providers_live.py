"""Real providers against a server that speaks their protocols: every story three times."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import forge_nb
from forge_nb.errors import ToolError
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
from forge_nb.messages.stream import StreamError, ToolCall, ToolInputStart, Usage
from forge_nb.messages.usage import CacheTokens, TokenUsage
from forge_nb.messages.wire import ERROR_API, ERROR_OVERFLOW
from forge_nb.providers.live_stream import WireWatch
from tests.contracts.provider_contract import ProviderContract, asked, drain, is_well_formed
from tests.helpers import wait_for
from tests.live import PROTOCOLS, SPECS, parts_of, provider_at, set_keys, workbench_at
from tests.wire.replies import Answer, Call, Failure, Raw, Refusal, Thought, Used, Words, recorded
from tests.wire.server import WireServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from forge_nb.messages.parts import Part
    from forge_nb.workbench import Workbench
    from tests.contracts.provider_contract import MakeProvider
    from tests.wire.server import WireRequest

HELLO = Answer(blocks=(Words(("Hel", "lo")),))
USED = Used(input=200, output=30, reasoning=20, cache_read=800, cache_write=80)
TWO_CALLS = (
    Call("call_1", "add", ('{"a": 1,', ' "b": 2}')),
    Call("call_2", "add", ('{"a": 3,', ' "b"', ": 4}")),
)

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@forge_nb.tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@forge_nb.tool
def refuse() -> str:
    """Fail."""
    msg = "the shelf is locked"
    raise ToolError(msg)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for every provider."""
    set_keys(monkeypatch)


class TestLive(ProviderContract):
    @pytest.fixture(params=PROTOCOLS)
    async def make_provider(self, request: pytest.FixtureRequest) -> AsyncIterator[MakeProvider]:
        answer = Answer(
            blocks=(Thought(("Let me ", "see.")), Words(("Hel", "lo")), *TWO_CALLS),
            finish="tool-calls",
            is_interleaved=True,
        )
        async with WireServer([answer]) as server:
            yield lambda: provider_at(server, request.param)


def only(parts: Iterable[Part], kind: type[Any]) -> list[Any]:
    return [part for part in parts if isinstance(part, kind)]


def last_answer(wb: Workbench, session_id: str) -> AssistantMessage:
    message = wb.session(session_id).messages()[-1].message
    assert isinstance(message, AssistantMessage)
    return message


def sent_results(request: WireRequest) -> dict[str, str]:
    """Return the tool results of a request's body by call id, as JSON."""
    body = request.body
    if request.protocol == "chat":
        rows = [row for row in body["messages"] if row["role"] == "tool"]
        return {row["tool_call_id"]: json.dumps(row["content"]) for row in rows}
    if request.protocol == "responses":
        rows = [row for row in body["input"] if row.get("type") == "function_call_output"]
        return {row["call_id"]: json.dumps(row["output"]) for row in rows}
    blocks = [b for row in body["messages"] if row["role"] == "user" for b in row["content"]]
    rows = [block for block in blocks if block["type"] == "tool_result"]
    return {row["tool_use_id"]: json.dumps(row) for row in rows}


def sent_calls(request: WireRequest) -> list[str]:
    """Return the ids of the calls in a request's body."""
    body = request.body
    if request.protocol == "chat":
        rows = [call for row in body["messages"] for call in row.get("tool_calls", ())]
        return [row["id"] for row in rows]
    if request.protocol == "responses":
        return [row["call_id"] for row in body["input"] if row.get("type") == "function_call"]
    blocks = [b for row in body["messages"] if row["role"] == "assistant" for b in row["content"]]
    return [block["id"] for block in blocks if block["type"] == "tool_use"]


# ----------------------------------------------------------------------------------- a good end


@each_protocol
async def test_words_and_usage_in_five_disjoint_kinds_are_stored(protocol: str) -> None:
    answer = Answer(blocks=(Words(("Hel", "lo")),), used=USED)
    async with WireServer([answer]) as server:
        with workbench_at(server, protocol) as wb:
            result = await wb.session("t").prompt("Hi")
            assert (result.text, result.outcome) == ("Hello", "completed")
            finish = only(parts_of(wb, result.session_id), StepFinishPart)[0]
            expected = {
                # OpenAI tells no writes to its cache, Anthropic no thinking.
                "chat": TokenUsage(
                    input=280, output=30, reasoning=20, cache=CacheTokens(read=800), total=1130
                ),
                "anthropic": TokenUsage(
                    input=200, output=50, cache=CacheTokens(read=800, write=80)
                ),
            }
            assert finish.tokens == expected.get(protocol, expected["chat"])
            assert finish.reason == "stop"
            assert finish.cost > 0
            assert finish.prices.source.startswith("genai-prices ")
            assert wb.verify() == []


@pytest.mark.parametrize("protocol", ["chat", "responses"])  # Anthropic always reports it
async def test_usage_that_is_not_reported_stays_unknown(protocol: str) -> None:
    async with WireServer([Answer(blocks=(Words(("Hello",)),), used=None)]) as server:
        with workbench_at(server, protocol) as wb:
            result = await wb.session("t").prompt("Hi")
            finish = only(parts_of(wb, result.session_id), StepFinishPart)[0]
            assert finish.tokens == TokenUsage()
            assert finish.cost is None


@each_protocol
@pytest.mark.parametrize(("finish", "stored"), [("length", "length"), ("content-filter",) * 2])
async def test_the_finish_says_why_the_model_stopped(
    protocol: str, finish: str, stored: str
) -> None:
    async with WireServer([Answer(blocks=(Words(("Hello",)),), finish=finish)]) as server:
        with workbench_at(server, protocol) as wb:
            result = await wb.session("t").prompt("Hi")
            assert last_answer(wb, result.session_id).finish == stored


@each_protocol
async def test_reasoning_goes_back_as_it_came(protocol: str) -> None:
    thinking = Answer(blocks=(Thought(("Let me ", "see.")), Words(("Hello",))))
    async with WireServer([thinking, HELLO]) as server:
        with workbench_at(server, protocol) as wb:
            session = wb.session("t")
            await session.prompt("Hi")
            part = only(parts_of(wb, session.id), ReasoningPart)[0]
            assert part.text == "Let me see."
            assert part.time.end is not None
            await session.prompt("And?")
        body = json.dumps(server.requests[1].body)
        assert "Let me see." in body
        assert protocol == "chat" or '"SIG=="' in body
        assert protocol != "responses" or '"rs_0"' in body
        assert protocol != "chat" or '"reasoning_content"' in body
        assert "<think" not in body


# ----------------------------------------------------------------------------------------- tools


@each_protocol
@pytest.mark.parametrize("is_interleaved", [False, True])
async def test_parallel_calls_run_and_their_results_go_back_with_them(
    protocol: str, *, is_interleaved: bool
) -> None:
    calling = Answer(blocks=TWO_CALLS, finish="tool-calls", is_interleaved=is_interleaved)
    async with WireServer([calling, HELLO]) as server:
        with workbench_at(server, protocol, tools=[add]) as wb:
            result = await wb.session("t").prompt("Add.")
            assert result.text == "Hello"
            tools = only(parts_of(wb, result.session_id, message=1), ToolPart)
            assert [part.state.input for part in tools] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
            assert [part.state.output for part in tools] == ["3", "7"]
            assert last_answer(wb, result.session_id).finish == "stop"
        results = sent_results(server.requests[1])
        assert list(results) == sent_calls(server.requests[1]) == ["call_1", "call_2"]
        assert "3" in results["call_1"]
        assert "7" in results["call_2"]


@each_protocol
async def test_a_tool_that_failed_goes_back_as_an_error(protocol: str) -> None:
    calling = Answer(blocks=(Call("call_1", "refuse"),), finish="tool-calls")
    async with WireServer([calling, HELLO]) as server:
        with workbench_at(server, protocol, tools=[refuse]) as wb:
            result = await wb.session("t").prompt("Try.")
            assert isinstance(
                only(parts_of(wb, result.session_id, message=1), ToolPart)[0].state, ToolFailed
            )
        sent = sent_results(server.requests[1])["call_1"]
        assert "the shelf is locked" in sent
        assert '"is_error": true' in sent or "error" in sent.partition("the shelf")[0]


@each_protocol
async def test_a_call_whose_input_is_complete_starts_while_the_stream_goes_on(
    protocol: str,
) -> None:
    answer = Answer(
        blocks=TWO_CALLS, finish="tool-calls", hang_after=6 if protocol == "chat" else 9
    )
    async with WireServer([answer]) as server:
        stream = provider_at(server, protocol).stream(asked("Add."))
        async with asyncio.timeout(10):
            event = await anext(stream)
            while not isinstance(event, ToolCall):
                event = await anext(stream)
        assert event.input == {"a": 1, "b": 2}
        await stream.aclose()


@each_protocol
async def test_a_call_that_the_limit_cut_is_never_made(protocol: str) -> None:
    answer = Answer(blocks=(TWO_CALLS[0], Call("call_2", "add", ('{"a": 3,',))), finish="length")
    async with WireServer([answer]) as server:
        events = await drain(provider_at(server, protocol), asked("Add."))
        made = [event.call_id for event in events if isinstance(event, ToolCall)]
        begun = [event.call_id for event in events if isinstance(event, ToolInputStart)]
        assert made == ["call_1"]
        assert begun == ["call_1", "call_2"]
        with workbench_at(server, protocol, tools=[add]) as wb:
            result = await wb.session("t").prompt("Add.")
            states = [part.state for part in only(parts_of(wb, result.session_id), ToolPart)]
            assert [type(state) for state in states] == [ToolCompleted, ToolFailed]


async def test_a_server_that_repeats_its_call_ids_gets_both_results() -> None:
    calls = tuple(Call("call_1", "add", call.pieces) for call in TWO_CALLS)
    async with WireServer([Answer(blocks=calls, finish="tool-calls"), HELLO]) as server:
        with workbench_at(server, "chat", tools=[add]) as wb:
            assert (await wb.session("t").prompt("Add.")).text == "Hello"
        assert list(sent_results(server.requests[1])) == ["call_1", "call_1_2"]


async def test_an_empty_object_sent_ahead_of_the_input_is_no_call() -> None:
    """Some servers begin a call with the input `{}`."""
    answer = Answer(blocks=(Call("c", "add", ("{}",)), Words(("…",))), finish="tool-calls")
    async with WireServer([answer]) as server:
        events = await drain(provider_at(server, "chat"), asked("Add."))
        assert [type(event).__name__ for event in events[-4:]] == [
            "TextEnd",
            "ToolInputEnd",
            "ToolCall",
            "StepFinish",
        ]


# --------------------------------------------------------------------------------------- bad ends


@each_protocol
async def test_a_refusal_for_haste_keeps_status_and_wait(protocol: str) -> None:
    refusal = Refusal(
        status=429,
        headers={
            "retry-after": "7",
            "set-cookie": "session=secret",
            "x-ratelimit-limit-tokens": "9",
        },
        body={"error": {"message": "slow down", "type": "rate_limit_error"}},
    )
    async with WireServer([refusal]) as server:
        events = await drain(provider_at(server, protocol), asked("Hi"))
        assert len(server.requests) == 1  # the SDKs retry nothing
        error = events[0]
        assert isinstance(error, StreamError)
        assert len(events) == 1
        assert (error.kind, error.status, error.retry_after_s) == ("rate-limit", 429, 7.0)
        assert error.message == "slow down"
        assert error.headers is not None
        assert "set-cookie" not in error.headers
        assert error.headers["x-ratelimit-limit-tokens"] == "9"
        assert "slow down" in (error.body or "")
        with workbench_at(server, protocol) as wb:
            result = await wb.session("t").prompt("Hi")
            message = last_answer(wb, result.session_id)
            assert message.error is not None
            assert (message.error.name, message.error.data.status_code) == (ERROR_API, 429)


OVERFLOWS = [
    Refusal(
        status=400,
        body={"error": {"message": "too long", "code": "context_length_exceeded"}},
    ),
    Refusal(
        status=400,
        body={
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"},
        },
    ),
    Refusal(
        status=400,
        body={"error": {"message": "the request exceeds the available context size"}},
    ),
    Refusal(status=413),
]


@each_protocol
@pytest.mark.parametrize("refusal", OVERFLOWS, ids=lambda refusal: json.dumps(refusal.body)[:40])
async def test_a_request_that_is_too_long_is_an_overflow(protocol: str, refusal: Refusal) -> None:
    async with WireServer([refusal]) as server:
        with workbench_at(server, protocol) as wb:
            result = await wb.session("t").prompt("Hi")
            message = last_answer(wb, result.session_id)
            assert message.error is not None
            assert message.error.name == ERROR_OVERFLOW


CUTS = {
    "drop": (Answer(blocks=HELLO.blocks, drop_after=-1), "connection"),
    "truncated": (Answer(blocks=HELLO.blocks, finish=None), "truncated"),
    "overloaded": (
        Answer(blocks=HELLO.blocks, failure=Failure(message="busy", kind="overloaded_error")),
        "overloaded",
    ),
    "server": (
        Answer(blocks=HELLO.blocks, failure=Failure(message="oops", kind="server_error")),
        "server",
    ),
}
BEFORE_THE_END = {"chat": 3, "responses": 5, "anthropic": 4}


@each_protocol
@pytest.mark.parametrize("cut", sorted(CUTS))
async def test_a_stream_that_breaks_off_keeps_what_was_said(protocol: str, cut: str) -> None:
    answer, kind = CUTS[cut]
    if cut == "drop":
        answer = Answer(blocks=HELLO.blocks, drop_after=BEFORE_THE_END[protocol])
    if (protocol, cut) == ("anthropic", "server"):
        answer = Answer(blocks=HELLO.blocks, failure=Failure(message="oops", kind="api_error"))
    async with WireServer([answer]) as server:
        events = await drain(provider_at(server, protocol), asked("Hi"))
        assert is_well_formed(events)
        assert isinstance(events[-1], StreamError)
        assert events[-1].kind == kind
        with workbench_at(server, protocol) as wb:
            result = await wb.session("t").prompt("Hi")
            parts = parts_of(wb, result.session_id)
            assert [part.text for part in only(parts, TextPart)] == ["Hello"]
            assert not any(map(is_open, parts))
            message = last_answer(wb, result.session_id)
            assert message.error is not None
            assert message.error.name == ERROR_API


async def test_a_cut_call_keeps_the_usage_that_anthropic_reports_first() -> None:
    answer = Answer(blocks=HELLO.blocks, used=USED, drop_after=3)
    async with WireServer([answer]) as server:
        events = await drain(provider_at(server, "anthropic"), asked("Hi"))
        reported = [event.usage for event in events if isinstance(event, Usage)]
        assert [(usage.input, usage.cache_read) for usage in reported] == [(200, 800)]
        with workbench_at(server, "anthropic") as wb:
            result = await wb.session("t").prompt("Hi")
            finish = only(parts_of(wb, result.session_id), StepFinishPart)[0]
            assert (finish.reason, finish.tokens.input) == ("error", 200)


@each_protocol
async def test_an_abort_closes_the_connection_and_every_part(protocol: str) -> None:
    answer = Answer(blocks=HELLO.blocks, hang_after=BEFORE_THE_END[protocol])
    async with WireServer([answer]) as server:
        with workbench_at(server, protocol) as wb:
            session = wb.session("t")
            run = asyncio.ensure_future(session.prompt("Hi"))
            await wait_for(lambda: any(map(is_open, parts_of(wb, session.id))), timeout_s=20)
            session.abort()
            async with asyncio.timeout(1):
                await server.requests[0].hung_up.wait()
            result = await run
            assert result.outcome == "aborted"
            assert not any(map(is_open, parts_of(wb, session.id)))


@each_protocol
async def test_a_server_that_is_not_there_is_a_connection_error(protocol: str) -> None:
    async with WireServer([HELLO]) as server:
        provider = provider_at(server, protocol)
    events = await drain(provider, asked("Hi"))
    assert [event.kind for event in events if isinstance(event, StreamError)] == ["connection"]
    assert len(events) == 1


# --------------------------------------------------------------------------------- the wire itself


async def test_blocks_that_are_open_at_once_stay_apart() -> None:
    blocks = (Thought(("a", "b", "c")), Words(("1", "2", "3")))
    signed: dict[str, dict[str, Any]] = {
        "responses": {"openai": {"reasoningEncryptedContent": "SIG=="}},
        "anthropic": {"anthropic": {"signature": "SIG=="}},
    }
    for protocol, (kept,) in {name: signed[name].items() for name in signed}.items():
        async with WireServer([Answer(blocks=blocks, is_interleaved=True)]) as server:
            with workbench_at(server, protocol) as wb:
                result = await wb.session("t").prompt("Hi")
                parts = parts_of(wb, result.session_id)
                assert [part.text for part in only(parts, ReasoningPart)] == ["abc"]
                assert [part.text for part in only(parts, TextPart)] == ["123"]
                metadata = only(parts, ReasoningPart)[0].metadata or {}
                assert kept[1].items() <= metadata[kept[0]].items()


def test_a_stream_that_cannot_be_watched_is_left_alone() -> None:
    watch = WireWatch(object())  # type: ignore[arg-type]  # as of a pydantic-ai that changed
    assert not watch.is_on
    assert watch.take_done() == []


async def test_chunks_are_served_word_for_word() -> None:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = {**chunk, "choices": [{"index": 0, "delta": {"content": "Hello"}}]}
    ended = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    whole = recorded({"kind": "openai", "chunks": [said, ended], "delay": 0.001})
    assert isinstance(whole, Raw)
    cut = recorded({"kind": "openai", "chunks": [said, ended], "drop_after": 1})
    refused = recorded({"kind": "error", "status": 400, "body": {"error": {"message": "no"}}})
    async with WireServer([whole, cut, refused]) as server:
        ends = [await drain(provider_at(server, "chat"), asked("Hi")) for _ in range(3)]
        assert [type(end[-1]).__name__ for end in ends] == [
            "StepFinish",
            "StreamError",
            "StreamError",
        ]
        assert [request.sent for request in server.requests] == [3, 1, 0]


def test_each_protocol_has_a_model() -> None:
    assert set(SPECS) == set(PROTOCOLS)
