"""Named ways to run a session: which model, which instructions, which tools, how many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GENERAL", "Agent", "agents_by_name"]


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """Settings under a name, which messages carry as their agent.

    Parameters
    ----------
    name
        Its name; messages carry it.
    description
        What it is good for; the model reads it when it may hand work over.
    model
        ``provider:model``; None for the session's.
    system
        System prompts; added to those of the settings.
    tools
        Names of the tools it may call; None for all.
    permissions
        Rules (`forge_nb.tools.permissions.Rule`) after the settings': the last match decides.
    max_steps
        Model calls for one prompt; None for the settings' number.

    Examples
    --------
    >>> Agent(name="reviewer", system=("You only read.",), tools=("read", "grep"))
    Agent(name='reviewer', tools=('read', 'grep'))
    """

    name: str
    description: str = ""
    model: str | None = None
    system: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    permissions: tuple[Any, ...] = ()
    max_steps: int | None = None

    def __repr__(self) -> str:
        """Name it, and its tools where they are few."""
        tools = "" if self.tools is None else f", tools={self.tools!r}"
        return f"Agent(name={self.name!r}{tools})"


GENERAL = Agent(
    name="general",
    description="Researches and carries out a piece of work by itself, and reports the result.",
)
"""The agent for work that is handed over, where no other is named."""


def agents_by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Return the agents by their names, `GENERAL` among them.

    Raises
    ------
    UsageError
        When two have the same name, or one has none.
    """
    found: dict[str, Agent] = {}
    for one in agents:
        if not one.name or one.name in found:
            msg = f"there are two agents called {one.name!r}; give each a name of its own"
            raise UsageError(msg, agent=one.name)
        found[one.name] = one
    return {GENERAL.name: GENERAL, **found}
