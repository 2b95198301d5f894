"""The envelope: who spoke, in answer to what, with which model, and how it ended."""

from __future__ import annotations

from typing import Any

from forge_nb.messages.parts import ModelRef, Part
from forge_nb.messages.usage import NO_TOKENS, TokenUsage
from forge_nb.messages.value import Value

__all__ = [
    "CONTINUING_FINISHES",
    "AssistantMessage",
    "ErrorData",
    "Message",
    "MessageError",
    "MessagePath",
    "MessageTime",
    "MessageWithParts",
    "SessionInfo",
    "SessionModel",
    "SessionTime",
    "UserMessage",
]

CONTINUING_FINISHES = frozenset({"tool-calls", "unknown"})
"""Finish reasons after which the turn goes on."""


class MessageTime(Value, frozen=True, kw_only=True):
    """Milliseconds UTC."""

    created: int
    completed: int | None = None


class MessagePath(Value, frozen=True, kw_only=True):
    """Where the assistant worked."""

    cwd: str | None = None
    root: str | None = None


class ErrorData(Value, frozen=True, kw_only=True):
    """Facts of a message's error; which are set depends on its name."""

    message: str | None = None
    provider_id: str | None = None
    status_code: int | None = None
    is_retryable: bool | None = None
    response_headers: dict[str, Any] | None = None
    response_body: str | None = None
    metadata: dict[str, Any] | None = None
    retries: int | None = None
    ref: str | None = None


class MessageError(Value, frozen=True, kw_only=True):
    """Why an assistant message failed.

    Known names: ProviderAuthError, UnknownError, MessageOutputLengthError, MessageAbortedError,
    StructuredOutputError, ContextOverflowError, ContentFilterError, APIError. Others are kept.
    """

    name: str
    data: ErrorData = ErrorData()


class UserMessage(Value, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """What the model was asked."""

    id: str
    session_id: str
    time: MessageTime
    agent: str | None = None
    model: ModelRef | None = None
    format: dict[str, Any] | None = None
    system: str | None = None
    tools: dict[str, bool] | None = None
    summary: dict[str, Any] | None = None
    extra: dict[str, Any] = {}


class AssistantMessage(Value, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """One model call: its answer and how it ended."""

    id: str
    session_id: str
    time: MessageTime
    parent_id: str | None = None
    """The user message it answers; every step of a turn has the same."""
    model_id: str | None = None
    provider_id: str | None = None
    mode: str | None = None
    agent: str | None = None
    path: MessagePath | None = None
    summary: bool | None = None
    """True when the message is a compaction summary."""
    cost: float | None = None
    """US dollars over the message's step-finishes, as recorded."""
    tokens: TokenUsage = NO_TOKENS
    """Usage of the last step."""
    finish: str | None = None
    """stop, length, tool-calls, content-filter, error, unknown; None when cut off."""
    error: MessageError | None = None
    structured: Any = None
    variant: str | None = None
    extra: dict[str, Any] = {}

    @property
    def is_summary(self) -> bool:
        """Whether the message is a compaction summary."""
        return self.summary is True

    @property
    def is_finished(self) -> bool:
        """Whether the call ended by itself: a finish and no error."""
        return self.finish is not None and self.error is None


Message = UserMessage | AssistantMessage


class MessageWithParts(Value, frozen=True, kw_only=True):
    """A message and its parts in order; `seq` is its place in the session, 0 when not stored.

    `part_seqs` runs parallel to `parts` and is empty when not stored.
    """

    message: Message
    parts: tuple[Part, ...] = ()
    seq: int = 0
    part_seqs: tuple[int, ...] = ()


class SessionModel(Value, frozen=True, kw_only=True):
    """The session row's model; the family calls its id `id` here."""

    id: str
    provider_id: str
    variant: str | None = None


class SessionTime(Value, frozen=True, kw_only=True):
    """Milliseconds UTC."""

    created: int
    updated: int | None = None
    compacting: int | None = None
    archived: int | None = None


class SessionInfo(Value, frozen=True, kw_only=True):
    """A session's metadata."""

    id: str
    time: SessionTime
    title: str = ""
    slug: str | None = None
    project_id: str | None = None
    workspace_id: str | None = None
    directory: str | None = None
    path: str | None = None
    parent_id: str | None = None
    version: str | None = None
    agent: str | None = None
    model: SessionModel | None = None
    summary: dict[str, Any] | None = None
    cost: float | None = None
    """Recorded roll-up in US dollars."""
    tokens: TokenUsage | None = None
    """Recorded roll-up."""
    metadata: dict[str, Any] | None = None
    permission: list[dict[str, Any]] | None = None
    revert: dict[str, Any] | None = None
    share: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
