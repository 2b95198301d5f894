"""Work that is handed over: a child session with an agent of its own.

The child has its own messages, steps and costs and names its parent; the parent stores the order
and the result as a call of the tool ``task``, whose metadata names the child. A model hands over by
calling the tool, a person by a subtask part in a prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.errors import ToolError
from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.messages.message import (
    AssistantMessage,
    ErrorData,
    MessageError,
    MessagePath,
    MessageTime,
)
from forge_nb.messages.parts import (
    ModelRef,
    Span,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolRunning,
    ToolSpan,
)
from forge_nb.messages.wire import ABORTED_MESSAGE, ERROR_ABORTED
from forge_nb.tools.registry import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge_nb.agents import Agent
    from forge_nb.messages.message import MessageWithParts, UserMessage
    from forge_nb.session import Session

__all__ = [
    "CHILD_RULES",
    "ChildResult",
    "Order",
    "Spawn",
    "child_title",
    "open_order",
    "run_subtask",
    "task_tool",
]

TASK_TOOL = "task"
CHILD_RULES: list[dict[str, Any]] = [{"permission": TASK_TOOL, "pattern": "*", "action": "deny"}]
"""A child's own rules: work that was handed over is not handed on."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a child session is to do."""

    parent_id: str
    agent: str
    prompt: str
    description: str
    task_id: str | None = None
    """Id of a child session to go on with."""
    model: ModelRef | None = None


class ChildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a child session did."""

    session_id: str
    outcome: Literal["completed", "aborted", "failed"]
    text: str = ""
    error: str | None = None


Spawn = Callable[[Order, Callable[[str, Any], None]], Awaitable[ChildResult]]
"""Runs an order; tells the child's id and model as soon as it exists."""


def child_title(order: Order) -> str:
    """Return the title of an order's session."""
    return f"{order.description} (@{order.agent} subagent)"


def result_text(result: ChildResult) -> str:
    """Return what the parent's model reads of a child that is done."""
    return (
        f'<task id="{result.session_id}" state="completed">\n'
        f"<task_result>\n{result.text}\n</task_result>\n</task>"
    )


def task_tool(spawn: Spawn, agents: Mapping[str, Agent]) -> Tool:
    """Return the tool by which a model hands work over.

    Parameters
    ----------
    spawn
        Runs the order.
    agents
        Whom the model may ask, by name.
    """

    async def task(
        description: str,
        prompt: str,
        *,
        subagent_type: str,
        context: ToolContext,
        task_id: str | None = None,
    ) -> ToolOutput:
        if subagent_type not in agents:
            msg = f"there is no agent {subagent_type!r}; there are {sorted(agents)}"
            raise ToolError(msg, tool=TASK_TOOL)
        order = Order(
            parent_id=context.session_id,
            agent=subagent_type,
            prompt=prompt,
            description=description,
            task_id=task_id,
        )
        known: dict[str, Any] = {}

        def started(child_id: str, model: Any) -> None:
            known.update(_facts(order, child_id, model))
            context.progress(title=description, metadata=known)

        return _output(order, await _carry_out(spawn, order, started), known)

    lines = [f"- {name}: {agent.description}" for name, agent in sorted(agents.items())]
    told = "Hand a piece of work to an agent that works by itself and reports one result.\n"
    return Tool(task, name=TASK_TOOL, description=told + "\n".join(lines))


async def _carry_out(
    spawn: Spawn, order: Order, started: Callable[[str, Any], None]
) -> ChildResult:
    try:
        result = await spawn(order, started)
    except asyncio.CancelledError:
        msg = "Task cancelled"
        raise ToolError(msg, tool=TASK_TOOL) from None
    if result.outcome == "aborted":
        msg = "Task cancelled"
        raise ToolError(msg, tool=TASK_TOOL)
    if result.outcome == "failed":
        msg = f"Subagent failed (task_id: {result.session_id}): {result.error}"
        raise ToolError(msg, tool=TASK_TOOL)
    return result


def _facts(order: Order, child_id: str, model: Any) -> dict[str, Any]:
    return {"parentSessionId": order.parent_id, "sessionId": child_id, "model": model}


def _output(order: Order, result: ChildResult, known: dict[str, Any]) -> ToolOutput:
    return ToolOutput(
        output=result_text(result), title=order.description, metadata={**known, "truncated": False}
    )


def open_order(visible: Sequence[MessageWithParts], asked: MessageWithParts) -> SubtaskPart | None:
    """Return the first order of a question that has not been carried out; None when there is none.

    An order's answer is a call of the tool ``task`` without a model call around it.
    """
    orders = [part for part in asked.parts if isinstance(part, SubtaskPart)]
    done = sum(_is_answer(item, asked.message.id) for item in visible)
    return orders[done] if done < len(orders) else None


def _is_answer(item: MessageWithParts, question_id: str) -> bool:
    message = item.message
    if not isinstance(message, AssistantMessage) or message.parent_id != question_id:
        return False
    is_step = any(isinstance(part, StepStartPart | StepFinishPart) for part in item.parts)
    calls = (part for part in item.parts if isinstance(part, ToolPart))
    return not is_step and any(call.tool == TASK_TOOL for call in calls)


async def run_subtask(
    session: Session, spawn: Spawn, user: UserMessage, part: SubtaskPart
) -> AssistantMessage:
    """Carry out the order of a subtask part: an answer without a model call.

    Returns
    -------
    AssistantMessage
        Finished with ``tool-calls``, so that the turn goes on with the result; without usage, for
        the calls are the child's.

    Raises
    ------
    asyncio.CancelledError
        After the child was stopped and everything was closed.
    """
    order = Order(
        parent_id=session.id,
        agent=part.agent,
        prompt=part.prompt,
        description=part.description,
        model=part.model,
    )
    message = _answer(session, user, order)
    call = _call(session, message, order)
    await session.write([MessageUpdated(message=message), PartUpdated(part=call)])
    known: dict[str, Any] = {}
    running: set[asyncio.Future[Any]] = set()

    def started(child_id: str, model: Any) -> None:
        known.update(_facts(order, child_id, model))
        shown = _running(call, known, order.description)
        running.add(asyncio.ensure_future(session.update_part(shown)))

    cancelled = False
    try:
        result = await spawn(order, started)
        error = None if result.outcome == "completed" else f"Tool execution failed: {result.error}"
    except asyncio.CancelledError:
        cancelled, error, result = True, "Cancelled", None
    if running:
        await asyncio.wait(running)
    done = _ended(session, call, known, result=result, error=error)
    message = _closed(session, message, aborted=cancelled)
    await session.write([MessageUpdated(message=message), PartUpdated(part=done)])
    if cancelled:
        raise asyncio.CancelledError
    return message


def _answer(session: Session, user: UserMessage, order: Order) -> AssistantMessage:
    directory = session.stored().info.directory
    model = order.model or user.model
    return AssistantMessage(
        id=session.new_id("msg"),
        session_id=session.id,
        parent_id=user.id,
        time=MessageTime(created=session.clock()),
        provider_id=model.provider_id if model else None,
        model_id=model.model_id if model else None,
        agent=order.agent,
        mode=order.agent,
        path=MessagePath(cwd=directory, root=directory),
    )


def _call(session: Session, message: AssistantMessage, order: Order) -> ToolPart:
    given = {
        "prompt": order.prompt,
        "description": order.description,
        "subagent_type": order.agent,
    }
    return ToolPart(
        id=session.new_id("prt"),
        session_id=session.id,
        message_id=message.id,
        call_id=session.new_id("call"),
        tool=TASK_TOOL,
        state=ToolRunning(input=given, time=Span(start=session.clock())),
    )


def _running(call: ToolPart, known: dict[str, Any], title: str) -> ToolPart:
    state = msgspec.structs.replace(call.state, title=title, metadata=dict(known))
    return msgspec.structs.replace(call, state=state)


def _ended(
    session: Session,
    call: ToolPart,
    known: dict[str, Any],
    *,
    result: ChildResult | None,
    error: str | None,
) -> ToolPart:
    started = call.state.time.start if isinstance(call.state, ToolRunning) else session.clock()
    span = ToolSpan(start=started, end=session.clock())
    given = call.state.input
    if result is None or error is not None:
        failed = ToolFailed(input=given, error=error or "", metadata=known or None, time=span)
        return msgspec.structs.replace(call, state=failed)
    done = ToolCompleted(
        input=given,
        output=result_text(result),
        title=given["description"],
        metadata={**known, "truncated": False},
        time=span,
    )
    return msgspec.structs.replace(call, state=done)


def _closed(session: Session, message: AssistantMessage, *, aborted: bool) -> AssistantMessage:
    time = msgspec.structs.replace(message.time, completed=session.clock())
    if not aborted:
        return msgspec.structs.replace(message, time=time, finish="tool-calls")
    error = MessageError(name=ERROR_ABORTED, data=ErrorData(message=ABORTED_MESSAGE))
    return msgspec.structs.replace(message, time=time, finish="error", error=error)
