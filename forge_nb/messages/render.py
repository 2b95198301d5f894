"""What a model reads of stored messages: pure, from rows to model messages.

Stored parts are not what is sent: a compaction request reads as a question, a cleared output as a
placeholder, a tool that never ended as an error, and a message that renders to nothing is left
out. Providers translate the result into their wire format.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import (
    CompactionPart,
    FilePart,
    ModelRef,
    ReasoningPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
)
from forge_nb.messages.wire import (
    ATTACHED_TOOL_MEDIA,
    COMPACTION_ASKED,
    ERROR_ABORTED,
    INTERRUPTED_KEY,
    SUBTASK_ASKED,
    TOOL_INTERRUPTED,
    TOOL_OUTPUT_CLEARED,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part

__all__ = [
    "MediaSupport",
    "ModelMessage",
    "ModelPart",
    "ModelPartKind",
    "ToolSpec",
    "attached_line",
    "input_text",
    "is_media",
    "to_model_messages",
]

ModelPartKind = Literal["text", "reasoning", "tool", "file", "compaction", "subtask"]

_EXPANDED_MIMES = frozenset({"text/plain", "application/x-directory"})
_TRUNCATED = "[Tool output truncated for compaction: omitted {} chars]"


class ModelPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a model message; `text` is what the model reads."""

    id: str
    """The stored part it comes from."""
    kind: ModelPartKind
    text: str
    call_id: str | None = None
    tool: str | None = None
    input: Any = None
    """Of a tool call, the model's own words; `text` is the call's result."""
    is_error: bool = False
    mime: str | None = None
    url: str | None = None
    metadata: dict[str, Any] | None = None
    """Provider metadata, signatures among them; only for the model that wrote it."""
    files: tuple[ModelPart, ...] = ()
    """Files that are part of a tool's result, for a model that takes them there."""


class ModelMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the model gets it."""

    id: str
    role: Literal["user", "assistant"]
    parts: tuple[ModelPart, ...]


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is told of a tool."""

    name: str
    description: str
    schema: dict[str, Any]
    """JSON schema of the input."""


class MediaSupport(msgspec.Struct, frozen=True, kw_only=True):
    """Which files a model takes, as MIME types: ``image/png``, ``image/*``, ``*`` for all.

    Examples
    --------
    >>> MediaSupport(asked=("image/*",)).takes("image/png")
    True
    """

    asked: tuple[str, ...] = ("*",)
    """In what it is asked; any other file becomes a line of text."""
    results: tuple[str, ...] = ()
    """Inside a tool's result, as data; other media follow in a message of the user."""

    def takes(self, mime: str) -> bool:
        """Return whether a file may stand in what the model is asked."""
        return _matches(mime, self.asked)

    def takes_in_result(self, mime: str, url: str) -> bool:
        """Return whether a file may stand inside a tool's result."""
        return url.startswith("data:") and _matches(mime, self.results)


def _matches(mime: str, patterns: tuple[str, ...]) -> bool:
    kind = f"{mime.partition('/')[0]}/*"
    return any(pattern in {"*", kind, mime} for pattern in patterns)


_ALL_MEDIA = MediaSupport()


class _File(msgspec.Struct, frozen=True):
    id: str
    mime: str
    url: str
    name: str


class _Rendering(msgspec.Struct, frozen=True, kw_only=True):
    target: ModelRef | None
    media: MediaSupport
    strip_media: bool
    as_data: bool
    tool_output_max_chars: int | None
    parity: bool


def to_model_messages(
    messages: Iterable[MessageWithParts],
    *,
    target: ModelRef | None = None,
    media: MediaSupport = _ALL_MEDIA,
    strip_media: bool = False,
    as_data: bool = False,
    tool_output_max_chars: int | None = None,
    parity: bool = False,
) -> list[ModelMessage]:
    """Return what a model reads of these messages, in their order.

    Parameters
    ----------
    messages
        The view, in the order in which the model gets it.
    target
        The model that will read it. Reasoning of another model becomes plain text and loses its
        provider metadata. None: every message is read by the model that wrote it.
    media
        Which files the target takes, and where.
    strip_media
        Whether images and PDFs become a line of text.
    as_data
        For a record of the conversation: every file is there, none is a line of text yet, and those
        of a tool's result stay inside it.
    tool_output_max_chars
        Cut of a tool's output; None for whole.
    parity
        Behave as opencode does where this package differs: an aborted message is sent for the sake
        of any part but a step's start and reasoning, be it an empty text or a patch that the model
        never reads; an empty text is sent, as a blank beside signed reasoning; a request to compact
        is sent whose summary came to nothing, and of that what was said before an abort.

    Returns
    -------
    list of ModelMessage
        Messages that render to nothing are left out.
    """
    how = _Rendering(
        target=target,
        media=media,
        strip_media=strip_media,
        as_data=as_data,
        tool_output_max_chars=tool_output_max_chars,
        parity=parity,
    )
    seen = list(messages)
    abandoned = set() if parity else _abandoned(seen)
    rendered: list[ModelMessage] = []
    for item in seen:
        if item.message.id in abandoned:
            continue
        if isinstance(item.message, UserMessage):
            rendered += _message(item, "user", _user_parts(item, how))
        elif _is_sendable(item.message, item.parts, how):
            rendered += _message(item, "assistant", _assistant_parts(item, how))
            rendered += _tool_media(item, how)
    return rendered


def _abandoned(messages: list[MessageWithParts]) -> set[str]:
    """Return the summaries that came to nothing, and the requests that have no other answer."""
    failed: dict[str, str | None] = {}
    answered: set[str | None] = set()
    for item in messages:
        message = item.message
        if not isinstance(message, AssistantMessage) or not message.is_summary:
            continue
        if message.is_finished and any(_is_said(part) for part in item.parts):
            answered.add(message.parent_id)
        else:
            failed[message.id] = message.parent_id
    requests = {parent for parent in failed.values() if parent is not None}
    requests = {
        item.message.id
        for item in messages
        if item.message.id in requests
        if any(isinstance(part, CompactionPart) for part in item.parts)
    }
    return set(failed) | (requests - answered)


def _is_said(part: Part) -> bool:
    return isinstance(part, TextPart) and bool(part.text.strip()) and not part.discarded


def _message(
    item: MessageWithParts, role: Literal["user", "assistant"], parts: list[ModelPart]
) -> list[ModelMessage]:
    return [ModelMessage(id=item.message.id, role=role, parts=tuple(parts))] if parts else []


def _user_parts(item: MessageWithParts, how: _Rendering) -> list[ModelPart]:
    parts = (_user_part(part, how) for part in item.parts if not part.discarded)
    return [part for part in parts if part is not None]


def _user_part(part: Part, how: _Rendering) -> ModelPart | None:
    match part:
        case TextPart() if part.text and not part.ignored:
            return ModelPart(id=part.id, kind="text", text=part.text)
        case CompactionPart():
            return ModelPart(id=part.id, kind="compaction", text=COMPACTION_ASKED)
        case SubtaskPart():
            return ModelPart(id=part.id, kind="subtask", text=SUBTASK_ASKED)
        case FilePart() if how.as_data or part.mime not in _EXPANDED_MIMES:
            return _file(_File(part.id, part.mime, part.url, part.filename or ""), how)
        case _:
            return None


def _file(file: _File, how: _Rendering) -> ModelPart:
    strip = how.strip_media and is_media(file.mime)
    if not how.as_data and (strip or not how.media.takes(file.mime)):
        return ModelPart(id=file.id, kind="text", text=attached_line(file.mime, file.name))
    return _whole(file)


def _whole(file: _File) -> ModelPart:
    return ModelPart(id=file.id, kind="file", text=file.name, mime=file.mime, url=file.url)


def attached_line(mime: str, filename: str | None) -> str:
    """Return the line of text that stands for a file."""
    return f"[Attached {mime}: {filename or 'file'}]"


def is_media(mime: str) -> bool:
    """Return whether a file is an image or a PDF."""
    return mime.startswith("image/") or mime == "application/pdf"


def _is_sendable(message: AssistantMessage, parts: tuple[Part, ...], how: _Rendering) -> bool:
    """Leave a failed answer out; keep an aborted one as far as it said something."""
    if message.error is None:
        return True
    if message.error.name != ERROR_ABORTED:
        return False
    return any(_says_something(part, how) for part in parts)


def _says_something(part: Part, how: _Rendering) -> bool:
    if part.discarded:
        return False
    if how.parity:
        return not isinstance(part, StepStartPart | ReasoningPart)
    return isinstance(part, ToolPart) or _is_said(part)


def _assistant_parts(item: MessageWithParts, how: _Rendering) -> list[ModelPart]:
    message = item.message
    is_own = isinstance(message, AssistantMessage) and _is_own(message, how.target)
    stored = [part for part in item.parts if not part.discarded]
    blank = " " if is_own and any(map(_is_signed, stored)) else ""
    parts = (_assistant_part(part, how, is_own=is_own, blank=blank) for part in stored)
    return [part for part in parts if part is not None]


def _is_signed(part: Part) -> bool:
    """Return whether a part is reasoning that Anthropic signed."""
    metadata = part.metadata or {} if isinstance(part, ReasoningPart) else {}
    signed = metadata.get("anthropic")
    return isinstance(signed, dict) and signed.get("signature") is not None


def _is_own(message: AssistantMessage, target: ModelRef | None) -> bool:
    if target is None:
        return True
    return (message.provider_id, message.model_id) == (target.provider_id, target.model_id)


def _assistant_part(part: Part, how: _Rendering, *, is_own: bool, blank: str) -> ModelPart | None:
    match part:
        case TextPart() if part.text or how.parity:
            metadata = part.metadata if is_own else None
            return ModelPart(id=part.id, kind="text", text=part.text or blank, metadata=metadata)
        case ReasoningPart() if is_own:
            return ModelPart(id=part.id, kind="reasoning", text=part.text, metadata=part.metadata)
        case ReasoningPart() if part.text.strip():
            return ModelPart(id=part.id, kind="text", text=part.text)
        case ToolPart():
            return _tool(part, how, is_own=is_own)
        case _:
            return None


def _tool(part: ToolPart, how: _Rendering, *, is_own: bool) -> ModelPart:
    text, is_error = _tool_result(part, how)
    return ModelPart(
        id=part.id,
        kind="tool",
        text=text,
        call_id=part.call_id,
        tool=part.tool,
        input=part.state.input,
        is_error=is_error,
        metadata=part.metadata if is_own else None,
        files=tuple(_result_files(part, how)),
    )


def _tool_result(part: ToolPart, how: _Rendering) -> tuple[str, bool]:
    state = part.state
    match state:
        case ToolCompleted() if state.time.compacted is not None:
            return TOOL_OUTPUT_CLEARED, False
        case ToolCompleted():
            return _capped(state.output, how.tool_output_max_chars), False
        case ToolFailed():
            metadata = state.metadata or {}
            partial = metadata.get("output")
            if metadata.get(INTERRUPTED_KEY) and isinstance(partial, str):
                return _capped(partial, how.tool_output_max_chars), False
            return _capped(state.error, how.tool_output_max_chars), True
        case _:
            return TOOL_INTERRUPTED, True


def _capped(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n{_TRUNCATED.format(len(text) - limit)}"


def _attachments(part: ToolPart) -> list[_File]:
    """Return what came with a result and was not cleared."""
    state = part.state
    if not isinstance(state, ToolCompleted) or state.time.compacted is not None:
        return []
    keys = ("id", "mime", "url", "filename")
    return [_File(*(str(one.get(key) or "") for key in keys)) for one in state.attachments or ()]


def _result_files(part: ToolPart, how: _Rendering) -> Iterator[ModelPart]:
    """Yield the files that stay inside a tool's result."""
    for file in _attachments(part):
        takes = not how.strip_media and how.media.takes_in_result(file.mime, file.url)
        if how.as_data or (takes and is_media(file.mime)):
            yield _whole(file)


def _tool_media(item: MessageWithParts, how: _Rendering) -> list[ModelMessage]:
    """Return the extra user message that carries the media of a message's tool results."""
    if how.strip_media or how.as_data:
        return []
    files = [
        _file(file, how)
        for part in item.parts
        if isinstance(part, ToolPart) and not part.discarded
        for file in _attachments(part)
        if is_media(file.mime) and not how.media.takes_in_result(file.mime, file.url)
    ]
    if not files:
        return []
    first = ModelPart(id=f"{item.message.id}:media", kind="text", text=ATTACHED_TOOL_MEDIA)
    return [ModelMessage(id=item.message.id, role="user", parts=(first, *files))]


def input_text(part: ModelPart) -> str:
    """Return a tool call's input as compact JSON; empty for other parts."""
    return json.dumps(part.input, ensure_ascii=False) if part.kind == "tool" else ""
