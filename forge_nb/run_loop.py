"""Turn after turn until the model stops.

Every iteration starts from the store: the visible history is read again, never carried over. A
prompt is a stored row with a state, so that it survives an abort and a crash; one answer may close
several prompts that waited together.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_nb.compaction.prune import prune
from forge_nb.compaction.replay import pending_request
from forge_nb.compaction.strategies import compact
from forge_nb.compaction.trigger import estimate_context
from forge_nb.errors import CompactionError, UsageError
from forge_nb.events import MessageUpdated
from forge_nb.messages.message import (
    CONTINUING_FINISHES,
    AssistantMessage,
    ErrorData,
    MessageError,
    MessagePath,
    MessageTime,
    UserMessage,
)
from forge_nb.messages.parts import TextPart
from forge_nb.messages.usage import NO_TOKENS, TokenUsage, add, is_over, usable_tokens
from forge_nb.messages.wire import (
    CONTENT_FILTERED,
    ERROR_ABORTED,
    ERROR_CONTENT_FILTER,
    ERROR_STRUCTURED,
)
from forge_nb.processor import Processor, status
from forge_nb.prompts import ask_to_go_on
from forge_nb.requests import is_final_answer, last_question, turn_request
from forge_nb.structured import STRUCTURED_SYSTEM, answer_tool_of
from forge_nb.subtasks import open_order, run_subtask
from forge_nb.titles import TitleTask, is_untitled, needs_title
from forge_nb.tools.environment import Environment

if TYPE_CHECKING:
    from forge_nb.compaction.base import CompactionResult, RunSetup
    from forge_nb.events import PromptState
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import CompactionPart, SubtaskPart
    from forge_nb.processor import Outcome
    from forge_nb.requests import Question
    from forge_nb.session import Session
    from forge_nb.structured import StructuredOutput

__all__ = ["RunOutcome", "RunResult", "compact_and_go_on", "run_loop"]

RunOutcome = Literal["completed", "aborted", "failed"]


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did."""

    session_id: str
    outcome: RunOutcome
    text: str = ""
    """Text of the last answer."""
    message_ids: tuple[str, ...] = ()
    """Assistant messages of the run, summaries included, in order."""
    compactions: int = 0
    tokens: TokenUsage = NO_TOKENS
    """Sum over the run's calls."""
    cost_usd: float | None = None
    """Sum of the known costs; None when none is known."""
    error: str | None = None
    structured: Any = None
    """The answer in the shape that was asked for."""

    def __repr__(self) -> str:
        """Say it in one line."""
        calls = f"{len(self.message_ids)} model call{'' if len(self.message_ids) == 1 else 's'}"
        cost = "cost unknown" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        cuts = f", {self.compactions} compactions" if self.compactions else ""
        why = f" ({self.error})" if self.error else ""
        return f"<run {self.outcome}{why}: {calls}{cuts}, {self.tokens.sum or 0:,} tokens, {cost}>"


async def run_loop(session: Session, setup: RunSetup) -> RunResult:
    """Answer the waiting prompts of a session.

    Parameters
    ----------
    session
        Which session; the caller holds its lease.
    setup
        Model, tools, settings.

    Returns
    -------
    RunResult
        Also when the model failed (`outcome` is ``failed`` and `error` says why), and when the
        task was cancelled (``aborted``): the loop is the whole of its task, so the cancellation
        ends here, with every part closed.

    Raises
    ------
    UsageError
        When the settings allow no step.
    CompactionError
        When compacting did not make the context smaller, or had to be repeated without a step.
    """
    if setup.settings.max_steps < 1:
        msg = f"Settings.max_steps is {setup.settings.max_steps}; a turn needs at least one step"
        raise UsageError(msg)
    run = _Run(session, setup)
    session.announce(status(session.id, "busy"))
    try:
        await run.until_stop()
        await run.finish()
    except asyncio.CancelledError:
        run.abandon()
        await asyncio.shield(run.settle("cancelled"))
    except CompactionError:
        await run.settle("cancelled")
        raise
    finally:
        session.announce(status(session.id, "idle"))
    return run.result()


async def compact_and_go_on(session: Session, setup: RunSetup) -> RunResult:
    """Compact, then ask the model to go on from the summary; see `run_loop` for the rest."""
    result = await compact(session, setup, auto=True)
    if result.outcome == "done":
        await ask_to_go_on(session, setup)
    return await run_loop(session, setup)


class _Run:
    """State of one run; nothing of it outlives the run."""

    def __init__(self, session: Session, setup: RunSetup) -> None:
        self._session = session
        self._setup = setup
        self._taken: list[MessageWithParts] = []
        self._answers: list[AssistantMessage] = []
        self._ids: list[str] = []
        self._compactions = 0
        self._compactions_in_row = 0
        self._unknown_in_row = 0
        self._calls: tuple[str, tuple[str, ...]] = ("", ())  # of which question, and its calls
        self._unanswered = 0  # answers of a structured turn that were none
        self._title: TitleTask | None = None
        self._seen: tuple[int, list[MessageWithParts]] | None = None
        self.aborted = False
        self._limit: str | None = None
        self._given: MessageWithParts | None = None  # what another process had answered

    async def until_stop(self) -> None:
        """Call the model, compact, and call it again until the turn is over."""
        limit = self._setup.settings.max_steps
        for step in range(1, limit + 1):
            await self._take_prompts()
            self._given = None if self._answers else self._find_answer()
            if self._given is not None:
                await self.settle("answered")  # a crash came between the answer and this
                return
            if await self._advance(is_last=step == limit) == "stop":
                await self.settle("answered")
                if not self._waiting():
                    return
        await self.settle("answered")
        self._limit = f"{limit} steps for one prompt; raise Settings.max_steps or ask again"

    async def finish(self) -> None:
        """Store the title, and clear old tool outputs where the settings say so."""
        if self._title is not None:
            await self._title.store()
        if self._setup.settings.prune:
            await prune(self._session, self._setup.settings)

    def abandon(self) -> None:
        """Give up what runs beside the turn."""
        self.aborted = True
        if self._title is not None:
            self._title.cancel()

    def _find_answer(self) -> MessageWithParts | None:
        """Return the last question's answer: by its parent link, with an end that is one."""
        visible = self._visible()
        asked = last_question(visible)
        answers = [item for item in visible if asked and is_final_answer(item, asked.message.id)]
        return answers[-1] if answers else None

    def _visible(self) -> list[MessageWithParts]:
        """Return what the model may see; read again only where anything was written since."""
        seq = self._session.stored().seq
        if self._seen is None or self._seen[0] != seq:
            self._seen = seq, self._session.visible(parity=self._setup.settings.parity)
        return self._seen[1]

    def _waiting(self) -> list[MessageWithParts]:
        return self._session.store.prompts(self._session.id, "waiting")

    async def _take_prompts(self) -> None:
        waiting = self._waiting()
        self._taken += waiting
        await self._mark(waiting, "taken")

    async def settle(self, state: PromptState) -> None:
        """Give the prompts of this turn their final state."""
        taken, self._taken = self._taken, []
        await self._mark(taken, state)

    async def _mark(self, prompts: list[MessageWithParts], state: PromptState) -> None:
        if prompts:
            await self._session.write(
                [MessageUpdated(message=item.message, prompt_state=state) for item in prompts]
            )

    async def _advance(self, *, is_last: bool) -> Outcome:
        """Do the next thing: an order, a compaction that is due, or a call of the model."""
        visible = self._visible()
        asked = last_question(visible)
        if asked is None and self._taken:
            await ask_to_go_on(self._session, self._setup)  # a crash came between a cut and this
            return "continue"
        if asked is None:
            msg = f"session {self._session.id!r} has no question to answer; prompt it first"
            raise UsageError(msg)
        pending = pending_request(visible) if self._setup.settings.parity else None
        if pending is not None:
            return await self._compact_in_place_of(asked, pending)
        order = open_order(visible, asked.item)
        if order is not None:
            return await self._hand_over(asked, order)
        self._ask_title(asked)
        roomy = await self._make_room_before(visible, asked)
        asked = last_question(roomy) or asked
        outcome = await self._step(roomy, asked, is_last=is_last)
        return await self._make_room() if outcome == "compact" else outcome

    async def _compact_in_place_of(self, asked: Question, request: CompactionPart) -> Outcome:
        """Carry out a request that came to nothing, as opencode does, instead of answering."""
        session, setup = self._session, self._setup
        result = await compact(session, setup, auto=request.auto, hijacked=asked.item)
        self._note(result)
        if result.outcome != "done" or not request.auto:
            return "stop"
        await ask_to_go_on(session, setup)
        return "continue"

    async def _hand_over(self, asked: Question, order: SubtaskPart) -> Outcome:
        if self._setup.spawn is None:
            msg = "subtasks need a workbench to run child sessions; prompt through Workbench"
            raise UsageError(msg)
        answer = await run_subtask(self._session, self._setup.spawn, asked.message, order)
        self._ids.append(answer.id)
        self._answers.append(answer)
        return "continue"

    def _ask_title(self, asked: Question) -> None:
        session, setup = self._session, self._setup
        if self._title is not None or not setup.settings.title:
            return
        info = session.stored().info
        if is_untitled(info) and needs_title(info, session.messages()):
            self._title = TitleTask(
                session, *(setup.small or (setup.provider, setup.model)), asked.item
            )

    async def _step(
        self, visible: list[MessageWithParts], asked: Question, *, is_last: bool
    ) -> Outcome:
        """Call the model once."""
        session, setup = self._session, self._setup
        question = asked.message
        answer_tool = answer_tool_of(question)
        tools = setup.tools if answer_tool is None else setup.tools.plus(answer_tool)
        message = await self._new_answer(question)
        self._ids.append(message.id)
        processor = Processor(
            session,
            setup.provider,
            message,
            tools=tools,
            settings=setup.settings,
            environment=self._environment(question.id),
        )
        request = turn_request(
            setup.model,
            setup.settings,
            question,
            visible,
            tools=tools,
            media=getattr(setup.provider, "media", None),
            extra_system=() if answer_tool is None else (STRUCTURED_SYSTEM,),
            is_last=is_last,
        )
        try:
            outcome = await processor.process(request)
        finally:
            self._answers.append(processor.message)
            self._calls = (question.id, processor.calls_made)
        return await self._judge(outcome, processor, answer_tool)

    def _environment(self, question_id: str) -> Environment:
        """Return what tools have around them; calls made for an earlier question do not count."""
        environment = self._setup.environment or Environment()
        asked, calls = self._calls
        recent = calls if asked == question_id else ()
        return msgspec.structs.replace(environment, recent_calls=recent)

    async def _judge(
        self, outcome: Outcome, processor: Processor, answer_tool: StructuredOutput | None
    ) -> Outcome:
        """Look at how a call ended, and say what comes next."""
        message = processor.message
        if message.error is None:
            self._compactions_in_row = 0
        if processor.rejected is not None:
            self._limit = f"a tool call was rejected: {processor.rejected}"
            return "stop"
        self._unknown_in_row = self._unknown_in_row + 1 if message.finish == "unknown" else 0
        if self._unknown_in_row > self._setup.settings.max_unknown_finishes:
            self._limit = (
                f"{self._unknown_in_row} answers in a row ended with an unknown finish; "
                "the provider may be in trouble, ask again later"
            )
            return "stop"
        if message.finish == "content-filter" and message.error is None:
            await self._fail(message, ERROR_CONTENT_FILTER, CONTENT_FILTERED)
            return "stop"
        if answer_tool is not None:
            return await self._judge_structured(outcome, message, answer_tool)
        return outcome

    async def _judge_structured(
        self, outcome: Outcome, message: AssistantMessage, answer_tool: StructuredOutput
    ) -> Outcome:
        """Take the answer that was captured; ask again, a few times, for one that was not."""
        if answer_tool.captured:
            answer = answer_tool.captured[-1]
            message = msgspec.structs.replace(message, structured=answer, finish="stop")
            await self._replace_answer(message)
            return "stop"
        if outcome != "stop" or message.error is not None:
            return outcome
        self._unanswered += 1
        if self._unanswered <= answer_tool.retries:
            return "continue"
        words = "the model did not give its answer in the required structure"
        await self._fail(message, ERROR_STRUCTURED, words, retries=answer_tool.retries)
        return "stop"

    async def _fail(
        self, message: AssistantMessage, name: str, words: str, *, retries: int | None = None
    ) -> None:
        error = MessageError(name=name, data=ErrorData(message=words, retries=retries))
        await self._replace_answer(msgspec.structs.replace(message, error=error))

    async def _replace_answer(self, message: AssistantMessage) -> None:
        self._answers[-1] = message
        await self._session.update_message(message)

    async def _new_answer(self, asked: UserMessage) -> AssistantMessage:
        session, setup = self._session, self._setup
        directory = session.stored().info.directory
        message = AssistantMessage(
            id=session.new_id("msg"),
            session_id=session.id,
            parent_id=asked.id,
            time=MessageTime(created=session.clock()),
            provider_id=setup.model.provider_id,
            model_id=setup.model.model_id,
            agent=setup.settings.agent,
            mode=setup.settings.agent,
            path=MessagePath(cwd=directory, root=directory),
        )
        await session.update_message(message)
        return message

    async def _make_room(self) -> Outcome:
        """Compact after a step, and see to it that the turn goes on where it was not over."""
        last, settings = self._answers[-1], self._setup.settings
        overflow = last.finish in {None, "error"}
        is_over = not overflow and last.finish not in CONTINUING_FINISHES
        believes = settings.parity or overflow  # opencode believes whatever was reported
        if not settings.auto_compact or not (believes or self._is_full()):
            return "stop" if overflow or is_over else "continue"
        result = await compact(self._session, self._setup, auto=True, overflow=overflow)
        self._note(result)
        if result.outcome != "done":
            return "stop" if overflow or is_over or settings.parity else "continue"
        if is_over and not settings.parity:
            return "stop"
        if result.replayed_id is None and result.summary_id is not None:
            await ask_to_go_on(self._session, self._setup)
        return "continue"

    def _is_full(self, visible: list[MessageWithParts] | None = None) -> bool:
        """Return whether the next call would not fit, by an estimate that doubts absurd reports."""
        setup = self._setup
        limits = setup.provider.limits(setup.model.model_id)
        usable = usable_tokens(limits, reserved=setup.settings.reserved)
        return is_over(estimate_context(self._visible() if visible is None else visible), usable)

    async def _make_room_before(
        self, visible: list[MessageWithParts], asked: Question
    ) -> list[MessageWithParts]:
        """Compact before a call that would not fit, and return what the model sees then.

        A question that nothing was done about yet is asked again behind the summary; a turn that
        is under way goes on from it.
        """
        setup = self._setup
        if not (setup.settings.compact_before_sending and setup.settings.auto_compact):
            return visible
        if not self._is_full(visible):
            return visible
        is_fresh = max(item.seq for item in visible) == asked.item.seq
        result = await compact(self._session, setup, auto=True, replay=is_fresh)
        if result.outcome == "nothing to do":
            return visible
        self._note(result)
        if result.outcome == "done" and result.replayed_id is None and result.summary_id:
            await ask_to_go_on(self._session, self._setup)
        return self._visible()

    def _note(self, result: CompactionResult) -> None:
        self._ids += [result.summary_id] if result.summary_id else []
        self._compactions += result.outcome == "done"
        self._compactions_in_row += 1
        limit = self._setup.settings.max_compactions
        sizes = {"before": result.tokens_before, "after": result.tokens_after}
        if self._setup.settings.parity:
            return
        if result.outcome == "done" and result.tokens_after >= result.tokens_before:
            msg = f"compaction did not shrink the context ({result!r}); use a larger window"
            raise CompactionError(msg, **sizes)
        if self._compactions_in_row > limit:
            msg = (
                f"{self._compactions_in_row} compactions in a row without a step between them, "
                f"{limit} are allowed; the window is too small for what is kept"
            )
            raise CompactionError(msg, **sizes)

    def _outcome(self, last: AssistantMessage | None) -> RunOutcome:
        error = last.error if last else None
        if self.aborted or (error is not None and error.name == ERROR_ABORTED):
            return "aborted"
        return "completed" if error is None and self._limit is None else "failed"

    def result(self) -> RunResult:
        """Sum the run up."""
        stored = [self._session.store.message(self._session.id, key) for key in self._ids]
        messages = [item.message for item in stored if isinstance(item.message, AssistantMessage)]
        tokens = NO_TOKENS
        for message in messages:
            tokens = add(tokens, message.tokens)
        costs = [message.cost for message in messages if message.cost is not None]
        last = self._answers[-1] if self._answers else None
        error = self._limit or (_error_text(last) if last else None)
        return RunResult(
            session_id=self._session.id,
            outcome=self._outcome(last),
            text=_text_of(self._given or _item_of(stored, last)),
            message_ids=tuple(self._ids),
            compactions=self._compactions,
            tokens=tokens,
            cost_usd=sum(costs) if costs else None,
            error=error,
            structured=None if last is None else last.structured,
        )


def _error_text(message: AssistantMessage) -> str | None:
    error = message.error
    return None if error is None else f"{error.name}: {error.data.message or ''}"


def _item_of(
    stored: list[MessageWithParts], message: AssistantMessage | None
) -> MessageWithParts | None:
    ids = {item.message.id: item for item in stored}
    return ids.get(message.id) if message is not None else None


def _text_of(item: MessageWithParts | None) -> str:
    parts = () if item is None else item.parts
    said = (part for part in parts if isinstance(part, TextPart) and not part.discarded)
    return "\n\n".join(part.text for part in said)
