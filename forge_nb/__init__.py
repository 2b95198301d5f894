"""forge_nb: a notebook workbench for the memory of LLM agents.

Bring a session, see what the model saw at every step, see what each compaction dropped, kept and
cost, and go on with it live in the next cell.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_nb.agents import Agent
    from forge_nb.conversation import Conversation
    from forge_nb.errors import ForgeError
    from forge_nb.magics.extension import load_ipython_extension, unload_ipython_extension
    from forge_nb.providers.tape_specs import record, replay
    from forge_nb.settings import Settings
    from forge_nb.tools.registry import tool
    from forge_nb.workbench import Workbench
    from forge_nb.workbench import Workbench as open  # noqa: A004, N813  forge.open reads well

__all__ = [
    "Agent",
    "Conversation",
    "ForgeError",
    "Settings",
    "Workbench",
    "load_ipython_extension",
    "open",
    "record",
    "replay",
    "tool",
    "unload_ipython_extension",
]

_HOMES = {
    "Agent": ("forge_nb.agents", "Agent"),
    "Conversation": ("forge_nb.conversation", "Conversation"),
    "ForgeError": ("forge_nb.errors", "ForgeError"),
    "Settings": ("forge_nb.settings", "Settings"),
    "Workbench": ("forge_nb.workbench", "Workbench"),
    "load_ipython_extension": ("forge_nb.magics.extension", "load_ipython_extension"),
    "open": ("forge_nb.workbench", "Workbench"),
    "record": ("forge_nb.providers.tape_specs", "record"),
    "replay": ("forge_nb.providers.tape_specs", "replay"),
    "tool": ("forge_nb.tools.registry", "tool"),
    "unload_ipython_extension": ("forge_nb.magics.extension", "unload_ipython_extension"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package stays light."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("forge-nb")
    if name not in _HOMES:
        msg = f"module 'forge_nb' has no attribute {name!r}; it has {sorted(_HOMES)}"
        raise AttributeError(msg)
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
