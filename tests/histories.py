"""Messages of a session in a line each; a message's id is its name, its text's id `p_` and it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.messages.message import (
    AssistantMessage,
    MessageError,
    MessageTime,
    MessageWithParts,
    UserMessage,
)
from forge_nb.messages.parts import CompactionPart, TextPart, ToolCompleted, ToolPart, ToolSpan

if TYPE_CHECKING:
    from forge_nb.messages.parts import Part

__all__ = ["S", "answer", "discarded", "having", "ids", "read_file", "request", "said", "user"]

S = "ses_1"


def user(name: str) -> MessageWithParts:
    """Return a question."""
    return having(_asked(name), said(name))


def request(name: str, tail: str | None = None) -> MessageWithParts:
    """Return a request to compact."""
    part = CompactionPart(
        id=f"p_{name}", session_id=S, message_id=name, auto=True, tail_start_id=tail
    )
    return having(_asked(name), part)


def answer(
    name: str,
    parent: str,
    *,
    summary: bool = False,
    finish: str | None = "stop",
    error: str | None = None,
    text: str = "text",
    created: int = 0,
    completed: int | None = 0,
) -> MessageWithParts:
    """Return what a model said to a question or a request."""
    message = AssistantMessage(
        id=name,
        session_id=S,
        parent_id=parent,
        provider_id="maker",
        model_id="model",
        time=MessageTime(created=created, completed=completed),
        summary=summary or None,
        finish=finish,
        error=MessageError(name=error) if error else None,
    )
    return having(MessageWithParts(message=message), said(name, text))


def said(name: str, text: str | None = None) -> TextPart:
    """Return the text of a message."""
    text = name if text is None else text
    return TextPart(id=f"p_{name}", session_id=S, message_id=name, text=text)


def read_file(name: str, *, output: str = "words", compacted: int | None = None) -> ToolPart:
    """Return a call that gave a result."""
    span = ToolSpan(start=1, end=2, compacted=compacted)
    state = ToolCompleted(input={"path": "a.py"}, output=output, time=span)
    return ToolPart(
        id=f"t_{name}", session_id=S, message_id=name, call_id="call_1", tool="read", state=state
    )


def having(item: MessageWithParts, *parts: Part) -> MessageWithParts:
    """Return a message with other parts."""
    return msgspec.structs.replace(item, parts=parts)


def discarded(part: Part) -> Part:
    """Return a part as a failed attempt leaves it behind."""
    return msgspec.structs.replace(part, discarded=True)


def ids(messages: list[MessageWithParts] | tuple[MessageWithParts, ...]) -> list[str]:
    """Return who is there, in order."""
    return [item.message.id for item in messages]


def _asked(name: str) -> MessageWithParts:
    message = UserMessage(id=name, session_id=S, time=MessageTime(created=0))
    return MessageWithParts(message=message)
