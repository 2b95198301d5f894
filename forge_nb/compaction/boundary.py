"""Whether a summary becomes a boundary, decided in the write that ends it.

The request and a model's summary are ordinary rows, so that everybody can watch the summary being
written. They cut nothing until one transaction stores the summary's end together with the tail
marker and the question that is asked again; that transaction happens only if the summary finished
without an error, is not blank, and is shorter than what it replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.compaction.base import CompactionResult
from forge_nb.compaction.prompt import with_pinned
from forge_nb.compaction.replay import replay_events
from forge_nb.compaction.tail import estimate_view
from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import (
    AssistantMessage,
    ErrorData,
    MessageError,
    MessagePath,
    MessageTime,
    UserMessage,
)
from forge_nb.messages.parts import CompactionPart, Span, TextPart
from forge_nb.messages.wire import (
    ERROR_ABORTED,
    ERROR_SUMMARY_BLANK,
    ERROR_SUMMARY_NOT_SMALLER,
    ERROR_UNKNOWN,
    SUMMARY_AGENT,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.compaction.base import CompactionJob, CompactionOutcome
    from forge_nb.events import SyncEvent
    from forge_nb.messages.parts import Part

__all__ = ["Boundary"]

_OUTCOMES: dict[str, CompactionOutcome] = {
    ERROR_SUMMARY_BLANK: "blank",
    ERROR_SUMMARY_NOT_SMALLER: "not smaller",
}


class Boundary:
    """A boundary in the making: its request, its summary, and the rule that lets it cut.

    Parameters
    ----------
    job
        What is compacted.
    by_model
        Whether a model writes the summary; otherwise it names none.
    """

    def __init__(self, job: CompactionJob, *, by_model: bool = True) -> None:
        self._job = job
        self._by_model = by_model
        self._before = estimate_view(job.visible)
        self._request, self._marker = self._make_request()
        self.summary = self._make_summary()
        self._replayed_id: str | None = None

    def _make_request(self) -> tuple[UserMessage, CompactionPart]:
        job = self._job
        session, setup = job.session, job.setup
        request = UserMessage(
            id=session.new_id("msg"),
            session_id=session.id,
            time=MessageTime(created=session.clock()),
            agent=setup.settings.agent,
            model=setup.model,
        )
        marker = CompactionPart(
            id=session.new_id("prt"),
            session_id=session.id,
            message_id=request.id,
            auto=job.auto,
            overflow=job.overflow if job.auto else None,
        )
        return request, marker

    def _make_summary(self) -> AssistantMessage:
        session, setup = self._job.session, self._job.setup
        hijacked = self._job.hijacked
        directory = session.stored().info.directory
        return AssistantMessage(
            id=session.new_id("msg"),
            session_id=session.id,
            parent_id=self._request.id if hijacked is None else hijacked.message.id,
            time=MessageTime(created=session.clock()),
            provider_id=setup.model.provider_id if self._by_model else None,
            model_id=setup.model.model_id if self._by_model else None,
            agent=SUMMARY_AGENT,
            mode=SUMMARY_AGENT,
            summary=True,
            path=MessagePath(cwd=directory, root=directory),
        )

    async def open(self) -> None:
        """Store the request and the summary that is to come."""
        if asked := self._asked():
            await self._job.session.write(asked)
        await self._job.session.update_message(self.summary)

    async def write(self, text: str) -> CompactionResult:
        """Store a whole summary in one transaction, as a boundary if it may be one."""
        session = self._job.session
        now = session.clock()
        part = TextPart(
            id=session.new_id("prt"),
            session_id=session.id,
            message_id=self.summary.id,
            text=text,
            time=Span(start=now, end=now),
        )
        said: list[SyncEvent] = [PartUpdated(part=part)]
        summary, extra = self.commit(self._ended(finish="stop"), said)
        await session.write([*self._asked(), MessageUpdated(message=summary), *said, *extra])
        return self.result(summary)

    async def fail(self, reason: str) -> CompactionResult:
        """Store that there was to be a summary, and why there is none."""
        failed = _failed(self._ended(finish="error"), ERROR_UNKNOWN, reason)
        await self._job.session.write([*self._asked(), MessageUpdated(message=failed)])
        return self.result(failed)

    def _asked(self) -> list[SyncEvent]:
        if self._job.hijacked is not None:
            return []  # it was asked before
        return [MessageUpdated(message=self._request), PartUpdated(part=self._marker)]

    def _ended(self, *, finish: str) -> AssistantMessage:
        completed = self._job.session.clock()
        time = msgspec.structs.replace(self.summary.time, completed=completed)
        return msgspec.structs.replace(self.summary, time=time, finish=finish)

    def commit(
        self, message: AssistantMessage, events: Sequence[SyncEvent]
    ) -> tuple[AssistantMessage, list[SyncEvent]]:
        """Reject a blank or longer summary; let a good one's last write make the boundary.

        Without `check_summary` every finished summary is let through. In parity even a failed one
        leaves its tail marker, unless it was aborted.
        """
        settings = self._job.settings
        if message.error is not None:
            leaves_marker = settings.parity and message.error.name != ERROR_ABORTED
            return message, self._tail_marker() if leaves_marker else []
        texts = self._texts(message.id, events)
        pinned = self._pin(texts)
        reason = self._fault(texts) if settings.check_summary else None
        if reason is not None:
            return _failed(message, *reason), []
        return message, [*pinned, *self._tail_marker(), *self._replay()]

    def _fault(self, texts: Sequence[TextPart]) -> tuple[str, str] | None:
        """Return the name of what is wrong with a summary, and why; None when nothing is."""
        text = _joined(texts)
        if not text.strip():
            return ERROR_SUMMARY_BLANK, "the summary is blank"
        size = estimate_tokens(text)
        replaced = estimate_view(self._job.head) + estimate_tokens(self._job.prior or "")
        if size >= replaced:
            reason = f"the summary has {size} tokens, what it replaces {replaced}"
            return ERROR_SUMMARY_NOT_SMALLER, reason
        return None

    def _pin(self, texts: list[TextPart]) -> list[SyncEvent]:
        """Put pinned sentences that the summary left out into its last text; change `texts`."""
        whole = _joined(texts)
        missing = [one for one in self._job.settings.pinned if one not in whole]
        if not missing or not whole.strip():
            return []
        last = texts[-1]
        texts[-1] = msgspec.structs.replace(last, text=with_pinned(last.text, missing))
        return [PartUpdated(part=texts[-1])]

    def _replay(self) -> list[SyncEvent]:
        """Return the events that ask the question again; a refusal may be its media's fault."""
        job = self._job
        if job.replay is None or self._replayed_id is not None:
            return []
        strip_media = job.overflow or job.settings.parity
        replayed_id, events = replay_events(job.session, job.replay, strip_media=strip_media)
        self._replayed_id = replayed_id
        return events

    def _tail_marker(self) -> list[SyncEvent]:
        if self._job.tail_start_id is None or self._job.hijacked is not None:
            return []
        tail = self._job.tail_start_id
        return [PartUpdated(part=msgspec.structs.replace(self._marker, tail_start_id=tail))]

    def _texts(self, message_id: str, events: Sequence[SyncEvent]) -> list[TextPart]:
        known = self._stored_parts(message_id) if self._by_model else ()
        stored: dict[str, Part] = {part.id: part for part in known}
        stored |= {event.part.id: event.part for event in events if isinstance(event, PartUpdated)}
        return [
            part for part in stored.values() if isinstance(part, TextPart) and not part.discarded
        ]

    def _stored_parts(self, message_id: str) -> Sequence[Part]:
        session = self._job.session
        return session.store.message(session.id, message_id).parts

    def result(self, summary: AssistantMessage) -> CompactionResult:
        """Return what came of it, once the summary is stored."""
        outcome: CompactionOutcome = "done" if summary.is_finished else "failed"
        if summary.error is not None:
            outcome = _OUTCOMES.get(summary.error.name, "failed")
        job = self._job
        stored = job.session.store.message(job.session.id, summary.id)
        said = [part for part in stored.parts if isinstance(part, TextPart) and not part.discarded]
        if outcome == "done" and not job.settings.parity and not _joined(said).strip():
            outcome = "blank"  # was let through, and is no boundary all the same
        after = estimate_view(job.session.visible(parity=job.settings.parity))
        return CompactionResult(
            outcome=outcome,
            request_id=self._request.id,
            summary_id=summary.id,
            tail_start_id=job.tail_start_id if outcome == "done" else None,
            tokens_before=self._before,
            tokens_after=after if outcome == "done" else self._before,
            replayed_id=self._replayed_id,
            error=None
            if summary.error is None
            else summary.error.data.message or summary.error.name,
        )


def _joined(texts: Sequence[TextPart]) -> str:
    return "\n\n".join(part.text for part in texts)


def _failed(message: AssistantMessage, name: str, reason: str) -> AssistantMessage:
    error = MessageError(name=name, data=ErrorData(message=reason))
    return msgspec.structs.replace(message, finish="error", error=error)
