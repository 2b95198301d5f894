"""What a call of a turn sends, and which question it answers: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.messages.message import (
    CONTINUING_FINISHES,
    AssistantMessage,
    MessageWithParts,
    UserMessage,
)
from forge_nb.messages.parts import CompactionPart, ToolPart
from forge_nb.messages.render import (
    MediaSupport,
    ModelMessage,
    ModelPart,
    to_model_messages,
)
from forge_nb.providers.base import ModelRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.messages.parts import ModelRef
    from forge_nb.settings import Settings
    from forge_nb.tools.registry import ToolRegistry

__all__ = ["Question", "is_final_answer", "last_question", "turn_request"]

LAST_STEP = (
    "This is the last step of this turn: no further tool call will be carried out. Say what was "
    "done, what is still open, and what should come next."
)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A user message that is to be answered, with its parts."""

    message: UserMessage
    item: MessageWithParts


def last_question(visible: Sequence[MessageWithParts]) -> Question | None:
    """Return the newest user message that is not a request to compact; order is `seq`."""
    asked = [
        Question(message=item.message, item=item)
        for item in visible
        if isinstance(item.message, UserMessage)
        if not any(isinstance(part, CompactionPart) for part in item.parts)
    ]
    return max(asked, key=lambda question: question.item.seq, default=None)


def is_final_answer(item: MessageWithParts, question_id: str) -> bool:
    """Return whether a message ends the turn that a question began.

    It answers the question by its parent link and has a finish after which nothing follows. After
    a ``stop`` beside tool calls the turn goes on: some providers report that.
    """
    message = item.message
    if not isinstance(message, AssistantMessage) or message.parent_id != question_id:
        return False
    if message.finish is None or message.finish in CONTINUING_FINISHES:
        return False
    if message.finish != "stop" or message.structured is not None:
        return True
    return not any(isinstance(part, ToolPart) and not part.discarded for part in item.parts)


def turn_request(
    model: ModelRef,
    settings: Settings,
    question: UserMessage,
    visible: Sequence[MessageWithParts],
    *,
    tools: ToolRegistry,
    media: MediaSupport | None = None,
    extra_system: Sequence[str] = (),
    is_last: bool = False,
) -> ModelRequest:
    """Return what a call of a turn sends.

    Parameters
    ----------
    model
        Who answers; foreign reasoning becomes text for it.
    settings
        System prompts, and whether the history is read as opencode does.
    question
        What is asked; its own system text comes last.
    visible
        What the model may see.
    tools
        What it may call; what the question forbids is left out.
    media
        Which files the model takes; None for all. Others become a line of text.
    extra_system
        Further system prompts of this turn; a tool has to be called where there are any.
    is_last
        Whether the turn ends with this call; the model is told.
    """
    messages = to_model_messages(
        visible, target=model, media=media or MediaSupport(), parity=settings.parity
    )
    if is_last:
        note = ModelPart(id="last-step", kind="text", text=LAST_STEP)
        messages.append(ModelMessage(id="last-step", role="user", parts=(note,)))
    own = [] if question.system is None else [question.system]
    forbidden = {name for name, allowed in (question.tools or {}).items() if not allowed}
    return ModelRequest(
        model=model,
        system=[*settings.system, *extra_system, *own],
        messages=messages,
        tools=[spec for spec in tools.specs() if spec.name not in forbidden],
        purpose="turn",
        tool_choice="required" if extra_system else "auto",
    )
