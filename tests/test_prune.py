"""Clearing old tool outputs: what may go, what stays, and that the rows keep everything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

import forge_nb
from forge_nb.compaction.prune import prunable
from forge_nb.messages.message import AssistantMessage, MessageTime, MessageWithParts, UserMessage
from forge_nb.messages.parts import TextPart, ToolCompleted, ToolPart, ToolSpan
from forge_nb.messages.stream import StepFinish, StepStart, StreamEvent, ToolCall
from forge_nb.settings import Settings
from tests.helpers import USED, Saying, text, workbench

if TYPE_CHECKING:
    from forge_nb.workbench import Workbench


def user(n: int) -> MessageWithParts:
    message = UserMessage(id=f"u{n}", session_id="s", time=MessageTime(created=n))
    part = TextPart(id=f"p{n}", session_id="s", message_id=message.id, text="question")
    return MessageWithParts(message=message, parts=(part,), seq=n)


def assistant(n: int, output: str) -> MessageWithParts:
    time = MessageTime(created=n)
    message = AssistantMessage(id=f"a{n}", session_id="s", time=time, finish="stop")
    state = ToolCompleted(input={}, output=output, time=ToolSpan(start=n, end=n))
    part = ToolPart(
        id=f"x{n}.0",
        session_id="s",
        message_id=message.id,
        call_id=f"c{n}",
        tool="look",
        state=state,
    )
    return MessageWithParts(message=message, parts=(part,), seq=n)


def failures(wb: Workbench) -> list[Any]:
    return [one for one in wb.verify() if one.level == "failure"]


def outputs(*tokens: int) -> list[MessageWithParts]:
    """One turn per size, oldest first, then two turns that are protected."""
    history: list[MessageWithParts] = []
    for n, size in enumerate(tokens):
        history += [user(2 * n + 1), assistant(2 * n + 2, "o" * (4 * size))]
    seq = len(history)
    return [*history, user(seq + 1), user(seq + 2)]


def pruned(history: list[MessageWithParts], protect: int = 40_000, least: int = 20_000) -> Any:
    found = prunable(reversed(history), protect_tokens=protect, minimum_tokens=least)
    return [part.id for part in found]


def test_vector_27_old_outputs_beyond_the_protected_ones_are_cleared() -> None:
    assert pruned(outputs(30_000, 30_000, 30_000)) == ["x4.0", "x2.0"]


def test_vector_28_too_little_is_left_alone() -> None:
    assert pruned(outputs(15_000, 40_000)) == []


def test_the_last_two_turns_and_protected_tools_are_never_cleared() -> None:
    history = outputs(90_000)
    assert pruned(history[:2]) == []
    skill = history[1].parts[0]
    kept = msgspec.structs.replace(
        history[1], parts=(msgspec.structs.replace(skill, tool="skill"),)
    )
    assert pruned([history[0], kept, *history[2:]]) == []


def test_what_is_cleared_already_and_a_summary_end_the_search() -> None:
    history = outputs(90_000, 30_000, 90_000)
    part: Any = history[3].parts[0]
    time = msgspec.structs.replace(part.state.time, compacted=1)
    state = msgspec.structs.replace(part.state, time=time)
    cleared = msgspec.structs.replace(
        history[3], parts=(msgspec.structs.replace(part, state=state),)
    )
    assert pruned([*history[:3], cleared, *history[4:]]) == ["x6.0"]


def test_pruning_is_done_after_a_run_where_the_settings_say_so() -> None:
    @forge_nb.tool
    def look() -> str:
        """Look."""
        return "word " * 2_000

    answers: list[list[StreamEvent]] = []
    for n in range(4):
        call = ToolCall(call_id=f"c{n}", tool="look", input={"n": n} if n > 9 else {})
        answers += [[StepStart(), call, StepFinish(reason="tool-calls", usage=USED)], text("ok")]
    settings = Settings(prune=True, prune_protect=3_000, prune_minimum=1_000, doom_loop=0)
    with workbench(Saying(*answers), tools=[look], settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> None:
            for n in range(4):
                await conversation.prompt(f"look {n}")

        asyncio.run(main())
        states = [
            part.state
            for item in conversation.messages()
            for part in item.parts
            if isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted)
        ]
        assert [state.time.compacted is not None for state in states] == [True, False, False, False]
        assert all(len(state.output) > 9_000 for state in states)
        assert failures(wb) == []
