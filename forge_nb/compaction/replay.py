"""Ask a question again behind a summary that left it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.compaction.tail import is_request
from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.messages.message import AssistantMessage, MessageTime, UserMessage
from forge_nb.messages.parts import CompactionPart, FilePart, TextPart
from forge_nb.messages.render import attached_line, is_media

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.events import SyncEvent
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part
    from forge_nb.session import Session

__all__ = ["pending_request", "question_to_replay", "replay_events"]


def pending_request(visible: Sequence[MessageWithParts]) -> CompactionPart | None:
    """Return the request to compact that no finished answer stands behind; None for none.

    In opencode 1.18 a request whose summary came to no end is carried out again in place of the
    answer to the next question, which so is never given. Only parity does that too.
    """
    finished = [
        item.seq
        for item in visible
        if isinstance(item.message, AssistantMessage) and item.message.finish is not None
    ]
    newest = max(finished, default=0)
    pending = [
        part
        for item in visible
        if item.seq > newest and isinstance(item.message, UserMessage)
        for part in item.parts
        if isinstance(part, CompactionPart)
    ]
    return pending[-1] if pending else None


def question_to_replay(visible: Sequence[MessageWithParts]) -> MessageWithParts | None:
    """Return the newest question of a view where an older one stands before it; else None.

    Without anything older there would be nothing to summarise, so nothing can be left out.
    """
    asked = [
        place
        for place, item in enumerate(visible)
        if isinstance(item.message, UserMessage) and not is_request(item)
    ]
    return visible[asked[-1]] if len(asked) > 1 else None


def replay_events(
    session: Session, item: MessageWithParts, *, strip_media: bool = True
) -> tuple[str, list[SyncEvent]]:
    """Return the events that ask a question again, and the id of its new message.

    Parameters
    ----------
    session
        Where it is asked; ids and time are its own.
    item
        The question. Its parts get new ids, requests to compact are left out.
    strip_media
        Whether media become a line of text: they may be what the provider refused.
    """
    message = msgspec.structs.replace(
        item.message, id=session.new_id("msg"), time=MessageTime(created=session.clock())
    )
    parts = [part for part in item.parts if not isinstance(part, CompactionPart)]
    copies = [
        PartUpdated(part=_copy(session, part, message.id, strip_media=strip_media))
        for part in parts
    ]
    return message.id, [MessageUpdated(message=message), *copies]


def _copy(session: Session, part: Part, message_id: str, *, strip_media: bool) -> Part:
    part_id = session.new_id("prt")
    if strip_media and isinstance(part, FilePart) and is_media(part.mime):
        return TextPart(
            id=part_id,
            session_id=session.id,
            message_id=message_id,
            text=attached_line(part.mime, part.filename),
        )
    return msgspec.structs.replace(part, id=part_id, message_id=message_id)
