"""What happened, as data: sync events are stored, deltas travel on the bus only.

The two are different types on purpose. `Store.apply` takes a `SyncEvent`; a `PartDelta` is not
one, so writing a delta to the store is a type error.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from forge_nb.messages.message import Message, SessionInfo
from forge_nb.messages.parts import Part
from forge_nb.messages.usage import Cost, TokenUsage

__all__ = [
    "LOCAL",
    "BusEvent",
    "Committed",
    "LiveEvent",
    "MessageRemoved",
    "MessageUpdated",
    "Origin",
    "PartDelta",
    "PartRemoved",
    "PartUpdated",
    "PermissionAsked",
    "PermissionReplied",
    "PermissionReply",
    "PromptState",
    "Purpose",
    "RunStatus",
    "SessionRemoved",
    "SessionUpdated",
    "SyncEvent",
    "UsageRecord",
    "UsageRecorded",
]

Purpose = Literal["turn", "compaction", "title", "subtask"]
"""What a model call was for."""

PermissionReply = Literal["once", "always", "reject"]
"""What a person may answer to a tool that asks."""

PromptState = Literal["waiting", "taken", "answered", "cancelled"]
"""Where a local user message stands; imported ones have none."""


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""


class Origin(_Event, frozen=True, kw_only=True):
    """Where a row comes from: written here, or imported."""

    format: str | None = None
    """Name of the foreign format; None for rows written here."""
    source_hash: str | None = None
    """SHA-256 of the imported file's bytes or of the session's rows."""
    source_id: str | None = None
    """Id that the source gave it."""


LOCAL = Origin()
"""The origin of rows that are written here."""


class SessionUpdated(_Event, frozen=True, kw_only=True):
    """A session was created or its metadata changed."""

    info: SessionInfo
    origin: Origin = LOCAL


class SessionRemoved(_Event, frozen=True, kw_only=True):
    """A session was deleted with everything in it."""

    session_id: str


class MessageUpdated(_Event, frozen=True, kw_only=True):
    """A message was created or changed: the whole message."""

    message: Message
    origin: Origin = LOCAL
    prompt_state: PromptState | None = None
    """Set on local user messages; None leaves what is stored."""


class MessageRemoved(_Event, frozen=True, kw_only=True):
    """A message was deleted with its parts."""

    session_id: str
    message_id: str


class PartUpdated(_Event, frozen=True, kw_only=True):
    """A part was created or changed: the whole part."""

    part: Part
    origin: Origin = LOCAL


class PartRemoved(_Event, frozen=True, kw_only=True):
    """A part was deleted."""

    session_id: str
    message_id: str
    part_id: str


class UsageRecord(_Event, frozen=True, kw_only=True):
    """One provider call: what it was for, what it used, what it cost."""

    id: str
    """Id of the step-finish part, or an id of its own for calls without one."""
    session_id: str
    message_id: str | None
    purpose: Purpose
    provider_id: str | None
    model_id: str | None
    tokens: TokenUsage
    cost: Cost
    cost_recorded_usd: float | None = None
    """The cost as the recording has it, verbatim."""
    attempt: int = 1
    started_ms: int | None = None
    finished_ms: int | None = None
    origin_id: str | None = None
    """Id of the first record of the same call, when this row is a fork's copy."""


class UsageRecorded(_Event, frozen=True, kw_only=True):
    """A provider call was billed."""

    usage: UsageRecord


SyncEvent = (
    SessionUpdated
    | SessionRemoved
    | MessageUpdated
    | MessageRemoved
    | PartUpdated
    | PartRemoved
    | UsageRecorded
)


class PartDelta(_Event, frozen=True, kw_only=True):
    """More text of an open part; on the bus only.

    Deltas of one part carry the offset at which they belong, in code points of the part's text
    before hooks and trim, so that a subscriber can tell a gap from a repetition.
    """

    session_id: str
    message_id: str
    part_id: str
    field: str
    delta: str
    offset: int


class RunStatus(_Event, frozen=True, kw_only=True):
    """What the runner of a session is doing; on the bus only."""

    session_id: str
    state: Literal["busy", "idle", "retry", "compacting"]
    attempt: int = 0
    message: str | None = None
    next_ms: int | None = None
    """When the next attempt starts, milliseconds UTC."""
    facts: dict[str, Any] = {}


class PermissionAsked(_Event, frozen=True, kw_only=True):
    """A tool call waits for leave; on the bus only."""

    id: str
    session_id: str
    permission: str
    """What it wants to do: ``edit``, ``bash``, ``doom_loop`` …"""
    patterns: tuple[str, ...]
    """To what: paths, commands, names."""
    always: tuple[str, ...] = ()
    """Patterns that the answer ``always`` would allow from now on."""
    metadata: dict[str, Any] = {}
    message_id: str | None = None
    call_id: str | None = None


class PermissionReplied(_Event, frozen=True, kw_only=True):
    """A request for leave was answered; on the bus only."""

    id: str
    session_id: str
    reply: PermissionReply
    reason: str | None = None


class Committed(_Event, frozen=True, kw_only=True):
    """A sync event after its commit, with its place in the log."""

    event: SyncEvent
    session_id: str
    seq: int
    rev: int


LiveEvent = PartDelta | RunStatus | PermissionAsked | PermissionReplied
"""Travels on the bus only."""

BusEvent = Committed | LiveEvent
"""What subscribers receive."""
