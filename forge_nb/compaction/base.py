"""What a compaction strategy is asked, and what a compaction gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from forge_nb.messages.parts import ModelRef
    from forge_nb.providers.base import Provider
    from forge_nb.settings import Settings
    from forge_nb.subtasks import Spawn
    from forge_nb.tools.environment import Environment
    from forge_nb.tools.registry import ToolRegistry

__all__ = ["CompactionOutcome", "CompactionResult", "RunSetup"]

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

    def __repr__(self) -> str:
        """Say it in one line."""
        sizes = f"{self.tokens_before:,} → {self.tokens_after:,} estimated tokens"
        return f"<compaction {self.outcome}: {sizes}>"


class RunSetup:
    """Which model answers, with which tools and settings.

    Parameters
    ----------
    provider, model
        Who answers.
    tools
        What the model may call.
    settings
        How the session is run, the agent's own settings included.
    environment
        What tools have around them.
    small
        Provider and model for titles; None for the session's own.
    spawn
        Runs child sessions; None where there are none.
    """

    def __init__(
        self,
        provider: Provider,
        model: ModelRef,
        tools: ToolRegistry,
        settings: Settings,
        *,
        environment: Environment | None = None,
        small: tuple[Provider, ModelRef] | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        self.provider = provider
        self.model = model
        self.tools = tools
        self.settings = settings
        self.environment = environment
        self.small = small or (provider, model)
        self.spawn = spawn
