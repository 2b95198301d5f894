"""Every rule of `verify` is broken once by hand, and found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.events import MessageUpdated, PartUpdated, SessionUpdated
from forge_nb.messages.codec import session_from_dict
from forge_nb.messages.message import AssistantMessage, MessageTime
from forge_nb.messages.parts import Span, TextPart, ToolPart, ToolPending
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from tests.contracts.store_events import (
    IMPORTED,
    SESSION,
    billed,
    conversation,
    session,
    step_finish,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge_nb.events import SyncEvent
    from forge_nb.store.sql import SqlStore


@pytest.fixture
def store() -> Iterator[SqlStore]:
    with open_store(":memory:") as opened:
        yield opened


def codes(store: SqlStore, level: str = "failure") -> set[str]:
    return {found.code for found in verify(store) if found.level == level}


def test_a_sound_store_has_no_findings(store: SqlStore) -> None:
    store.apply(conversation()).result()
    assert verify(store) == []


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("UPDATE part SET seq = 2 WHERE id = 'prt_t'", "seq"),
        ("UPDATE message SET seq = 99 WHERE id = 'msg_b'", "seq"),
        ("DELETE FROM message WHERE id = 'msg_a'", "parent"),
        ("DELETE FROM message WHERE id = 'msg_b'", "orphan"),
        ("UPDATE session SET tokens_input = 1", "sums"),
        ("UPDATE session SET cost_usd = NULL", "sums"),
        ("DELETE FROM usage", "usage"),
        ("UPDATE usage SET tokens_output = 9", "usage"),
        ("UPDATE message SET tokens_output = 9 WHERE id = 'msg_b'", "tokens"),
        ("UPDATE session SET title = 'other'", "columns"),
        ("UPDATE message SET finish = 'length' WHERE id = 'msg_b'", "columns"),
        ("UPDATE part SET status = 'error' WHERE id = 'prt_t'", "columns"),
        ("UPDATE part SET chars = 0 WHERE id = 'prt_t'", "columns"),
        ("UPDATE part SET data = '{}' WHERE id = 'prt_t'", "unreadable"),
        ("UPDATE message SET data = '{}' WHERE id = 'msg_a'", "unreadable"),
        ("DELETE FROM event WHERE seq = 4", "log"),
        ("UPDATE session SET seq = 9", "log"),
    ],
)
def test_damage_is_found(store: SqlStore, damage: str, code: str) -> None:
    store.apply(conversation()).result()
    with store.engine.begin() as connection:
        connection.exec_driver_sql(damage)
    assert code in codes(store)


def open_turn() -> tuple[MessageUpdated, list[PartUpdated]]:
    time = MessageTime(created=2, completed=9)
    message = AssistantMessage(id="msg_x", session_id=SESSION, parent_id="msg_lost", time=time)
    facts: dict[str, Any] = {"session_id": SESSION, "message_id": "msg_x"}
    text = TextPart(id="prt_1", text="", time=Span(start=3), **facts)
    pending = ToolPending(input={})
    tool = ToolPart(id="prt_2", call_id="c", tool="read", state=pending, **facts)
    return MessageUpdated(message=message), [PartUpdated(part=text), PartUpdated(part=tool)]


def test_an_ended_message_of_ours_has_no_open_part(store: SqlStore) -> None:
    message, parts = open_turn()
    store.apply([session(), message, *parts]).result()
    assert codes(store) == {"open", "parent"}


def test_the_oddities_of_a_recording_are_notes(store: SqlStore) -> None:
    message, parts = open_turn()
    raw = {"id": SESSION, "time": {"created": 1}, "title": "t", "cost": 3.0, "tokens": {"input": 5}}
    events: list[SyncEvent] = [
        SessionUpdated(info=session_from_dict(raw), origin=IMPORTED),
        MessageUpdated(message=message.message, origin=IMPORTED),
        *(PartUpdated(part=event.part, origin=IMPORTED) for event in parts),
        PartUpdated(part=step_finish("msg_x"), origin=IMPORTED),
    ]
    store.apply(events).result()
    assert codes(store) == set()
    assert codes(store, "note") == {"open", "parent", "rollup", "usage"}


def test_a_changed_bill_is_no_finding(store: SqlStore) -> None:
    store.apply([*conversation(), billed(usd=0.25), billed(usd=None)]).result()
    assert verify(store) == []


def test_without_a_log_there_is_nothing_to_hold_against_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "forge.db", event_log="off") as store:
        store.apply(conversation()).result()
        assert verify(store) == []
    with open_store(tmp_path / "forge.db") as store:
        assert verify(store) == []
