"""Which model answers a session, as which agent, with which tools and which leave."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.agents import Agent, agents_by_name
from forge_nb.compaction.base import RunSetup
from forge_nb.compaction.strategies import known_strategy
from forge_nb.errors import UsageError
from forge_nb.providers.registry import provider_names, resolve_model
from forge_nb.settings import Settings, changed
from forge_nb.subtasks import task_tool
from forge_nb.tools.environment import Environment
from forge_nb.tools.permissions import DEFAULT_RULES, Permissions, Rule
from forge_nb.tools.registry import Tool, ToolRegistry
from forge_nb.tools.snapshots import GitSnapshots
from forge_nb.tools.taped import taped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forge_nb.events import LiveEvent
    from forge_nb.store.base import StoredSession
    from forge_nb.subtasks import Spawn
    from forge_nb.tools.environment import Snapshots

__all__ = ["Setups"]

_CHANGING = frozenset({"bash", "edit", "write"})
_NAME_CHARS = 16


class Setups:
    """Makes what answers a session.

    Parameters
    ----------
    settings
        How sessions are run.
    model
        Default model, as ``provider:model``.
    tools
        What models may call.
    agents
        Named ways to run a session.
    publish
        Where requests for leave are told.
    new_id
        Makes their ids.
    spawn
        Runs child sessions.
    files
        Folder for what tools leave beside the store: whole outputs, states of the workspace.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: str | None,
        tools: Iterable[Tool],
        agents: Iterable[Agent],
        publish: Callable[[LiveEvent], None],
        new_id: Callable[[Literal["per"]], str],
        spawn: Spawn,
        files: Path,
    ) -> None:
        named, given = list(agents), list(tools)
        _check("settings", [settings], Settings, "forge_nb.Settings(…)")
        _check("an agent", named, Agent, "forge_nb.Agent(name=…)")
        _check("a tool", given, Tool, "a function under @forge_nb.tool")
        _check(
            "a rule", [*settings.rules, *(r for a in named for r in a.permissions)], Rule, "Rule(…)"
        )
        self.settings = settings
        self.model = model
        self.tools = given
        self.agents = agents_by_name(named)
        self.snapshots: Snapshots | None = None
        """Tells which files a step changed; None for git, as far as the settings say so."""
        self._files = files
        self._may_hand_over = bool(named)
        self._publish = publish
        self._new_id = new_id
        self._spawn = spawn
        self._permissions: dict[str, Permissions] = {}

    def spec(self, model: str | None, stored: StoredSession) -> str | None:
        """Return which model answers: the one given, the workbench's, or the session's own."""
        return model or self.model or _spec_of(stored)

    def setup(
        self,
        model: str | None,
        stored: StoredSession,
        *,
        agent: str | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> RunSetup:
        """Return what answers a session's prompts.

        Raises
        ------
        UsageError
            When no model was chosen, or there is no such provider, agent or strategy.
        """
        chosen = self.agent(agent)
        settings = self._settings_of(chosen, changes or {})
        known_strategy(settings.strategy)
        spec = self.spec(model or chosen.model, stored)
        if spec is None:
            msg = (
                f"session {stored.info.title!r} has no model that can be called here; "
                "choose one: wb.session(…, model='scripted:tour') or %%forge --model scripted:tour"
            )
            raise UsageError(msg)
        provider, ref = resolve_model(spec)
        small = self.settings.small_model
        workspace = Path(stored.info.directory or ".")
        own = [*map(Tool, getattr(provider, "tools", ())), *self.tools]
        if self._may_hand_over and stored.info.parent_id is None:
            own.append(task_tool(self._spawn, self._others(chosen)))
        registry = ToolRegistry(own, keep_outputs=self._files / "outputs").only(chosen.tools)
        return RunSetup(
            provider,
            ref,
            taped(registry, provider),
            settings,
            environment=Environment(
                ask=self.permissions(stored, agent=chosen).ask,
                workspace=workspace,
                snapshots=self.snapshots or self._git(workspace, own),
            ),
            small=None if small is None else resolve_model(small),
            spawn=self._spawn,
            agents=frozenset(self.agents),
            spec=spec,
        )

    def _git(self, workspace: Path, tools: Iterable[Tool]) -> Snapshots | None:
        """Return what watches a workspace: where a tool may change it, or the settings ask."""
        wanted = self.settings.snapshots
        if wanted is None:
            wanted = any(one.name in _CHANGING for one in tools)
        if not wanted or not workspace.is_dir():
            return None
        name = hashlib.sha256(str(workspace.resolve()).encode()).hexdigest()[:_NAME_CHARS]
        return GitSnapshots(workspace, self._files / "snapshots" / name)

    def permissions(self, stored: StoredSession, *, agent: Agent | None = None) -> Permissions:
        """Return what a session's tools may do, and what they wait to be allowed.

        Rules come in this order: the defaults, the settings', the agent's, the session's own.
        """
        session_id = stored.info.id
        if session_id not in self._permissions:
            given = [*(agent.permissions if agent else ()), *(stored.info.permission or [])]
            self._permissions[session_id] = Permissions(
                session_id,
                [*DEFAULT_RULES, *self.settings.rules, *map(_rule, given)],
                announce=self._publish,
                new_id=self._new_id,
                can_ask=lambda: self.settings.asks,
            )
        return self._permissions[session_id]

    def agent(self, name: str | None) -> Agent:
        """Return an agent; a plain one for None, with the settings' name.

        Raises
        ------
        UsageError
            When there is none of this name.
        """
        if name is None or (name == self.settings.agent and name not in self.agents):
            return Agent(name=self.settings.agent)
        if name not in self.agents:
            msg = f"there is no agent {name!r}; there are {sorted(self.agents)}"
            raise UsageError(msg, agent=name)
        return self.agents[name]

    def _others(self, agent: Agent) -> dict[str, Agent]:
        return {name: one for name, one in self.agents.items() if name != agent.name}

    def _settings_of(self, agent: Agent, changes: Mapping[str, Any]) -> Settings:
        own = changed(self.settings, changes)
        return msgspec.structs.replace(
            own,
            agent=agent.name,
            system=(*own.system, *agent.system),
            max_steps=own.max_steps if agent.max_steps is None else agent.max_steps,
        )


def _check(what: str, given: Iterable[object], kind: type, example: str) -> None:
    """Refuse at once what would only fail in the middle of a run."""
    for one in given:
        if not isinstance(one, kind):
            msg = f"{one!r} is no {kind.__name__}; {what} is {example}"
            raise UsageError(msg)


def _rule(given: Rule | dict[str, Any]) -> Rule:
    """Return a rule; a stored one stands there as the family writes it."""
    if isinstance(given, Rule):
        return given
    permission, pattern = str(given.get("permission", "*")), str(given.get("pattern", "*"))
    return Rule(permission, pattern, given.get("action", "ask"))


def _spec_of(stored: StoredSession) -> str | None:
    model = stored.info.model
    if model is None or model.provider_id not in provider_names():
        return None
    if stored.origin.format is not None and "?" in model.id:
        return None  # a file from elsewhere must not say to which address keys and words are sent
    return f"{model.provider_id}:{model.id}"
