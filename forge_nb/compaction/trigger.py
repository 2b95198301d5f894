"""How full the context is before a call is made: an estimate that leans on what was reported.

An estimate, never a measurement: what the next call really takes is known when it has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.compaction.tail import estimate_view
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import FilePart, ToolCompleted, ToolPart
from forge_nb.messages.render import is_media, to_model_messages
from forge_nb.messages.usage import used_tokens
from forge_nb.messages.wire import TOOL_OUTPUT_CLEARED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part

__all__ = ["estimate_context", "is_absurd"]

_SCALES = (0.5, 2.0)  # bounds of a learned scale: outside them something else is wrong
_ABSURD_FACTOR = 4  # a report above this many times the estimate and the overhead is no report
_OVERHEAD_MAX = 60_000  # tokens that system prompt and tools may take (opencode: about 12,000)


def estimate_context(visible: Sequence[MessageWithParts]) -> int:
    """Return the estimated tokens that the next call puts into the window.

    The newest step behind the newest summary that finished and reported its usage counts as
    reported, its answer included. What came after it is estimated, and what was cleared since is
    taken off, both scaled by how far the estimate of what came before was off. Without such a
    step, or where its report is absurd, all is estimated.

    Parameters
    ----------
    visible
        The view, in the order in which the model gets it.
    """
    step = _anchor(visible)
    if step is None:
        return estimate_view(visible)
    message = step.message
    tokens = message.tokens if isinstance(message, AssistantMessage) else None
    used = (used_tokens(tokens) if tokens is not None else None) or 0
    context = (tokens.context if tokens is not None else None) or used
    before = [item for item in visible if item.seq < step.seq]
    after = [item for item in visible if item.seq > step.seq]
    estimated = estimate_view(before)
    if is_absurd(context, estimated) and not _has_media(before):
        return estimate_view(visible)
    low, high = _SCALES
    scale = min(max(context / estimated, low), high) if estimated else 1.0
    news = _result_tokens(step) + estimate_view(after)
    gone = _cleared_since(before, message.time.created)
    return max(0, used + round(scale * (news - gone)))


def is_absurd(context: int, estimated: int) -> bool:
    """Return whether a reported context cannot be true, held against an estimate of the same.

    Providers have been seen to report many times what was sent, which would compact at once.

    Examples
    --------
    >>> is_absurd(5_000_000, 20_000), is_absurd(90_000, 20_000)
    (True, False)
    """
    return context > _ABSURD_FACTOR * estimated + _OVERHEAD_MAX


def _anchor(visible: Sequence[MessageWithParts]) -> MessageWithParts | None:
    """Return the newest finished step behind the newest summary that reported its usage."""
    newest = max((item.seq for item in visible if _is_summary(item)), default=0)
    steps = [
        item
        for item in visible
        if item.seq > newest
        if isinstance(item.message, AssistantMessage) and item.message.is_finished
        if (used_tokens(item.message.tokens) or 0) > 0
    ]
    return max(steps, key=lambda item: item.seq, default=None)


def _is_summary(item: MessageWithParts) -> bool:
    return isinstance(item.message, AssistantMessage) and item.message.is_summary


def _result_tokens(step: MessageWithParts) -> int:
    """Return the estimated tokens of a step's tool results, which its own call did not hold."""
    parts = (part for message in to_model_messages([step]) for part in message.parts)
    return sum(estimate_tokens(part.text) for part in parts if part.kind == "tool")


def _cleared_since(before: Iterable[MessageWithParts], started_ms: int) -> int:
    """Return the estimated tokens that were hidden after a step had read them."""
    states = (
        part.state
        for item in before
        for part in item.parts
        if isinstance(part, ToolPart) and not part.discarded
        if isinstance(part.state, ToolCompleted)
    )
    hidden = (state.output for state in states if (state.time.compacted or started_ms) > started_ms)
    placeholder = estimate_tokens(TOOL_OUTPUT_CLEARED)
    return sum(estimate_tokens(output) - placeholder for output in hidden)


def _has_media(messages: Iterable[MessageWithParts]) -> bool:
    """Return whether there is anything whose tokens cannot be estimated from characters."""
    return any(_is_media(part) for item in messages for part in item.parts)


def _is_media(part: Part) -> bool:
    if isinstance(part, FilePart):
        return is_media(part.mime)
    state = part.state if isinstance(part, ToolPart) else None
    return isinstance(state, ToolCompleted) and bool(state.attachments)
