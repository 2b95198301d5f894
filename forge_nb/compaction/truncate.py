"""The strategy ``truncate``: drops the head, and says in a line what was dropped."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forge_nb.messages.record import read_said

if TYPE_CHECKING:
    from forge_nb.messages.record import Speaker

__all__ = ["truncate"]

_COUNTED: dict[Speaker, str] = {
    "User": "question",
    "Assistant": "answer",
    "Assistant tool call": "tool call",
}
_QUESTION_CHARS = 300  # of the first question, so that the goal is not lost


def truncate(conversation: str, prior: str | None) -> str:
    r"""Return a note of what was left out; an earlier summary or note stays before it.

    Examples
    --------
    >>> truncate("[User]: why?\n\n[Assistant]: because", None)
    'Earlier messages were left out: 1 question, 1 answer, 0 tool calls. It began with: why?'
    """
    said = read_said(conversation)
    counts = Counter(one.speaker for one in said)
    numbers = ", ".join(
        f"{counts[speaker]} {word}{'' if counts[speaker] == 1 else 's'}"
        for speaker, word in _COUNTED.items()
    )
    note = f"Earlier messages were left out: {numbers}."
    if prior is not None:
        return f"{prior}\n{note}"
    first = next((" ".join(one.text.split()) for one in said if one.speaker == "User"), "")
    return f"{note} It began with: {first[:_QUESTION_CHARS]}" if first else note
