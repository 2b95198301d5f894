"""Small sessions in the shape that opencode gives them: as exports and as databases."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["CREATED", "SESSION", "export_of", "write_database", "write_export"]

Json = dict[str, Any]

SESSION = "ses_look"
CREATED = 1_760_000_000_000
_STEP_MS = 1_000

_USED = {"input": 100, "output": 20, "reasoning": 5, "cache": {"read": 40, "write": 10}}
_NEW_COLUMNS = (
    "cost real DEFAULT 0 NOT NULL, tokens_input integer DEFAULT 0 NOT NULL,"
    " tokens_output integer DEFAULT 0 NOT NULL, tokens_reasoning integer DEFAULT 0 NOT NULL,"
    " tokens_cache_read integer DEFAULT 0 NOT NULL, tokens_cache_write integer DEFAULT 0 NOT NULL,"
    " agent text, model text, metadata text,"
)


def export_of(
    *, session_id: str = SESSION, turns: int = 2, parent_id: str | None = None, cost: float = 0.25
) -> Json:
    """Return a session: each turn a question, and an answer that thinks, reads, and says."""
    info: Json = {
        "id": session_id,
        "slug": "quiet-cabin",
        "projectID": "global",
        "directory": "/w",
        "title": f"look-alike {session_id}",
        "version": "1.18.34",
        "cost": cost * turns,
        "tokens": {
            "input": 100 * turns,
            "output": 20 * turns,
            "reasoning": 5 * turns,
            "cache": {"read": 40 * turns, "write": 10 * turns},
        },
        "time": {"created": CREATED, "updated": CREATED + 2 * turns * _STEP_MS},
    }
    if parent_id is not None:
        info["parentID"] = parent_id
    messages = [
        message
        for turn in range(turns)
        for message in (_question(session_id, turn), _answer(session_id, turn, cost))
    ]
    return {"info": info, "messages": messages}


def _question(session_id: str, turn: int) -> Json:
    message_id = f"msg_{session_id}_{turn}a"
    ids = {"messageID": message_id, "sessionID": session_id}
    return {
        "info": {
            "id": message_id,
            "sessionID": session_id,
            "role": "user",
            "time": {"created": CREATED + 2 * turn * _STEP_MS},
            "agent": "build",
            "model": {"providerID": "scripted", "modelID": "m"},
        },
        "parts": [{"id": f"prt_{message_id}_1", **ids, "type": "text", "text": f"ask {turn}"}],
    }


def _answer(session_id: str, turn: int, cost: float) -> Json:
    message_id = f"msg_{session_id}_{turn}b"
    start = CREATED + (2 * turn + 1) * _STEP_MS
    time = {"start": start, "end": start + 10}
    contents: list[Json] = [
        {"type": "step-start", "snapshot": "a1"},
        {"type": "reasoning", "text": "hm", "time": dict(time), "metadata": {"sig": {"v": None}}},
        {
            "type": "tool",
            "callID": f"call_{turn}",
            "tool": "read",
            "state": {
                "status": "completed",
                "input": {"path": "a.py"},
                "output": "one\ntwo",
                "title": "a.py",
                "metadata": {"truncated": False},
                "time": dict(time),
            },
        },
        {"type": "text", "text": f"answer {turn}", "time": dict(time)},
        {"type": "step-finish", "reason": "stop", "cost": cost, "tokens": {"total": 175, **_USED}},
    ]
    ids = {"messageID": message_id, "sessionID": session_id}
    return {
        "info": {
            "id": message_id,
            "sessionID": session_id,
            "role": "assistant",
            "parentID": f"msg_{session_id}_{turn}a",
            "mode": "build",
            "agent": "build",
            "path": {"cwd": "/w", "root": "/"},
            "cost": cost,
            "tokens": {"total": 175, **_USED},
            "modelID": "m",
            "providerID": "scripted",
            "time": {"created": start, "completed": start + 20},
            "finish": "stop",
        },
        "parts": [
            {"id": f"prt_{message_id}_{place}", **ids, **content}
            for place, content in enumerate(contents, 1)
        ],
    }


def write_export(path: Path, export: Json) -> Path:
    """Write an export as the program prints it."""
    path.write_text(json.dumps(export, indent=2), "utf-8")
    return path


def write_database(
    path: Path, exports: Iterable[Json], *, has_usage: bool = True, wal: bool = False
) -> Path:
    """Write an ``opencode.db`` of these sessions.

    Parameters
    ----------
    path
        Where.
    exports
        The sessions.
    has_usage
        Whether session rows have columns for usage; older programs had none.
    wal
        Whether all that was written stays in the write-ahead log beside the file.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        _create(connection, has_usage=has_usage)
        for export in exports:
            _insert(connection, export, has_usage=has_usage)
        log = path.with_name(path.name + "-wal")
        kept = {file: file.read_bytes() for file in (path, log) if wal}
    for file, content in kept.items():  # the last connection that closes empties the log
        file.write_bytes(content)
    return path


def _create(connection: sqlite3.Connection, *, has_usage: bool) -> None:
    connection.execute(
        "CREATE TABLE session (id text PRIMARY KEY, project_id text NOT NULL, parent_id text,"
        " slug text NOT NULL, directory text NOT NULL, title text NOT NULL, version text NOT NULL,"
        " share_url text, summary_additions integer, summary_deletions integer,"
        f" summary_files integer, summary_diffs text, {_NEW_COLUMNS if has_usage else ''}"
        " revert text, permission text, time_created integer NOT NULL,"
        " time_updated integer NOT NULL, time_compacting integer, time_archived integer)"
    )
    connection.execute(
        "CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL,"
        " time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL)"
    )
    connection.execute(
        "CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL,"
        " session_id text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL,"
        " data text NOT NULL)"
    )
    connection.execute("CREATE TABLE from_the_future (a, b)")


def _insert(connection: sqlite3.Connection, export: Json, *, has_usage: bool) -> None:
    info = export["info"]
    row: Json = {
        "id": info["id"],
        "project_id": info["projectID"],
        "parent_id": info.get("parentID"),
        **{name: info[name] for name in ("slug", "directory", "title", "version")},
        "time_created": info["time"]["created"],
        "time_updated": info["time"]["updated"],
    }
    if has_usage:
        tokens = info["tokens"]
        row |= {f"tokens_{kind}": tokens[kind] for kind in ("input", "output", "reasoning")}
        row |= {f"tokens_cache_{kind}": tokens["cache"][kind] for kind in ("read", "write")}
        row["cost"] = info["cost"]
    _put(connection, "session", row)
    for item in export["messages"]:
        _put(connection, "message", _row(item["info"], "id", "sessionID"))
        for part in item["parts"]:
            _put(connection, "part", _row(part, "id", "sessionID", "messageID"))


def _row(raw: Json, *ids: str) -> Json:
    columns = {"id": "id", "sessionID": "session_id", "messageID": "message_id"}
    created = raw.get("time", {}).get("created", CREATED)
    data = {key: value for key, value in raw.items() if key not in ids}
    row = {columns[key]: raw[key] for key in ids}
    return row | {"time_created": created, "time_updated": created, "data": json.dumps(data)}


def _put(connection: sqlite3.Connection, table: str, row: Json) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
    )
