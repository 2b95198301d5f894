"""A session's history in a new session, and the last part of a history undone: pure.

A fork copies messages with new ids. Its usage records name the records they repeat, so a call that
was paid once counts once however often it was copied. What is undone goes from the history for
good; what it cost stays, for it was spent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.errors import NotFoundError, UsageError
from forge_nb.events import (
    MessageRemoved,
    MessageUpdated,
    PartUpdated,
    SessionUpdated,
    UsageRecorded,
)
from forge_nb.messages.message import AssistantMessage, SessionTime, UserMessage
from forge_nb.messages.parts import CompactionPart, is_open
from forge_nb.recovery import closed_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from forge_nb.events import SyncEvent, UsageRecord
    from forge_nb.messages.message import Message, MessageWithParts, SessionInfo

__all__ = ["FORKED_KEY", "fork_events", "fork_title", "undo_events"]

FORKED_KEY = "forkedFrom"
"""Key in a fork's metadata: the session and the message at which it began."""

_FORK = re.compile(r"^(?P<title>.*) \(fork #(?P<number>\d+)\)$", re.DOTALL)


def fork_title(title: str) -> str:
    """Return the title of a fork.

    Examples
    --------
    >>> fork_title("parser"), fork_title("parser (fork #1)")
    ('parser (fork #1)', 'parser (fork #2)')
    """
    found = _FORK.match(title)
    if found is None:
        return f"{title} (fork #1)"
    return f"{found['title']} (fork #{int(found['number']) + 1})"


def fork_events(
    info: SessionInfo,
    messages: Sequence[MessageWithParts],
    usage: Iterable[UsageRecord],
    *,
    at: str | None,
    new_id: Callable[[Literal["ses", "msg", "prt", "usg"]], str],
    now_ms: int,
) -> tuple[str, list[SyncEvent]]:
    """Return a fork's id, and the events that make it.

    Parameters
    ----------
    info
        The session.
    messages
        All its messages, oldest first.
    usage
        Its usage records.
    at
        Id of the first message that is not copied; None to copy all.
    new_id
        Makes ids.
    now_ms
        Milliseconds UTC.

    Raises
    ------
    NotFoundError
        When the session has no message of this id.
    """
    copied = _before(messages, at)
    session_id = new_id("ses")
    ids = {item.message.id: new_id("msg") for item in copied}
    ids |= {part.id: new_id("prt") for item in copied for part in item.parts}
    events: list[SyncEvent] = [SessionUpdated(info=_fork_info(info, session_id, at, now_ms))]
    for item in copied:
        message = _copy_message(item.message, session_id, ids, now_ms)
        events.append(MessageUpdated(message=message))
        for part in item.parts:
            whole = closed_part(part, now_ms) if is_open(part) else part
            changes: dict[str, Any] = {"id": ids[part.id], "message_id": message.id}
            if isinstance(whole, CompactionPart) and whole.tail_start_id is not None:
                changes["tail_start_id"] = ids.get(whole.tail_start_id)
            events.append(
                PartUpdated(part=msgspec.structs.replace(whole, session_id=session_id, **changes))
            )
    for record in usage:
        if record.message_id in ids:
            copy = msgspec.structs.replace(
                record,
                id=ids.get(record.id) or new_id("usg"),
                session_id=session_id,
                message_id=ids[record.message_id],
                origin_id=record.origin_id or record.id,
            )
            events.append(UsageRecorded(usage=copy))
    return session_id, events


def _before(messages: Sequence[MessageWithParts], at: str | None) -> Sequence[MessageWithParts]:
    if at is None:
        return messages
    for place, item in enumerate(messages):
        if item.message.id == at:
            return messages[:place]
    msg = f"{at!r} is no message of this session; list them with messages()"
    raise NotFoundError(msg, at=at)


def _fork_info(info: SessionInfo, session_id: str, at: str | None, now_ms: int) -> SessionInfo:
    origin = {"sessionID": info.id, "messageID": at}
    return msgspec.structs.replace(
        info,
        id=session_id,
        title=fork_title(info.title),
        parent_id=None,
        time=SessionTime(created=now_ms, updated=now_ms),
        metadata={**(info.metadata or {}), FORKED_KEY: origin},
        cost=None,
        tokens=None,
        share=None,
        revert=None,
    )


def _copy_message(message: Message, session_id: str, ids: dict[str, str], now_ms: int) -> Message:
    new = msgspec.structs.replace(message, id=ids[message.id], session_id=session_id)
    if isinstance(new, UserMessage):
        return new
    time = new.time
    if time.completed is None:
        time = msgspec.structs.replace(time, completed=now_ms)
    parent = ids.get(new.parent_id or "", new.parent_id)
    return msgspec.structs.replace(new, parent_id=parent, time=time)


def undo_events(
    messages: Sequence[MessageWithParts], to: str | None, *, imported: frozenset[str]
) -> list[SyncEvent]:
    """Return the events that take a question back, with everything that came after it.

    Parameters
    ----------
    messages
        All messages of the session, oldest first.
    to
        Id of the question; None for the last one.
    imported
        Ids of messages that came from elsewhere; they stay as they were recorded.

    Raises
    ------
    NotFoundError
        When the session has no such message, or no question at all.
    UsageError
        When the message is no question, or something imported would go.
    """
    questions = [item for item in messages if isinstance(item.message, UserMessage)]
    if to is None and not questions:
        msg = "the session has no question to take back"
        raise NotFoundError(msg)
    wanted = questions[-1].message.id if to is None else to
    place = len(_before(messages, wanted))
    gone = messages[place:]
    if isinstance(gone[0].message, AssistantMessage):
        msg = f"{wanted!r} is an answer; give the id of the question to take back"
        raise UsageError(msg, to=wanted)
    kept = [item.message.id for item in gone if item.message.id in imported]
    if kept:
        msg = (
            f"{len(kept)} of the messages to take back were imported and stay as recorded; "
            "fork the session there instead: conversation.fork(at=…)"
        )
        raise UsageError(msg, imported=kept)
    return [
        MessageRemoved(session_id=item.message.session_id, message_id=item.message.id)
        for item in reversed(gone)
    ]
