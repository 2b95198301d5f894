"""Summaries that a function writes, without a call of a model: no step, no bill.

A function of a user's own may do anything: it gets the record of what is to be replaced and the
earlier summary as texts. Nothing is stored before it has answered, so a cancelled one leaves
nothing behind; then request, summary and tail marker are stored as one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from forge_nb.compaction.boundary import Boundary
from forge_nb.messages.record import conversation_text
from forge_nb.messages.render import to_model_messages
from forge_nb.processor import status

if TYPE_CHECKING:
    from forge_nb.compaction.base import CompactionJob, CompactionResult

__all__ = ["Summariser", "WrittenSummary", "job_record"]

Summariser = Callable[[str, str | None], str | Awaitable[str]]
"""``summariser(conversation, prior)`` returns the summary; it may be a coroutine function."""


class WrittenSummary:
    """Lets a function write the summary.

    Parameters
    ----------
    name
        The strategy's name.
    summariser
        Writes the summary from the record of the head and the earlier summary. A plain function
        runs in a thread of its own.
    """

    def __init__(self, name: str, summariser: Summariser) -> None:
        self.name = name
        self._summariser = summariser

    async def compact(self, job: CompactionJob) -> CompactionResult:
        """Write the summary and store it, as a boundary or as a failed one."""
        job.session.announce(status(job.session.id, "compacting"))
        boundary = Boundary(job, by_model=False)
        try:
            text = await self._written(job)
        except Exception as error:  # noqa: BLE001  the function is the user's own
            return await boundary.fail(f"{self.name}: {type(error).__name__}: {error}")
        return await boundary.write(text)

    async def _written(self, job: CompactionJob) -> str:
        record = job_record(job)
        if inspect.iscoroutinefunction(self._summariser):
            text = await self._summariser(record, job.prior)
        else:
            text = await asyncio.to_thread(self._summariser, record, job.prior)
        text = await text if inspect.isawaitable(text) else text
        if not isinstance(text, str):
            msg = f"a summary is a text, not {text!r}; return what stands for the conversation"
            raise TypeError(msg)
        return text


def job_record(job: CompactionJob) -> str:
    """Return the record of what a job is to replace: files are lines, long outputs are cut."""
    messages = to_model_messages(job.head, target=job.setup.model, as_data=True)
    return conversation_text(messages, tool_output_max_chars=job.settings.summary_tool_chars)
