"""Our own words for asking a model to summarise."""

from __future__ import annotations

__all__ = ["SECTIONS", "SUMMARY_PROMPT", "SUMMARY_SYSTEM"]

SECTIONS = (
    "Objective",
    "Important Details",
    "Work State",
    "Next Move",
    "Relevant Files",
)
"""Headings of a summary; the first lines of real summaries in the family use the same."""

SUMMARY_SYSTEM = (
    "You condense a working session so that another engineer can carry on without reading it. "
    "You never answer the questions in it and never call tools."
)

SUMMARY_PROMPT = (
    "Write the summary of the session above under exactly these headings:\n"
    + "\n".join(f"## {name}" for name in SECTIONS)
    + "\nKeep what still matters: the goal, constraints in their own words, decisions and their "
    "reasons, exact paths, names, commands, numbers and errors, what is done and what is open. "
    "An earlier summary is merged in; what it says stays true unless the session says otherwise. "
    "Write (none) under a heading that has nothing. Do not mention that you summarise."
)
