"""A title for a session that has none, made by the model beside the first answer.

The call belongs to no message, so it has no step; what it used is recorded all the same.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from forge_nb.events import SessionUpdated, UsageRecord, UsageRecorded
from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import ModelRef, SubtaskPart, TextPart
from forge_nb.messages.render import ModelMessage, ModelPart
from forge_nb.messages.stream import StepFinish, StreamError, TextDelta, Usage
from forge_nb.messages.usage import NO_TOKENS, TokenUsage, cost_of
from forge_nb.providers.base import ModelRequest, unit_prices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.events import SyncEvent
    from forge_nb.messages.message import MessageWithParts, SessionInfo
    from forge_nb.providers.base import Provider
    from forge_nb.session import Session

__all__ = ["TitleTask", "clean_title", "default_title", "is_untitled", "needs_title"]

_DEFAULT = re.compile(r"^(New|Child) session - \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_MAX_CHARS = 100  # longest title that opencode keeps
_WAIT_S = 10.0  # how long a finished run waits for its title
_log = logging.getLogger(__name__)

_SYSTEM = (
    "You name working sessions. Answer with one line of at most eight words that lets its owner "
    "find the session again. No quotes, no explanation, and never an answer to the question."
)
_ASKED = "Generate a title for this conversation:\n"  # a request that recordings know by this line


def default_title(created: str) -> str:
    """Return the title of a session that nobody has named; `created` is ISO 8601 in UTC."""
    return f"New session - {created}"


def is_untitled(info: SessionInfo) -> bool:
    """Return whether a session has no name yet and should get one: a child never does."""
    return info.parent_id is None and _DEFAULT.match(info.title) is not None


def needs_title(info: SessionInfo, messages: Sequence[MessageWithParts]) -> bool:
    """Return whether a session is still unnamed and has just got its first question."""
    if not is_untitled(info):
        return False
    asked = [item for item in messages if isinstance(item.message, UserMessage)]
    answered = any(
        isinstance(item.message, AssistantMessage) and item.message.time.completed is not None
        for item in messages
    )
    return len(asked) == 1 and not answered and bool(_question(asked[0]))


def _question(item: MessageWithParts) -> str:
    """Return what a person asked, the orders of a subtask included."""
    texts = [
        part.prompt if isinstance(part, SubtaskPart) else part.text
        for part in item.parts
        if isinstance(part, SubtaskPart) or (isinstance(part, TextPart) and not part.synthetic)
    ]
    return "\n".join(text for text in texts if text.strip())


def clean_title(said: str) -> str:
    r"""Return the first line of what a model said, without its thoughts, of a title's length.

    Examples
    --------
    >>> clean_title("<think>a name</think>\n\nFix the parser \nmore")
    'Fix the parser'
    """
    lines = (line.strip() for line in _THOUGHT.sub("", said).splitlines())
    title = next((line for line in lines if line), "")
    return title if len(title) <= _MAX_CHARS else f"{title[: _MAX_CHARS - 3]}..."


class _Said(msgspec.Struct):
    text: str = ""
    tokens: TokenUsage = NO_TOKENS
    is_whole: bool = False


class TitleTask:
    """Asks for a title in the background; nothing is stored before `store` is called.

    Parameters
    ----------
    session
        The session without a title.
    provider, model
        Who is asked.
    item
        The session's first question.
    """

    def __init__(
        self, session: Session, provider: Provider, model: ModelRef, item: MessageWithParts
    ) -> None:
        self._session = session
        self._provider = provider
        self._model = model
        self._said = _Said()
        self._started_ms = session.clock()
        self._task = asyncio.ensure_future(self._ask(_question(item)))

    async def _ask(self, question: str) -> None:
        part = ModelPart(id="title-request", kind="text", text=f"{_ASKED}{question}")
        request = ModelRequest(
            model=self._model,
            system=[_SYSTEM],
            messages=[ModelMessage(id="title-request", role="user", parts=(part,))],
            tools=[],
            purpose="title",
        )
        async with aclosing(self._provider.stream(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    self._said.text += event.text
                elif isinstance(event, Usage):
                    self._said.tokens = event.usage
                elif isinstance(event, StepFinish):
                    self._said.tokens = event.usage if event.usage.is_reported else NO_TOKENS
                    self._said.is_whole = True
                elif isinstance(event, StreamError):
                    _log.warning("no title for %s: %s", self._session.id, event.message)

    async def store(self) -> None:
        """Wait a little for the title, store it with what it used, and forget about it.

        A title that fails or does not come costs the run nothing but its usage, where reported.
        """
        _, late = await asyncio.wait({self._task}, timeout=_WAIT_S)
        for task in late:
            task.cancel()
        if not late and (error := self._task.exception()) is not None:
            _log.warning("no title for %s: %r", self._session.id, error)
        events = self._events()
        if events:
            await self._session.write(events)

    def cancel(self) -> None:
        """Give up."""
        self._task.cancel()

    def _events(self) -> list[SyncEvent]:
        events: list[SyncEvent] = []
        if self._said.tokens.is_reported:
            events.append(UsageRecorded(usage=self._usage()))
        title = clean_title(self._said.text) if self._said.is_whole else ""
        info = self._session.stored().info
        if title and _DEFAULT.match(info.title):
            events.append(SessionUpdated(info=msgspec.structs.replace(info, title=title)))
        return events

    def _usage(self) -> UsageRecord:
        tokens = self._said.tokens
        prices = unit_prices(
            self._provider, self._model.model_id, context_tokens=tokens.context or 0
        )
        cost = cost_of(tokens, prices)
        return UsageRecord(
            id=self._session.new_id("prt"),
            session_id=self._session.id,
            message_id=None,
            purpose="title",
            provider_id=self._model.provider_id,
            model_id=self._model.model_id,
            tokens=tokens,
            cost=cost,
            cost_recorded_usd=cost.usd,
            started_ms=self._started_ms,
            finished_ms=self._session.clock(),
        )
