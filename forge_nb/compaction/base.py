"""What a compaction strategy is asked, and what a compaction gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import ModelRef
    from forge_nb.providers.base import Provider
    from forge_nb.session import Session
    from forge_nb.settings import Settings
    from forge_nb.subtasks import Spawn
    from forge_nb.tools.environment import Environment
    from forge_nb.tools.registry import ToolRegistry

__all__ = [
    "CompactionJob",
    "CompactionOutcome",
    "CompactionResult",
    "RunSetup",
    "Strategy",
]

CompactionOutcome = Literal["done", "failed", "blank", "not smaller", "nothing to do"]
"""How a compaction ended; all but the first leave the history as it was."""


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one compaction did."""

    outcome: CompactionOutcome
    request_id: str | None = None
    summary_id: str | None = None
    tail_start_id: str | None = None
    tokens_before: int = 0
    """Estimated tokens of the view before."""
    tokens_after: int = 0
    """Estimated tokens of the view after; equal to before when nothing was cut."""
    replayed_id: str | None = None
    """The question that waits for its answer behind the summary: asked again, or kept there."""
    cleared: int = 0
    """Tool outputs that were hidden instead of a summary being written."""
    error: str | None = None
    """Why there is no boundary, where something went wrong."""

    def __repr__(self) -> str:
        """Say it in one line."""
        sizes = f"{self.tokens_before:,} → {self.tokens_after:,} estimated tokens"
        cleared = f", {self.cleared} outputs cleared" if self.cleared else ""
        why = f" ({self.error})" if self.error else ""
        return f"<compaction {self.outcome}{why}: {sizes}{cleared}>"


@dataclass(frozen=True, kw_only=True)
class CompactionJob:
    """What is to be compacted: the view, cut into a head to summarise and a tail to keep."""

    session: Session
    setup: RunSetup
    """Who summarises, and how the session is run."""
    auto: bool
    """Whether the run loop asked for it, not a person."""
    overflow: bool
    """Whether the provider had refused the request for its length."""
    visible: Sequence[MessageWithParts]
    """What the model sees now, in view order."""
    head: Sequence[MessageWithParts]
    """What is to be replaced: messages without earlier requests and summaries."""
    tail_start_id: str | None
    """The first message that stays word for word; None for none."""
    prior: str | None
    """Text of the summary that the view begins with; None for none."""
    replay: MessageWithParts | None
    """The question that is left out of the summary and asked again behind it."""
    hijacked: MessageWithParts | None = None
    """Parity only: the question that a request of before takes over; see `pending_request`."""
    usable: int | None
    """Usable window in tokens; None when unknown."""

    @property
    def settings(self) -> Settings:
        """How the session is run."""
        return self.setup.settings


class Strategy(Protocol):
    """Makes the context smaller. One instance may serve many sessions."""

    name: str

    async def compact(self, job: CompactionJob) -> CompactionResult:
        """Compact; leave the history as it was where that does not succeed."""
        ...


@dataclass(frozen=True)
class RunSetup:
    """Which model answers, with which tools and settings."""

    provider: Provider
    model: ModelRef
    tools: ToolRegistry
    settings: Settings
    """How the session is run, the agent's own settings included."""
    environment: Environment | None = None
    """What tools have around them."""
    small: tuple[Provider, ModelRef] | None = None
    """Who is asked for titles; None for the session's own model."""
    spawn: Spawn | None = None
    """Runs child sessions; None where there are none."""
    agents: frozenset[str] = frozenset()
    """Names of the agents that a prompt may mention."""
    spec: str = ""
    """The model as it was asked for, an address included; the session goes on with it."""
