"""A conversation as data: one text that a summariser cannot mistake for a task.

Models that get the conversation itself tend to go on with it, or to invent how it ended; told as a
record, they summarise it. The record's form is the family's: who speaks stands in brackets, one
block a message, between two tags. Words that look like a tag or like a speaker at the start of a
line get a backslash, so that nothing that was said can end the record or speak for somebody else;
reading takes it away again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from forge_nb.messages.render import attached_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forge_nb.messages.render import ModelMessage, ModelPart

__all__ = [
    "CONVERSATION",
    "PRIOR",
    "Said",
    "Speaker",
    "conversation_text",
    "read_record",
    "read_said",
    "tagged",
]

CONVERSATION = "conversation"
"""Tag around what is to be summarised."""
PRIOR = "prior-summary"
"""Tag around the summary of what came before it."""

Speaker = Literal[
    "User",
    "Assistant",
    "Assistant reasoning",
    "Assistant tool call",
    "Tool result",
    "Tool error",
]
"""What may stand in brackets at the start of a line."""

_TRUNCATED = "\n[truncated]"  # the family's mark behind an output that was cut
_SPEAKERS = r"\[(User|Assistant|Assistant reasoning|Assistant tool call|Tool result|Tool error)\]: "
_BLOCK = re.compile(f"^{_SPEAKERS}", re.MULTILINE)
_LABEL = re.compile(rf"^(?=\\*{_SPEAKERS})", re.MULTILINE)
_ESCAPED_LABEL = re.compile(rf"^\\(?=\\*{_SPEAKERS})", re.MULTILINE)
_TAG = rf"\\*\s*/?\s*(?:{CONVERSATION}|{PRIOR})\b"
_OPENING = re.compile(f"<(?={_TAG})", re.IGNORECASE)
_ESCAPED_OPENING = re.compile(rf"<\\(?={_TAG})", re.IGNORECASE)


class Said(msgspec.Struct, frozen=True):
    """A piece of a record: who said what."""

    speaker: Speaker
    text: str


def conversation_text(
    messages: Iterable[ModelMessage], *, tool_output_max_chars: int | None = None
) -> str:
    """Return a record of model messages: one block a message, blank lines between.

    Parameters
    ----------
    messages
        What was said, rendered with `as_data`; files are lines behind the words.
    tool_output_max_chars
        Cut of a tool's result or error; None for whole.

    Examples
    --------
    >>> from forge_nb.messages.render import ModelMessage, ModelPart
    >>> part = ModelPart(id="p", kind="text", text="hello")
    >>> conversation_text([ModelMessage(id="m", role="user", parts=(part,))])
    '[User]: hello'
    """
    blocks = (_block(message, tool_output_max_chars) for message in messages)
    return "\n\n".join(block for block in blocks if block)


def _block(message: ModelMessage, limit: int | None) -> str:
    if message.role == "user":
        words = [part.text for part in message.parts if part.kind != "file"]
        words += [_attached(part) for part in message.parts if part.kind == "file"]
        return _piece("User", "\n".join(words)) if any(words) else ""
    return "\n".join(line for part in message.parts for line in _assistant_lines(part, limit))


def _piece(speaker: Speaker, text: str) -> str:
    return f"[{speaker}]: {_LABEL.sub(lambda _: chr(92), text)}"


def _attached(part: ModelPart) -> str:
    return attached_line(part.mime or "", part.text)


def _assistant_lines(part: ModelPart, limit: int | None) -> Iterator[str]:
    if part.kind == "tool":
        given = json.dumps(part.input, ensure_ascii=False, separators=(",", ":"))
        yield _piece("Assistant tool call", f"{part.tool}({given})")
        yield _piece("Tool error" if part.is_error else "Tool result", _cut(part.text, limit))
        yield from map(_attached, part.files)
    elif part.text.strip():
        yield _piece("Assistant reasoning" if part.kind == "reasoning" else "Assistant", part.text)


def _cut(text: str, limit: int | None) -> str:
    return text if limit is None or len(text) <= limit else f"{text[:limit]}{_TRUNCATED}"


def tagged(name: str, text: str) -> str:
    r"""Return a text between tags that nothing inside it can close.

    Examples
    --------
    >>> tagged("conversation", "bye</conversation>")
    '<conversation>\nbye<\\/conversation>\n</conversation>'
    """
    harmless = _OPENING.sub(lambda _: "<" + chr(92), text)
    return f"<{name}>\n{harmless}\n</{name}>"


def read_record(text: str) -> tuple[list[Said], str | None]:
    """Return what a request to summarise holds: what was said, and the earlier summary.

    Blank lines at the end of what was said are lost. Nothing was said where there is no record.
    """
    return read_said(_between(CONVERSATION, text) or ""), _between(PRIOR, text)


def read_said(conversation: str) -> list[Said]:
    """Return the pieces of what `conversation_text` wrote, in order."""
    pieces = _BLOCK.split(conversation)[1:]
    return [
        Said(speaker, _ESCAPED_LABEL.sub("", words.rstrip("\n")))  # type: ignore[arg-type]
        for speaker, words in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def _between(name: str, text: str) -> str | None:
    start, end = text.find(f"<{name}>\n"), text.find(f"\n</{name}>")
    if start < 0 or end < 0:
        return None
    return _ESCAPED_OPENING.sub("<", text[start + len(name) + 3 : end])
