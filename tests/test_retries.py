"""Calls that fail: what is tried again, how long is waited, and what stays in the store."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import forge_nb
from forge_nb.events import RunStatus
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import (
    StepFinishPart,
    StepStartPart,
    TextPart,
    ToolCompleted,
    ToolPart,
    is_open,
)
from forge_nb.messages.stream import (
    ErrorKind,
    StepFinish,
    StepStart,
    StreamError,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    Usage,
)
from forge_nb.retry import asked_wait_s, is_retryable, retry_wait_s
from forge_nb.settings import PARITY, Settings
from tests.helpers import USED, Saying, text, wait_for, workbench

AT_ONCE = Settings(retry_base_s=0)
LIMITED = StreamError(message="slow down", kind="rate-limit", status=429)
HALF: list[StreamEvent] = [StepStart(), TextStart(), TextDelta(text="half")]


def ask(provider: Saying, settings: Settings = AT_ONCE, tools: Any = ()) -> Any:
    """Prompt once; return the result, the answers with their parts, and the usage rows."""
    with workbench(provider, settings=settings, tools=tools) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("go"))
        answers = [
            item for item in conversation.messages() if isinstance(item.message, AssistantMessage)
        ]
        assert not [one for one in wb.verify() if one.level == "failure"]
        assert not [part for item in answers for part in item.parts if is_open(part)]
        return result, answers, wb.store.usage(conversation.id)


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("rate-limit", 429, True),
        ("overloaded", 529, True),
        ("server", 500, True),
        ("server", None, True),
        ("timeout", None, True),
        ("connection", None, True),
        ("truncated", 200, True),
        ("api", 503, True),
        ("api", 501, False),
        ("rejected", 400, False),
        ("rate-limit", 400, False),
        ("not-found", 404, False),
        ("auth", 401, False),
        ("quota", 429, False),
        ("overflow", 413, False),
        ("overflow", None, False),
        ("unknown", None, False),
    ],
)
def test_status_and_class_decide_whether_a_failure_may_pass(
    kind: ErrorKind, status: int | None, *, expected: bool
) -> None:
    failure = StreamError(message="rate limit, try again later", kind=kind, status=status)
    assert is_retryable(failure) is expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"Retry-After": "2.5"}, 2.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "nan"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_the_provider_s_wish_is_read_in_every_form(
    headers: dict[str, str], expected: float | None
) -> None:
    failure = StreamError(message="", kind="rate-limit", headers=headers)
    assert asked_wait_s(failure, now_ms=60_000) == expected


def test_without_a_wish_the_wait_doubles_and_is_capped() -> None:
    settings = Settings()

    def wait(attempt: int, jitter: float = 0.0) -> float | None:
        return retry_wait_s(LIMITED, settings, attempt=attempt, waited_s=0, jitter=jitter, now_ms=0)

    assert [wait(n) for n in (1, 2, 3, 4, 5, 6)] == [2, 4, 8, 16, 30, None]
    assert wait(1, jitter=1.0) == 2.5


def test_a_wish_that_is_longer_than_the_cap_on_all_waits_ends_the_attempts() -> None:
    settings = Settings(retry_total_s=100)
    long = StreamError(message="", kind="rate-limit", status=429, retry_after_s=90)

    def wait(waited_s: float) -> float | None:
        return retry_wait_s(long, settings, attempt=1, waited_s=waited_s, jitter=0, now_ms=0)

    assert wait(0) == 90
    assert wait(11) is None


def test_a_call_that_fails_twice_answers_at_the_third_attempt() -> None:
    provider = Saying([LIMITED], [LIMITED], text("there"))
    result, [answer], usage = ask(provider)
    assert result.outcome == "completed"
    assert result.text == "there"
    assert len(provider.requests) == 3
    assert answer.message.error is None
    assert [record.attempt for record in usage] == [3]


def test_what_a_failed_attempt_said_is_closed_marked_and_never_sent() -> None:
    call = StepFinish(reason="tool-calls", usage=USED)
    again: list[StreamEvent] = [
        StepStart(),
        ToolCall(call_id="c", tool="look", input={}),
        call,
    ]
    provider = Saying([*HALF, LIMITED], again, text("done"))

    @forge_nb.tool
    def look() -> str:
        """Look."""
        return "seen"

    result, [first, _], _ = ask(provider, tools=[look])
    assert result.outcome == "completed"
    lost = [part for part in first.parts if part.discarded]
    assert [type(part) for part in lost] == [StepStartPart, TextPart]
    assert {part.attempt for part in lost} == {1}
    assert {part.attempt for part in first.parts if not part.discarded} == {2}
    sent = [part.text for message in provider.requests[-1].messages for part in message.parts]
    assert "half" not in sent


def test_usage_of_a_failed_attempt_is_kept_and_billed() -> None:
    provider = Saying([*HALF, Usage(usage=USED), LIMITED], text("there"))
    _, [answer], usage = ask(provider)
    assert [(record.attempt, record.tokens.input) for record in usage] == [(1, 100), (2, 100)]
    assert answer.message.cost == pytest.approx(2 * (100 * 1 + 10 * 2) / 1e6)
    assert [part.discarded for part in answer.parts if isinstance(part, StepFinishPart)] == [
        True,
        False,
    ]


def test_attempts_end_after_the_cap_and_the_last_failure_is_the_message_s_error() -> None:
    provider = Saying([LIMITED])
    result, [answer], _ = ask(provider, Settings(retry_base_s=0, retries=2))
    assert len(provider.requests) == 3
    assert result.outcome == "failed"
    assert answer.message.error.data.status_code == 429
    assert answer.message.error.data.is_retryable is True
    assert answer.message.finish == "error"


@pytest.mark.parametrize("kind", ["auth", "quota", "rejected", "not-found"])
def test_what_cannot_pass_is_not_tried_again(kind: ErrorKind) -> None:
    provider = Saying([StreamError(message="no", kind=kind, status=400)])
    result, _, _ = ask(provider)
    assert len(provider.requests) == 1
    assert result.outcome == "failed"


def test_a_stream_without_an_end_is_a_lost_connection() -> None:
    provider = Saying(HALF, text("whole"))
    result, [answer], _ = ask(provider)
    assert result.text == "whole"
    assert [part.discarded for part in answer.parts if isinstance(part, TextPart)] == [True, False]


def test_tools_that_ran_are_not_run_again_by_a_retry() -> None:
    runs: list[str] = []

    @forge_nb.tool
    def write_once() -> str:
        """Have an effect."""
        runs.append("effect")
        return "written"

    broken: list[StreamEvent] = [
        StepStart(),
        ToolCall(call_id="c", tool="write_once", input={}),
        StreamError(message="the wire broke", kind="connection"),
    ]
    provider = Saying(broken, text("I saw it was written"))
    result, [first, _], _ = ask(provider, tools=[write_once])
    assert runs == ["effect"]
    assert result.outcome == "completed"
    assert first.message.finish == "unknown"
    [call] = [part for part in first.parts if isinstance(part, ToolPart)]
    assert isinstance(call.state, ToolCompleted)
    assert "written" in [part.text for one in provider.requests[1].messages for part in one.parts]


def test_unknown_finishes_in_a_row_end_the_turn() -> None:
    provider = Saying(text("?", reason="unknown"))
    result, answers, _ = ask(provider, Settings(max_unknown_finishes=2))
    assert len(answers) == 3
    assert result.outcome == "failed"
    assert "unknown" in (result.error or "")


def test_a_retry_is_told_on_the_bus_with_its_time() -> None:
    waiting = StreamError(message="slow down", kind="rate-limit", status=429, retry_after_s=0)
    seen: list[RunStatus] = []
    provider = Saying([waiting], text("there"))
    with workbench(provider) as wb, wb.bus.subscribe() as subscription:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("go"))
        while (event := subscription.get_nowait()) is not None:
            seen.extend([event] if isinstance(event, RunStatus) else [])
    assert [status.state for status in seen] == ["busy", "retry", "busy", "idle"]
    assert (seen[1].attempt, seen[1].message) == (1, "slow down")
    assert seen[1].next_ms is not None


@pytest.mark.parametrize(("settings", "name"), [(AT_ONCE, "MessageAbortedError"), (PARITY, None)])
def test_an_abort_while_waiting_for_a_retry_closes_the_message(
    settings: Settings, name: str | None
) -> None:
    later = StreamError(message="later", kind="rate-limit", status=429, retry_after_s=100)

    async def main(conversation: Any, provider: Saying) -> Any:
        task = asyncio.ensure_future(conversation.prompt("go"))
        await wait_for(lambda: bool(provider.requests))
        await asyncio.sleep(0)
        await wait_for(lambda: conversation.messages()[-1].message.time.created > 0)
        assert conversation.abort()
        return await task

    provider = Saying([later])
    with workbench(provider, settings=settings) as wb:
        conversation = wb.session("t")
        result = asyncio.run(main(conversation, provider))
        last = conversation.messages()[-1].message
    assert result.outcome == "aborted"
    assert isinstance(last, AssistantMessage)
    assert last.time.completed is not None
    assert (last.error and last.error.name) == name


def test_parity_leaves_a_failed_attempt_s_parts_as_they_are() -> None:
    provider = Saying([*HALF, LIMITED], text("whole"))
    settings = msgspec.structs.replace(PARITY, retry_base_s=0)
    with workbench(provider, settings=settings) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("go"))
        parts = conversation.messages()[-1].parts
    assert [type(part).__name__ for part in parts] == [
        "StepStartPart",
        "TextPart",
        "StepStartPart",
        "TextPart",
        "StepFinishPart",
    ]
    assert is_open(parts[1])
    assert not any(part.discarded for part in parts)


def test_parity_takes_a_broken_stream_as_an_unknown_end_and_calls_again() -> None:
    provider = Saying([*HALF, StreamError(message="gone", kind="connection")], text("whole"))
    _, [first, second], _ = ask(provider, PARITY)
    assert first.message.finish == "unknown"
    assert first.message.tokens.input == 0
    assert second.message.finish == "stop"


def test_the_text_of_a_long_block_is_stored_now_and_then() -> None:
    spoken: list[StreamEvent] = [StepStart(), TextStart()]
    spoken += [TextDelta(text="ab") for _ in range(50)]
    provider = Saying([*spoken, TextEnd(), StepFinish(reason="stop", usage=USED)])
    with workbench(provider, settings=Settings(checkpoint_s=1e-9)) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("go"))
        answer = conversation.messages()[-1]
        events = wb.store.session(conversation.id).seq
    assert isinstance(answer.parts[1], TextPart)
    assert answer.parts[1].text == "ab" * 50
    assert events > 50
