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
    from collections.abc import Iterable

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part

__all__ = [
    "ModelMessage",
    "ModelPart",
    "ModelPartKind",
    "ToolSpec",
    "input_text",
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


class _Rendering(msgspec.Struct, frozen=True):
    target: ModelRef | None
    strip_media: bool
    tool_output_max_chars: int | None
    parity: bool


def to_model_messages(
    messages: Iterable[MessageWithParts],
    *,
    target: ModelRef | None = None,
    strip_media: bool = False,
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
    strip_media
        Whether images and PDFs become a line of text.
    tool_output_max_chars
        Cut of a tool's output; None for whole.
    parity
        Behave as opencode does where this package differs: an aborted message is sent for the sake
        of any part but a step's start and reasoning, be it an empty text or a patch that the model
        never reads; an empty text is sent, as a blank beside signed reasoning.

    Returns
    -------
    list of ModelMessage
        Messages that render to nothing are left out.
    """
    how = _Rendering(target, strip_media, tool_output_max_chars, parity)
    rendered: list[ModelMessage] = []
    for item in messages:
        if isinstance(item.message, UserMessage):
            rendered += _message(item, "user", _user_parts(item, how))
        elif _is_sendable(item.message, item.parts, how):
            rendered += _message(item, "assistant", _assistant_parts(item, how))
            rendered += _tool_media(item, how)
    return rendered


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
        case FilePart() if part.mime not in _EXPANDED_MIMES:
            return _file(part, how)
        case _:
            return None


def _file(part: FilePart, how: _Rendering) -> ModelPart:
    if how.strip_media and _is_media(part.mime):
        return ModelPart(id=part.id, kind="text", text=_attached(part.mime, part.filename))
    return ModelPart(
        id=part.id, kind="file", text=part.filename or "", mime=part.mime, url=part.url
    )


def _attached(mime: str, filename: object) -> str:
    return f"[Attached {mime}: {filename or 'file'}]"


def _is_media(mime: str) -> bool:
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
    return isinstance(part, ToolPart) or (isinstance(part, TextPart) and bool(part.text.strip()))


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
    is_live = metadata.get("provider_name") == "anthropic"  # else as the family stores it
    signed = metadata if is_live else metadata.get("anthropic")
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
                return partial, False
            return state.error, True
        case _:
            return TOOL_INTERRUPTED, True


def _capped(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}\n{_TRUNCATED.format(len(text) - limit)}"


def _tool_media(item: MessageWithParts, how: _Rendering) -> list[ModelMessage]:
    """Return the extra user message that carries the media of a message's tool results."""
    media = [
        attachment
        for part in item.parts
        if isinstance(part, ToolPart) and not part.discarded
        if isinstance(part.state, ToolCompleted)
        if part.state.time.compacted is None
        for attachment in part.state.attachments or ()
        if _is_media(str(attachment.get("mime", "")))
    ]
    if not media or how.strip_media:
        return []
    first = ModelPart(id=f"{item.message.id}:media", kind="text", text=ATTACHED_TOOL_MEDIA)
    files = [
        ModelPart(
            id=str(one.get("id", "")),
            kind="file",
            text=str(one.get("filename") or ""),
            mime=str(one.get("mime")),
            url=str(one.get("url", "")),
        )
        for one in media
    ]
    return [ModelMessage(id=item.message.id, role="user", parts=(first, *files))]


def input_text(part: ModelPart) -> str:
    """Return a tool call's input as compact JSON; empty for other parts."""
    return json.dumps(part.input, ensure_ascii=False) if part.kind == "tool" else ""
