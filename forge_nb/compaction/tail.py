"""Where the verbatim tail starts: a pure choice over the visible messages.

The newest whole turns are kept as far as they fit the budget. The newest turn with an answer, where
it does not fit, is split between messages, never inside one, so a tool call always stays with its
result; and never between signed reasoning and the messages of its turn that lean on it. (opencode
splits an older turn as well, and looks at no signature.) Weighing takes linear time.

Properties, proved in `tests/properties/test_tail.py`: head and tail are all; the tail holds its
budget and starts with a question, or inside the newest answered turn where no signature is cut off.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING

from forge_nb.messages.estimate import CHARS_PER_TOKEN, estimate_tokens
from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import CompactionPart, ReasoningPart
from forge_nb.messages.render import input_text, to_model_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part
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
    most = len(starts) if max_turns is None else max(max_turns, 0)
    weights = _JsonWeights(messages) if parity else _Weights(messages)
    start = end = len(messages)
    left = budget_tokens
    for first in reversed(starts[len(starts) - min(most, len(starts)) :]):
        weight = weights.of(first, start)
        if weight > left:
            if parity or _is_unanswered(messages, start):
                places = _places(messages, first, start, parity=parity)
                fitting = (place for place in places if weights.of(place, start) <= left)
                start = next(fitting, start)
            break
        left -= weight
        start = first
    return None if start in {0, end} else messages[start].message.id


def _is_unanswered(messages: Sequence[MessageWithParts], start: int) -> bool:
    """Return whether nothing but questions stands from a place on, or nothing at all."""
    return all(isinstance(item.message, UserMessage) for item in messages[start:])


def _places(
    messages: Sequence[MessageWithParts], first: int, end: int, *, parity: bool
) -> list[int]:
    """Return where a turn may be split: before a message that leans on no signature before it."""
    places: list[int] = []
    has_signature = False
    for place in range(first, end):
        is_signed = not parity and any(map(_is_signed, messages[place].parts))
        if place > first and (is_signed or not has_signature):
            places.append(place)
        has_signature = has_signature or is_signed
    return places


def _is_signed(part: Part) -> bool:
    """Return whether a part is reasoning that its provider wants back as it was."""
    return isinstance(part, ReasoningPart) and bool(part.metadata) and not part.discarded


class _Weights:
    """Estimated tokens of any run of messages, from sums that are made once."""

    def __init__(self, messages: Sequence[MessageWithParts]) -> None:
        self._sums = [0, *accumulate(estimate_view([item]) for item in messages)]

    def of(self, start: int, end: int) -> int:
        """Return the weight of the messages from `start` up to `end`."""
        return self._sums[end] - self._sums[start]


class _JsonWeights:
    """A quarter of the characters of the messages' JSON in the AI SDK's form, as opencode weighs.

    A run's JSON is an array: its members, a comma between any two, two brackets.
    """

    def __init__(self, messages: Sequence[MessageWithParts]) -> None:
        members = [[_json(one) for sent in _sent(item) for one in _sdk(sent)] for item in messages]
        self._counts = [0, *accumulate(map(len, members))]
        self._chars = [0, *accumulate(sum(map(len, texts)) for texts in members)]

    def of(self, start: int, end: int) -> int:
        """Return the weight of the messages from `start` up to `end`."""
        count = self._counts[end] - self._counts[start]
        chars = self._chars[end] - self._chars[start] + max(count - 1, 0) + len("[]")
        return (chars + CHARS_PER_TOKEN // 2) // CHARS_PER_TOKEN


def _sent(item: MessageWithParts) -> list[ModelMessage]:
    return to_model_messages([item], parity=True)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _sdk(message: ModelMessage) -> list[dict[str, object]]:
    """Return a message in the AI SDK's form: results stand in a message of their own."""
    said: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for part in message.parts:
        if part.kind == "tool":
            call = {"toolCallId": part.call_id, "toolName": part.tool}
            said.append({"type": "tool-call", **call, "input": part.input})
            output = {"type": "error-text" if part.is_error else "text", "value": part.text}
            results.append({"type": "tool-result", **call, "output": output})
        elif part.kind == "file":
            named = {"filename": part.text} if part.text else {}
            said.append({"type": "file", "mediaType": part.mime, **named, "data": part.url})
        else:
            options = {"providerOptions": part.metadata} if part.metadata else {}
            word = "reasoning" if part.kind == "reasoning" else "text"
            said.append({"type": word, "text": part.text, **options})
    wired: list[dict[str, object]] = [{"role": message.role, "content": said}]
    return [*wired, {"role": "tool", "content": results}] if results else wired
