"""The strategy ``extractive``: sentences of the session itself, without a call of a model."""

from __future__ import annotations

from forge_nb.messages.record import read_said
from forge_nb.providers.extractive import extract

__all__ = ["extractive"]


def extractive(conversation: str, prior: str | None) -> str:
    """Return sentences of a record and of the earlier summary under the usual headings."""
    return extract(read_said(conversation), prior)
