"""How full the context is before a call is made: an estimate that leans on what was reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.compaction.tail import estimate_view
from forge_nb.messages.message import AssistantMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.usage import TokenUsage

__all__ = ["estimate_context"]

_SCALES = (0.5, 2.0)  # bounds of a learned scale: outside them something else is wrong
_ABSURD_FACTOR = 4  # a report above this many times the estimate and the overhead is no report
_OVERHEAD_MAX = 60_000  # tokens that system prompt and tools may take (opencode: about 12,000)


def estimate_context(visible: Sequence[MessageWithParts]) -> int:
    """Return the estimated tokens that the next call puts into the window.

    The newest step in the view that reported its usage counts as reported, its answer included;
    what came after it is estimated and scaled by how far the estimate of what came before was off.
    Without such a step, since the newest boundary, all is estimated.

    Parameters
    ----------
    visible
        The view, in the order in which the model gets it.
    """
    anchor = _anchor(visible)
    if anchor is None:
        return estimate_view(visible)
    step, tokens = anchor
    context = tokens.context or 0
    before = [item for item in visible if item.seq < step.seq]
    after = [item for item in visible if item.seq > step.seq]
    estimated = estimate_view(before)
    if context > _ABSURD_FACTOR * estimated + _OVERHEAD_MAX:
        return estimate_view(visible)
    low, high = _SCALES
    scale = min(max(context / estimated, low), high) if estimated else 1.0
    answer = (tokens.output or 0) + (tokens.reasoning or 0)
    results = max(0, estimate_view([step]) - answer)  # tool outputs, which the answer lacks
    return context + answer + round(scale * (results + estimate_view(after)))


def _anchor(
    visible: Sequence[MessageWithParts],
) -> tuple[MessageWithParts, TokenUsage] | None:
    """Return the newest finished step behind the newest summary that reported its usage."""
    summaries = [item.seq for item in visible if _is_summary(item)]
    newest = max(summaries, default=0)
    steps = [
        (item, item.message.tokens)
        for item in visible
        if item.seq > newest
        if isinstance(item.message, AssistantMessage)
        if item.message.finish is not None and item.message.tokens.context
    ]
    return max(steps, key=lambda step: step[0].seq, default=None)


def _is_summary(item: MessageWithParts) -> bool:
    return isinstance(item.message, AssistantMessage) and item.message.is_summary
