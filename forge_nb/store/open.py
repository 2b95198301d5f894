"""Open a store: find out what the file is, bring it up to date, or say in one line why not."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import sqlalchemy as sa

from forge_nb.clock import system_clock
from forge_nb.errors import ForeignStoreError, StoreError, StoreLockedError, UsageError
from forge_nb.projection import json_text
from forge_nb.store.migrations import APPLICATION_ID, upgrade
from forge_nb.store.rows import json_value
from forge_nb.store.sql import SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge_nb.clock import Clock

__all__ = ["EventLog", "open_store"]

EventLog = Literal["slim", "full", "off"]
_SQLITE_MAGIC = b"SQLite format 3\x00"
_BUSY_S = 5.0  # how long a write waits for another process
_RETRY_S = 0.01
_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PASSING_CODES = _BUSY_CODES | {sqlite3.SQLITE_CANTOPEN}  # the WAL is being made or removed

_T = TypeVar("_T")


def open_store(
    target: str | Path,
    *,
    tenant: str = "local",
    clock: Clock = system_clock,
    event_log: EventLog = "slim",
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
    must_exist: bool = False,
) -> SqlStore:
    """Open a store, and make it when the file does not exist.

    Parameters
    ----------
    target
        A file, or ``:memory:`` for a private one that is gone when closed.
    tenant
        Whose rows.
    clock
        Time of log entries.
    event_log
        ``slim`` keeps ids, states and times; ``full`` payloads too; ``off`` nothing.
    synchronous
        ``NORMAL`` survives a killed process; ``FULL`` also a power cut.
    must_exist
        Whether a missing file is an error.

    Raises
    ------
    StoreError
        When the file cannot be a store; the message names it and the remedy.
    UsageError
        When the target is empty or a URL of another database.
    """
    name = str(target)
    if name == ":memory:":
        folder = tempfile.TemporaryDirectory(prefix="forge-")
        path = Path(folder.name) / "memory.db"
        return _open(
            path,
            ":memory:",
            tenant=tenant,
            clock=clock,
            event_log=event_log,
            synchronous="OFF",
            close=folder.cleanup,
        )
    if not name.strip() or "://" in name:
        msg = f"{name!r} is not a file; give a path such as forge.db"
        raise UsageError(msg)
    path = Path(name).expanduser()
    _check_file(path, must_exist=must_exist)
    return _open(
        path,
        str(path),
        tenant=tenant,
        clock=clock,
        event_log=event_log,
        synchronous=synchronous,
    )


def _open(
    path: Path,
    url: str,
    *,
    tenant: str,
    clock: Clock,
    event_log: EventLog,
    synchronous: str,
    close: Callable[[], object] = lambda: None,
) -> SqlStore:
    _patiently(path, _enter_wal)
    engine = _engine(path, synchronous)
    try:
        with engine.connect() as connection, connection.begin():
            upgrade(connection, url)
            mode = _remember(connection, "event_log", event_log)
    except sa.exc.SQLAlchemyError as error:
        engine.dispose()
        raise _explained(error, url) from error
    except StoreError:
        engine.dispose()
        raise
    return SqlStore(
        engine,
        url=url,
        tenant=tenant,
        clock=clock,
        event_log=mode,
        path=str(path),
        on_close=close,
    )


def _check_file(path: Path, *, must_exist: bool) -> None:
    """Refuse what cannot be a store before anything touches it."""
    if path.is_dir():
        msg = f"{path}: a folder, not a store; name a file in it, such as {path / 'forge.db'}"
        raise StoreError(msg, path=str(path))
    if not path.exists():
        if must_exist:
            msg = f"{path}: no such store; import a session into it first, or mend --db"
            raise StoreError(msg, path=str(path))
        if not path.absolute().parent.is_dir():
            msg = f"{path}: the folder {path.absolute().parent} does not exist; make it first"
            raise StoreError(msg, path=str(path))
        return
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); mend its permissions"
        raise StoreError(msg, path=str(path)) from error
    if head and head != _SQLITE_MAGIC:
        msg = f"{path}: not a forge_nb store; give another file name for the store"
        raise ForeignStoreError(msg, path=str(path))
    if head:
        _check_owner(path)


def _check_owner(path: Path) -> None:
    """Refuse a database of another program without changing a byte of it."""
    found, tables = _patiently(path, _owner)
    if found != APPLICATION_ID and tables:
        msg = (
            f"{path}: a SQLite database of another program, not a forge_nb store; "
            "to bring its sessions in, import it into a store of its own"
        )
        raise ForeignStoreError(msg, path=str(path))


def _owner(path: Path) -> tuple[int, int]:
    """Return the application id of a database and how many tables it has."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as con:
        found = con.execute("PRAGMA application_id").fetchone()[0]
        return found, con.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _enter_wal(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=_BUSY_S)) as con:
        con.execute("PRAGMA journal_mode = WAL").fetchone()


def _patiently(path: Path, step: Callable[[Path], _T]) -> _T:
    """Run a step again while another program is in the way.

    SQLite's own busy timeout does not hold while a file changes to WAL or its last connection
    closes: two programs that open a fresh path at once would see an error now and then.
    """
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            return step(path)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in _PASSING_CODES or time.monotonic() > deadline:
                raise _explained(error, str(path)) from error
        time.sleep(_RETRY_S)


def _explained(error: Exception, url: str) -> StoreError:
    cause = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY_CODES:
        msg = f"{url}: another program holds the database; close it and try again"
        return StoreLockedError(msg, path=url)
    if code == sqlite3.SQLITE_READONLY:
        return StoreError(f"{url}: the file is read-only; mend its permissions", path=url)
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return StoreError(f"{url}: the database is damaged ({cause}); restore a copy", path=url)
    return StoreError(f"{url}: the store cannot be opened: {cause}", path=url)


def _engine(path: Path, synchronous: str) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_S},
        json_serializer=json_text,
        json_deserializer=json_value,
    )

    @sa.event.listens_for(engine, "connect")
    def _connect(raw: Any, _record: object) -> None:
        raw.isolation_level = None  # the driver must not begin by itself, see "begin"
        raw.execute(f"PRAGMA synchronous = {synchronous}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        is_reader = connection.get_execution_options().get("forge_readonly", False)
        connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")

    return engine


def _remember(connection: sa.Connection, key: str, value: str) -> str:
    """Return what the store was made with; the first opening decides."""
    connection.execute(
        sa.text("INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT DO NOTHING"),
        {"key": key, "value": value},
    )
    found: str = connection.execute(
        sa.text("SELECT value FROM meta WHERE key = :key"), {"key": key}
    ).scalar_one()
    return found
