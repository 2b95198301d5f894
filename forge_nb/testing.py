"""What users need to test their own code: a workbench in memory that gives the same rows twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.clock import FixedClock
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge_nb.settings import Settings
    from forge_nb.tools.registry import Tool

__all__ = ["FixedClock", "memory_workbench"]


def memory_workbench(
    model: str = "scripted:tour",
    *,
    tools: Iterable[Tool] = (),
    settings: Settings | None = None,
    seed: int = 7,
) -> Workbench:
    """Return a workbench in memory with a fixed clock and seeded ids.

    Parameters
    ----------
    model
        Default model, as ``provider:model``.
    tools
        What the model may call.
    settings
        How sessions are run.
    seed
        Of the ids.
    """
    return Workbench(
        ":memory:", model=model, tools=tools, settings=settings, clock=FixedClock(), seed=seed
    )
