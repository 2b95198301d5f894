"""Strategies whose summary is written by a function, without a call of a model.

``extractive`` picks sentences of the session itself, ``truncate`` only says what was left out, and
a function of a user's own may do anything: it gets the record and the earlier summary as texts.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from forge_nb.compaction.boundary import Boundary
from forge_nb.compaction.serialize import conversation_text
from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.messages.message import AssistantMessage, ErrorData, MessageError
from forge_nb.messages.parts import Span, TextPart
from forge_nb.messages.render import ModelMessage, ModelPart, to_model_messages
from forge_nb.messages.wire import ERROR_UNKNOWN
from forge_nb.processor import status
from forge_nb.providers.extractive import summarise

if TYPE_CHECKING:
    from forge_nb.compaction.base import CompactionJob, CompactionResult
    from forge_nb.events import SyncEvent

__all__ = ["Summariser", "WrittenSummary", "extractive", "truncate"]

Summariser = Callable[[str, str | None], str | Awaitable[str]]
"""``summariser(conversation, prior)`` returns the summary; it may be a coroutine function."""


class WrittenSummary:
    """Lets a function write the summary.

    Parameters
    ----------
    name
        The strategy's name.
    summariser
        Writes the summary from the record of the head and the earlier summary.
    """

    def __init__(self, name: str, summariser: Summariser) -> None:
        self.name = name
        self._summariser = summariser

    async def compact(self, job: CompactionJob) -> CompactionResult:
        """Write the summary; no model is called, so there is no step and no bill."""
        boundary = Boundary(job, by_model=False)
        job.session.announce(status(job.session.id, "compacting"))
        await boundary.open()
        summary = boundary.summary
        try:
            text = await self._written(job)
        except Exception as error:  # noqa: BLE001  the function is the user's own
            failed = _ended(job, summary, error=f"{type(error).__name__}: {error}")
            await job.session.update_message(failed)
            return boundary.result(failed)
        now = job.session.clock()
        part = TextPart(
            id=job.session.new_id("prt"),
            session_id=job.session.id,
            message_id=summary.id,
            text=text,
            time=Span(start=now, end=now),
        )
        events: list[SyncEvent] = [PartUpdated(part=part)]
        summary, extra = boundary.commit(_ended(job, summary), events)
        await job.session.write([*events, MessageUpdated(message=summary), *extra])
        return boundary.result(summary)

    async def _written(self, job: CompactionJob) -> str:
        messages = to_model_messages(
            job.head,
            strip_media=True,
            tool_output_max_chars=job.settings.summary_tool_chars,
        )
        text = self._summariser(conversation_text(messages), job.prior)
        return await text if inspect.isawaitable(text) else text


def _ended(
    job: CompactionJob, summary: AssistantMessage, *, error: str | None = None
) -> AssistantMessage:
    time = msgspec.structs.replace(summary.time, completed=job.session.clock())
    if error is None:
        return msgspec.structs.replace(summary, time=time, finish="stop")
    failure = MessageError(name=ERROR_UNKNOWN, data=ErrorData(message=error))
    return msgspec.structs.replace(summary, time=time, finish="error", error=failure)


def extractive(conversation: str, prior: str | None) -> str:
    """Return sentences of the session itself under the usual headings."""
    said = [_message("user", conversation)]
    if prior is not None:
        said.insert(0, _message("assistant", prior))
    return summarise([*said, _message("user", "")])


def _message(role: str, text: str) -> ModelMessage:
    part = ModelPart(id=role, kind="text", text=text)
    return ModelMessage(id=role, role="user" if role == "user" else "assistant", parts=(part,))


def truncate(conversation: str, prior: str | None) -> str:
    """Return a note of what was left out, and the note before it."""
    turns = conversation.count("[User]: ")
    calls = conversation.count("[Assistant tool call]: ")
    note = f"Earlier messages were left out: {turns} from the user, with {calls} tool calls."
    return note if prior is None else f"{prior}\n{note}"
