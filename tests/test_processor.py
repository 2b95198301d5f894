"""One turn: whatever happens, the message is closed and the usage that was reported is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import forge_nb
from forge_nb.events import Committed, PartDelta, PartUpdated
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
from forge_nb.messages.stream import (
    ReasoningDelta,
    ReasoningStart,
    StepFinish,
    StepStart,
    StreamError,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputStart,
    Usage,
)
from forge_nb.messages.usage import TokenUsage, UnitPrices
from forge_nb.messages.wire import ERROR_ABORTED, TOOL_ABORTED
from forge_nb.settings import Settings
from tests.helpers import USED, Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.conversation import Conversation
    from forge_nb.messages.parts import Part
    from forge_nb.run_loop import RunResult


@forge_nb.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@forge_nb.tool
async def hang() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return "never"


@forge_nb.tool
def explode() -> str:
    """Raise."""
    msg = "no such thing"
    raise KeyError(msg)


def run(provider: Saying, **options: Any) -> tuple[RunResult, list[Part], AssistantMessage]:
    """Return the result, the parts of the first answer, and the answer."""
    with workbench(provider, tools=[add, hang, explode], **options) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("go"))
        return result, *answer(conversation)


def answer(conversation: Conversation) -> tuple[list[Part], AssistantMessage]:
    first = next(
        item for item in conversation.messages() if isinstance(item.message, AssistantMessage)
    )
    assert isinstance(first.message, AssistantMessage)
    return list(first.parts), first.message


def of_kind(parts: Sequence[Part], kind: type[Any]) -> Any:
    found = [part for part in parts if isinstance(part, kind)]
    assert len(found) == 1
    return found[0]


def test_a_text_is_trimmed_at_its_end_and_stored_once() -> None:
    spoken: list[StreamEvent] = [
        StepStart(),
        TextStart(),
        TextDelta(text="a "),
        TextDelta(text="b \n"),
        TextEnd(),
    ]
    result, parts, message = run(Saying([*spoken, StepFinish(reason="stop", usage=USED)]))
    assert of_kind(parts, TextPart).text == "a b"
    assert message.finish == "stop"
    assert result.text == "a b"
    assert result.outcome == "completed"


def test_a_delta_without_a_start_changes_nothing() -> None:
    stray: list[StreamEvent] = [StepStart(), TextDelta(text="lost"), TextEnd()]
    _, parts, _ = run(Saying([*stray, StepFinish(reason="stop")]))
    assert not [part for part in parts if isinstance(part, TextPart)]


def test_a_tool_goes_from_pending_to_running_to_completed_and_its_input_is_not_broadcast() -> None:
    provider = Saying(
        [
            StepStart(),
            ToolInputStart(call_id="c", tool="add"),
            ToolInputDelta(call_id="c", text='{"a":'),
            ToolCall(call_id="c", tool="add", input={"a": 2, "b": 3}),
            StepFinish(reason="tool-calls", usage=USED),
        ],
        text("five"),
    )
    with workbench(provider, tools=[add]) as wb:
        subscription = wb.bus.subscribe()
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("2+3?"))
        states, deltas = [], 0
        while (event := subscription.get_nowait()) is not None:
            if isinstance(event, PartDelta):
                deltas += 1
            elif isinstance(event, Committed) and isinstance(event.event, PartUpdated):
                part = event.event.part
                states += [part.status] if isinstance(part, ToolPart) else []
        assert states == ["pending", "running", "completed"]
        assert deltas == 1  # the word "five"
        sent = provider.requests[1].messages[-1].parts[-1]
        assert (sent.kind, sent.text, sent.input) == ("tool", "5", {"a": 2, "b": 3})


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        ("explode", {}, "KeyError"),
        ("add", {"a": "x", "b": 1}, "invalid arguments for add: a:"),
        ("nope", {}, "there is no tool 'nope'"),
    ],
)
def test_what_goes_wrong_in_a_tool_reaches_the_model(
    tool: str, given: dict[str, Any], said: str
) -> None:
    call = ToolCall(call_id="c", tool=tool, input=given)
    provider = Saying([StepStart(), call, StepFinish(reason="tool-calls", usage=USED)], text("oh"))
    result, parts, _ = run(provider)
    state = of_kind(parts, ToolPart).state
    assert isinstance(state, ToolFailed)
    assert said in state.error
    assert result.outcome == "completed"


def aborted(*events: StreamEvent | float) -> tuple[RunResult, list[Part], AssistantMessage]:
    """Abort once everything was said that the events say."""

    async def main(conversation: Conversation, provider: Saying) -> RunResult:
        task = asyncio.ensure_future(conversation.prompt("go"))
        expected = sum(not isinstance(event, ToolInputDelta | float) for event in events)
        await wait_for(lambda: bool(provider.requests))
        for _ in range(expected * 5 + 10):
            await asyncio.sleep(0.002)
        assert conversation.abort()
        return await task

    provider = Saying([*events, 60.0])
    with workbench(provider, tools=[add, hang]) as wb:
        conversation = wb.session("t")
        result = asyncio.run(main(conversation, provider))
        assert [one for one in wb.verify() if one.level == "failure"] == []
        return result, *answer(conversation)


CALL = ToolCall(call_id="c", tool="hang", input={})


@pytest.mark.parametrize(
    "events",
    [
        (),
        (StepStart(),),
        (StepStart(), TextStart(), TextDelta(text="so far")),
        (StepStart(), ReasoningStart(), ReasoningDelta(text="hm")),
        (StepStart(), ToolInputStart(call_id="c", tool="hang")),
        (StepStart(), CALL),
        (
            StepStart(),
            TextStart(),
            ReasoningStart(),
            CALL,
            ToolCall(call_id="d", tool="add", input={"a": 1, "b": 2}),
        ),
    ],
    ids=["before the first byte", "at once", "text", "reasoning", "pending", "running", "all"],
)
def test_an_abort_closes_every_part(events: tuple[StreamEvent, ...]) -> None:
    result, parts, message = aborted(*events)
    assert result.outcome == "aborted"
    assert not [part for part in parts if is_open(part)]
    assert message.error is not None
    assert message.error.name == ERROR_ABORTED
    assert message.finish == "error"
    assert message.time.completed is not None


def test_an_abort_keeps_the_text_so_far_and_says_that_a_tool_was_interrupted() -> None:
    _, parts, _ = aborted(StepStart(), TextStart(), TextDelta(text="so far"), CALL)
    assert of_kind(parts, TextPart).text == "so far"
    state = of_kind(parts, ToolPart).state
    assert isinstance(state, ToolFailed)
    assert state.error == TOOL_ABORTED
    assert state.metadata == {"interrupted": True}


def test_usage_that_was_reported_before_the_cut_is_kept() -> None:
    _, parts, message = aborted(StepStart(), Usage(usage=USED), TextStart())
    finish = of_kind(parts, StepFinishPart)
    assert finish.tokens == USED
    assert finish.reason == "error"
    assert message.cost == pytest.approx((100 * 1 + 10 * 2) / 1e6)


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (StreamError(message="slow down", kind="rate-limit", status=429), "APIError"),
        (RuntimeError("the wire broke"), "UnknownError"),
        (None, "APIError"),
    ],
    ids=["an error event", "an exception", "no finish"],
)
def test_a_stream_that_breaks_leaves_a_closed_message_with_an_error(
    last: StreamEvent | Exception | None, name: str
) -> None:
    spoken: list[StreamEvent | float | Exception] = [StepStart(), TextStart()]
    spoken.append(TextDelta(text="half"))
    provider = Saying([*spoken, last] if last else spoken)
    result, parts, message = run(provider, settings=Settings(retries=0))
    assert result.outcome == "failed"
    assert message.error is not None
    assert message.error.name == name
    assert of_kind(parts, TextPart).text == "half"
    assert not [part for part in parts if is_open(part)]


def test_several_blocks_may_be_open_at_once() -> None:
    spoken: list[StreamEvent] = [
        StepStart(),
        TextStart(id="1"),
        ReasoningStart(id="r"),
        TextStart(id="2"),
        TextDelta(id="1", text="one"),
        TextDelta(id="2", text="two"),
        ReasoningDelta(id="r", text="why"),
        TextEnd(id="2"),
        StepFinish(reason="stop", usage=USED),
    ]
    _, parts, _ = run(Saying(spoken))
    assert [part.text for part in parts if isinstance(part, TextPart)] == ["one", "two"]
    assert of_kind(parts, ReasoningPart).text == "why"
    assert not [part for part in parts if is_open(part)]


def test_a_step_finish_its_bill_and_the_message_are_one_write() -> None:
    provider = Saying(text("hi"))
    with workbench(provider) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("go"))
        [usage] = wb.store.usage(conversation.id)
        parts, message = answer(conversation)
        assert usage.id == of_kind(parts, StepFinishPart).id
        assert usage.cost.usd == message.cost
        assert usage.cost.source == "computed"
        assert wb.store.session(conversation.id).cost_usd == message.cost


def test_a_tool_s_long_output_is_cut_and_says_so() -> None:
    @forge_nb.tool
    def long() -> str:
        """Say much."""
        return "x" * 200_000

    call = ToolCall(call_id="c", tool="long", input={})
    provider = Saying([StepStart(), call, StepFinish(reason="tool-calls", usage=USED)], text("ok"))
    with workbench(provider, tools=[long]) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("go"))
        parts, _ = answer(conversation)
    state = of_kind(parts, ToolPart).state
    assert isinstance(state, ToolCompleted)
    assert "output cut" in state.output
    assert len(state.output) < 60_000


def test_a_long_context_is_billed_at_its_tier() -> None:
    class Tiered(Saying):
        def prices_at(self, context_tokens: int) -> UnitPrices:
            return UnitPrices(input=9 if context_tokens > 200_000 else 1, output=0)

    for size, unit in ((200_000, 1), (200_001, 9)):
        used = TokenUsage(input=size, output=1)
        _, parts, message = run(Tiered(text("x", usage=used)))
        assert message.cost == pytest.approx(size * unit / 1e6)
        assert of_kind(parts, StepFinishPart).prices.input == unit


def test_an_input_that_is_no_object_never_reaches_a_tool() -> None:
    @forge_nb.tool
    def take(value: str) -> str:
        """Take a value."""
        return value

    call = ToolCall(call_id="c", tool="take", input='{"value": "cut')
    provider = Saying([StepStart(), call, StepFinish(reason="tool-calls")], text("sorry"))
    with workbench(provider, tools=[take]) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("go"))
        parts, _ = answer(conversation)
    state = of_kind(parts, ToolPart).state
    assert isinstance(state, ToolFailed)
    assert "no JSON object" in state.error


def test_a_summary_may_call_no_tool() -> None:
    call = ToolCall(call_id="c", tool="add", input={"a": 1, "b": 2})
    summary: list[StreamEvent] = [StepStart(), call, StepFinish(reason="tool-calls", usage=USED)]
    provider = Saying(text("word " * 200), summary)
    with workbench(provider, tools=[add]) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt("question " * 200)
            return await conversation.compact()

        result = asyncio.run(main())
        last = conversation.messages()[-1]
    assert result.outcome == "failed"
    assert not [part for part in last.parts if isinstance(part, ToolPart)]
    assert isinstance(last.message, AssistantMessage)
    assert last.message.error is not None
    assert "may call no tool" in (last.message.error.data.message or "")


@pytest.mark.parametrize(("answer_", "runs"), [("once", 4), ("reject", 2)])
def test_the_same_call_again_and_again_is_asked_about(answer_: str, runs: int) -> None:
    calls: list[int] = []

    @forge_nb.tool
    def poke(n: int) -> str:
        """Poke."""
        calls.append(n)
        return "ouch"

    poking: list[list[StreamEvent]] = [
        [
            StepStart(),
            ToolCall(call_id=f"c{n}", tool="poke", input={"n": 1}),
            StepFinish(reason="tool-calls", usage=USED),
        ]
        for n in range(4)
    ]

    async def main(conversation: Conversation) -> RunResult:
        task = asyncio.ensure_future(conversation.prompt("go"))
        while not task.done():
            await wait_for(lambda: task.done() or bool(conversation.permissions.pending))
            for asked in conversation.permissions.pending:
                assert asked.permission == "doom_loop"
                assert asked.metadata == {"tool": "poke", "input": {"n": 1}}
                conversation.permissions.reply(asked.id, answer_)  # type: ignore[arg-type]
            await asyncio.sleep(0)
        return await task

    provider = Saying(*poking, text("enough"))
    with workbench(provider, tools=[poke], settings=Settings(asks=True)) as wb:
        result = asyncio.run(main(wb.session("t")))
    assert len(calls) == runs
    assert result.outcome == ("completed" if answer_ == "once" else "failed")
