"""Agents, work that is handed over, titles, and answers in a given shape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest

import forge_nb
from forge_nb.agents import Agent, agents_by_name
from forge_nb.errors import UsageError
from forge_nb.events import MessageUpdated, PartUpdated, SessionUpdated
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import SubtaskPart, ToolCompleted, ToolFailed, ToolPart, is_open
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamError,
    StreamEvent,
    ToolCall,
)
from forge_nb.prompts import user_message
from forge_nb.settings import Settings
from forge_nb.structured import output_format
from forge_nb.subtasks import Order
from forge_nb.titles import clean_title
from forge_nb.tools.permissions import Rule
from tests.helpers import USED, Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from forge_nb.conversation import Conversation
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.workbench import Workbench

HELPER = Agent(name="helper", description="Counts.", system=("You count.",), max_steps=3)
AT_ONCE = Settings(retry_base_s=0)


def calling(tool: str, given: dict[str, Any], call_id: str = "c") -> list[StreamEvent]:
    return [
        StepStart(),
        ToolCall(call_id=call_id, tool=tool, input=given),
        StepFinish(reason="tool-calls", usage=USED),
    ]


def ordering(agent: str = "helper") -> list[StreamEvent]:
    return calling("task", {"description": "count", "prompt": "how many?", "subagent_type": agent})


def calls_of(conversation: Conversation) -> list[ToolPart]:
    return [
        part
        for item in conversation.messages()
        for part in item.parts
        if isinstance(part, ToolPart)
    ]


def children(wb: Workbench, parent: Conversation) -> list[str]:
    return [row.info.id for row in wb.store.sessions() if row.info.parent_id == parent.id]


def clean(wb: Workbench) -> bool:
    return not [one for one in wb.verify() if one.level == "failure"]


# ----------------------------------------------------------------------------------- agents


def test_an_agent_brings_its_model_its_words_its_tools_and_its_steps() -> None:
    @forge_nb.tool
    def look() -> str:
        """Look."""
        return "seen"

    @forge_nb.tool
    def touch() -> str:
        """Touch."""
        return "done"

    agent = Agent(name="reader", system=("Only read.",), tools=("look",))
    provider = Saying(text("ok"))
    with workbench(provider, tools=[look, touch], agents=[agent]) as wb:
        conversation = wb.session("t", agent="reader")
        asyncio.run(conversation.prompt("go"))
        [answer] = [
            item.message
            for item in conversation.messages()
            if isinstance(item.message, AssistantMessage)
        ]
    [request] = provider.requests
    assert request.system == ["Only read."]
    assert [spec.name for spec in request.tools] == ["look"]
    assert answer.agent == "reader"


def test_an_agent_s_rules_come_after_the_settings_and_a_session_s_own_last() -> None:
    @forge_nb.tool(permission="deploy")
    def deploy() -> str:
        """Deploy."""
        return "deployed"

    agent = Agent(name="ops", permissions=(Rule("deploy", "*", "allow"),))
    for own, output in ((None, "deployed"), ([{"permission": "deploy", "action": "deny"}], None)):
        provider = Saying(calling("deploy", {}), text("ok"))
        with workbench(provider, tools=[deploy], agents=[agent]) as wb:
            conversation = wb.session("t", agent="ops")
            info = wb.store.session(conversation.id).info
            wb.apply([SessionUpdated(info=msgspec.structs.replace(info, permission=own))])
            asyncio.run(conversation.prompt("go"))
            [call] = calls_of(conversation)
        if output is None:
            assert isinstance(call.state, ToolFailed)
            assert "denied by a rule" in call.state.error
        else:
            assert isinstance(call.state, ToolCompleted)


def test_two_agents_of_one_name_and_an_unknown_one_are_refused() -> None:
    with pytest.raises(UsageError, match="two agents"):
        agents_by_name([HELPER, HELPER])
    with workbench(Saying(text("x"))) as wb, pytest.raises(UsageError, match="no agent 'nobody'"):
        asyncio.run(wb.session("t", agent="nobody").prompt("go"))


# --------------------------------------------------------------------------------- subtasks


def test_a_model_hands_work_over_to_a_child_session() -> None:
    provider = Saying(ordering(), text("two files"), text("the helper says two"))
    with workbench(provider, agents=[HELPER]) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("go"))
        assert result.text == "the helper says two"
        [child] = children(wb, conversation)
        [call] = calls_of(conversation)
        assert isinstance(call.state, ToolCompleted)
        assert call.state.metadata is not None
        assert call.state.metadata["sessionId"] == child
        assert call.state.output.splitlines() == [
            f'<task id="{child}" state="completed">',
            "<task_result>",
            "two files",
            "</task_result>",
            "</task>",
        ]
        assert wb.store.session(child).info.title == "count (@helper subagent)"
        assert provider.requests[1].system == ["You count."]
        assert "task" not in [spec.name for spec in provider.requests[1].tools]
        own, whole = wb.store.session(conversation.id), wb.store.session(child)
        assert own.tokens.input == 200
        assert [one.id for one in conversation.children()] == [child]
        assert conversation.cost_usd() == pytest.approx(2 * 120e-6)
        assert conversation.cost_usd(tree=True) == pytest.approx(3 * 120e-6)
        assert whole.tokens.input == 100
        assert clean(wb)


def test_a_child_that_fails_is_an_error_of_the_call_and_the_turn_goes_on() -> None:
    refusal = StreamError(message="refused", kind="rejected", status=400)
    provider = Saying(ordering(), [refusal], text("it failed"))
    with workbench(provider, agents=[HELPER]) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("go"))
        [call] = calls_of(conversation)
        [child] = children(wb, conversation)
    assert isinstance(call.state, ToolFailed)
    assert call.state.error.startswith(f"Subagent failed (task_id: {child})")
    assert result.text == "it failed"


def test_stopping_the_parent_stops_the_child_and_closes_both() -> None:
    async def main(conversation: Conversation, provider: Saying) -> Any:
        task = asyncio.ensure_future(conversation.prompt("go"))
        await wait_for(lambda: len(provider.requests) == 2)
        assert conversation.abort()
        return await task

    provider = Saying(ordering(), [StepStart(), 60.0])
    with workbench(provider, agents=[HELPER]) as wb:
        conversation = wb.session("t")
        result = asyncio.run(main(conversation, provider))
        [call] = calls_of(conversation)
        [child] = children(wb, conversation)
        everything = [*conversation.messages(), *wb.session(child).messages()]
        assert result.outcome == "aborted"
        assert isinstance(call.state, ToolFailed)
        assert not [part for item in everything for part in item.parts if is_open(part)]
        assert clean(wb)


def hand_over(wb: Workbench, conversation: Conversation) -> None:
    """Store a question that is an order."""
    session = wb.writer(conversation.id)
    message = user_message(session, conversation.setup)
    order = SubtaskPart(
        id=session.new_id("prt"),
        session_id=session.id,
        message_id=message.id,
        prompt="how many?",
        description="count",
        agent="general",
    )
    asyncio.run(
        session.write(
            [MessageUpdated(message=message, prompt_state="waiting"), PartUpdated(part=order)]
        )
    )


def kinds(item: MessageWithParts) -> list[str]:
    return [type(part).__name__ for part in item.parts]


def test_an_order_in_a_prompt_is_carried_out_before_the_model_is_asked() -> None:
    provider = Saying(text("two files"), text("there are two"))
    with workbench(provider) as wb:
        conversation = wb.session("t")
        hand_over(wb, conversation)
        result = asyncio.run(conversation.resume())
        _, carried_out, answer = conversation.messages()
        assert kinds(carried_out) == ["ToolPart"]
        assert isinstance(carried_out.message, AssistantMessage)
        assert carried_out.message.finish == "tool-calls"
        assert result.text == "there are two"
        assert kinds(answer)[0] == "StepStartPart"
        sent = [part.text for one in provider.requests[1].messages for part in one.parts]
        assert sent[0] == "The following tool was executed by the user"
        assert "two files" in sent[1]
        assert list(wb.steps()["session_id"]).count(conversation.id) == 1
        assert clean(wb)


def test_an_order_that_fails_or_is_stopped_is_closed_and_told() -> None:
    refusal = StreamError(message="refused", kind="rejected", status=400)
    with workbench(Saying([refusal], text("it failed"))) as wb:
        conversation = wb.session("t")
        hand_over(wb, conversation)
        result = asyncio.run(conversation.resume())
        [call] = calls_of(conversation)
        assert isinstance(call.state, ToolFailed)
        assert call.state.error == "Tool execution failed: refused"
        assert result.text == "it failed"
        assert clean(wb)

    async def main(conversation: Conversation, provider: Saying) -> Any:
        task = asyncio.ensure_future(conversation.resume())
        await wait_for(lambda: bool(provider.requests))
        assert conversation.abort()
        return await task

    provider = Saying([StepStart(), 60.0])
    with workbench(provider) as wb:
        conversation = wb.session("t")
        hand_over(wb, conversation)
        result = asyncio.run(main(conversation, provider))
        [call] = calls_of(conversation)
        everything = [
            *conversation.messages(),
            *wb.session(children(wb, conversation)[0]).messages(),
        ]
        assert result.outcome == "aborted"
        assert isinstance(call.state, ToolFailed)
        assert call.state.error == "Cancelled"
        assert not [part for item in everything for part in item.parts if is_open(part)]
        assert clean(wb)


def test_a_child_is_gone_on_with_by_its_parent_alone() -> None:
    with workbench(Saying(text("x")), agents=[HELPER]) as wb:
        parent, stranger = wb.session("parent"), wb.session("stranger")
        bad = Order(
            parent_id=parent.id, agent="helper", prompt="?", description="d", task_id=stranger.id
        )
        with pytest.raises(UsageError, match="no child"):
            asyncio.run(wb.spawn(bad, lambda *_: None))
        new = Order(parent_id=parent.id, agent="helper", prompt="?", description="d")
        first = asyncio.run(wb.spawn(new, lambda *_: None))
        again = msgspec.structs.replace(new, task_id=first.session_id)
        assert asyncio.run(wb.spawn(again, lambda *_: None)).session_id == first.session_id
        assert len(children(wb, parent)) == 1


# ----------------------------------------------------------------------------------- titles


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Fix the parser", "Fix the parser"),
        ("<think>what is it</think>\n\n Fix it \nand more", "Fix it"),
        ("<think>never ends", ""),
        ("x" * 101, "x" * 97 + "..."),
        ("", ""),
    ],
)
def test_a_title_is_one_line_of_what_the_model_said(said: str, expected: str) -> None:
    assert clean_title(said) == expected


def test_a_session_without_a_name_is_named_and_the_call_is_recorded() -> None:
    provider = Saying(text("the answer"))
    with workbench(provider) as wb:
        conversation = wb.session()
        assert conversation.title.startswith("New session - 2026-")
        asyncio.run(conversation.prompt("why?"))
        assert conversation.title == "the answer"
        purposes = [record.purpose for record in wb.store.usage(conversation.id)]
        assert sorted(purposes) == ["title", "turn"]
        assert [request.purpose for request in provider.requests].count("title") == 1
        assert sorted(wb.steps()["purpose"]) == ["title", "turn"]
        assert list(wb.steps()["step"].dropna()) == [1]
        asyncio.run(conversation.prompt("and now?"))
        assert [request.purpose for request in provider.requests].count("title") == 1
        assert clean(wb)


def test_a_session_that_has_a_name_keeps_it() -> None:
    provider = Saying(text("the answer"))
    with workbench(provider) as wb:
        asyncio.run(wb.session("mine").prompt("why?"))
    assert [request.purpose for request in provider.requests] == ["turn"]


def test_a_title_that_fails_costs_the_answer_nothing() -> None:
    class Untitled(Saying):
        async def stream(self, request: Any) -> Any:
            if request.purpose == "title":
                msg = "no title today"
                raise RuntimeError(msg)
            async for event in super().stream(request):
                yield event

    with workbench(Untitled(text("the answer"))) as wb:
        conversation = wb.session()
        result = asyncio.run(conversation.prompt("why?"))
        assert result.outcome == "completed"
        assert conversation.title.startswith("New session - ")


# -------------------------------------------------------------------------- structured output


class Count(pydantic.BaseModel):
    number: int


def structured(provider: Saying, wanted: Any = Count) -> Any:
    with workbench(provider) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("how many?", output=wanted))
        assert clean(wb)
        return result, conversation.messages()[-1].message


def test_an_answer_in_a_given_shape_is_captured_and_ends_the_turn() -> None:
    provider = Saying(calling("StructuredOutput", {"number": 2}))
    result, message = structured(provider)
    assert result.structured == {"number": 2}
    assert message.structured == {"number": 2}
    assert message.finish == "stop"
    assert provider.requests[0].tool_choice == "required"
    assert len(provider.requests) == 1


def test_an_answer_that_does_not_fit_is_told_to_the_model_and_asked_again() -> None:
    wrong = calling("StructuredOutput", {"number": "many"})
    provider = Saying(wrong, calling("StructuredOutput", {"number": 2}, "d"))
    result, _ = structured(provider)
    assert result.structured == {"number": 2}
    told = [part.text for one in provider.requests[1].messages for part in one.parts]
    assert any("does not fit the schema" in one for one in told)


def test_a_model_that_never_gives_the_structure_fails_after_its_tries() -> None:
    result, message = structured(Saying(text("two")))
    assert result.outcome == "failed"
    assert message.error.name == "StructuredOutputError"
    assert message.error.data.retries == 2


def test_an_answer_may_be_a_list() -> None:
    provider = Saying(calling("StructuredOutput", {"value": [1, 2]}))
    result, _ = structured(provider, list[int])
    assert result.structured == [1, 2]


def test_a_schema_that_is_none_is_refused_before_anything_is_stored() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"type": "nonsense"}, "no JSON schema"),
        ({"$ref": "#"}, "without an end"),
        ({"properties": {"a": {"$ref": "#/definitions/x"}}}, "#/definitions/x"),
        ({"items": [{"$ref": "http://example.org/x.json"}]}, "is not in it|no JSON schema"),
        ({"allOf": [{"$ref": "http://example.org/x.json"}]}, "is not in it"),
    ]
    for schema, said in refused:
        with pytest.raises(UsageError, match=said):
            output_format(schema)
    known = {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}
    assert output_format(known)["schema"] == known


def test_settings_compare_and_print_without_surprises() -> None:
    assert msgspec.structs.replace(AT_ONCE, retry_base_s=2.0) == Settings()
