"""The user's handle on one session: prompt it, compact it, look at what the model saw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_nb.compaction.strategies import compact
from forge_nb.errors import NotFoundError, SessionBusyError, UsageError
from forge_nb.fork import fork_events, undo_events
from forge_nb.inputs import Input
from forge_nb.messages.steps import message_of_step
from forge_nb.messages.usage import usable_tokens
from forge_nb.prompts import add_prompt
from forge_nb.run_loop import RunResult, compact_and_go_on, run_loop
from forge_nb.settings import changed
from forge_nb.structured import output_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from forge_nb.analysis.charts import Chart
    from forge_nb.compaction.base import CompactionResult, RunSetup
    from forge_nb.history import ViewRule
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.tools.permissions import Permissions
    from forge_nb.widgets.attach import Attached, Source, Transcript
    from forge_nb.widgets.model_view import ModelView
    from forge_nb.workbench import Workbench

__all__ = ["Conversation"]


class Conversation:
    """One session: prompt it, compact it, look at what the model saw.

    Parameters
    ----------
    workbench
        Where it lives.
    session_id
        Its id.
    model
        Which model answers; None for the session's own or the workbench's.
    agent
        Which of the workbench's agents answers; None for the settings'.
    changes
        Settings that differ from the workbench's, by name.
    """

    def __init__(
        self,
        workbench: Workbench,
        session_id: str,
        *,
        model: str | None = None,
        agent: str | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.workbench = workbench
        self.id = session_id
        self.model = model
        self.agent = agent
        self.changes = dict(changes or {})
        """Settings that differ from the workbench's."""
        self._setup: RunSetup | None = None

    def __repr__(self) -> str:
        """Name it."""
        return f"<session {self.title!r} ({self.id})>"

    @property
    def title(self) -> str:
        """The session's title."""
        return self.workbench.store.session(self.id).info.title

    @property
    def spec(self) -> str | None:
        """Which model would answer, as ``provider:model``; None when none was chosen."""
        return self.workbench.spec(self.model, self.workbench.store.session(self.id))

    @property
    def setup(self) -> RunSetup:
        """Model, tools and settings; resolved at the first use and kept, a script's place too."""
        if self._setup is None:
            stored = self.workbench.store.session(self.id)
            self._setup = self.workbench.setup(
                self.model, stored, agent=self.agent, changes=self.changes
            )
        return self._setup

    def with_settings(self, **changes: Any) -> Conversation:
        """Return the same session, run with other settings from now on.

        Parameters
        ----------
        changes
            Fields of `forge_nb.Settings`: ``strategy="truncate"``, ``auto_compact=False`` …

        Raises
        ------
        UsageError
            When there is no such setting, or its value is of another kind.
        """
        both = {**self.changes, **changes}
        changed(self.workbench.settings, both)
        return Conversation(
            self.workbench, self.id, model=self.model, agent=self.agent, changes=both
        )

    @property
    def permissions(self) -> Permissions:
        """What its tools may do, and what they wait to be allowed: `pending` and `reply`."""
        return self.workbench.permissions(self.id)

    async def prompt(
        self,
        asked: Input | Sequence[Input],
        *,
        files: Sequence[str | Path] = (),
        system: str | None = None,
        output: type | Mapping[str, Any] | None = None,
        wait: bool = True,
        show: bool | None = None,
    ) -> RunResult:
        """Ask, and wait until the run is over; live in the cell when there is one.

        Parameters
        ----------
        asked
            What to ask; stored before anything else happens. Words, in which ``@name`` adds a file
            of the working folder or asks an agent, or several of `forge_nb.inputs`: Text, File,
            Mention, Subtask, or a path.
        files
            Files and folders to read with it.
        system
            A further system prompt for this question alone.
        output
            Shape that the answer must have: a pydantic model, another type, or a JSON schema. The
            result's `structured` holds the answer.
        wait
            Whether to wait while another process runs the session; else SessionBusyError.
        show
            Whether to show a live view; None for yes in a notebook.

        Returns
        -------
        RunResult
            Outcome, answer, tokens and cost of the run.
        """
        writer, setup = self.workbench.writer(self.id), self.setup
        wanted = None if output is None else output_format(output)
        inputs = [*_several(asked), *map(Path, files)]
        self._refuse_if_busy(wait=wait)
        with self._live(show=show):
            message = await add_prompt(writer, setup, inputs, wanted=wanted, system=system)
            while True:
                result = await self.workbench.run(
                    self.id, lambda: run_loop(writer, setup), wait=wait
                )
                if isinstance(result, RunResult) and self._is_over(result, message.id):
                    return result

    def _is_over(self, result: RunResult, message_id: str) -> bool:
        """Return whether a run has dealt with a prompt: a stopped one may not have taken it."""
        return result.outcome != "aborted" or not self._waits(message_id)

    def _waits(self, message_id: str) -> bool:
        waiting = self.workbench.store.prompts(self.id, "waiting")
        return any(item.message.id == message_id for item in waiting)

    async def tell(self, told: Input | Sequence[Input]) -> str:
        """Add to what the model will know, without asking for an answer; return the message's id.

        Parameters
        ----------
        told
            As for `prompt`.
        """
        writer = self.workbench.writer(self.id)
        message = await add_prompt(writer, self.setup, told, reply=False)
        return message.id

    def _refuse_if_busy(self, *, wait: bool) -> None:
        """Say who runs the session, before anything is stored, to whoever will not wait."""
        workbench = self.workbench
        if wait or self.id in workbench.runners:
            return
        owner = workbench.take_lease(self.id)
        if owner is not None:
            msg = f"session {self.id!r} is run by {owner!r}; wait for it or abort it there"
            raise SessionBusyError(msg, owner=owner)

    async def resume(self, *, wait: bool = True, show: bool | None = None) -> RunResult:
        """Answer the prompts that wait, or the last question when it has no answer yet."""
        writer, setup = self.workbench.writer(self.id), self.setup
        with self._live(show=show):
            result: RunResult = await self.workbench.run(
                self.id, lambda: run_loop(writer, setup), wait=wait
            )
        return result

    async def compact(self, *, wait: bool = True, show: bool | None = None) -> CompactionResult:
        """Summarise what the model sees now and put a boundary behind it.

        Which way is a setting: ``Settings(strategy=…)`` names one of
        `forge_nb.compaction.strategies.strategies`.
        """
        writer, setup = self.workbench.writer(self.id), self.setup
        with self._live(show=show):
            result: CompactionResult = await self.workbench.run(
                self.id, lambda: compact(writer, setup, auto=False), wait=wait
            )
        return result

    async def compact_and_go_on(self, *, wait: bool = True, show: bool | None = None) -> RunResult:
        """Compact as the run loop does by itself, and let the model go on from the summary."""
        writer, setup = self.workbench.writer(self.id), self.setup
        with self._live(show=show):
            result: RunResult = await self.workbench.run(
                self.id, lambda: compact_and_go_on(writer, setup), wait=wait
            )
        return result

    def fork(self, at: int | str | None = None) -> Conversation:
        """Return a new session with this one's history; what was paid here is counted here only.

        Parameters
        ----------
        at
            A step number, or the id of a message: the first that is not copied. None copies all.
        """
        messages = self.messages()
        message_id = message_of_step(messages, at) if isinstance(at, int) else at
        store = self.workbench.store
        writer = self.workbench.writer(self.id)
        session_id, events = fork_events(
            writer.stored().info,
            messages,
            store.usage(self.id),
            at=message_id,
            new_id=writer.new_id,
            now_ms=writer.clock(),
            taken={row.info.title for row in store.sessions()},
        )
        self.workbench.apply(events)
        return Conversation(self.workbench, session_id, model=self.model, agent=self.agent)

    def undo(self, to: str | None = None) -> int:
        """Take a question back with everything after it; return how many messages went.

        What it cost stays counted, and files stay as they are.

        Parameters
        ----------
        to
            Id of the question; None for the last one that was asked here, or the last compaction
            by hand when that is newer.

        Raises
        ------
        SessionBusyError
            While the session runs.
        UsageError
            When something imported would go; fork there instead.
        """
        owner = self.workbench.runner_of(self.id)
        if owner is not None:
            msg = f"session {self.id!r} is run by {owner!r}; abort it before taking anything back"
            raise SessionBusyError(msg, owner=owner)
        store = self.workbench.store
        prompts = store.prompts(self.id, "waiting", "taken", "answered", "cancelled")
        events = undo_events(
            self.messages(),
            to,
            imported=store.imported_ids(self.id),
            asked=frozenset(item.message.id for item in prompts),
        )
        self.workbench.apply(events)
        return len(events)

    def abort(self) -> bool:
        """Stop the run; whatever was said so far is kept. Returns whether anything ran."""
        return self.workbench.abort(self.id)

    def messages(self) -> list[MessageWithParts]:
        """Return the whole session, oldest first."""
        return self.workbench.writer(self.id).messages()

    def view(self, at: int | str | None = None, *, rule: ViewRule | None = None) -> ModelView:
        """Return what the model saw.

        Parameters
        ----------
        at
            A step number from 1, an assistant message's id, or None for what the next call would
            get.
        rule
            ``classic`` or ``tail``; chosen from the data when None.
        """
        from forge_nb.widgets.model_view import ModelView  # noqa: PLC0415  display only

        message_id = None if at is None else message_of_step(self.messages(), at)
        return ModelView(self.workbench.writer(self.id).view(message_id, rule=rule), at=at)

    def children(self) -> list[Conversation]:
        """Return the sessions that were handed work from this one, oldest first."""
        rows = [row for row in self.workbench.store.sessions() if row.info.parent_id == self.id]
        return [Conversation(self.workbench, row.info.id) for row in reversed(rows)]

    def cost_usd(self, *, tree: bool = False) -> float | None:
        """Return what the session's own calls cost, in US dollars; None when none has a price.

        Parameters
        ----------
        tree
            Whether the sessions that were handed work count too, and theirs.
        """
        own = self.workbench.store.session(self.id).cost_usd
        if not tree:
            return own
        known = [own, *(child.cost_usd(tree=True) for child in self.children())]
        costs = [cost for cost in known if cost is not None]
        return sum(costs) if costs else None

    def steps(self) -> pd.DataFrame:
        """Return this session's rows of the steps frame."""
        frame = self.workbench.steps()
        return frame[frame["session_id"] == self.id].reset_index(drop=True)

    def compactions(self) -> pd.DataFrame:
        """Return this session's rows of the compactions frame."""
        frame = self.workbench.compactions()
        return frame[frame["session_id"] == self.id].reset_index(drop=True)

    def chart(self) -> Chart:
        """Draw the context of every step, with the boundaries of the compactions."""
        from forge_nb.analysis.charts import context_chart  # noqa: PLC0415  heavy

        return context_chart(self.steps(), self.compactions(), title=self.title)

    def show(self) -> Transcript:
        """Return the session's transcript: HTML in a notebook, text elsewhere."""
        from forge_nb.widgets.attach import Transcript  # noqa: PLC0415  display only

        return Transcript(self._source())

    def usable(self) -> int | None:
        """Return the usable window of the session's model in tokens; None when unknown."""
        try:
            setup = self.setup
        except (UsageError, NotFoundError):
            return None
        return usable_tokens(setup.provider.limits(setup.model.model_id))

    def _live(self, *, show: bool | None) -> Attached:
        from forge_nb.widgets.attach import Attached  # noqa: PLC0415  display only

        return Attached(self._source(), show=show)

    def _source(self) -> Source:
        from forge_nb.widgets.attach import Source  # noqa: PLC0415  display only

        return Source(
            session_id=self.id,
            title=self.title,
            usable=self.usable(),
            bus=self.workbench.bus,
            messages=self.messages,
            stop=self.abort,
        )


def _several(asked: Input | Sequence[Input]) -> list[Input]:
    return [asked] if isinstance(asked, Input) else list(asked)
