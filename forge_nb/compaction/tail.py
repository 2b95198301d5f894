"""Where the verbatim tail starts: a pure choice over the visible messages.

The newest whole turns are kept as far as they fit the budget. A newest turn that is larger than
the budget is split between messages, never inside one, so a tool call always stays with its result
and signed reasoning with the calls that follow it. (opencode splits an older turn as well.)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import CompactionPart
from forge_nb.messages.render import input_text, to_model_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.render import ModelMessage
    from forge_nb.settings import Settings

__all__ = ["estimate_view", "is_request", "select_tail", "tail_budget", "without_boundaries"]

_MOST_OF_WINDOW = 0.5  # a tail that fills more leaves no room to work in


def estimate_view(messages: Sequence[MessageWithParts]) -> int:
    """Return the estimated tokens of what the model reads of these messages."""
    return sum(
        estimate_tokens(part.text) + (estimate_tokens(input_text(part)) if part.input else 0)
        for message in to_model_messages(messages)
        for part in message.parts
    )


def is_request(item: MessageWithParts) -> bool:
    """Return whether a message asks to compact."""
    return any(isinstance(part, CompactionPart) for part in item.parts)


def without_boundaries(messages: Sequence[MessageWithParts]) -> list[MessageWithParts]:
    """Return messages without requests to compact and the summaries that answer them."""
    requests = {item.message.id for item in messages if is_request(item)}
    return [
        item
        for item in messages
        if item.message.id not in requests
        if not (
            isinstance(item.message, AssistantMessage)
            and item.message.is_summary
            and item.message.parent_id in requests
        )
    ]


def tail_budget(settings: Settings, usable: int | None) -> int:
    """Return how many estimated tokens a tail may have.

    A quarter of the usable window, at least 2,000 and at most 15,000 (opencode 1.18). In a small
    window never more than half of it, except in parity.

    Parameters
    ----------
    settings
        `tail_tokens` instead of the share, and the bounds.
    usable
        Usable window in tokens; None when unknown.
    """
    if not settings.keep_tail or (settings.tail_turns is not None and settings.tail_turns <= 0):
        return 0
    if settings.tail_tokens is not None:
        return settings.tail_tokens
    if usable is None:
        return settings.tail_tokens_max
    budget = max(settings.tail_tokens_min, int(usable * settings.tail_share))
    budget = min(budget, settings.tail_tokens_max)
    return budget if settings.parity else min(budget, int(usable * _MOST_OF_WINDOW))


def select_tail(
    messages: Sequence[MessageWithParts],
    *,
    budget_tokens: int,
    max_turns: int | None = None,
    after_seq: int = 0,
    parity: bool = False,
) -> str | None:
    """Return the id of the first message of the tail, or None for no tail.

    Parameters
    ----------
    messages
        What the model sees now, in view order, without requests and summaries.
    budget_tokens
        How many estimated tokens the tail may have.
    max_turns
        Most turns in it; None for as many as fit.
    after_seq
        Only messages with a greater `seq` may be in the tail: that of the newest summary, so that
        no older boundary slips into it.
    parity
        Weigh messages as opencode does, by the length of their JSON in the AI SDK's form.

    Returns
    -------
    str or None
        None when nothing fits, and when everything would: then there is nothing to summarise.
    """
    starts = [
        place
        for place, item in enumerate(messages)
        if isinstance(item.message, UserMessage) and item.seq > after_seq
    ]
    wanted = starts if max_turns is None else starts[-max_turns:]
    weigh = _json_tokens if parity else estimate_view
    weights = [weigh([item]) for item in messages]
    start = len(messages)
    left = budget_tokens
    for first in reversed(wanted):
        weight = sum(weights[first:start])
        if weight > left:
            if parity or start == len(messages):
                start = _split(weights, first, start, left)
            break
        left -= weight
        start = first
    return None if start in {0, len(messages)} else messages[start].message.id


def _json_tokens(messages: Sequence[MessageWithParts]) -> int:
    """Return a quarter of the characters of the messages' JSON in the AI SDK's form."""
    written = [wired for message in to_model_messages(messages) for wired in _sdk(message)]
    return estimate_tokens(json.dumps(written, ensure_ascii=False, separators=(",", ":")))


def _sdk(message: ModelMessage) -> list[dict[str, object]]:
    said: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for part in message.parts:
        if part.kind != "tool":
            word = part.kind if part.kind in {"reasoning", "file"} else "text"
            said.append({"type": word, "text": part.text})
            continue
        call = {"toolCallId": part.call_id, "toolName": part.tool}
        said.append({"type": "tool-call", **call, "input": part.input})
        kind = "error-text" if part.is_error else "text"
        output = {"type": kind, "value": part.text}
        results.append({"type": "tool-result", **call, "output": output})
    wired: list[dict[str, object]] = [{"role": message.role, "content": said}]
    return [*wired, {"role": "tool", "content": results}] if results else wired


def _split(weights: Sequence[int], first: int, end: int, left: int) -> int:
    """Return the earliest place inside a turn from which the rest of it fits; `end` for none."""
    start = end
    for place in range(end - 1, first, -1):
        left -= weights[place]
        if left < 0:
            break
        start = place
    return start
