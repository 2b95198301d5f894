"""Compact a session: ask for a summary, and let it become a boundary only when it is good.

The request and the summary are ordinary rows, so that everybody can watch the summary being
written. They cut nothing until one transaction stores the summary's end together with the tail
marker; that transaction happens only if the summary finished without an error, is not blank, and
is shorter than what it replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.compaction.base import CompactionResult
from forge_nb.compaction.prompt import SUMMARY_PROMPT, SUMMARY_SYSTEM
from forge_nb.compaction.tail import estimate_view, select_tail
from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import (
    AssistantMessage,
    ErrorData,
    MessageError,
    MessageTime,
    UserMessage,
)
from forge_nb.messages.parts import CompactionPart, TextPart
from forge_nb.messages.render import ModelMessage, ModelPart, to_model_messages
from forge_nb.messages.usage import usable_tokens
from forge_nb.messages.wire import ERROR_SUMMARY_BLANK, ERROR_SUMMARY_NOT_SMALLER, SUMMARY_AGENT
from forge_nb.processor import Processor, status
from forge_nb.providers.base import ModelRequest
from forge_nb.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.compaction.base import CompactionOutcome, RunSetup
    from forge_nb.events import SyncEvent
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part
    from forge_nb.session import Session

__all__ = ["compact"]

_OUTCOMES: dict[str, CompactionOutcome] = {
    ERROR_SUMMARY_BLANK: "blank",
    ERROR_SUMMARY_NOT_SMALLER: "not smaller",
}


async def compact(
    session: Session, setup: RunSetup, *, auto: bool, overflow: bool = False
) -> CompactionResult:
    """Summarise what the model sees and put a boundary behind it.

    Parameters
    ----------
    session
        Which session.
    setup
        The model that writes the summary, and the settings.
    auto
        Whether the run loop asked for it, not a person.
    overflow
        Whether the provider had refused the request for its length.

    Returns
    -------
    CompactionResult
        Outcome ``nothing to do`` when there is nothing to summarise; nothing is written then.
    """
    visible = session.visible()
    before = estimate_view(visible)
    tail_start = _choose_tail(visible, setup)
    head = _before(visible, tail_start)
    if not to_model_messages(head):
        return CompactionResult(outcome="nothing to do", tokens_before=before, tokens_after=before)
    session.announce(status(session.id, "compacting"))
    request, marker = _request(session, setup, auto=auto, overflow=overflow)
    await session.write([MessageUpdated(message=request), PartUpdated(part=marker)])
    summary = _summary_message(session, setup, request.id)
    await session.update_message(summary)
    boundary = _Boundary(session, marker, tail_start, replaced_tokens=estimate_view(head))
    processor = Processor(
        session,
        setup.provider,
        summary,
        tools=ToolRegistry([]),
        settings=setup.settings,
        purpose="compaction",
        on_finish=boundary.commit,
    )
    await processor.process(_model_request(head, setup))
    return _result(session, processor.message, tail_start, before)


def _result(
    session: Session, summary: AssistantMessage, tail_start: str | None, before: int
) -> CompactionResult:
    outcome: CompactionOutcome = "done" if summary.is_finished else "failed"
    if summary.error is not None:
        outcome = _OUTCOMES.get(summary.error.name, "failed")
    return CompactionResult(
        outcome=outcome,
        request_id=summary.parent_id,
        summary_id=summary.id,
        tail_start_id=tail_start if outcome == "done" else None,
        tokens_before=before,
        tokens_after=estimate_view(session.visible()) if outcome == "done" else before,
    )


def _choose_tail(visible: Sequence[MessageWithParts], setup: RunSetup) -> str | None:
    settings = setup.settings
    if not settings.keep_tail:
        return None
    usable = usable_tokens(setup.provider.limits(setup.model.model_id))
    share = settings.tail_tokens_max if usable is None else int(usable * settings.tail_share)
    summaries = [
        item.seq
        for item in visible
        if isinstance(item.message, AssistantMessage) and item.message.is_summary
    ]
    return select_tail(
        visible,
        budget_tokens=min(share, settings.tail_tokens_max),
        after_seq=max(summaries, default=0),
    )


def _before(
    visible: Sequence[MessageWithParts], tail_start: str | None
) -> Sequence[MessageWithParts]:
    for place, item in enumerate(visible):
        if item.message.id == tail_start:
            return visible[:place]
    return visible


def _request(
    session: Session, setup: RunSetup, *, auto: bool, overflow: bool
) -> tuple[UserMessage, CompactionPart]:
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
        auto=auto,
        overflow=overflow if auto else None,
    )
    return request, marker


def _summary_message(session: Session, setup: RunSetup, parent_id: str) -> AssistantMessage:
    return AssistantMessage(
        id=session.new_id("msg"),
        session_id=session.id,
        parent_id=parent_id,
        time=MessageTime(created=session.clock()),
        provider_id=setup.model.provider_id,
        model_id=setup.model.model_id,
        agent=SUMMARY_AGENT,
        mode=SUMMARY_AGENT,
        summary=True,
    )


def _model_request(head: Sequence[MessageWithParts], setup: RunSetup) -> ModelRequest:
    asked = ModelMessage(
        id="summary-request",
        role="user",
        parts=(ModelPart(id="summary-request", kind="text", text=SUMMARY_PROMPT),),
    )
    messages = to_model_messages(
        head,
        target=setup.model,
        strip_media=True,
        tool_output_max_chars=setup.settings.summary_tool_chars,
    )
    return ModelRequest(
        model=setup.model,
        system=[SUMMARY_SYSTEM],
        messages=[*messages, asked],
        tools=[],
        purpose="compaction",
    )


class _Boundary:
    """Decides, in the write that ends the summary, whether it becomes a boundary."""

    def __init__(
        self,
        session: Session,
        marker: CompactionPart,
        tail_start: str | None,
        *,
        replaced_tokens: int,
    ) -> None:
        self._session = session
        self._marker = marker
        self._tail_start = tail_start
        self._replaced_tokens = replaced_tokens

    def commit(
        self, message: AssistantMessage, events: Sequence[SyncEvent]
    ) -> tuple[AssistantMessage, list[SyncEvent]]:
        """Reject a blank or longer summary; add the tail marker to a good one's last write."""
        if message.error is not None:
            return message, []
        text = self._text(message.id, events)
        if not text.strip():
            return _rejected(message, ERROR_SUMMARY_BLANK, "the summary is blank"), []
        size = estimate_tokens(text)
        if size >= self._replaced_tokens:
            reason = f"the summary has {size} tokens, what it replaces {self._replaced_tokens}"
            return _rejected(message, ERROR_SUMMARY_NOT_SMALLER, reason), []
        if self._tail_start is None:
            return message, []
        marker = msgspec.structs.replace(self._marker, tail_start_id=self._tail_start)
        return message, [PartUpdated(part=marker)]

    def _text(self, message_id: str, events: Sequence[SyncEvent]) -> str:
        stored = {part.id: part for part in self._stored_parts(message_id)}
        stored |= {event.part.id: event.part for event in events if isinstance(event, PartUpdated)}
        return "\n\n".join(part.text for part in stored.values() if isinstance(part, TextPart))

    def _stored_parts(self, message_id: str) -> Sequence[Part]:
        return self._session.store.message(self._session.id, message_id).parts


def _rejected(message: AssistantMessage, name: str, reason: str) -> AssistantMessage:
    error = MessageError(name=name, data=ErrorData(message=reason))
    return msgspec.structs.replace(message, finish="error", error=error)
