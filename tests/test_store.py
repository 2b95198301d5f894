from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.errors import ConflictError
from forge_nb.events import MessageUpdated, Origin, SessionUpdated
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from tests.contracts.store_contract import StoreContract
from tests.contracts.store_events import (
    IMPORTED,
    SESSION,
    asked,
    conversation,
    said,
    session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge_nb.store.sql import SqlStore
    from tests.contracts.store_contract import OpenStore


class TestSqliteFile(StoreContract):
    @pytest.fixture
    def open_again(self, tmp_path: Path) -> Iterator[OpenStore]:
        with ExitStack() as opened:

            def again(**options: Any) -> SqlStore:
                return opened.enter_context(open_store(tmp_path / "forge.db", **options))

            yield again


class TestSqliteMemory(StoreContract):
    """A store in memory is private: there is no second tenant to open beside the first."""

    @pytest.fixture
    def open_again(self) -> Iterator[OpenStore]:
        with ExitStack() as opened:

            def again(**options: Any) -> SqlStore:
                return opened.enter_context(open_store(":memory:", **options))

            yield again


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forge.db"


def test_rows_are_there_after_reopening(path: Path) -> None:
    with open_store(path) as store:
        store.apply(conversation()).result()
        before = store.page(SESSION)
    with open_store(path) as store:
        assert store.page(SESSION) == before
        committed = store.apply([asked("msg_c")]).result()
    assert [(event.seq, event.rev) for event in committed] == [(8, 8)]


@pytest.mark.parametrize(
    ("mode", "entries", "payloads"), [("slim", 3, 0), ("full", 3, 3), ("off", 0, 0)]
)
def test_the_log_keeps_what_its_mode_says(
    path: Path, mode: Any, entries: int, payloads: int
) -> None:
    with open_store(path, event_log=mode) as store:
        store.apply([session(), asked("msg_a"), said("msg_a", "hi")]).result()
        with store.engine.connect() as connection:
            count = "SELECT count(*), count(data) FROM event"
            assert connection.exec_driver_sql(count).one() == (entries, payloads)


def test_a_log_entry_has_the_number_that_its_row_got(path: Path) -> None:
    with open_store(path) as store:
        store.apply(conversation()).result()
        with store.engine.connect() as connection:
            query = "SELECT seq, entity_id, state FROM event ORDER BY seq"
            log = connection.exec_driver_sql(query).all()
    assert [tuple(entry) for entry in log] == [
        (1, "ses_1", None),
        (2, "msg_a", "taken"),
        (3, "prt_msg_a", None),
        (4, "msg_b", "stop"),
        (5, "prt_t", "completed"),
        (6, "prt_end", None),
        (7, "prt_end", "turn"),
    ]


def test_a_generator_is_taken_on_the_writers_thread_and_may_be_long(path: Path) -> None:
    def events() -> Iterator[Any]:
        yield session()
        for number in range(1_200):
            yield asked(f"msg_{number}")
            yield said(f"msg_{number}", "x" * 50)

    with open_store(path) as store:
        assert len(store.apply(events()).result()) == 2_401
        assert sum(1 for _ in store.messages(SESSION, page_size=500)) == 1_200


def test_a_generator_cannot_wait_for_its_own_store(path: Path) -> None:
    with open_store(path) as store:

        def events() -> Iterator[Any]:
            store.apply([session()])
            yield session()

        with pytest.raises(ValueError, match="yield instead"):
            store.apply(events()).result()


def test_typed_columns_hold_no_nul(path: Path) -> None:
    with open_store(path) as store:
        store.apply([session(title="a\0b")]).result()
        with store.engine.connect() as connection:
            title = connection.exec_driver_sql("SELECT title FROM session").scalar_one()
    assert title == "a\ufffdb"


def imported(title: str, source_hash: str) -> SessionUpdated:
    origin = Origin(format="opencode", source_hash=source_hash, source_id=SESSION)
    return SessionUpdated(info=session(title=title).info, origin=origin)


def test_a_local_rename_keeps_the_imported_session_beside_it(path: Path) -> None:
    with open_store(path) as store:
        store.apply([imported("theirs", "h1")]).result()
        store.apply([session(title="mine"), session(title="mine too")]).result()
        store.apply([imported("theirs, grown", "h2")]).result()
        row = store.session(SESSION)
        assert (row.info.title, row.origin.source_hash) == ("mine too", "h2")
        with store.engine.connect() as connection:
            query = "SELECT data_imported ->> '$.title' FROM session"
            assert connection.exec_driver_sql(query).scalar_one() == "theirs, grown"
        assert verify(store) == []


def test_a_grown_source_updates_its_own_rows(path: Path) -> None:
    with open_store(path) as store:
        store.apply([imported("one", "h1")]).result()
        store.apply([imported("two", "h2")]).result()
        row = store.session(SESSION)
        assert (row.info.title, row.origin.source_hash, row.has_local_rows) == ("two", "h2", False)


def test_an_import_never_replaces_what_was_written_here(path: Path) -> None:
    with open_store(path) as store:
        store.apply([session(title="mine"), asked("msg_a")]).result()
        theirs = MessageUpdated(message=asked("msg_a").message, origin=IMPORTED)
        for event in (imported("theirs", "h1"), theirs):
            with pytest.raises(ConflictError, match="Import into another store"):
                store.apply([event]).result()
        assert store.session(SESSION).info.title == "mine"
