"""Read the sessions of an ``opencode.db``; the other program's file is never touched.

The database and its write-ahead log are copied to a private folder and read there. Unknown tables
and columns are left alone; stores from before the usage columns are read as well.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ExchangeError
from forge_nb.exchange.base import ForeignSession, Source, read_json
from forge_nb.store.migrations import APPLICATION_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FORMAT", "SQLITE_MAGIC", "opened_database"]

FORMAT = "opencode-db"
SQLITE_MAGIC = b"SQLite format 3\x00"
_NEEDED = {
    "session": {"id", "time_created", "time_updated"},
    "message": {"id", "session_id", "time_created", "data"},
    "part": {"id", "session_id", "message_id", "data"},
}
_USAGE = ("input", "output", "reasoning", "cache_read", "cache_write")
_SUFFIXES = ("", "-wal", "-journal")
_COPY_TRIES = 5
_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FORMAT_BYTE, _HEADER_BYTES = 18, 19  # the header's byte 18 is 2 in WAL mode
_PLAIN = {
    "project_id": "projectID",
    "workspace_id": "workspaceID",
    "parent_id": "parentID",
    "slug": "slug",
    "directory": "directory",
    "path": "path",
    "title": "title",
    "version": "version",
    "agent": "agent",
}
_JSON = ("metadata", "permission", "revert", "model")


@contextlib.contextmanager
def opened_database(path: Path) -> Iterator[Source]:
    """Read a database's sessions one by one, oldest first.

    Raises
    ------
    ExchangeError
        When it is not an opencode database, is damaged, or is being written without a pause.
    """
    with tempfile.TemporaryDirectory(prefix="forge-import-") as folder:
        copy = _copied(path, Path(folder))
        try:
            # The store's writer thread is the one that takes the sessions.
            with contextlib.closing(sqlite3.connect(copy, check_same_thread=False)) as connection:
                connection.row_factory = sqlite3.Row
                _check_tables(connection, path)
                ids = tuple(row["id"] for row in connection.execute("SELECT id FROM session"))
                yield Source(ids=ids, sessions=_sessions(connection, path))
        except sqlite3.Error as error:
            msg = f"{path}: the database cannot be read ({error}); close the program and try again"
            raise ExchangeError(msg, path=str(path)) from error


def _copied(path: Path, folder: Path) -> Path:
    """Copy the file and its logs as they stand at one moment.

    A program that writes meanwhile is noticed by the files' sizes and times; then again.
    """
    _check_lock(path)
    copy = folder / "copy.db"
    for _ in range(_COPY_TRIES):
        before = _stamps(path)
        for suffix in _SUFFIXES:
            source = path.with_name(path.name + suffix)
            copy.with_name(copy.name + suffix).unlink(missing_ok=True)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        if _stamps(path) == before:
            return copy
    msg = f"{path}: another program is writing it without a pause; close it and try again"
    raise ExchangeError(msg, path=str(path))


def _stamps(path: Path) -> list[tuple[int, int] | None]:
    files = [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
    stats = [file.stat() if file.exists() else None for file in files]
    return [None if stat is None else (stat.st_size, stat.st_mtime_ns) for stat in stats]


def _check_lock(path: Path) -> None:
    """Refuse a file that somebody holds; in WAL mode readers need no lock, nor do we."""
    with path.open("rb") as file:
        is_wal = file.read(_HEADER_BYTES)[_FORMAT_BYTE:_HEADER_BYTES] == b"\x02"
    if is_wal:
        return
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=1)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY_CODES:
            return  # damaged, or left by a crash: the copy will show
        msg = f"{path}: another program holds the database; close it and try again"
        raise ExchangeError(msg, path=str(path)) from error


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse databases of other programs, our own included."""
    remedy = "name an opencode.db, or what `opencode export SESSION` wrote"
    if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
        msg = (
            f"{path}: a forge_nb store; open it with --db, or export its sessions and import those"
        )
        raise ExchangeError(msg, path=str(path))
    for table, needed in _NEEDED.items():
        columns = {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
        lacking = f"columns {sorted(needed - columns)} in" if columns else "the table"
        if not columns >= needed:
            what = f"a SQLite database, but not opencode's: without {lacking} {table!r}"
            msg = f"{path}: {what}; {remedy}"
            raise ExchangeError(msg, path=str(path))


def _sessions(connection: sqlite3.Connection, path: Path) -> Iterator[ForeignSession]:
    for row in connection.execute("SELECT * FROM session ORDER BY time_created, id"):
        messages, orphans = _messages(connection, row["id"], path)
        yield ForeignSession(
            info=_info(row, path),
            messages=messages,
            format=FORMAT,
            place=f"session {row['id']}",
            dropped=orphans,
        )


def _info(row: sqlite3.Row, path: Path) -> dict[str, Any]:
    """Return a session row as the program exports it."""
    has = set(row.keys())
    info: dict[str, Any] = {"id": row["id"]}
    for column, name in _PLAIN.items():
        if column in has and row[column] is not None:
            info[name] = row[column]
    for column in _JSON:
        if column in has and row[column] is not None:
            info[column] = _json(row[column], path, f"session {row['id']}.{column}")
    if "share_url" in has and row["share_url"] is not None:
        info["share"] = {"url": row["share_url"]}
    _add_summary(info, row, has, path)
    _add_usage(info, row, has)
    time = {"created": row["time_created"], "updated": row["time_updated"]}
    for column, name in (("time_compacting", "compacting"), ("time_archived", "archived")):
        if column in has and row[column] is not None:
            time[name] = row[column]
    return info | {"time": time}


def _add_summary(info: dict[str, Any], row: sqlite3.Row, has: set[str], path: Path) -> None:
    names = ("additions", "deletions", "files")
    is_kept = has >= {"summary_diffs", *(f"summary_{name}" for name in names)}
    if not is_kept or row["summary_additions"] is None:
        return
    info["summary"] = {name: row[f"summary_{name}"] for name in names}
    if row["summary_diffs"] is not None:
        info["summary"]["diffs"] = _json(row["summary_diffs"], path, "session.summary_diffs")


def _add_usage(info: dict[str, Any], row: sqlite3.Row, has: set[str]) -> None:
    if not has >= {"cost", *(f"tokens_{kind}" for kind in _USAGE)}:
        return
    info["cost"] = row["cost"]
    info["tokens"] = {
        "input": row["tokens_input"],
        "output": row["tokens_output"],
        "reasoning": row["tokens_reasoning"],
        "cache": {"read": row["tokens_cache_read"], "write": row["tokens_cache_write"]},
    }


def _messages(
    connection: sqlite3.Connection, session_id: str, path: Path
) -> tuple[list[tuple[dict[str, Any], list[dict[str, Any]]]], tuple[str, ...]]:
    """Return the messages with their parts, and the places of parts without a message."""
    parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    query = "SELECT id, message_id, data FROM part WHERE session_id = ? ORDER BY message_id, id"
    for row in connection.execute(query, (session_id,)):
        ids = {"id": row["id"], "sessionID": session_id, "messageID": row["message_id"]}
        parts[row["message_id"]].append(_object(row["data"], path, f"part {row['id']}") | ids)
    query = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    messages = []
    for row in connection.execute(query, (session_id,)):
        ids = {"id": row["id"], "sessionID": session_id}
        info = _object(row["data"], path, f"message {row['id']}") | ids
        messages.append((info, parts.pop(row["id"], [])))
    orphans = (part["id"] for left in parts.values() for part in left)
    return messages, tuple(f"part {part_id}" for part_id in orphans)


def _object(text: object, path: Path, place: str) -> dict[str, Any]:
    found = _json(text, path, place)
    if not isinstance(found, dict):
        msg = f"{path}: {place}: a JSON object was expected, not {type(found).__name__}"
        raise ExchangeError(msg, path=str(path), place=place)
    return found


def _json(text: object, path: Path, place: str) -> Any:
    if not isinstance(text, str):
        msg = f"{path}: {place}: JSON text was expected, not {text!r}"
        raise ExchangeError(msg, path=str(path), place=place)
    return read_json(text, path, place)
