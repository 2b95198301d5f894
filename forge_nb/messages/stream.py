"""What a model may say while it streams: the vocabulary between a provider and the Processor.

Every provider's wire format is translated into these events; event tapes store them as JSON. Names
follow the AI SDK's stream parts.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from forge_nb.messages.usage import NO_TOKENS, TokenUsage

__all__ = [
    "RETRYABLE_KINDS",
    "ErrorKind",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReasoningStart",
    "StepFinish",
    "StepStart",
    "StreamError",
    "StreamEvent",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ToolCall",
    "ToolFailure",
    "ToolInputDelta",
    "ToolInputEnd",
    "ToolInputStart",
    "ToolProgress",
    "ToolResult",
    "Usage",
]


ErrorKind = Literal[
    "api",
    "auth",
    "connection",
    "not-found",
    "overflow",
    "overloaded",
    "quota",
    "rate-limit",
    "rejected",
    "server",
    "timeout",
    "truncated",
    "unknown",
]
"""Why a call failed. `truncated`: the stream ended cleanly without saying that it was done."""

RETRYABLE_KINDS: frozenset[ErrorKind] = frozenset(
    {"connection", "overloaded", "rate-limit", "server", "timeout", "truncated"}
)
"""What may go away by itself; never auth, quota, rejected or overflow."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all stream events."""


class StepStart(_Event, frozen=True, kw_only=True, tag="step-start"):
    """The model call began."""

    snapshot: str | None = None


class TextStart(_Event, frozen=True, kw_only=True, tag="text-start"):
    """A text block opens."""

    id: str = "text"
    """Names the block until its end; several may be open."""
    metadata: dict[str, Any] | None = None


class TextDelta(_Event, frozen=True, kw_only=True, tag="text-delta"):
    """More text of an open block."""

    text: str
    id: str = "text"
    metadata: dict[str, Any] | None = None


class TextEnd(_Event, frozen=True, kw_only=True, tag="text-end"):
    """A text block closes."""

    id: str = "text"
    metadata: dict[str, Any] | None = None


class ReasoningStart(_Event, frozen=True, kw_only=True, tag="reasoning-start"):
    """A reasoning block opens."""

    id: str = "reasoning"
    metadata: dict[str, Any] | None = None


class ReasoningDelta(_Event, frozen=True, kw_only=True, tag="reasoning-delta"):
    """More reasoning of an open block."""

    text: str
    id: str = "reasoning"
    metadata: dict[str, Any] | None = None


class ReasoningEnd(_Event, frozen=True, kw_only=True, tag="reasoning-end"):
    """A reasoning block closes."""

    id: str = "reasoning"
    metadata: dict[str, Any] | None = None


class ToolInputStart(_Event, frozen=True, kw_only=True, tag="tool-input-start"):
    """The model began to write a call's input."""

    call_id: str
    tool: str


class ToolInputDelta(_Event, frozen=True, kw_only=True, tag="tool-input-delta"):
    """More of a call's input; neither stored nor broadcast."""

    call_id: str
    text: str


class ToolInputEnd(_Event, frozen=True, kw_only=True, tag="tool-input-end"):
    """A call's input is complete."""

    call_id: str


class ToolCall(_Event, frozen=True, kw_only=True, tag="tool-call"):
    """The model calls a tool."""

    call_id: str
    tool: str
    input: Any
    metadata: dict[str, Any] | None = None


class ToolProgress(_Event, frozen=True, kw_only=True, tag="tool-progress"):
    """A running tool has a new title or new metadata."""

    call_id: str
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ToolResult(_Event, frozen=True, kw_only=True, tag="tool-result"):
    """A tool gave a result."""

    call_id: str
    output: str
    title: str | None = None
    metadata: dict[str, Any] | None = None
    attachments: list[dict[str, Any]] | None = None


class ToolFailure(_Event, frozen=True, kw_only=True, tag="tool-error"):
    """A tool failed."""

    call_id: str
    error: str
    metadata: dict[str, Any] | None = None


class Usage(_Event, frozen=True, kw_only=True, tag="usage"):
    """What the provider has reported so far; kept when the call is cut."""

    usage: TokenUsage


class StepFinish(_Event, frozen=True, kw_only=True, tag="step-finish"):
    """The model call ended."""

    reason: str
    usage: TokenUsage = NO_TOKENS
    snapshot: str | None = None
    metadata: dict[str, Any] | None = None


class StreamError(_Event, frozen=True, kw_only=True, tag="error"):
    """The provider failed; `kind` says whether a retry may help."""

    message: str
    kind: ErrorKind = "unknown"
    status: int | None = None
    """HTTP status, where there was one."""
    retry_after_s: float | None = None
    """How long the provider asks to wait."""
    headers: dict[str, str] | None = None
    """Response headers, without anything secret."""
    body: str | None = None
    """The response's text, cut."""


StreamEvent = (
    StepStart
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputStart
    | ToolInputDelta
    | ToolInputEnd
    | ToolCall
    | ToolProgress
    | ToolResult
    | ToolFailure
    | Usage
    | StepFinish
    | StreamError
)
