"""A recorded run of the real engine: what was asked, what the model said, and what came of it."""

from __future__ import annotations

import gzip
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.exchange.load import load
from forge_nb.messages.message import MessageWithParts, SessionInfo
from forge_nb.store.open import open_store

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["Call", "Recording", "Request", "SessionRows", "read_recording", "rows_of"]


class Request(msgspec.Struct, kw_only=True):
    """One HTTP call that the driver of the recording made."""

    time_s: float
    method: str
    path: str
    body: Any

    @property
    def words(self) -> list[str]:
        """The path's segments."""
        return [word for word in self.path.partition("?")[0].split("/") if word]


class Call(msgspec.Struct, kw_only=True):
    """One call of the model: what was sent, and the reply that was served."""

    time_s: float
    session_id: str | None
    purpose: str
    """``title``, or ``queue`` for the session's own calls, summaries among them."""
    model: str
    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    sent_all: bool


class SessionRows(msgspec.Struct, kw_only=True):
    """A session with its messages, oldest first."""

    info: SessionInfo
    messages: list[MessageWithParts]


class Recording(msgspec.Struct, kw_only=True):
    """Everything that a case holds."""

    name: str
    requests: list[Request]
    calls: list[Call]
    sessions: list[SessionRows]
    """In the order of their creation."""
    events: dict[str, list[tuple[str, dict[str, Any]]]]
    """Durable events of each session, in order: type and data."""
    asked: dict[str, dict[str, Any]]
    """What calls asked leave for, by the call's id."""
    deltas: dict[str, dict[str, str]]
    """Joined deltas of each session's parts, in the order of their first."""
    config: dict[str, Any]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def read_recording(folder: Path, scratch: Path) -> Recording:
    """Read a case; `scratch` gets the unpacked store."""
    database = scratch / "opencode.db"
    database.write_bytes(gzip.decompress((folder / "store.db.gz").read_bytes()))
    return Recording(
        name=folder.name,
        requests=[_request(line) for line in _lines(folder / "scenario.jsonl.gz")],
        calls=[_call(line) for line in _lines(folder / "calls.jsonl.gz")],
        sessions=rows_of(database, scratch / "recorded.db"),
        events=_events(database),
        asked=_asked(folder / "events.jsonl.gz"),
        deltas=_deltas(folder / "events.jsonl.gz"),
        config=json.loads((folder / "config.json").read_text("utf-8")),
    )


def _request(line: dict[str, Any]) -> Request:
    return Request(time_s=line["t"], method=line["method"], path=line["path"], body=line.get("req"))


def _call(line: dict[str, Any]) -> Call:
    return Call(
        time_s=line["t"],
        session_id=line.get("session"),
        purpose=line["purpose"],
        model=line["model"],
        messages=line["messages"],
        reply=line["reply"],
        sent_all=line.get("sent_all", True),
    )


def rows_of(database: Path, into: Path) -> list[SessionRows]:
    """Return the sessions of an opencode database as our values, in order of creation."""
    with open_store(into) as store:
        load(store, [database])
        infos = [row.info for row in store.sessions()]
        infos.sort(key=lambda info: (info.time.created, info.parent_id is not None))
        return [
            SessionRows(info=info, messages=list(store.messages(info.id))[::-1]) for info in infos
        ]


def _events(database: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    connection = sqlite3.connect(database)
    try:
        rows = connection.execute(
            "select aggregate_id, type, data from event order by aggregate_id, seq"
        ).fetchall()
    finally:
        connection.close()
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for session_id, kind, data in rows:
        found.setdefault(session_id, []).append((kind.rpartition(".")[0], json.loads(data)))
    return found


def _deltas(path: Path) -> dict[str, dict[str, str]]:
    joined: dict[str, dict[str, str]] = {}
    for line in _lines(path):
        event = line["data"]
        if event.get("type") == "message.part.delta" and line.get("src") != "global":
            facts = event["properties"]
            parts = joined.setdefault(facts["sessionID"], {})
            parts[facts["partID"]] = parts.get(facts["partID"], "") + facts["delta"]
    return joined


def _asked(path: Path) -> dict[str, dict[str, Any]]:
    asked = (line["data"] for line in _lines(path))
    facts = [one["properties"] for one in asked if one.get("type") == "permission.asked"]
    return {one["tool"]["callID"]: one for one in facts if one.get("tool")}
