"""The ten part kinds as frozen values.

JSON field names and the tool's state machine are the family's (opencode 1.x), Python attributes
are snake_case. A kind that is not listed here is kept verbatim as an `UnknownPart`. What only
this package knows of a part (`attempt`, `discarded`, unit prices) never enters the family's JSON:
the codec leaves out `NATIVE_KEYS` unless asked.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from forge_nb.messages.usage import NO_TOKENS, TokenUsage, UnitPrices
from forge_nb.messages.value import Value

__all__ = [
    "NATIVE_KEYS",
    "PART_KINDS",
    "AgentPart",
    "CompactionPart",
    "FilePart",
    "KnownPart",
    "ModelRef",
    "Part",
    "PartKind",
    "PatchPart",
    "ReasoningPart",
    "Span",
    "StepFinishPart",
    "StepStartPart",
    "SubtaskPart",
    "TextPart",
    "ToolCompleted",
    "ToolFailed",
    "ToolPart",
    "ToolPending",
    "ToolRunning",
    "ToolSpan",
    "ToolState",
    "ToolStatus",
    "UnknownPart",
    "is_open",
]

PartKind = Literal[
    "text",
    "tool",
    "reasoning",
    "file",
    "agent",
    "compaction",
    "subtask",
    "step-start",
    "step-finish",
    "patch",
]

PART_KINDS: tuple[str, ...] = get_args(PartKind)
"""The ten kinds, in the order in which they are always listed."""

NATIVE_KEYS = ("$attempt", "$discarded", "$prices", "$costSource")
"""JSON keys of what only this package knows; columns of our store, not the family's JSON."""

ToolStatus = Literal["pending", "running", "completed", "error"]


class Span(Value, frozen=True, kw_only=True):
    """From when to when, milliseconds UTC; `end` is None while it lasts."""

    start: int
    end: int | None = None


class ToolSpan(Value, frozen=True, kw_only=True):
    """A finished tool's time; `compacted` is when its output was hidden from the model."""

    start: int
    end: int
    compacted: int | None = None


class ModelRef(Value, frozen=True, kw_only=True):
    """Which model: the provider's id and the model's id there."""

    provider_id: str
    model_id: str
    variant: str | None = None


class PartBase(Value, frozen=True, kw_only=True):
    """What every part has."""

    id: str
    session_id: str
    message_id: str
    extra: dict[str, Any] = {}
    """JSON that the typed fields do not hold."""
    attempt: int = 1
    """Which attempt of the step wrote it; native."""
    discarded: bool = False
    """Whether it belongs to a failed attempt and is kept out of the model view; native."""

    @property
    def kind(self) -> str:
        """What it is: the ``type`` of its JSON."""
        return str(self.__struct_config__.tag)


class TextPart(PartBase, frozen=True, kw_only=True, tag="text"):
    """Natural language, a person's or a model's."""

    text: str
    synthetic: bool | None = None
    """Written by a program on the user's behalf; hidden in views, sent to the model."""
    ignored: bool | None = None
    """Shown to people, not sent to the model."""
    time: Span | None = None
    metadata: dict[str, Any] | None = None


class ReasoningPart(PartBase, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought; `metadata` holds signatures and is kept verbatim."""

    text: str
    time: Span | None = None
    metadata: dict[str, Any] | None = None


class FilePart(PartBase, frozen=True, kw_only=True, tag="file"):
    """An attachment."""

    mime: str
    url: str
    filename: str | None = None
    source: dict[str, Any] | None = None


class AgentPart(PartBase, frozen=True, kw_only=True, tag="agent"):
    """A mention of an agent by name."""

    name: str
    source: dict[str, Any] | None = None


class CompactionPart(PartBase, frozen=True, kw_only=True, tag="compaction"):
    """Marks a user message as a request to compact."""

    auto: bool
    overflow: bool | None = None
    """Whether the provider refused the request for its length."""
    tail_start_id: str | None = None
    """First message that stays in view verbatim after the summary."""


class SubtaskPart(PartBase, frozen=True, kw_only=True, tag="subtask"):
    """A work order for another agent, run by the loop."""

    prompt: str
    description: str
    agent: str
    model: ModelRef | None = None
    command: str | None = None


class StepStartPart(PartBase, frozen=True, kw_only=True, tag="step-start"):
    """A model call began."""

    snapshot: str | None = None


class StepFinishPart(PartBase, frozen=True, kw_only=True, tag="step-finish"):
    """A model call ended: the billing record."""

    reason: str
    snapshot: str | None = None
    cost: float | None = None
    """US dollars as recorded; a recorded 0 with an unknown price means unknown."""
    tokens: TokenUsage = NO_TOKENS
    prices: UnitPrices | None = None
    """Unit prices used; native."""
    cost_source: str | None = None
    """Where the cost comes from; native."""


class PatchPart(PartBase, frozen=True, kw_only=True, tag="patch"):
    """Files that a step changed; `hash` names the tree before it."""

    hash: str
    files: list[str] = []


class ToolPending(Value, frozen=True, kw_only=True, tag_field="status", tag="pending"):
    """The model began to name a call; its input is not there yet."""

    input: Any
    raw: str | None = None


class ToolRunning(Value, frozen=True, kw_only=True, tag_field="status", tag="running"):
    """The call is running."""

    input: Any
    time: Span
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ToolCompleted(Value, frozen=True, kw_only=True, tag_field="status", tag="completed"):
    """The call gave a result."""

    input: Any
    output: str
    time: ToolSpan
    title: str | None = None
    metadata: dict[str, Any] | None = None
    attachments: list[dict[str, Any]] | None = None


class ToolFailed(Value, frozen=True, kw_only=True, tag_field="status", tag="error"):
    """The call failed, was refused, or was interrupted."""

    input: Any
    error: str
    time: ToolSpan
    metadata: dict[str, Any] | None = None


ToolState = ToolPending | ToolRunning | ToolCompleted | ToolFailed


class ToolPart(PartBase, frozen=True, kw_only=True, tag="tool"):
    """A tool call and where it stands: pending → running → completed or error."""

    call_id: str
    tool: str
    state: ToolState
    metadata: dict[str, Any] | None = None

    @property
    def status(self) -> ToolStatus:
        """The state's name in JSON."""
        status: ToolStatus = self.state.__struct_config__.tag  # type: ignore[assignment]
        return status


class UnknownPart(PartBase, frozen=True, kw_only=True):
    """A part of a kind that this version does not know, kept verbatim in `extra`."""

    kind: str


KnownPart = (
    TextPart
    | ToolPart
    | ReasoningPart
    | FilePart
    | AgentPart
    | CompactionPart
    | SubtaskPart
    | StepStartPart
    | StepFinishPart
    | PatchPart
)

Part = KnownPart | UnknownPart


def is_open(part: Part) -> bool:
    """Return whether a part still waits for its end.

    A model's text or reasoning without an end, or a tool that is pending or running. A user's
    text has no time at all and is not open.
    """
    match part:
        case TextPart() | ReasoningPart():
            return part.time is not None and part.time.end is None
        case ToolPart():
            return isinstance(part.state, ToolPending | ToolRunning)
        case _:
            return False
