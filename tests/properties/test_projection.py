from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forge_nb.events import MessageUpdated, PartUpdated, UsageRecorded
from forge_nb.messages.codec import message_from_dict, part_from_dict
from forge_nb.projection import Upsert, message_columns, part_columns, project
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from tests.contracts.store_events import SESSION, asked, billed, conversation, said, session

if TYPE_CHECKING:
    from forge_nb.events import SyncEvent
    from forge_nb.store.sql import SqlStore

TEXTS = st.text(max_size=8)
KEYS = st.sampled_from(["msg_a", "msg_b", "msg_c", "msg_d"])
TABLES = ("session", "message", "part", "usage")

CHANGES = st.one_of(
    st.builds(asked, KEYS, state=st.sampled_from([None, "waiting", "taken"])),
    st.builds(said, KEYS, TEXTS),
    st.builds(billed, st.sampled_from(["u1", "u2"]), usd=st.sampled_from([None, 0.0, 0.1])),
    st.builds(session, title=TEXTS),
)


def whole(changes: list[Any]) -> list[SyncEvent]:
    """Put what a change needs before it."""
    events: list[SyncEvent] = [session()]
    for change in changes:
        if isinstance(change, PartUpdated):
            events.append(asked(change.part.message_id))
        events.append(change)
    return events


def rows(store: SqlStore) -> dict[str, list[tuple[Any, ...]]]:
    """All rows, without the counters that say when they changed."""
    found = {}
    with store.engine.connect() as connection:
        for table in TABLES:
            cursor = connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY id")
            hidden = {"rev", "seq"} if table == "session" else {"rev"}
            kept = [n for n, name in enumerate(cursor.keys()) if name not in hidden]
            found[table] = [tuple(row[n] for n in kept) for row in cursor]
    return found


@settings(max_examples=40)
@given(st.lists(CHANGES, max_size=12))
def test_updates_applied_twice_give_the_same_rows(changes: list[Any]) -> None:
    with open_store(":memory:") as store:
        store.apply(whole(changes)).result()
        once = rows(store)
        store.apply(whole(changes)).result()
        assert rows(store) == once
        assert [found for found in verify(store) if found.level == "failure"] == []


@settings(max_examples=40)
@given(st.lists(CHANGES, max_size=12), st.integers(min_value=1, max_value=5))
def test_one_transaction_or_many_give_the_same_rows(changes: list[Any], size: int) -> None:
    events = whole(changes)
    with open_store(":memory:") as at_once, open_store(":memory:") as by_parts:
        at_once.apply(iter(events)).result()
        for start in range(0, len(events), size):
            by_parts.apply(events[start : start + size]).result()
        assert rows(at_once) == rows(by_parts)


@settings(max_examples=40)
@given(st.lists(CHANGES, max_size=12), st.integers(min_value=1, max_value=6))
def test_pages_of_any_size_joined_are_the_session(changes: list[Any], size: int) -> None:
    with open_store(":memory:") as store:
        store.apply(whole(changes)).result()
        joined = list(store.messages(SESSION, page_size=size))
        assert joined == list(store.page(SESSION, limit=500).messages)
        order = [item.seq for item in joined]
        assert order == sorted(order, reverse=True)


@given(TEXTS)
def test_columns_follow_from_data(text: str) -> None:
    for event in [*conversation(), said("msg_a", text)]:
        change = project(event)
        assert isinstance(change, Upsert)
        if isinstance(event, MessageUpdated):
            derived = message_columns(message_from_dict(change.values["data"]))
        elif isinstance(event, PartUpdated):
            derived = part_columns(part_from_dict(change.values["data"]))
            native = ("prices", "cost_source")
            derived = {name: value for name, value in derived.items() if name not in native}
        else:
            continue
        assert {name: change.values[name] for name in derived} == derived


def test_projecting_changes_nothing_it_was_given() -> None:
    events = conversation()
    again = conversation()
    assert [project(event) for event in events] == [project(event) for event in again]
    assert events == again
    assert any(isinstance(event, UsageRecorded) for event in events)
