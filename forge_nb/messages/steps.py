"""Which messages are steps: assistant messages that made a model call.

Steps are numbered from 1 over a session's calls in order, summaries and cut calls included. An
envelope that only carries a subtask's tool part made no call and has no number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.errors import NotFoundError
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import StepStartPart, ToolPart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge_nb.messages.message import MessageWithParts

__all__ = ["made_call", "message_of_step", "steps"]


def made_call(item: MessageWithParts) -> bool:
    """Return whether a message stands for a model call."""
    message = item.message
    if not isinstance(message, AssistantMessage):
        return False
    is_started = any(isinstance(part, StepStartPart) for part in item.parts)
    if is_started or message.tokens.is_reported:
        return True
    if message.model_id is None:
        return False  # a summary that a function wrote
    return not any(isinstance(part, ToolPart) for part in item.parts)


def steps(oldest_first: Iterable[MessageWithParts]) -> list[str]:
    """Return the ids of the messages that are steps; step k is at index k - 1."""
    return [item.message.id for item in oldest_first if made_call(item)]


def message_of_step(oldest_first: Iterable[MessageWithParts], at: int | str) -> str:
    """Return the assistant message that a step number or a message id means.

    Raises
    ------
    NotFoundError
        When the session has no such step or assistant message.
    """
    items = list(oldest_first)
    numbered = steps(items)
    if isinstance(at, int):
        if not 1 <= at <= len(numbered):
            msg = f"step {at} does not exist; the session has steps 1 to {len(numbered)}"
            raise NotFoundError(msg, at=at)
        return numbered[at - 1]
    known = {item.message.id for item in items if isinstance(item.message, AssistantMessage)}
    if at not in known:
        msg = (
            f"{at!r} is no assistant message of this session; give a step from 1 to {len(numbered)}"
        )
        raise NotFoundError(msg, at=at)
    return at
