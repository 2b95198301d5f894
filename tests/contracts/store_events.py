"""Short ways to say what happened, for tests of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.events import (
    MessageUpdated,
    Origin,
    PartUpdated,
    SessionUpdated,
    UsageRecord,
    UsageRecorded,
)
from forge_nb.messages.message import (
    AssistantMessage,
    MessageTime,
    SessionInfo,
    SessionTime,
    UserMessage,
)
from forge_nb.messages.parts import (
    StepFinishPart,
    TextPart,
    ToolCompleted,
    ToolPart,
    ToolSpan,
)
from forge_nb.messages.usage import CacheTokens, Cost, TokenUsage, UnitPrices

if TYPE_CHECKING:
    from forge_nb.events import PromptState, SyncEvent

__all__ = [
    "IMPORTED",
    "SESSION",
    "TOKENS",
    "asked",
    "billed",
    "conversation",
    "said",
    "session",
    "step_finish",
]

SESSION = "ses_1"
IMPORTED = Origin(format="opencode", source_hash="abc", source_id="ses_1")
TOKENS = TokenUsage(input=100, output=20, cache=CacheTokens(read=5))


def session(session_id: str = SESSION, *, title: str = "one", created: int = 1) -> SessionUpdated:
    """A session is created or renamed here."""
    time = SessionTime(created=created)
    return SessionUpdated(info=SessionInfo(id=session_id, title=title, time=time))


def asked(
    message_id: str, *, session_id: str = SESSION, state: PromptState | None = None
) -> MessageUpdated:
    """A person asks."""
    time = MessageTime(created=10)
    message = UserMessage(id=message_id, session_id=session_id, time=time)
    return MessageUpdated(message=message, prompt_state=state)


def said(
    message_id: str, text: str, *, part_id: str = "", session_id: str = SESSION
) -> PartUpdated:
    """A message has this text."""
    key = part_id or f"prt_{message_id}"
    part = TextPart(id=key, session_id=session_id, message_id=message_id, text=text)
    return PartUpdated(part=part)


def step_finish(message_id: str, key: str = "prt_end") -> StepFinishPart:
    """A model call ended, with a bill."""
    return StepFinishPart(
        id=key,
        session_id=SESSION,
        message_id=message_id,
        reason="stop",
        cost=0.5,
        tokens=TOKENS,
        prices=UnitPrices(input=3.0, output=15.0, source="scripted"),
        cost_source="computed",
    )


def billed(
    key: str = "prt_end", *, tokens: TokenUsage = TOKENS, usd: float | None = 0.5
) -> UsageRecorded:
    """A call was billed."""
    usage = UsageRecord(
        id=key,
        session_id=SESSION,
        message_id="msg_b",
        purpose="turn",
        provider_id="scripted",
        model_id="tour",
        tokens=tokens,
        cost=Cost(usd=usd, source="computed", prices=UnitPrices(input=3.0, output=15.0)),
        cost_recorded_usd=0.5,
        started_ms=3,
        finished_ms=9,
    )
    return UsageRecorded(usage=usage)


def conversation() -> list[SyncEvent]:
    """One turn: a question, an answer with a tool, the bill."""
    answer = AssistantMessage(
        id="msg_b",
        session_id=SESSION,
        parent_id="msg_a",
        time=MessageTime(created=11, completed=19),
        finish="stop",
        tokens=TOKENS,
    )
    state = ToolCompleted(input={"n": 1}, output="out", time=ToolSpan(start=12, end=13))
    tool = ToolPart(
        id="prt_t", session_id=SESSION, message_id="msg_b", call_id="c1", tool="read", state=state
    )
    return [
        session(),
        asked("msg_a", state="taken"),
        said("msg_a", "hello"),
        MessageUpdated(message=answer),
        PartUpdated(part=tool),
        PartUpdated(part=step_finish("msg_b")),
        billed(),
    ]
