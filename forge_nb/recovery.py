"""Close what an interrupted run left open.

After a crash the last rows may hold text without an end, tools that are pending or running, and
messages without a completion time. Recovery closes local rows only: what was imported stays as it
was recorded, and is mended in the view instead. It never touches a session that somebody runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import (
    ReasoningPart,
    Span,
    TextPart,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolRunning,
    ToolSpan,
    is_open,
)
from forge_nb.messages.wire import INTERRUPTED_KEY, TOOL_ABORTED

if TYPE_CHECKING:
    from forge_nb.events import SyncEvent
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part
    from forge_nb.store.base import Store

__all__ = ["RecoveryReport", "closed_part", "recover", "repairs"]


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery closed in one session."""

    session_id: str
    messages: int = 0
    parts: int = 0
    prompts: int = 0
    """Prompts that were being answered and wait again."""


def recover(store: Store, session_id: str, *, now_ms: int) -> RecoveryReport:
    """Close the open local rows of a session that nobody runs.

    Parameters
    ----------
    store
        Where the session lives.
    session_id
        Which session; the caller holds its lease.
    now_ms
        Time to write into what is closed, milliseconds UTC.

    Returns
    -------
    RecoveryReport
        All zero when nothing was open.
    """
    events: list[SyncEvent] = []
    for item in store.unfinished(session_id):
        events += repairs(item, now_ms=now_ms)
    taken = store.prompts(session_id, "taken")
    events += [MessageUpdated(message=item.message, prompt_state="waiting") for item in taken]
    if events:
        store.apply(events).result()
    parts = sum(isinstance(event, PartUpdated) for event in events)
    return RecoveryReport(
        session_id=session_id,
        parts=parts,
        messages=len(events) - parts - len(taken),
        prompts=len(taken),
    )


def repairs(item: MessageWithParts, *, now_ms: int) -> list[SyncEvent]:
    """Return the events that close one interrupted message; pure.

    A user's message needs none. A message that was cut keeps no finish and no error: that is how
    an interruption is told from an abort and from a failure.
    """
    message = item.message
    if not isinstance(message, AssistantMessage):
        return []
    events: list[SyncEvent] = [
        PartUpdated(part=closed_part(part, now_ms)) for part in item.parts if is_open(part)
    ]
    if message.time.completed is None:
        time = msgspec.structs.replace(message.time, completed=now_ms)
        events.append(MessageUpdated(message=msgspec.structs.replace(message, time=time)))
    return events


def closed_part(part: Part, now_ms: int) -> Part:
    """Return an open part as an interruption leaves it: closed, with what it holds."""
    match part:
        case TextPart() | ReasoningPart() if part.time is not None:
            span = Span(start=part.time.start, end=now_ms)
            return msgspec.structs.replace(part, time=span)
        case ToolPart(state=ToolRunning() | ToolPending() as state):
            start = state.time.start if isinstance(state, ToolRunning) else now_ms
            known = (state.metadata or {}) if isinstance(state, ToolRunning) else {}
            failed = ToolFailed(
                input=state.input,
                error=TOOL_ABORTED,
                metadata={**known, INTERRUPTED_KEY: True},
                time=ToolSpan(start=start, end=now_ms),
            )
            return msgspec.structs.replace(part, state=failed)
        case _:
            return part
