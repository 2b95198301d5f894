"""Whether a summary becomes a boundary, decided in the write that ends it.

The request and the summary are ordinary rows, so that everybody can watch the summary being
written. They cut nothing until one transaction stores the summary's end together with the tail
marker; that transaction happens only if the summary finished without an error, is not blank, and
is shorter than what it replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.compaction.base import CompactionResult
from forge_nb.compaction.prompt import with_pinned
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
from forge_nb.messages.parts import CompactionPart, TextPart
from forge_nb.messages.wire import (
    ERROR_ABORTED,
    ERROR_SUMMARY_BLANK,
    ERROR_SUMMARY_NOT_SMALLER,
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
        directory = session.stored().info.directory
        return AssistantMessage(
            id=session.new_id("msg"),
            session_id=session.id,
            parent_id=self._request.id,
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
        session = self._job.session
        await session.write([MessageUpdated(message=self._request), PartUpdated(part=self._marker)])
        await session.update_message(self.summary)

    def commit(
        self, message: AssistantMessage, events: Sequence[SyncEvent]
    ) -> tuple[AssistantMessage, list[SyncEvent]]:
        """Reject a blank or longer summary; add the tail marker to a good one's last write.

        In parity every finished summary cuts, and even a failed one leaves its tail marker.
        """
        parity = not self._job.settings.check_summary
        if message.error is not None:
            is_abort = message.error.name == ERROR_ABORTED
            return message, self._tail_marker() if parity and not is_abort else []
        texts = self._texts(message.id, events)
        pinned = [] if parity else self._pin(texts)
        text = "\n\n".join(part.text for part in texts)
        if parity:
            return message, self._tail_marker()
        if not text.strip():
            return _rejected(message, ERROR_SUMMARY_BLANK, "the summary is blank"), []
        size = estimate_tokens(text)
        replaced = estimate_view(self._job.head) + estimate_tokens(self._job.prior or "")
        if size >= replaced:
            reason = f"the summary has {size} tokens, what it replaces {replaced}"
            return _rejected(message, ERROR_SUMMARY_NOT_SMALLER, reason), []
        return message, [*pinned, *self._tail_marker()]

    def _pin(self, texts: list[TextPart]) -> list[SyncEvent]:
        """Put pinned sentences that the summary left out into its last text; change `texts`."""
        if not texts or not any(part.text.strip() for part in texts):
            return []
        whole = "\n\n".join(part.text for part in texts)
        missing = [one for one in self._job.settings.pinned if one not in whole]
        if not missing:
            return []
        last = texts[-1]
        texts[-1] = msgspec.structs.replace(last, text=with_pinned(last.text, missing))
        return [PartUpdated(part=texts[-1])]

    def _tail_marker(self) -> list[SyncEvent]:
        if self._job.tail_start_id is None:
            return []
        tail = self._job.tail_start_id
        return [PartUpdated(part=msgspec.structs.replace(self._marker, tail_start_id=tail))]

    def _texts(self, message_id: str, events: Sequence[SyncEvent]) -> list[TextPart]:
        stored: dict[str, Part] = {part.id: part for part in self._stored_parts(message_id)}
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
        after = estimate_view(job.session.visible(parity=job.settings.parity))
        return CompactionResult(
            outcome=outcome,
            request_id=self._request.id,
            summary_id=summary.id,
            tail_start_id=job.tail_start_id if outcome == "done" else None,
            tokens_before=self._before,
            tokens_after=after if outcome == "done" else self._before,
        )


def _rejected(message: AssistantMessage, name: str, reason: str) -> AssistantMessage:
    error = MessageError(name=name, data=ErrorData(message=reason))
    return msgspec.structs.replace(message, finish="error", error=error)
