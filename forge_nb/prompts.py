"""Questions on their way into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.events import MessageUpdated, PartUpdated, SessionUpdated
from forge_nb.inputs import PartSource, resolve_inputs
from forge_nb.messages.message import MessageTime, SessionModel, UserMessage
from forge_nb.messages.parts import Span, TextPart
from forge_nb.messages.wire import CONTINUE_AFTER_COMPACTION, CONTINUE_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.compaction.base import RunSetup
    from forge_nb.inputs import Input
    from forge_nb.messages.message import SessionInfo
    from forge_nb.session import Session

__all__ = ["add_prompt", "ask_to_go_on", "user_message"]


async def add_prompt(
    session: Session,
    setup: RunSetup,
    inputs: Input | Sequence[Input],
    *,
    wanted: dict[str, Any] | None = None,
    system: str | None = None,
    reply: bool = True,
) -> UserMessage:
    """Store a user message that waits for an answer.

    Parameters
    ----------
    session, setup
        Who is asked.
    inputs
        What is asked: words, files, agents, subtasks.
    wanted
        The `format` that the answer must have; None for any text.
    system
        A further system prompt for this question alone.
    reply
        Whether an answer is wanted; False only adds to what the model will know.

    Raises
    ------
    UsageError
        When a file cannot be read or nothing is asked; nothing is stored then.
    """
    message = user_message(session, setup)
    message = msgspec.structs.replace(message, format=wanted, system=system)
    parts = resolve_inputs(
        inputs,
        PartSource(
            session_id=session.id,
            message_id=message.id,
            new_id=session.new_id,
            workspace=Path(session.stored().info.directory or "."),
            agents=setup.agents,
            may_fail=setup.settings.parity,
        ),
    )
    await session.write(
        [
            SessionUpdated(info=_touched(session, setup)),
            MessageUpdated(message=message, prompt_state="waiting" if reply else None),
            *(PartUpdated(part=part) for part in parts),
        ]
    )
    return message


def _touched(session: Session, setup: RunSetup) -> SessionInfo:
    """Return the session's metadata as of a prompt: when it was, who is asked."""
    info = session.stored().info
    model = SessionModel(
        id=setup.spec.partition(":")[2] or setup.model.model_id,
        provider_id=setup.model.provider_id,
        variant=setup.model.variant,
    )
    time = msgspec.structs.replace(info.time, updated=session.clock())
    return msgspec.structs.replace(info, time=time, model=model, agent=setup.settings.agent)


def user_message(session: Session, setup: RunSetup) -> UserMessage:
    """Return a new user message for the session's agent and model."""
    return UserMessage(
        id=session.new_id("msg"),
        session_id=session.id,
        time=MessageTime(created=session.clock()),
        agent=setup.settings.agent,
        model=setup.model,
    )


async def ask_to_go_on(session: Session, setup: RunSetup) -> None:
    """Store the synthetic question behind a summary, by which the turn goes on."""
    message = user_message(session, setup)
    now = session.clock()
    part = TextPart(
        id=session.new_id("prt"),
        session_id=session.id,
        message_id=message.id,
        text=CONTINUE_AFTER_COMPACTION,
        synthetic=True,
        time=Span(start=now, end=now),
        metadata={CONTINUE_KEY: True},
    )
    await session.write([MessageUpdated(message=message), PartUpdated(part=part)])
