"""Forks and undoing: copies that are counted once, and money that stays spent."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.clock import system_clock
from forge_nb.errors import ContextOverflowError, NotFoundError, SessionBusyError, UsageError
from forge_nb.events import MessageUpdated, Origin, PartUpdated, SessionUpdated
from forge_nb.fork import FORKED_KEY, fork_title
from forge_nb.history import find_boundaries
from forge_nb.messages.message import (
    AssistantMessage,
    MessageTime,
    SessionInfo,
    SessionTime,
    UserMessage,
)
from forge_nb.messages.parts import (
    Span,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolRunning,
    ToolSpan,
    is_open,
)
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamEvent,
    TextDelta,
    TextStart,
    ToolCall,
    ToolInputStart,
)
from forge_nb.messages.usage import ModelLimits, TokenUsage
from forge_nb.settings import Settings
from forge_nb.tools.registry import tool
from tests.helpers import Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from pathlib import Path

    from forge_nb.conversation import Conversation
    from forge_nb.events import SyncEvent
    from forge_nb.workbench import Workbench

LONG = "a question that is long enough to be worth a summary, " * 20


def texts(conversation: Conversation) -> list[str]:
    return [
        part.text
        for item in conversation.messages()
        for part in item.parts
        if isinstance(part, TextPart)
    ]


def failures(wb: Workbench) -> list[Any]:
    return [one for one in wb.verify() if one.level == "failure"]


def shown(conversation: Conversation) -> list[TextPart]:
    """What a model would read now."""
    visible = conversation.workbench.writer(conversation.id).visible()
    return [part for item in visible for part in item.parts if isinstance(part, TextPart)]


def talked(wb: Workbench, *questions: str) -> Conversation:
    conversation = wb.session("talk")

    async def main() -> None:
        for one in questions:
            await conversation.prompt(one)

    asyncio.run(main())
    return conversation


def test_a_fork_goes_its_own_way_and_its_history_is_counted_once() -> None:
    with workbench(Saying(text("one"), text("two"), text("other two"))) as wb:
        conversation = talked(wb, "first", "second")
        second = conversation.messages()[2].message.id
        fork = conversation.fork(at=second)
        assert fork.title == "talk (fork #1)"
        assert texts(fork) == ["first", "one"]
        own = wb.store.session(fork.id)
        assert own.cost_usd is None
        assert own.tokens.input is None
        assert own.info.metadata == {
            FORKED_KEY: {"sessionID": conversation.id, "messageID": second}
        }
        asyncio.run(fork.prompt("another second"))
        assert texts(fork) == ["first", "one", "another second", "other two"]
        assert texts(conversation) == ["first", "one", "second", "two"]
        assert wb.store.session(fork.id).tokens.input == 100
        [copy, call] = wb.store.usage(fork.id)
        assert copy.origin_id == wb.store.usage(conversation.id)[0].id
        assert call.origin_id is None
        total = sum(row.cost_usd or 0 for row in wb.store.sessions())
        assert total == pytest.approx(3 * (100 * 1 + 10 * 2) / 1e6)
        assert failures(wb) == []


def test_a_fork_of_a_fork_names_the_first_call() -> None:
    with workbench(Saying(text("one"))) as wb:
        conversation = talked(wb, "first")
        again = conversation.fork().fork()
        assert again.title == "talk (fork #2)"
        [copy] = wb.store.usage(again.id)
        assert copy.origin_id == wb.store.usage(conversation.id)[0].id
        assert failures(wb) == []


def test_parents_and_tails_point_into_the_fork() -> None:
    answers = [text("first answer"), text("second answer"), text("in short")]
    with workbench(Saying(*answers), settings=Settings(tail_tokens_max=40)) as wb:
        conversation = talked(wb, LONG, "a short question")
        asyncio.run(conversation.compact())
        fork = conversation.fork()
        [boundary] = find_boundaries(fork.messages())
        ids = {item.message.id for item in fork.messages()}
        assert boundary.tail_start_id in ids
        assert {item.message.id for item in conversation.messages()}.isdisjoint(ids)
        assert "in short" in texts(fork)
        assert failures(wb) == []


def test_a_fork_at_a_step_closes_what_was_open() -> None:
    half: list[StreamEvent | float] = [StepStart(), TextStart(), TextDelta(text="half"), 60.0]

    async def main(conversation: Conversation) -> Conversation:
        task = asyncio.ensure_future(conversation.prompt("go"))
        await wait_for(lambda: bool(conversation.messages()))
        await wait_for(lambda: len(conversation.messages()[-1].parts) > 1)
        fork = conversation.fork()
        conversation.abort()
        await task
        return fork

    provider = Saying(half)
    with workbench(provider) as wb:
        fork = asyncio.run(main(wb.session("t")))
        assert not [part for item in fork.messages() for part in item.parts if is_open(part)]
        assert failures(wb) == []


def test_a_place_that_is_none_is_refused() -> None:
    with workbench(Saying(text("one"))) as wb:
        conversation = talked(wb, "first")
        with pytest.raises(NotFoundError, match="no message"):
            conversation.fork(at="msg_nope")
        with pytest.raises(NotFoundError, match="step 9"):
            conversation.fork(at=9)
        assert len(wb.store.sessions()) == 1


def test_two_forks_have_two_titles_by_which_they_are_found() -> None:
    with workbench(Saying(text("one"))) as wb:
        conversation = talked(wb, "first")
        forks = [conversation.fork(), conversation.fork()]
        assert [one.title for one in forks] == ["talk (fork #1)", "talk (fork #2)"]
        assert [wb.session(one.title).id for one in forks] == [one.id for one in forks]


def test_a_forks_steps_are_marked_and_count_once() -> None:
    with workbench(Saying(text("one"), text("two"))) as wb:
        conversation = talked(wb, "first")
        [first] = wb.store.usage(conversation.id)
        fork = conversation.fork()
        asyncio.run(fork.prompt("second"))
        steps = fork.steps()
        assert list(steps["step"]) == [1, 2]
        assert list(steps["copy_of"].isna()) == [False, True]
        assert steps["copy_of"][0] == first.id
        assert list(steps["tokens_input"]) == [100, 100]
        every, sessions = wb.steps(), wb.sessions()
        own = every[every["copy_of"].isna()]
        assert own["cost_usd"].sum() == pytest.approx(sessions["cost_usd"].sum())
        assert every["cost_usd"].sum() == pytest.approx(1.5 * sessions["cost_usd"].sum())
        assert failures(wb) == []


def test_a_forks_export_costs_what_the_fork_cost_and_comes_in_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "fork.json"
    with workbench(Saying(text("one"))) as wb:
        conversation = talked(wb, "first")
        export = wb.export(conversation.fork().id)
        assert wb.export(conversation.id)["info"]["cost"] > 0
    assert (export["info"]["cost"], export["info"]["tokens"]["input"]) == (0, 0)
    assert export["info"]["metadata"][FORKED_KEY]["sessionID"] == conversation.id
    path.write_text(json.dumps(export), "utf-8")
    with workbench(Saying(text("two"))) as other:
        [session] = other.load(path).sessions
        assert session.messages == 2
        assert failures(other) == []


def test_a_request_to_compact_that_the_cut_leaves_alone_is_not_copied() -> None:
    answers = [text("answer"), text("in short"), text("more")]
    with workbench(Saying(*answers), settings=Settings(keep_tail=False)) as wb:
        conversation = talked(wb, LONG)
        asyncio.run(conversation.compact())
        [boundary] = find_boundaries(conversation.messages())
        fork = conversation.fork(at=boundary.summary_id)
        assert texts(fork) == [LONG, "answer"]
        assert len(fork.compactions()) == 0
        assert len(wb.writer(fork.id).visible()) == 2


def test_a_prompt_that_waits_does_not_wait_in_a_fork() -> None:
    with workbench(Saying(text("one"))) as wb:
        conversation = talked(wb, "first")
        time = MessageTime(created=1)
        message = UserMessage(id="msg_w", session_id=conversation.id, time=time)
        wb.store.apply([MessageUpdated(message=message, prompt_state="waiting")]).result()
        fork = conversation.fork()
        assert len(fork.messages()) == 3
        assert wb.store.prompts(fork.id, "waiting", "taken", "answered", "cancelled") == []
        assert len(wb.store.prompts(conversation.id, "waiting")) == 1


def interrupted(session_id: str) -> list[SyncEvent]:
    """A recording that breaks off: its answer's question is not in it, and a tool still runs."""
    origin = Origin(format="opencode", source_hash="x", source_id=session_id)
    place: dict[str, Any] = {"session_id": session_id, "message_id": "msg_a"}
    info = SessionInfo(
        id=session_id,
        title="recorded",
        slug="brave-fox",
        time=SessionTime(created=1_000),
        cost=2.5,
        summary={"additions": 1},
        extra={"tokens": {"odd": 1}, "newer": True},
    )
    message = AssistantMessage(
        id="msg_a", session_id=session_id, parent_id="msg_lost", time=MessageTime(created=1_000)
    )
    attachment = {
        "sessionID": session_id,
        "messageID": "msg_a",
        "mime": "image/png",
        "url": "data:",
    }
    done = ToolCompleted(
        input={}, output="x", time=ToolSpan(start=1_100, end=1_300), attachments=[attachment]
    )
    running = ToolRunning(input={}, time=Span(start=1_200))
    tools = [
        ToolPart(id=f"prt_{key}", call_id=key, tool="read", state=state, **place)
        for key, state in (("done", done), ("running", running))
    ]
    return [
        SessionUpdated(info=info, origin=origin),
        MessageUpdated(message=message, origin=origin),
        *(PartUpdated(part=part, origin=origin) for part in tools),
    ]


def test_a_fork_of_a_broken_recording_is_sound_and_takes_no_longer_than_it_did() -> None:
    with workbench(Saying(text("on"))) as wb:
        wb.store.apply(interrupted("ses_x")).result()
        fork = wb.session("ses_x").fork()
        [item] = fork.messages()
        assert isinstance(item.message, AssistantMessage)
        assert item.message.parent_id is None
        assert item.message.time == MessageTime(created=1_000, completed=1_300)
        done, cut = (part.state for part in item.parts if isinstance(part, ToolPart))
        assert isinstance(done, ToolCompleted)
        [attachment] = done.attachments or []
        assert attachment["sessionID"] == fork.id
        assert attachment["messageID"] == item.message.id
        assert isinstance(cut, ToolFailed)
        assert (cut.time.start, cut.time.end) == (1_200, 1_300)
        info = wb.store.session(fork.id).info
        assert (info.slug, info.cost, info.summary, info.extra) == (
            None,
            None,
            None,
            {"newer": True},
        )
        assert failures(wb) == []
        asyncio.run(fork.prompt("go on"))
        assert texts(fork) == ["go on", "on"]
        assert failures(wb) == []


@pytest.mark.parametrize(
    ("title", "expected"),
    [("a", "a (fork #1)"), ("a (fork #9)", "a (fork #10)"), ("", " (fork #1)")],
)
def test_titles_of_forks_count(title: str, expected: str) -> None:
    assert fork_title(title) == expected


# ------------------------------------------------------------------------------------ undo


def test_a_question_taken_back_is_gone_and_its_cost_stays() -> None:
    with workbench(Saying(text("one"), text("two"), text("two again"))) as wb:
        conversation = talked(wb, "first", "second")
        spent = wb.store.session(conversation.id).cost_usd
        assert conversation.undo() == 2
        assert texts(conversation) == ["first", "one"]
        assert wb.store.session(conversation.id).cost_usd == spent
        asyncio.run(conversation.prompt("second, better"))
        assert texts(conversation)[-1] == "two again"
        assert len(wb.store.usage(conversation.id)) == 3
        assert failures(wb) == []


def test_what_is_gone_is_told_apart_from_what_is_lost() -> None:
    with workbench(Saying(text("one"), text("two"))) as wb:
        conversation = talked(wb, "first", "second")
        conversation.undo()
        [note] = wb.verify()
        assert (note.level, note.code) == ("note", "removed")
        bill = "1 call with 110 tokens and $0.000120"
        assert note.detail == f"messages were removed; their {bill} stay counted"
        first, gone = conversation.steps().to_dict("records")
        assert (first["step"], gone["step"]) == (1, None)
        assert gone["cost_usd"] == first["cost_usd"]
        assert wb.sessions()["cost_usd"][0] == pytest.approx(2 * first["cost_usd"])
        with wb.store.engine.begin() as connection:  # type: ignore[attr-defined]
            connection.exec_driver_sql("DELETE FROM tombstone")
        [note] = wb.verify()
        assert (note.level, note.code) == ("note", "orphan")
        assert note.detail == f"{bill} are of messages that are not stored"


CALL: list[StreamEvent | float] = [
    StepStart(),
    ToolInputStart(call_id="c", tool="look"),
    ToolCall(call_id="c", tool="look", input={}),
    StepFinish(reason="tool-calls", usage=TokenUsage(input=900, output=10)),
]


def test_the_last_question_is_what_a_person_asked_whatever_the_loop_asked_since() -> None:
    """A turn that was compacted half-way holds a question of the loop's own."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    provider = Saying(
        text("hello"),
        CALL,
        text("short"),
        text("done"),
        limits=ModelLimits(context=1_000, output=100),
    )
    with workbench(provider, tools=[look], settings=Settings(keep_tail=False)) as wb:
        conversation = talked(wb, "hi", LONG)
        assert len(find_boundaries(conversation.messages())) == 1
        assert len(conversation.messages()) == 8
        assert conversation.undo() == 6
        assert texts(conversation) == ["hi", "hello"]
        assert [part.text for part in shown(conversation)] == ["hi", "hello"]
        assert failures(wb) == []


def test_a_question_that_was_asked_again_behind_a_summary_goes_with_it() -> None:
    limits = ModelLimits(context=1_000, output=100)
    refused = ContextOverflowError("too long")
    provider = Saying(text("hello"), [refused], text("short"), text("done"), limits=limits)
    with workbench(provider, settings=Settings(keep_tail=False)) as wb:
        conversation = talked(wb, LONG, "again")
        assert texts(conversation).count("again") == 2
        conversation.undo()
        assert texts(conversation) == [LONG, "hello"]
        assert [part.text for part in shown(conversation)] == [LONG, "hello"]


def test_a_compaction_by_hand_is_the_last_thing_that_was_asked() -> None:
    answers = [text("answer"), text("in short")]
    with workbench(Saying(*answers), settings=Settings(keep_tail=False)) as wb:
        conversation = talked(wb, LONG)
        asyncio.run(conversation.compact())
        assert conversation.undo() == 2
        assert texts(conversation) == [LONG, "answer"]


def test_taking_a_compaction_back_brings_the_history_again() -> None:
    answers = [text("answer"), text("in short"), text("after")]
    with workbench(Saying(*answers), settings=Settings(keep_tail=False)) as wb:
        conversation = talked(wb, LONG)
        asyncio.run(conversation.compact())
        [boundary] = find_boundaries(conversation.messages())
        conversation.undo(boundary.request_id)
        assert find_boundaries(conversation.messages()) == []
        shown = wb.writer(conversation.id).visible()
        assert len(shown) == 2
        assert failures(wb) == []


def test_what_cannot_be_taken_back_is_refused() -> None:
    with workbench(Saying(text("one"))) as wb:
        empty = wb.session("empty")
        with pytest.raises(NotFoundError, match="no question"):
            empty.undo()
        conversation = talked(wb, "first")
        with pytest.raises(UsageError, match="is an answer"):
            conversation.undo(conversation.messages()[1].message.id)
        wb.store.acquire_lease(conversation.id, "other:1", now_ms=system_clock())
        with pytest.raises(SessionBusyError, match="other:1"):
            conversation.undo()
        assert len(conversation.messages()) == 2


def test_what_was_imported_stays_as_it_was_recorded() -> None:
    origin = Origin(format="opencode", source_hash="x", source_id="ses_x")
    info = SessionInfo(id="ses_x", title="imported", time=SessionTime(created=1))
    message = UserMessage(id="msg_x", session_id="ses_x", time=MessageTime(created=1))
    with workbench(Saying(text("one"))) as wb:
        events: list[SyncEvent] = [
            SessionUpdated(info=info, origin=origin),
            MessageUpdated(message=message, origin=origin),
        ]
        wb.store.apply(events).result()
        conversation = wb.session("ses_x")
        with pytest.raises(UsageError, match="fork"):
            conversation.undo()
        asyncio.run(conversation.prompt("go on"))
        assert conversation.undo() == 2
        assert [item.message.id for item in conversation.messages()] == ["msg_x"]
