"""What every store backend must do; a test module subclasses it and gives a `store` fixture."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.errors import ConflictError, CursorError, NotFoundError, StoreError, UsageError
from forge_nb.events import (
    LOCAL,
    MessageRemoved,
    MessageUpdated,
    Origin,
    PartRemoved,
    PartUpdated,
    SessionRemoved,
    SessionUpdated,
)
from forge_nb.messages.message import (
    AssistantMessage,
    MessageTime,
)
from forge_nb.messages.parts import (
    Span,
    TextPart,
    UnknownPart,
)
from forge_nb.messages.usage import NO_TOKENS, TokenUsage
from forge_nb.store.verify import verify
from tests.contracts.store_events import (
    IMPORTED,
    SESSION,
    TOKENS,
    asked,
    billed,
    conversation,
    said,
    session,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forge_nb.events import SyncEvent
    from forge_nb.messages.parts import Part
    from forge_nb.store.sql import SqlStore

    OpenStore = Callable[..., SqlStore]

__all__ = ["OpenStore", "StoreContract"]


def texts(store: SqlStore, session_id: str = SESSION) -> list[str]:
    """Texts of a session, oldest first."""
    items = list(store.messages(session_id))[::-1]
    return [part.text for item in items for part in item.parts if isinstance(part, TextPart)]


class StoreContract:
    """Subclasses give `open_again`, which opens the same store under any tenant."""

    @pytest.fixture
    def store(self, open_again: OpenStore) -> Iterator[SqlStore]:
        """An empty store."""
        with open_again() as opened:
            yield opened
            assert [found for found in verify(opened) if found.level == "failure"] == []

    # ------------------------------------------------------------------------- numbers

    def test_events_rows_and_log_share_one_counter(self, store: SqlStore) -> None:
        committed = store.apply(conversation()).result()
        assert [event.seq for event in committed] == [1, 2, 3, 4, 5, 6, 7]
        page = store.page(SESSION)
        assert [item.seq for item in page.messages] == [4, 2]
        assert [item.part_seqs for item in page.messages] == [(5, 6), (3,)]
        assert store.session(SESSION).seq == 7

    def test_rev_grows_with_every_event_of_the_tenant(self, store: SqlStore) -> None:
        first = store.apply([session(), session("ses_2")]).result()
        second = store.apply([asked("msg_a")]).result()
        assert [event.rev for event in (*first, *second)] == [1, 2, 3]
        assert store.session(SESSION).rev == 3
        assert store.session("ses_2").rev == 2

    def test_changed_rows_keep_their_place(self, store: SqlStore) -> None:
        store.apply([session(), asked("msg_a"), said("msg_a", "old"), asked("msg_b")]).result()
        store.apply([asked("msg_a"), said("msg_a", "new")]).result()
        newest, oldest = store.page(SESSION).messages
        assert (newest.message.id, oldest.message.id) == ("msg_b", "msg_a")
        assert (oldest.seq, oldest.part_seqs) == (2, (3,))
        assert texts(store) == ["new"]

    def test_one_transaction_may_write_a_row_twice(self, store: SqlStore) -> None:
        events: list[SyncEvent] = [session(), asked("msg_a"), said("msg_a", "old")]
        events.append(said("msg_a", "new"))
        store.apply(events).result()
        assert texts(store) == ["new"]
        assert store.message(SESSION, "msg_a").part_seqs == (3,)

    # ------------------------------------------------------------------------- values

    def test_what_is_read_equals_what_was_written(self, store: SqlStore) -> None:
        events = conversation()
        store.apply(events).result()
        newest, oldest = store.page(SESSION).messages
        written = [event.part for event in events if isinstance(event, PartUpdated)]
        assert [*oldest.parts, *newest.parts] == written
        assert [oldest.message, newest.message] == [
            event.message for event in events if isinstance(event, MessageUpdated)
        ]

    def test_what_only_this_package_knows_comes_back(self, store: SqlStore) -> None:
        raw = {"id": "prt_u", "sessionID": SESSION, "messageID": "msg_a", "type": "hologram"}
        place = {"session_id": SESSION, "message_id": "msg_a"}
        facts: dict[str, Any] = {**place, "attempt": 2, "discarded": True}
        parts: list[Part] = [
            UnknownPart(id="prt_u", kind="hologram", extra=raw, **facts),
            TextPart(id="prt_x", text="tried", time=Span(start=1, end=2), **facts),
        ]
        store.apply([session(), asked("msg_a")]).result()
        store.apply([PartUpdated(part=part) for part in parts]).result()
        assert list(store.message(SESSION, "msg_a").parts) == parts

    @pytest.mark.parametrize("text", ["a\0b", "\ud800", "end\udfff\0", "𝄞", ""])
    def test_any_text_comes_back(self, store: SqlStore, text: str) -> None:
        store.apply([session(title=text), asked("msg_a"), said("msg_a", text)]).result()
        assert texts(store) == [text]
        assert store.session(SESSION).info.title == text

    def test_an_id_that_no_database_takes_is_refused(self, store: SqlStore) -> None:
        store.apply([session()]).result()
        for bad in ("msg\0", "msg\ud800"):
            with pytest.raises(StoreError):
                store.apply([asked(bad)]).result()

    def test_numbers_beyond_a_column_stay_in_the_value(self, store: SqlStore) -> None:
        store.apply([session(created=10**30)]).result()
        assert store.session(SESSION).info.time.created == 10**30

    # ------------------------------------------------------------------------- refusals

    def test_a_part_needs_its_message_and_a_message_its_session(self, store: SqlStore) -> None:
        with pytest.raises(NotFoundError):
            store.apply([asked("msg_a")]).result()
        store.apply([session()]).result()
        with pytest.raises(NotFoundError):
            store.apply([asked("msg_a"), said("msg_b", "x")]).result()
        assert store.page(SESSION).messages == ()
        assert store.session(SESSION).seq == 1

    def test_an_id_is_never_used_for_something_else(self, store: SqlStore) -> None:
        store.apply([session(), asked("msg_a"), said("msg_a", "x"), asked("msg_b")]).result()
        answer = AssistantMessage(id="msg_a", session_id=SESSION, time=MessageTime(created=1))
        with pytest.raises(ConflictError):
            store.apply([MessageUpdated(message=answer)]).result()
        with pytest.raises(ConflictError):
            store.apply([said("msg_b", "x", part_id="prt_msg_a")]).result()

    def test_a_generator_that_raises_writes_nothing(self, store: SqlStore) -> None:
        def events() -> Iterator[SyncEvent]:
            yield session()
            yield asked("msg_a")
            msg = "broken file"
            raise ValueError(msg)

        with pytest.raises(ValueError, match="broken file"):
            store.apply(events()).result()
        assert store.sessions() == []

    def test_a_poisonous_write_fails_alone(self, store: SqlStore) -> None:
        begun, gate = threading.Event(), threading.Event()

        def slow() -> Iterator[SyncEvent]:
            begun.set()
            gate.wait()
            yield session()

        first = store.apply(slow())
        begun.wait()
        queued = [store.apply([asked("msg_a")]), store.apply([said("nobody", "x")])]
        queued.append(store.apply([asked("msg_b")]))
        gate.set()
        assert len(first.result()) == 1
        assert [type(write.exception()) for write in queued] == [
            type(None),
            NotFoundError,
            type(None),
        ]
        assert [item.message.id for item in store.messages(SESSION)] == ["msg_b", "msg_a"]

    def test_a_cancelled_write_does_not_stop_the_next(self, store: SqlStore) -> None:
        begun, gate = threading.Event(), threading.Event()

        def slow() -> Iterator[SyncEvent]:
            begun.set()
            gate.wait()
            yield session()

        first = store.apply(slow())
        begun.wait()
        given_up = store.apply([session("ses_2")])
        assert given_up.cancel()
        gate.set()
        first.result()
        store.apply([session("ses_3")]).result()
        assert {row.info.id for row in store.sessions()} == {SESSION, "ses_3"}

    def test_a_closed_store_says_so(self, open_again: OpenStore) -> None:
        store = open_again()
        write = store.apply([session()])
        store.close()
        store.close()
        assert len(write.result()) == 1
        with pytest.raises(StoreError):
            store.apply([session()])

    # ------------------------------------------------------------------------- removal

    def test_removing_a_message_removes_its_parts_and_not_its_bill(self, store: SqlStore) -> None:
        store.apply(conversation()).result()
        gone = MessageRemoved(session_id=SESSION, message_id="msg_b")
        store.apply([gone]).result()
        assert [item.message.id for item in store.messages(SESSION)] == ["msg_a"]
        assert [row.id for row in store.usage(SESSION)] == ["prt_end"]
        assert store.session(SESSION).tokens == TOKENS

    def test_removing_a_part_leaves_its_message(self, store: SqlStore) -> None:
        store.apply(conversation()).result()
        gone = PartRemoved(session_id=SESSION, message_id="msg_a", part_id="prt_msg_a")
        store.apply([gone]).result()
        assert store.message(SESSION, "msg_a").parts == ()

    def test_a_removed_session_can_come_back(self, store: SqlStore) -> None:
        store.apply(conversation()).result()
        store.apply([SessionRemoved(session_id=SESSION)]).result()
        assert store.sessions() == []
        assert store.usage(SESSION) == []
        store.apply(conversation()).result()
        assert store.session(SESSION).seq == 7

    def test_remove_and_rewrite_in_one_transaction(self, store: SqlStore) -> None:
        removed: list[SyncEvent] = [SessionRemoved(session_id=SESSION)]
        store.apply([*conversation(), *removed, *conversation()]).result()
        assert texts(store) == ["hello"]
        assert store.session(SESSION).tokens == TOKENS

    def test_one_transaction_may_remove_between_writes(self, store: SqlStore) -> None:
        gone = MessageRemoved(session_id=SESSION, message_id="msg_b")
        events: list[SyncEvent] = [session(), asked("msg_a"), said("msg_a", "old"), asked("msg_b")]
        store.apply([*events, gone, said("msg_a", "new"), asked("msg_c")]).result()
        assert texts(store) == ["new"]
        assert store.message(SESSION, "msg_a").part_seqs == (3,)

    # ------------------------------------------------------------------------- usage

    def test_recording_a_bill_twice_counts_once(self, store: SqlStore) -> None:
        store.apply(conversation()).result()
        store.apply([billed(), billed()]).result()
        row = store.session(SESSION)
        assert (row.tokens, row.cost_usd) == (TOKENS, 0.5)

    def test_a_changed_bill_changes_the_sum_by_the_difference(self, store: SqlStore) -> None:
        store.apply([session(), billed("u1"), billed("u2", tokens=TokenUsage(input=1))]).result()
        store.apply([billed("u1", tokens=TokenUsage(input=7), usd=None)]).result()
        row = store.session(SESSION)
        assert row.tokens == TokenUsage(input=8)
        assert row.cost_usd == 0.5

    def test_unknown_stays_unknown(self, store: SqlStore) -> None:
        store.apply([session(), billed("u1", tokens=NO_TOKENS, usd=None)]).result()
        row = store.session(SESSION)
        assert (row.tokens, row.cost_usd) == (NO_TOKENS, None)

    def test_a_usage_record_comes_back_as_written(self, store: SqlStore) -> None:
        store.apply(conversation()).result()
        assert store.usage(SESSION) == [billed().usage]

    # ------------------------------------------------------------------------- origin

    def test_continuing_an_imported_session_keeps_what_was_imported(self, store: SqlStore) -> None:
        info, message = session().info, asked("msg_a").message
        store.apply(
            [
                SessionUpdated(info=info, origin=IMPORTED),
                MessageUpdated(message=message, origin=IMPORTED),
                PartUpdated(part=said("msg_a", "theirs").part, origin=IMPORTED),
            ]
        ).result()
        assert not store.session(SESSION).has_local_rows
        store.apply([asked("msg_b"), session(title="mine")]).result()
        row = store.session(SESSION)
        assert row.has_local_rows
        assert row.origin == IMPORTED
        assert row.info.title == "mine"
        assert store.imported_ids(SESSION) == {"msg_a", "prt_msg_a"}

    def test_a_local_change_leaves_an_imported_row_imported(self, store: SqlStore) -> None:
        message = asked("msg_a").message
        store.apply([session(), MessageUpdated(message=message, origin=IMPORTED)]).result()
        store.apply([asked("msg_a")]).result()
        assert store.imported_ids(SESSION) == {"msg_a"}

    def test_a_session_of_our_own_has_local_rows(self, store: SqlStore) -> None:
        store.apply([session()]).result()
        assert store.session(SESSION).has_local_rows
        assert store.session(SESSION).origin.format is None

    # ------------------------------------------------------------------------- prompts

    def test_prompts_are_found_by_state_oldest_first(self, store: SqlStore) -> None:
        store.apply(
            [
                session(),
                asked("msg_a", state="answered"),
                asked("msg_b", state="waiting"),
                asked("msg_c", state="waiting"),
                asked("msg_d"),
            ]
        ).result()
        store.apply([asked("msg_b")]).result()
        waiting = store.prompts(SESSION, "waiting")
        assert [item.message.id for item in waiting] == ["msg_b", "msg_c"]
        store.apply([asked("msg_b", state="taken")]).result()
        both = store.prompts(SESSION, "waiting", "taken")
        assert [item.message.id for item in both] == ["msg_b", "msg_c"]

    # ------------------------------------------------------------------------- what is open

    def test_answers_that_are_not_closed_are_found_and_imported_ones_are_not(
        self, store: SqlStore
    ) -> None:
        def answer(key: str, completed: int | None, origin: Origin = LOCAL) -> SyncEvent:
            time = MessageTime(created=1, completed=completed)
            message = AssistantMessage(id=key, session_id=SESSION, time=time)
            return MessageUpdated(message=message, origin=origin)

        def words(key: str, time: Span | None) -> SyncEvent:
            part = TextPart(
                id=f"prt_{key}", session_id=SESSION, message_id=key, text="x", time=time
            )
            return PartUpdated(part=part)

        elsewhere = Origin(format="opencode", source_hash="x", source_id="y")
        store.apply(
            [
                session(),
                asked("msg_q"),
                answer("msg_running", None),
                answer("msg_open_text", 2),
                words("msg_open_text", Span(start=1)),
                answer("msg_closed", 2),
                words("msg_closed", Span(start=1, end=2)),
                answer("msg_elsewhere", None, elsewhere),
            ]
        ).result()
        found = [item.message.id for item in store.unfinished(SESSION)]
        assert found == ["msg_running", "msg_open_text"]
        store.apply(
            [answer("msg_running", 3), words("msg_open_text", Span(start=1, end=3))]
        ).result()
        assert store.unfinished(SESSION) == []

    # ------------------------------------------------------------------------- pages

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 500])
    def test_pages_joined_are_the_session(self, store: SqlStore, size: int) -> None:
        names = [f"msg_{n}" for n in range(5)]
        store.apply(
            [session(), *(event for n in names for event in (asked(n), said(n, n)))]
        ).result()
        found, cursor = [], None
        while True:
            page = store.page(SESSION, limit=size, before=cursor)
            assert len(page.messages) <= size
            found += [item.message.id for item in page.messages]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == names[::-1]
        assert texts(store) == names

    def test_new_messages_do_not_move_an_older_page(self, store: SqlStore) -> None:
        store.apply([session(), asked("msg_a"), asked("msg_b")]).result()
        cursor = store.page(SESSION, limit=1).next_cursor
        store.apply([asked("msg_c")]).result()
        page = store.page(SESSION, limit=1, before=cursor)
        assert [item.message.id for item in page.messages] == ["msg_a"]
        assert page.next_cursor is None

    def test_a_cursor_belongs_to_its_session(self, store: SqlStore) -> None:
        store.apply([session(), asked("msg_a"), asked("msg_b"), session("ses_2")]).result()
        cursor = store.page(SESSION, limit=1).next_cursor
        with pytest.raises(CursorError):
            store.page("ses_2", before=cursor)

    @pytest.mark.parametrize("limit", [0, -1, 501])
    def test_a_page_has_between_1_and_500_messages(self, store: SqlStore, limit: int) -> None:
        store.apply([session()]).result()
        with pytest.raises(UsageError):
            store.page(SESSION, limit=limit)

    def test_what_is_not_there_is_not_found(self, store: SqlStore) -> None:
        with pytest.raises(NotFoundError):
            store.session("ses_x")
        with pytest.raises(NotFoundError):
            store.page("ses_x")
        store.apply([session()]).result()
        with pytest.raises(NotFoundError):
            store.message(SESSION, "msg_x")

    def test_sessions_are_listed_newest_first(self, store: SqlStore) -> None:
        events = [
            session("ses_a", created=1),
            session("ses_c", created=2),
            session("ses_b", created=2),
        ]
        store.apply(events).result()
        assert [row.info.id for row in store.sessions()] == ["ses_b", "ses_c", "ses_a"]

    def test_any_thread_may_read(self, store: SqlStore) -> None:
        store.apply(conversation()).result()
        found: list[int] = []

        def read() -> None:
            found.append(len(store.page(SESSION).messages))

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [2] * 8

    # ------------------------------------------------------------------------- leases

    def test_a_lease_is_held_until_it_is_given_back_or_dead(self, store: SqlStore) -> None:
        assert store.acquire_lease(SESSION, "a", now_ms=1_000).owner == "a"
        assert store.acquire_lease(SESSION, "b", now_ms=16_000).owner == "a"
        assert store.acquire_lease(SESSION, "b", now_ms=16_001).owner == "b"
        store.release_lease(SESSION, "a")
        assert [lease.owner for lease in store.leases()] == ["b"]
        assert store.acquire_lease(SESSION, "b", now_ms=17_000).heartbeat_ms == 17_000
        store.release_lease(SESSION, "b")
        assert store.leases() == []

    # ------------------------------------------------------------------------- tenants

    def test_tenants_of_one_database_never_meet(self, open_again: OpenStore) -> None:
        with open_again(tenant="a") as ours, open_again(tenant="b") as theirs:
            ours.apply(conversation()).result()
            assert theirs.sessions() == []
            for read in (theirs.session, theirs.page, lambda key: theirs.message(key, "msg_a")):
                with pytest.raises(NotFoundError):
                    read(SESSION)
            assert theirs.usage(SESSION) == []
            assert theirs.imported_ids(SESSION) == frozenset()
            with pytest.raises(NotFoundError):
                theirs.apply([SessionRemoved(session_id=SESSION)]).result()
            committed = theirs.apply([session(title="other")]).result()
            assert [(event.seq, event.rev) for event in committed] == [(1, 1)]
            theirs.apply([SessionRemoved(session_id=SESSION)]).result()
            theirs.acquire_lease(SESSION, "them", now_ms=1)
            assert ours.leases() == []
            assert texts(ours) == ["hello"]
            assert verify(ours) == []
