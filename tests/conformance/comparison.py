"""What a recording and a replay of it have in common, and where they differ, in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.conformance.normal import difference, event_row, floating_row, normal_request
from tests.conformance.normal_rows import normal_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.conformance.recording import Call, Event, Recording
    from tests.conformance.replay import Replayed, Sent

__all__ = ["compared"]

_LABEL = re.compile(
    r"^\[(User|Assistant(?: reasoning| tool call)?|Tool (?:result|error)|Attached [^\]]*)\]",
    re.MULTILINE,
)


def compared(recording: Recording, replayed: Replayed) -> list[str]:
    """Return every difference, in words that begin with what differs.

    ``rows`` by session, ``events`` that are stored, in order, and ``floating`` ones as a set,
    joined ``deltas`` by part, ``waits`` before further attempts, ``requests`` to the model, and
    those for ``titles``.
    """
    ids = [session.info.id for session in recording.sessions]
    events = [recording.events.get(one, []) for one in ids]
    calls = [call for call in recording.calls if call.purpose != "title"]
    titles = [call for call in recording.calls if call.purpose == "title"]
    pairs: list[tuple[str, Any, Any]] = [
        ("rows", normal_rows(recording.sessions), normal_rows(replayed.sessions)),
        ("events", [_ordered(one) for one in events], [_ordered(one) for one in replayed.events]),
        ("floating", _floating(events), _floating(replayed.events)),
        ("deltas", [_deltas(recording, one) for one in ids], replayed.deltas),
        ("waits", [_waits(recording, one) for one in ids], replayed.waits),
        (
            "requests",
            [_request(one) for one in calls],
            [_request(one) for one in replayed.requests],
        ),
        ("titles", [_outline(one) for one in titles], [_outline(one) for one in replayed.titles]),
    ]
    return [line for name, wanted, got in pairs for line in difference(wanted, got, name)]


def _ordered(events: Sequence[Event]) -> list[str]:
    places: dict[str, int] = {}
    rows = (event_row(kind, data, places) for kind, data in events)
    return [" ".join(row) for row in rows if row is not None]


def _floating(events: Iterable[Sequence[Event]]) -> list[list[str]]:
    """Return the events that may come at any time, each once."""
    found: list[list[str]] = []
    for one in events:
        places: dict[str, int] = {}
        rows = {floating_row(kind, data, places) for kind, data in one} - {None}
        found.append(sorted(str(row) for row in rows))
    return found


def _deltas(recording: Recording, session_id: str) -> list[str]:
    joined: dict[str, str] = {}
    for live in recording.live:
        if live.kind == "message.part.delta" and live.session_id == session_id:
            part_id = live.facts["partID"]
            joined[part_id] = joined.get(part_id, "") + live.facts["delta"]
    return list(joined.values())


def _waits(recording: Recording, session_id: str) -> list[str]:
    found = (
        live.facts["status"]
        for live in recording.live
        if live.kind == "session.status" and live.session_id == session_id
    )
    return [
        f"attempt {one['attempt']}: {one['message']}" for one in found if one["type"] == "retry"
    ]


def _request(call: Call | Sent) -> dict[str, Any]:
    said = normal_request(call.messages)
    about = {"model": call.model, "has_tools": call.has_tools, "max_tokens": call.max_tokens}
    if any("<conversation>" in piece.get("text", "") for piece in said):
        text = "\n".join(piece.get("text", "") for piece in said)
        history, _, rest = text.partition("</conversation>")
        return {
            "summary of": _LABEL.findall(history),
            "goes on from a summary": "<prior-summary>" in rest,
            "texts": [piece["role"] for piece in said],
            **about,
        }
    return {"messages": said, **about}


def _outline(call: Call | Sent) -> dict[str, Any]:
    said = normal_request(call.messages)
    return {"model": call.model, "said": [f"{piece['role']} {piece['what']}" for piece in said]}
