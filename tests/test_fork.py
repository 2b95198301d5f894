"""Forks and undoing: copies that are counted once, and money that stays spent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.clock import system_clock
from forge_nb.errors import NotFoundError, SessionBusyError, UsageError
from forge_nb.events import MessageUpdated, Origin, SessionUpdated
from forge_nb.fork import FORKED_KEY, fork_title
from forge_nb.history import find_boundaries
from forge_nb.messages.message import MessageTime, SessionInfo, SessionTime, UserMessage
from forge_nb.messages.parts import TextPart, is_open
from forge_nb.messages.stream import StepStart, StreamEvent, TextDelta, TextStart
from forge_nb.settings import Settings
from tests.helpers import Saying, text, wait_for, workbench

if TYPE_CHECKING:
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
