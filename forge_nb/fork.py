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
from forge_nb.messages.parts import (
    CompactionPart,
    Span,
    ToolCompleted,
    ToolPart,
    ToolSpan,
    is_open,
)
from forge_nb.recovery import closed_part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from forge_nb.events import SyncEvent, UsageRecord
    from forge_nb.messages.message import Message, MessageWithParts, SessionInfo
    from forge_nb.messages.parts import Part

__all__ = ["FORKED_KEY", "fork_events", "fork_title", "undo_events"]

FORKED_KEY = "forkedFrom"
"""Key in a fork's metadata: the session and the message at which it began."""

_OWN_KEYS = frozenset({"slug", "parentID", "summary", "cost", "tokens", "share", "revert", "time"})
"""JSON keys of what a fork does not take over."""

_FORK = re.compile(r"^(?P<title>.*) \(fork #(?P<number>\d+)\)$", re.DOTALL)


def fork_title(title: str, *, taken: Collection[str] = ()) -> str:
    """Return the title of a fork: the next number that no title in `taken` has.

    Examples
    --------
    >>> fork_title("parser"), fork_title("parser (fork #1)")
    ('parser (fork #1)', 'parser (fork #2)')
    >>> fork_title("parser", taken={"parser", "parser (fork #1)"})
    'parser (fork #2)'
    """
    found = _FORK.match(title)
    name, number = (title, 1) if found is None else (found["title"], int(found["number"]) + 1)
    while f"{name} (fork #{number})" in taken:
        number += 1
    return f"{name} (fork #{number})"


def fork_events(
    info: SessionInfo,
    messages: Sequence[MessageWithParts],
    usage: Iterable[UsageRecord],
    *,
    at: str | None,
    new_id: Callable[[Literal["ses", "msg", "prt", "usg"]], str],
    now_ms: int,
    taken: Collection[str] = (),
) -> tuple[str, list[SyncEvent]]:
    """Return a fork's id, and the events that make it.

    A copy was never a prompt, so none of it waits. What was still open is closed as of the last
    that is known of it, and a request to compact that nothing answered is left out.

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
    taken
        Titles that there are already.

    Raises
    ------
    NotFoundError
        When the session has no message of this id.
    """
    copied = _answered(_before(messages, at))
    session_id = new_id("ses")
    ids = {item.message.id: new_id("msg") for item in copied}
    ids |= {part.id: new_id("prt") for item in copied for part in item.parts}
    title = fork_title(info.title, taken=taken)
    own = msgspec.structs.replace(_fork_info(info, at), id=session_id, title=title)
    time = SessionTime(created=now_ms, updated=now_ms)
    events: list[SyncEvent] = [SessionUpdated(info=msgspec.structs.replace(own, time=time))]
    for item in copied:
        message = _copy_message(item, session_id, ids)
        events.append(MessageUpdated(message=message))
        events += [PartUpdated(part=_copy_part(part, item, message, ids)) for part in item.parts]
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


def _answered(messages: Sequence[MessageWithParts]) -> Sequence[MessageWithParts]:
    """Leave out requests to compact at the end: behind a cut nothing will answer them."""
    end = len(messages)
    while end and _request_of(messages[end - 1]) is not None:
        end -= 1
    return messages[:end]


def _request_of(item: MessageWithParts) -> CompactionPart | None:
    return next((part for part in item.parts if isinstance(part, CompactionPart)), None)


def _fork_info(info: SessionInfo, at: str | None) -> SessionInfo:
    """Return a session's metadata without what is its own: its place, its sums, its changes."""
    origin = {"sessionID": info.id, "messageID": at}
    return msgspec.structs.replace(
        info,
        extra={key: value for key, value in info.extra.items() if key not in _OWN_KEYS},
        slug=None,
        parent_id=None,
        metadata={**(info.metadata or {}), FORKED_KEY: origin},
        summary=None,
        cost=None,
        tokens=None,
        share=None,
        revert=None,
    )


def _copy_message(item: MessageWithParts, session_id: str, ids: dict[str, str]) -> Message:
    message = item.message
    new = msgspec.structs.replace(message, id=ids[message.id], session_id=session_id)
    if isinstance(new, UserMessage):
        return new
    time = new.time
    if time.completed is None:
        time = msgspec.structs.replace(time, completed=_last_ms(item))
    parent = ids.get(new.parent_id or "")  # one that is not in the history is in no fork of it
    return msgspec.structs.replace(new, parent_id=parent, time=time)


def _copy_part(part: Part, item: MessageWithParts, message: Message, ids: dict[str, str]) -> Part:
    whole = closed_part(part, _last_ms(item)) if is_open(part) else part
    changes: dict[str, Any] = {}
    if isinstance(whole, CompactionPart) and whole.tail_start_id is not None:
        changes["tail_start_id"] = ids.get(whole.tail_start_id)
    if isinstance(whole, ToolPart) and isinstance(whole.state, ToolCompleted):
        changes["state"] = _copy_state(whole.state, message)
    place = {"id": ids[part.id], "message_id": message.id, "session_id": message.session_id}
    return msgspec.structs.replace(whole, **place, **changes)


def _copy_state(state: ToolCompleted, message: Message) -> ToolCompleted:
    """Return a tool's result whose attachments belong to the copy."""
    place = {"sessionID": message.session_id, "messageID": message.id}
    attachments = [
        {key: place.get(key, value) for key, value in one.items()}
        for one in state.attachments or ()
    ]
    return msgspec.structs.replace(state, attachments=attachments or state.attachments)


def _last_ms(item: MessageWithParts) -> int:
    """Return the latest time that is known of a message: an import may be years old."""
    times = [item.message.time.created]
    for part in item.parts:
        owner = part.state if isinstance(part, ToolPart) else part
        time = getattr(owner, "time", None)
        if isinstance(time, Span | ToolSpan):
            times += [time.start, time.end or time.start]
    return max(times)


def undo_events(
    messages: Sequence[MessageWithParts],
    to: str | None,
    *,
    imported: frozenset[str],
    asked: frozenset[str] = frozenset(),
) -> list[SyncEvent]:
    """Return the events that take a question back, with everything that came after it.

    Parameters
    ----------
    messages
        All messages of the session, oldest first.
    to
        Id of the question; None for the last that a person asked, or the last compaction by hand
        when that is newer.
    imported
        Ids of messages that came from elsewhere; they stay as they were recorded.
    asked
        Ids of the questions that a person asked here. The loop asks too: it goes on behind a
        summary, and repeats a question there.

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
    wanted = _last_asked(questions, asked) if to is None else to
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


def _last_asked(questions: Sequence[MessageWithParts], asked: frozenset[str]) -> str:
    """Return the id of what a person asked last; of the last question where none is known."""
    for item in reversed(questions):
        request = _request_of(item)
        if item.message.id in asked or (request is not None and not request.auto):
            return item.message.id
    return questions[-1].message.id
