"""Look over a session that comes in: count it, bill it, and name what is odd."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forge_nb.events import UsageRecord, UsageRecorded
from forge_nb.exchange.report import ImportedSession, Oddity
from forge_nb.history import filter_compacted, find_boundaries
from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import (
    ReasoningPart,
    StepFinishPart,
    TextPart,
    ToolPart,
    ToolPending,
    UnknownPart,
    is_open,
)
from forge_nb.messages.usage import NO_TOKENS, TOKEN_KINDS, Cost, cost_of
from forge_nb.providers.catalog import prices_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from forge_nb.events import Purpose, SyncEvent
    from forge_nb.messages.message import Message, MessageWithParts, SessionInfo
    from forge_nb.messages.parts import Part
    from forge_nb.messages.usage import TokenUsage

__all__ = ["review", "usage_of"]

_STATES = ("completed", "error", "running", "pending")
_CENT = 0.000_001  # recorded costs are sums of floats; closer than this they are equal


def usage_of(message: Message, part: Part) -> Iterator[SyncEvent]:
    """Yield the usage record that a step-finish part stands for."""
    if not isinstance(part, StepFinishPart) or not isinstance(message, AssistantMessage):
        return
    purpose: Purpose = "compaction" if message.is_summary else "turn"
    is_lost = part.reason == "unknown" and not part.tokens.is_reported
    tokens = NO_TOKENS if is_lost else part.tokens
    yield UsageRecorded(
        usage=UsageRecord(
            id=part.id,
            session_id=part.session_id,
            message_id=part.message_id,
            purpose=purpose,
            provider_id=message.provider_id,
            model_id=message.model_id,
            tokens=tokens,
            cost=_best_cost(message, part, tokens),
            cost_recorded_usd=part.cost,
            started_ms=message.time.created,
            finished_ms=message.time.completed,
        )
    )


def _best_cost(message: AssistantMessage, part: StepFinishPart, tokens: TokenUsage) -> Cost:
    """Take what was recorded; a recorded 0 for real tokens is looked up, and may stay unknown."""
    if part.cost:
        return Cost(usd=part.cost, source="recorded")
    if not tokens.is_reported:
        return Cost()
    prices = prices_for(
        message.provider_id,
        message.model_id,
        at_ms=message.time.created,
        context_tokens=tokens.context or 0,
    )
    return cost_of(tokens, prices)


def review(
    info: SessionInfo,
    messages: Sequence[MessageWithParts],
    *,
    known: AbstractSet[str],
    change: str,
    oddities: Iterable[Oddity] = (),
) -> ImportedSession:
    """Return a session's counts, sums and oddities.

    Parameters
    ----------
    info, messages
        The session, oldest first.
    known
        Ids of the sessions that are or will be in the store; for missing children and parents.
    change
        new, grown, unchanged or older.
    oddities
        What was seen already, while reading.
    """
    parts = [part for item in messages for part in item.parts]
    finishes = [part for part in parts if isinstance(part, StepFinishPart)]
    states = Counter(part.status for part in parts if isinstance(part, ToolPart))
    sums = {
        kind: sum(part.tokens.kinds[place] or 0 for part in finishes)
        for place, kind in enumerate(TOKEN_KINDS)
    }
    cost = sum(part.cost or 0 for part in finishes)
    warnings = [
        *oddities,
        *_open_parts(parts),
        *_rollup(info, sums, cost),
        *_missing(info, parts, known),
        *_unpriced(messages),
        *_unknown(parts),
        *_failed(messages),
    ]
    return ImportedSession(
        id=info.id,
        title=info.title,
        change=change,
        messages=len(messages),
        user_messages=sum(isinstance(item.message, UserMessage) for item in messages),
        parts=len(parts),
        tools={state: states[state] for state in _STATES},  # type: ignore[index]
        step_finishes=len(finishes),
        tokens=sums,
        cost_recorded_usd=cost,
        compactions=len(find_boundaries(messages)),
        view_messages=len(filter_compacted(reversed(messages))),
        warnings=tuple(warnings),
    )


def _open_parts(parts: Sequence[Part]) -> Iterator[Oddity]:
    for part in parts:
        if isinstance(part, ToolPart) and is_open(part):
            detail = f"tool {part.tool} was left {part.status} ({part.id})"
            yield Oddity(code=f"{part.status}_tool", detail=detail)
        elif isinstance(part, TextPart | ReasoningPart) and is_open(part):
            kind = "text" if isinstance(part, TextPart) else "reasoning"
            detail = f"a {kind} block was never ended ({part.id})"
            yield Oddity(code=f"open_{kind}", detail=detail)


def _rollup(info: SessionInfo, sums: dict[str, int], cost: float) -> Iterator[Oddity]:
    """Compare the session's own sums with those of its steps."""
    if info.tokens is None and info.cost is None and any(sums.values()):
        detail = "the session records no totals of its own; they are summed from its steps"
        yield Oddity(code="no_rollup", detail=detail)
    if info.tokens is not None:
        for kind, recorded in zip(TOKEN_KINDS, info.tokens.kinds, strict=True):
            if recorded is not None and recorded != sums[kind]:
                detail = f"{kind} tokens: the session says {recorded:,}, its steps {sums[kind]:,}"
                yield Oddity(code="rollup_mismatch", detail=detail)
    if info.cost is not None and abs(info.cost - cost) > _CENT:
        detail = f"cost: the session says ${info.cost:.6f}, its steps ${cost:.6f}"
        yield Oddity(code="rollup_mismatch", detail=detail)


def _missing(info: SessionInfo, parts: Sequence[Part], known: AbstractSet[str]) -> Iterator[Oddity]:
    if info.parent_id is not None and info.parent_id not in known:
        detail = f"the parent session {info.parent_id} is not in the store"
        yield Oddity(code="missing_parent", detail=detail)
    for part in parts:
        child = _child_of(part)
        if child is not None and child not in known:
            detail = f"the child session {child} of {part.id} is not in the store"
            yield Oddity(code="missing_child", detail=detail)


def _child_of(part: Part) -> str | None:
    """Return the session that a task tool ran in."""
    if not isinstance(part, ToolPart) or isinstance(part.state, ToolPending):
        return None
    child = (part.state.metadata or {}).get("sessionId")
    return child if isinstance(child, str) else None


def _unpriced(messages: Sequence[MessageWithParts]) -> Iterator[Oddity]:
    calls: Counter[str] = Counter()
    for item in messages:
        message = item.message
        for part in item.parts:
            if not isinstance(message, AssistantMessage) or not isinstance(part, StepFinishPart):
                continue
            if part.tokens.is_reported and _best_cost(message, part, part.tokens).usd is None:
                calls[f"{message.provider_id}/{message.model_id}"] += 1
    for model, count in calls.items():
        detail = f"{count} calls of {model} have no known price: their cost is unknown, not 0"
        yield Oddity(code="unpriced", detail=detail)


def _unknown(parts: Sequence[Part]) -> Iterator[Oddity]:
    kinds = Counter(part.kind for part in parts if isinstance(part, UnknownPart))
    for kind, count in kinds.items():
        detail = f"{count} parts of kind {kind!r} are kept as they are"
        yield Oddity(code="unknown_part", detail=detail)


def _failed(messages: Sequence[MessageWithParts]) -> Iterator[Oddity]:
    done = {boundary.summary_id for boundary in find_boundaries(messages)}
    for item in messages:
        message = item.message
        is_summary = isinstance(message, AssistantMessage) and message.is_summary
        if is_summary and message.id not in done:
            detail = f"summary {message.id} did not succeed and cuts nothing"
            yield Oddity(code="failed_compaction", detail=detail)
