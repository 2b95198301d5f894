"""A conversation as data: what a summariser reads, in one text that it cannot mistake for a task.

Models that get the conversation itself tend to go on with it, or to invent how it ended; told as a
record, they summarise it. The record's form is the family's: who speaks stands in brackets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forge_nb.messages.render import input_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.messages.render import ModelMessage, ModelPart

__all__ = ["CONVERSATION", "PRIOR", "conversation_text", "tagged"]

CONVERSATION = "conversation"
PRIOR = "prior-summary"
_CLOSING = re.compile(rf"<(/?)({CONVERSATION}|{PRIOR})\b", re.IGNORECASE)


def conversation_text(messages: Iterable[ModelMessage]) -> str:
    """Return a record of model messages: one block a message, blank lines between.

    Examples
    --------
    >>> from forge_nb.messages.render import ModelMessage, ModelPart
    >>> part = ModelPart(id="p", kind="text", text="hello")
    >>> conversation_text([ModelMessage(id="m", role="user", parts=(part,))])
    '[User]: hello'
    """
    blocks = (_block(message) for message in messages)
    return "\n\n".join(block for block in blocks if block)


def _block(message: ModelMessage) -> str:
    if message.role == "user":
        said = "\n".join(_user_line(part) for part in message.parts)
        return f"[User]: {said}" if said else ""
    return "\n".join(line for part in message.parts for line in _assistant_lines(part))


def _user_line(part: ModelPart) -> str:
    return f"[Attached {part.mime}: {part.text or 'file'}]" if part.kind == "file" else part.text


def _assistant_lines(part: ModelPart) -> Sequence[str]:
    if part.kind == "tool":
        outcome = "Tool error" if part.is_error else "Tool result"
        call = f"[Assistant tool call]: {part.tool}({input_text(part)})"
        return (call, f"[{outcome}]: {part.text}")
    if not part.text.strip():
        return ()
    who = "Assistant reasoning" if part.kind == "reasoning" else "Assistant"
    return (f"[{who}]: {part.text}",)


def tagged(name: str, text: str) -> str:
    """Return a text between tags that nothing inside it can close."""
    harmless = _CLOSING.sub(lambda found: f"<{found.group(1)}_{found.group(2)}", text)
    return f"<{name}>\n{harmless}\n</{name}>"
