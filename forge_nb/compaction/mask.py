"""The strategy ``mask``: clears old tool outputs and keeps every word that was said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.compaction.base import CompactionResult
from forge_nb.compaction.prune import PROTECTED_TOOLS, clear_outputs
from forge_nb.compaction.tail import estimate_view, tail_budget
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import ToolCompleted, ToolPart
from forge_nb.messages.wire import TOOL_OUTPUT_CLEARED
from forge_nb.processor import status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.compaction.base import CompactionJob
    from forge_nb.messages.message import MessageWithParts

__all__ = ["MaskOutputs", "maskable"]


class MaskOutputs:
    """Clears the tool outputs beyond the newest ones, without a summary and without a call.

    The rows keep the outputs, the model reads a placeholder.

    Parameters
    ----------
    keep_outputs
        Most outputs that stay, the newest (10 is what the observation masking of SWE-agent keeps).
    keep_tokens
        Most estimated tokens that they may have together; None for the budget of a tail.
    """

    name = "mask"

    def __init__(self, *, keep_outputs: int = 10, keep_tokens: int | None = None) -> None:
        self._keep_outputs = keep_outputs
        self._keep_tokens = keep_tokens

    async def compact(self, job: CompactionJob) -> CompactionResult:
        """Clear what is beyond both bounds; ``nothing to do`` where nothing is."""
        before = estimate_view(job.visible)
        budget = self._keep_tokens
        if budget is None:
            budget = tail_budget(job.settings, job.usable)
        parts = maskable(job.visible, keep_outputs=self._keep_outputs, keep_tokens=budget)
        if not parts:
            return CompactionResult(
                outcome="nothing to do", tokens_before=before, tokens_after=before
            )
        job.session.announce(status(job.session.id, "compacting"))
        await clear_outputs(job.session, parts)
        after = estimate_view(job.session.visible(parity=job.settings.parity))
        return CompactionResult(
            outcome="done", tokens_before=before, tokens_after=after, cleared=len(parts)
        )


def maskable(
    visible: Sequence[MessageWithParts], *, keep_outputs: int, keep_tokens: int
) -> list[ToolPart]:
    """Return the tool parts to clear, newest first: those beyond the count or the tokens.

    Outputs that the model has not answered yet stay, so do protected tools and outputs that are no
    longer than the placeholder.

    Parameters
    ----------
    visible
        What the model sees now, in view order.
    keep_outputs, keep_tokens
        How many of the newest outputs stay, and how many estimated tokens of them.
    """
    newest = max(visible, key=lambda item: item.seq, default=None)
    outputs = [
        (item.seq, part, part.state)
        for item in visible
        if isinstance(item.message, AssistantMessage)
        for part in item.parts
        if isinstance(part, ToolPart) and not part.discarded and part.tool not in PROTECTED_TOOLS
        if isinstance(part.state, ToolCompleted) and part.state.time.compacted is None
    ]
    outputs.sort(key=lambda one: one[0])  # stable: parts of a message keep their order
    kept = kept_tokens = 0
    found: list[ToolPart] = []
    for seq, part, state in reversed(outputs):
        kept += 1
        kept_tokens += estimate_tokens(state.output)
        is_unanswered = newest is not None and seq == newest.seq
        if is_unanswered or (kept <= keep_outputs and kept_tokens <= keep_tokens):
            continue
        if len(state.output) > len(TOOL_OUTPUT_CLEARED):
            found.append(part)
    return found
