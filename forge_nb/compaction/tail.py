"""Where the verbatim tail starts: a pure choice over the visible messages.

The newest whole turns are kept as far as they fit the budget. A newest turn that is larger than
the budget is split between messages, never inside one, so a tool call always stays with its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import UserMessage
from forge_nb.messages.parts import CompactionPart
from forge_nb.messages.render import to_model_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.messages.message import MessageWithParts

__all__ = ["estimate_view", "is_request", "select_tail"]


def estimate_view(messages: Sequence[MessageWithParts]) -> int:
    """Return the estimated tokens of what the model reads of these messages."""
    return sum(
        estimate_tokens(part.text) + estimate_tokens(str(part.input or ""))
        for message in to_model_messages(messages)
        for part in message.parts
    )


def is_request(item: MessageWithParts) -> bool:
    """Return whether a message asks to compact."""
    return any(isinstance(part, CompactionPart) for part in item.parts)


def select_tail(
    messages: Sequence[MessageWithParts], *, budget_tokens: int, after_seq: int = 0
) -> str | None:
    """Return the id of the first message of the tail, or None for no tail.

    Parameters
    ----------
    messages
        What the model sees now, in view order, without the new request.
    budget_tokens
        How many estimated tokens the tail may have.
    after_seq
        Only messages with a greater `seq` may be in the tail; the last summary's, so that an
        older summary never slips into it.

    Returns
    -------
    str or None
        None when nothing fits, and when everything would: then there is nothing to summarise.
    """
    weights = [estimate_view([item]) for item in messages]
    start = len(messages)
    left = budget_tokens
    for first in reversed(_turn_starts(messages, after_seq)):
        weight = sum(weights[first:start])
        if weight > left:
            break
        left -= weight
        start = first
    if start == len(messages):
        start = _split(messages, weights, budget_tokens, after_seq)
    if start in {0, len(messages)}:
        return None
    return messages[start].message.id


def _turn_starts(messages: Sequence[MessageWithParts], after_seq: int) -> list[int]:
    return [
        place
        for place, item in enumerate(messages)
        if isinstance(item.message, UserMessage) and not is_request(item) and item.seq > after_seq
    ]


def _split(
    messages: Sequence[MessageWithParts], weights: list[int], budget: int, after_seq: int
) -> int:
    """Return the earliest place from which the rest fits the budget."""
    start = len(messages)
    total = 0
    for place in range(len(messages) - 1, -1, -1):
        total += weights[place]
        if total > budget or messages[place].seq <= after_seq or is_request(messages[place]):
            break
        start = place
    return start
