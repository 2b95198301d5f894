"""The user's handle on a store; `Conversation` is the handle on one session in it.

Reading is plain calls; running is awaited. The engine's state lives on the loop's thread: one
runner per session in this process, one across processes by a lease in the store. Whoever prompts
a session that is running stores the prompt and waits for the answer with the others.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.analysis.reads import Reads
from forge_nb.bus import Bus
from forge_nb.clock import random_source, system_clock
from forge_nb.conversation import Conversation
from forge_nb.errors import ExchangeError, SessionBusyError, UsageError
from forge_nb.events import SessionUpdated
from forge_nb.exchange.export import export_session
from forge_nb.exchange.load import load
from forge_nb.messages.ids import IdSource
from forge_nb.messages.message import AssistantMessage, SessionInfo, SessionModel, SessionTime
from forge_nb.owners import is_gone, owner_name
from forge_nb.recovery import recover
from forge_nb.session import Session
from forge_nb.settings import Settings
from forge_nb.setups import Setups
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from forge_nb.subtasks import CHILD_RULES, ChildResult, child_title
from forge_nb.titles import default_title

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from forge_nb.agents import Agent
    from forge_nb.clock import Clock
    from forge_nb.compaction.base import RunSetup
    from forge_nb.events import SyncEvent
    from forge_nb.exchange.report import ImportReport
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import ModelRef
    from forge_nb.store.base import Store, StoredSession
    from forge_nb.store.verify import Finding
    from forge_nb.subtasks import Order
    from forge_nb.tools.permissions import Permissions
    from forge_nb.tools.registry import Tool

__all__ = ["Workbench"]

_HEARTBEAT_S = 5.0  # a lease is dead after 15 s without one
_BUSY_POLL_S = 0.25  # how often a prompt looks whether another process is done


class Workbench(Reads):
    """A store of sessions and everything one does with it.

    Parameters
    ----------
    target
        A file, or ``:memory:``. The file is made when it does not exist.
    model
        Default model of new sessions, as ``provider:model``.
    tools
        What the model may call: functions made tools by `forge_nb.tool`.
    settings
        How sessions are run.
    agents
        Named ways to run a session. A model is told of them and may hand work over to them; work
        that a prompt hands over finds the agent ``general`` without naming any.
    tenant
        Whose rows; each tenant sees only its own.
    clock, seed
        Fixed in tests and notebooks, so that the same run gives the same rows.

    Examples
    --------
    >>> wb = Workbench(":memory:", model="scripted:hello")
    >>> wb.session("first look").title
    'first look'
    >>> wb.close()
    """

    def __init__(
        self,
        target: str | Path = "forge.db",
        *,
        model: str | None = None,
        tools: Iterable[Tool] = (),
        settings: Settings | None = None,
        agents: Iterable[Agent] = (),
        tenant: str = "local",
        clock: Clock = system_clock,
        seed: int | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.bus = Bus()
        self.latest: Conversation | None = None
        """The session that was opened last; what the magics go on with."""
        self._clock = clock
        self._new_id = IdSource(clock, random_source(seed))
        self._owner = owner_name(self._new_id("run")[-6:])
        self.store: Store = open_store(target, tenant=tenant, clock=clock)
        self._setups = Setups(
            self.settings,
            model=model,
            tools=tools,
            agents=agents,
            publish=self.bus.publish,
            new_id=self._new_id,
            spawn=self.spawn,
            files=Path(f"{self.store.path}.files"),
        )
        self.runners: dict[str, asyncio.Task[Any]] = {}
        self._recover_all()

    def __repr__(self) -> str:
        """Name the store and say how much is in it."""
        count = len(self.store.sessions())
        return f"<workbench on {self.store.url}: {count} session{'' if count == 1 else 's'}>"

    def session(
        self,
        title_or_id: str | None = None,
        *,
        model: str | None = None,
        agent: str | None = None,
    ) -> Conversation:
        """Return the session of this id or title; make a new one when there is none.

        Parameters
        ----------
        title_or_id
            An id (``ses_…``) or a title; None for a new session, which the model will name.
        model
            Which model answers from now on; the workbench's default when None.
        agent
            Which of the workbench's agents answers.

        Raises
        ------
        NotFoundError
            For an id that the store does not hold.
        UsageError
            When several sessions have this title.
        """
        if title_or_id is None:
            return self.new_session(model=model, agent=agent)
        if title_or_id.startswith("ses_"):
            return self._opened(self.store.session(title_or_id).info.id, model, agent)
        found = [row for row in self.store.sessions() if row.info.title == title_or_id]
        if len(found) > 1:
            ids = [row.info.id for row in found]
            msg = f"{len(found)} sessions have the title {title_or_id!r}; use an id: {ids}"
            raise UsageError(msg)
        session_id = found[0].info.id if found else self._create(title_or_id, model)
        return self._opened(session_id, model, agent)

    def new_session(
        self, title: str | None = None, *, model: str | None = None, agent: str | None = None
    ) -> Conversation:
        """Return a new session, also when another has the title; parameters as for `session`."""
        session_id = self._create(title or default_title(self._now()), model)
        return self._opened(session_id, model, agent)

    def _opened(self, session_id: str, model: str | None, agent: str | None) -> Conversation:
        self.latest = Conversation(self, session_id, model=model, agent=agent)
        return self.latest

    def _now(self) -> str:
        moment = datetime.fromtimestamp(self._clock() / 1000, tz=UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _create(
        self,
        title: str,
        model: str | None,
        *,
        parent_id: str | None = None,
        permission: list[dict[str, Any]] | None = None,
    ) -> str:
        now = self._clock()
        spec = model or self.model
        info = SessionInfo(
            id=self._new_id("ses"),
            title=title,
            parent_id=parent_id,
            permission=permission,
            directory=os.getcwd(),  # noqa: PTH109  stored as text
            agent=self.settings.agent,
            model=_session_model(spec) if spec else None,
            time=SessionTime(created=now, updated=now),
        )
        self.apply([SessionUpdated(info=info)])
        return info.id

    def apply(self, events: Sequence[SyncEvent]) -> None:
        """Store events in one transaction, then tell whoever listens."""
        for event in self.store.apply(events).result():
            self.bus.publish(event)

    def runner_of(self, session_id: str) -> str | None:
        """Return who runs a session, here or elsewhere; None when nobody does."""
        task = self.runners.get(session_id)
        if task is not None and not task.done():
            return self._owner
        owner = self.take_lease(session_id)
        if owner is None:
            self.store.release_lease(session_id, self._owner)
        return owner

    def conversations(self) -> list[Conversation]:
        """Return every session, newest first."""
        return [Conversation(self, row.info.id) for row in self.store.sessions()]

    def load(self, *paths: str | Path) -> ImportReport:
        """Bring sessions from elsewhere: opencode exports and databases.

        Returns
        -------
        ImportReport
            What came in, what was skipped and what is odd; `self.session(report.sessions[0].id)`
            goes on with one.

        Raises
        ------
        ExchangeError
            When nothing could be brought in; one path among several is only listed as skipped.
        """
        report = load(self.store, list(paths))
        if report.skipped and not report.sessions:
            raise ExchangeError("\n".join(one.reason for one in report.skipped))
        return report

    def export(self, session_id: str, *, as_imported: bool = False) -> dict[str, Any]:
        """Return a session as the family's JSON."""
        return export_session(self.store, session_id, as_imported=as_imported)

    def verify(self) -> list[Finding]:
        """Check the store's invariants; empty when all hold."""
        return verify(self.store)

    @property
    def model(self) -> str | None:
        """Default model of sessions, as ``provider:model``."""
        return self._setups.model

    @model.setter
    def model(self, spec: str | None) -> None:
        self._setups.model = spec

    @property
    def agents(self) -> Mapping[str, Agent]:
        """Named ways to run a session."""
        return self._setups.agents

    def close(self) -> None:
        """Finish what is queued and close the store."""
        for task in self.runners.values():
            task.cancel()
        self.close_mirror()
        self.store.close()

    def __enter__(self) -> Self:
        """Use the workbench in a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _recover_all(self) -> None:
        """Close what crashed runs left open, in every session that nobody runs."""
        for row in self.store.sessions():
            if row.has_local_rows and self.take_lease(row.info.id) is None:
                self.mend(row.info.id)

    def mend(self, session_id: str) -> None:
        """Close what a crash left open in a session whose lease is held here; give it back."""
        recover(self.store, session_id, now_ms=self._clock())
        self.store.release_lease(session_id, self._owner)

    def take_lease(self, session_id: str) -> str | None:
        """Take the session's lease; return who else holds it, or None."""
        lease = self.store.acquire_lease(session_id, self._owner, now_ms=system_clock())
        if is_gone(lease.owner):
            self.store.release_lease(session_id, lease.owner)
            lease = self.store.acquire_lease(session_id, self._owner, now_ms=system_clock())
        return None if lease.owner == self._owner else lease.owner

    def writer(self, session_id: str) -> Session:
        """Return the write entry of a session."""
        return Session(self.store, self.bus, session_id, clock=self._clock, new_id=self._new_id)

    def spec(self, model: str | None, stored: StoredSession) -> str | None:
        """Return which model answers: the one given, the workbench's, or the session's own."""
        return self._setups.spec(model, stored)

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
            When no model was chosen, or there is no such provider or agent.
        """
        return self._setups.setup(model, stored, agent=agent, changes=changes)

    def permissions(self, session_id: str) -> Permissions:
        """Return what a session's tools may do, and what they wait to be allowed."""
        return self._setups.permissions(self.store.session(session_id))

    async def spawn(self, order: Order, started: Callable[[str, Any], None]) -> ChildResult:
        """Carry out an order in a child session, a new one or the one that it names.

        Raises
        ------
        UsageError
            When the session to go on with is no child of the one that orders.
        """
        model = None if order.model is None else _spec(order.model)
        spec = model or self._setups.agent(order.agent).model
        if order.task_id is None:
            child_id = self._create(
                child_title(order), spec, parent_id=order.parent_id, permission=CHILD_RULES
            )
        else:
            child_id = self.store.session(order.task_id).info.id
            if self.store.session(child_id).info.parent_id != order.parent_id:
                msg = f"session {child_id!r} is no child of {order.parent_id!r}; leave task_id out"
                raise UsageError(msg)
        child = Conversation(self, child_id, model=spec, agent=order.agent)
        started(child_id, msgspec.to_builtins(child.setup.model, str_keys=True))
        result = await child.prompt(order.prompt, show=False)
        return ChildResult(
            session_id=child_id,
            outcome="failed" if result.error and result.outcome != "aborted" else result.outcome,
            text=result.text,
            error=_words_of(child.messages()) or result.error,
        )

    async def run(
        self, session_id: str, work: Callable[[], Coroutine[Any, Any, Any]], *, wait: bool
    ) -> Any:
        """Do work that writes to a session, with its lease held, as the only runner.

        Cancelling the caller cancels the work, waits until it has closed everything, and then
        passes the cancellation on.
        """
        task = self.runners.get(session_id)
        if task is None or task.done():
            await self._wait_for_lease(session_id, wait=wait)
            recover(self.store, session_id, now_ms=self._clock())
            task = asyncio.ensure_future(self._hold_lease(session_id, work()))
            self.runners[session_id] = task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        return task.result()

    async def _wait_for_lease(self, session_id: str, *, wait: bool) -> None:
        owner = self.take_lease(session_id)
        while owner is not None:
            if not wait:
                msg = f"session {session_id!r} is run by {owner!r}; wait for it or abort it there"
                raise SessionBusyError(msg, owner=owner)
            await asyncio.sleep(_BUSY_POLL_S)
            owner = self.take_lease(session_id)

    async def _hold_lease(self, session_id: str, work: Coroutine[Any, Any, Any]) -> Any:
        beat = asyncio.ensure_future(self._beat(session_id))
        try:
            return await work
        finally:
            beat.cancel()
            self.runners.pop(session_id, None)
            self.store.release_lease(session_id, self._owner)

    async def _beat(self, session_id: str) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            self.take_lease(session_id)

    def abort(self, session_id: str) -> bool:
        """Stop the run of a session in this process; returns whether there was one."""
        task = self.runners.get(session_id)
        if task is None or task.done():
            return False
        task.cancel()
        return True


def _session_model(spec: str) -> SessionModel:
    provider, _, model = spec.partition(":")
    return SessionModel(id=model, provider_id=provider)


def _words_of(messages: Sequence[MessageWithParts]) -> str | None:
    """Return why the last message of a session failed, in its provider's words."""
    last = messages[-1].message if messages else None
    error = last.error if isinstance(last, AssistantMessage) else None
    return None if error is None else error.data.message


def _spec(model: ModelRef) -> str:
    return f"{model.provider_id}:{model.model_id}"
