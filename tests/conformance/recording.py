"""A recorded run of the real engine: what was asked, what the model said, and what came of it."""

from __future__ import annotations

import gzip
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.exchange.load import load
from forge_nb.messages.codec import message_from_dict, part_from_dict
from forge_nb.messages.message import MessageWithParts, SessionInfo
from forge_nb.messages.usage import NO_TOKENS, TokenUsage
from forge_nb.store.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forge_nb.messages.message import Message
    from forge_nb.messages.parts import Part


__all__ = [
    "Call",
    "Event",
    "Live",
    "Recording",
    "Request",
    "SessionRows",
    "read_recording",
    "rows_of",
]


Event = tuple[str, dict[str, Any]]
"""A durable event: its type without the version, and its data."""


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
    max_tokens: int | None
    has_tools: bool
    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    sent_all: bool
    """Whether the reply was served whole."""


class SessionRows(msgspec.Struct, kw_only=True):
    """A session with its messages, oldest first."""

    info: SessionInfo
    messages: list[MessageWithParts]
    tokens: TokenUsage
    """Over the session's calls, those for titles left out."""
    cost_usd: float | None


class Live(msgspec.Struct, kw_only=True):
    """What was on the bus alone."""

    time_s: float
    kind: str
    facts: dict[str, Any]

    @property
    def session_id(self) -> str | None:
        """Which session it is about."""
        found: str | None = self.facts.get("sessionID")
        return found


class Recording(msgspec.Struct, kw_only=True):
    """Everything that a case holds."""

    name: str
    requests: list[Request]
    calls: list[Call]
    sessions: list[SessionRows]
    """In the order of their creation."""
    events: dict[str, list[Event]]
    """Durable events of each session, in order: type and data."""
    live: list[Live]
    """What travelled on the bus, in order."""
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
        sessions=rows_of(database),
        events=_events(database),
        live=_live(folder / "events.jsonl.gz"),
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
        max_tokens=line.get("max_tokens"),
        has_tools=bool(line.get("tools")),
        messages=line["messages"],
        reply=line["reply"],
        sent_all=bool(line.get("sent_all")),
    )


def rows_of(database: Path) -> list[SessionRows]:
    """Return the sessions of an opencode database as our values, in order of creation."""
    with open_store(":memory:") as store:
        load(store, [database])
        infos = [row.info for row in store.sessions()]
        infos.sort(key=lambda info: (info.time.created, info.parent_id is not None))
        return [
            SessionRows(
                info=info,
                messages=list(store.messages(info.id))[::-1],
                tokens=info.tokens or NO_TOKENS,
                cost_usd=info.cost,
            )
            for info in infos
        ]


def _events(database: Path) -> dict[str, list[Event]]:
    connection = sqlite3.connect(database)
    try:
        rows = connection.execute(
            "select aggregate_id, type, data from event order by aggregate_id, seq"
        ).fetchall()
    finally:
        connection.close()
    found: dict[str, list[Event]] = {}
    for session_id, kind, data in rows:
        found.setdefault(session_id, []).append((kind.rpartition(".")[0], json.loads(data)))
    return found


def _live(path: Path) -> list[Live]:
    """Return the bus as a client of one instance saw it; the stream of all repeats the same."""
    lines = [line for line in _lines(path) if line.get("src") != "global"]
    return [
        Live(time_s=line["t"], kind=line["data"]["type"], facts=line["data"].get("properties", {}))
        for line in lines
    ]


def rows_of_events(session: SessionRows, events: Iterable[Event]) -> SessionRows:
    """Return the messages that a session's durable events lead to, in the session's own order."""
    messages: dict[str, Message] = {}
    parts: dict[str, Part] = {}
    for kind, data in events:
        match kind:
            case "message.updated":
                messages[data["info"]["id"]] = message_from_dict(data["info"])
            case "message.removed":
                messages.pop(data["messageID"], None)
            case "message.part.updated":
                parts[data["part"]["id"]] = part_from_dict(data["part"])
            case "message.part.removed":
                parts.pop(data["partID"], None)
            case _:
                pass
    ordered = sorted(parts.values(), key=lambda part: part.id)
    items = [
        MessageWithParts(
            message=message, parts=tuple(one for one in ordered if one.message_id == message.id)
        )
        for message in sorted(messages.values(), key=lambda one: (one.time.created, one.id))
    ]
    return msgspec.structs.replace(session, messages=items)
