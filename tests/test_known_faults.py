"""Faults that others have reported of the family, each shown not to happen by default.

Every sentence names the reports (numbers of the opencode repository) or the recorded case. Those
that have a home elsewhere: compaction loops, blank and failed summaries in `test_workbench.py` and
`test_vectors_compaction.py`; floors and absurd counts in `test_usage.py` and `test_trigger.py`;
half attempts, endless and wrong retries, lost text and usage in `test_retries.py`; crashes in
`test_kill.py`; ids that wrap in `test_vectors.py`; costs counted twice in `test_fork.py`; empty
aborted messages in `test_render.py`.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import forge_nb
from forge_nb.events import MessageUpdated, PartUpdated, RunStatus
from forge_nb.inputs import File, Text
from forge_nb.messages.message import AssistantMessage, MessageTime, UserMessage
from forge_nb.messages.parts import TextPart, ToolCompleted, ToolPart
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamError,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
)
from forge_nb.messages.usage import ModelLimits, TokenUsage
from forge_nb.settings import Settings
from tests.helpers import USED, Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from forge_nb.conversation import Conversation
    from forge_nb.inputs import Input
    from forge_nb.workbench import Workbench

LONG = "a question that is long enough to be worth a summary, " * 20
REFUSED = StreamError(message="prompt is too long", kind="overflow", status=400)


def failures(wb: Workbench) -> list[Any]:
    return [one for one in wb.verify() if one.level == "failure"]


def texts(conversation: Conversation) -> list[str]:
    shown = conversation.workbench.writer(conversation.id).visible()
    return [part.text for item in shown for part in item.parts if isinstance(part, TextPart)]


def test_a_client_whose_clock_is_wrong_gets_one_answer() -> None:
    """#28618, #29478, #21335: ids of the client's clock against the server's in the exit test."""
    with workbench(Saying(text("the answer"))) as wb:
        conversation = wb.session("t")
        message = UserMessage(
            id="msg_ffffffffffffZZZZZZZZZZZZZZ",  # later than any id of ours, as text
            session_id=conversation.id,
            time=MessageTime(created=9_999_999_999_999),
        )
        part = TextPart(
            id="prt_000000000000", session_id=conversation.id, message_id=message.id, text="why?"
        )
        wb.store.apply(
            [MessageUpdated(message=message, prompt_state="waiting"), PartUpdated(part=part)]
        ).result()
        result = asyncio.run(conversation.resume())
        assert result.text == "the answer"
        again = asyncio.run(conversation.resume())
        assert again.message_ids == ()
        answers = [
            one for one in conversation.messages() if isinstance(one.message, AssistantMessage)
        ]
        assert len(answers) == 1


def test_an_image_never_bricks_a_session() -> None:
    """#14562, #4781, #7235: media in the summary's input made every call fail, that one too."""
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 30).decode()
    provider = Saying(text("seen " + LONG), [REFUSED], text("## Objective\n- short"), text("ok"))
    with workbench(provider, settings=Settings(keep_tail=False)) as wb:
        conversation = wb.session("t")
        look: list[Input] = [Text(LONG), File(url=f"data:image/png;base64,{png}", filename="a.png")]

        async def main() -> Any:
            await conversation.prompt(look)
            return await conversation.prompt("and now?")

        result = asyncio.run(main())
        assert result.text == "ok"
        summarised = provider.requests[2].messages[0].parts[0].text
        assert "[Attached image/png: a.png]" in summarised
        assert png not in summarised
        assert not any(
            part.kind == "file" for one in provider.requests[-1].messages for part in one.parts
        )


def test_the_end_of_every_run_is_told() -> None:
    """#43093, #35472, #45610: a client that hears nothing thinks that the session is busy."""
    provider = Saying(
        text("fine"), [StreamError(message="no", kind="rejected", status=400)], [StepStart(), 60.0]
    )

    async def stopped(conversation: Conversation) -> None:
        task = asyncio.ensure_future(conversation.prompt("three"))
        await wait_for(lambda: len(provider.requests) == 3)
        conversation.abort()
        await task

    with workbench(provider) as wb, wb.bus.subscribe() as subscription:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("one"))
        asyncio.run(conversation.prompt("two"))
        asyncio.run(stopped(conversation))
        states = []
        while (event := subscription.get_nowait()) is not None:
            states += [event.state] if isinstance(event, RunStatus) else []
    assert states == ["busy", "idle"] * 3


def test_the_agent_of_a_session_is_kept_over_a_compaction() -> None:
    """#16960, #41358: the plan, the goal or the agent was lost with the history."""
    full = TokenUsage(input=1_500, output=100)
    call = ToolCall(call_id="c", tool="missing", input={})
    answers: list[list[StreamEvent]] = [
        [StepStart(), call, StepFinish(reason="tool-calls", usage=full)],
        text("## Objective\n- go on"),
        text("done"),
    ]
    provider = Saying(*answers, limits=ModelLimits(context=2_000, output=400))
    settings = Settings(agent="careful", keep_tail=False)
    with workbench(provider, settings=settings) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt(LONG))
        last = conversation.messages()[-1].message
        asked = [one.message for one in conversation.messages() if one.message.agent == "careful"]
        assert isinstance(last, AssistantMessage)
        assert last.agent == "careful"
        assert len(asked) == 5  # all but the summary itself


def test_work_that_was_done_on_a_refused_question_is_not_forgotten() -> None:
    """The recorded engine asks again and forgets what the turn had done; here it is summarised."""
    look = ToolCall(call_id="c", tool="look", input={})

    def looked() -> str:
        """Look."""
        return "the cause is a comma"

    provider = Saying(
        text("earlier " + LONG),
        [StepStart(), look, StepFinish(reason="tool-calls", usage=USED)],
        [REFUSED],
        text("## Objective\n- the cause is a comma"),
        text("mended"),
    )
    settings = Settings(keep_tail=False)
    tool = forge_nb.tool(name="look")(looked)
    with workbench(provider, tools=[tool], settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt(LONG)
            return await conversation.prompt("find the cause " + LONG)

        result = asyncio.run(main())
        assert result.text == "mended"
        assert "the cause is a comma" in provider.requests[3].messages[0].parts[0].text
        assert failures(wb) == []


def test_what_is_said_last_is_in_the_row_and_deltas_add_up_to_it() -> None:
    """Case b: blanks at the end; the row is the truth, and the deltas before it tile its text."""
    spoken: list[StreamEvent] = [
        StepStart(),
        TextStart(),
        TextDelta(text="one "),
        TextDelta(text="two \n\n"),
        TextEnd(),
        StepFinish(reason="stop", usage=USED),
    ]
    settings = Settings(text_end_hooks=(str.upper, lambda said: f"{said}!"))
    with workbench(Saying(spoken), settings=settings) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("go"))
        assert result.text == "ONE TWO!"
        assert texts(conversation)[-1] == "ONE TWO!"


def test_a_tool_that_is_still_running_when_a_stream_ends_is_waited_for() -> None:
    """Case c: results come before the step's end, whatever the order in which they were called."""

    @forge_nb.tool
    async def slow() -> str:
        """Take a moment."""
        await asyncio.sleep(0)
        return "slow"

    @forge_nb.tool
    def quick() -> str:
        """Take none."""
        return "quick"

    both: list[StreamEvent] = [
        StepStart(),
        ToolCall(call_id="a", tool="slow", input={}),
        ToolCall(call_id="b", tool="quick", input={}),
        StepFinish(reason="tool-calls", usage=USED),
    ]
    with workbench(Saying(both, text("ok")), tools=[slow, quick]) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("go"))
        first = conversation.messages()[1]
        states = [part.state for part in first.parts if isinstance(part, ToolPart)]
        assert [state.output for state in states if isinstance(state, ToolCompleted)] == [
            "slow",
            "quick",
        ]
        ends = dict(zip([part.id for part in first.parts], first.part_seqs, strict=True))
        assert list(ends.values()) == sorted(ends.values())
        assert failures(wb) == []
