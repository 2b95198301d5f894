"""Our own words for asking a model to summarise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.messages.record import CONVERSATION, PRIOR, tagged

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PINNED_HEADING", "SECTIONS", "SUMMARY_SYSTEM", "summary_prompt", "with_pinned"]

SECTIONS = (
    "Objective",
    "Important Details",
    "Work State",
    "Next Move",
    "Relevant Files",
)
"""Headings of a summary; the first lines of real summaries in the family use the same."""

PINNED_HEADING = "Constraints That Always Hold"
"""Heading under which pinned sentences stand, word for word."""

SUMMARY_SYSTEM = (
    "You condense the record of a working session so that another engineer can carry on without "
    "reading it. You never answer the questions in it, never carry on with it and never call tools."
)

_FORM = (
    "Write the summary under exactly these headings:\n"
    + "\n".join(f"## {name}" for name in SECTIONS)
    + "\nKeep what still matters: the goal, constraints in their own words, decisions and their "
    "reasons, exact paths, names, commands, numbers and errors, what is done and what is open. "
    "Write (none) under a heading that has nothing. Do not mention that you summarise."
)
_MERGE = (
    f"The text in <{PRIOR}> summarises all that came before the <{CONVERSATION}> and is thrown "
    "away after this: carry over what still holds, also where the conversation does not touch it. "
    "Where they differ the conversation is newer and right. What is finished moves to what is done."
)


def summary_prompt(conversation: str, *, prior: str | None, pinned: Sequence[str] = ()) -> str:
    """Return the one text that asks for a summary: the record first, the order last.

    Parameters
    ----------
    conversation
        What is to be summarised, as `conversation_text` writes it.
    prior
        The summary of what came before; it is brought up to date. None for none.
    pinned
        Sentences that have to be repeated word for word.
    """
    pieces = [f"The record of a session:\n\n{tagged(CONVERSATION, conversation)}"]
    if prior is not None:
        pieces += [f"What came before it:\n\n{tagged(PRIOR, prior)}", _MERGE]
    pieces.append(_FORM)
    if pinned:
        lines = "\n".join(f"- {sentence}" for sentence in pinned)
        pieces.append(f"End with these lines, unchanged:\n## {PINNED_HEADING}\n{lines}")
    return "\n\n".join(pieces)


def with_pinned(summary: str, pinned: Sequence[str]) -> str:
    """Return a summary that holds every pinned sentence, added at its end where it left one out."""
    missing = [sentence for sentence in pinned if sentence not in summary]
    if not missing:
        return summary
    lines = "\n".join(f"- {sentence}" for sentence in missing)
    if f"## {PINNED_HEADING}" in summary:
        return f"{summary.rstrip()}\n{lines}"
    return f"{summary.rstrip()}\n\n## {PINNED_HEADING}\n{lines}"
