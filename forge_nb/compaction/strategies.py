"""The strategies by name, and the one entry by which a session is compacted."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from forge_nb.compaction.base import CompactionJob, CompactionResult
from forge_nb.compaction.extractive import extractive
from forge_nb.compaction.mask import MaskOutputs
from forge_nb.compaction.replay import question_to_replay, replay_events
from forge_nb.compaction.summary import ModelSummary
from forge_nb.compaction.tail import (
    estimate_view,
    select_tail,
    tail_budget,
    without_boundaries,
)
from forge_nb.compaction.truncate import truncate
from forge_nb.compaction.written import WrittenSummary
from forge_nb.errors import CompactionError, ForgeError, UsageError
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import TextPart
from forge_nb.messages.render import to_model_messages
from forge_nb.messages.usage import usable_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge_nb.compaction.base import RunSetup, Strategy
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.session import Session
    from forge_nb.settings import Settings

__all__ = ["compact", "known_strategy", "register_strategy", "strategies"]

_Given = TypeVar("_Given")

_STRATEGIES: dict[str, Strategy] = {
    "summary": ModelSummary(),
    "extractive": WrittenSummary("extractive", extractive),
    "truncate": WrittenSummary("truncate", truncate),
    "mask": MaskOutputs(),
}


def strategies() -> tuple[str, ...]:
    """Return the names of the strategies, in the order of the alphabet."""
    return tuple(sorted(_STRATEGIES))


@overload
def register_strategy(name: str, strategy: object) -> None: ...


@overload
def register_strategy(name: str) -> Callable[[_Given], _Given]: ...


def register_strategy(name: str, strategy: object = None) -> Callable[[_Given], _Given] | None:
    """Make a strategy known by a name, to be chosen by ``Settings(strategy=name)``.

    Parameters
    ----------
    name
        Its name; a known one is replaced.
    strategy
        An object with `compact`, or a class or function without arguments that makes one; or a
        function ``(conversation, prior) -> summary`` that writes the summary from the record of
        what is to be replaced and the earlier summary. Left out: use it as a decorator.

    Raises
    ------
    UsageError
        When the name is blank or there is nothing that could compact.

    Examples
    --------
    >>> @register_strategy("last words")
    ... def last_words(conversation, prior):
    ...     return conversation[-200:]
    >>> "last words" in strategies()
    True
    """
    if not name.strip():
        msg = f"a strategy needs a name, not {name!r}"
        raise UsageError(msg)
    if strategy is not None:
        _STRATEGIES[name] = _made(name, strategy)
        return None

    def register(given: _Given) -> _Given:
        _STRATEGIES[name] = _made(name, given)
        return given

    return register


def _made(name: str, given: Any) -> Strategy:
    """Return the strategy that an object, a class, a factory or a plain function stands for."""
    if callable(given) and (isinstance(given, type) or not _takes_arguments(given)):
        given = given()
    if inspect.iscoroutinefunction(getattr(given, "compact", None)):
        strategy: Strategy = given
        return strategy
    if callable(given):
        return WrittenSummary(name, given)
    msg = (
        f"{given!r} is no strategy; give a function of two texts, or an object with "
        "`async def compact(self, job)`"
    )
    raise UsageError(msg)


def _takes_arguments(given: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(given).parameters)
    except ValueError:  # built in, without a signature
        return True


def known_strategy(name: str) -> Strategy:
    """Return the strategy of a name.

    Raises
    ------
    UsageError
        When there is none.
    """
    if name not in _STRATEGIES:
        msg = f"there is no compaction strategy {name!r}; there are {list(strategies())}"
        raise UsageError(msg, strategy=name)
    return _STRATEGIES[name]


async def compact(
    session: Session,
    setup: RunSetup,
    *,
    auto: bool,
    overflow: bool = False,
    replay: bool = False,
    hijacked: MessageWithParts | None = None,
) -> CompactionResult:
    """Make what the model sees smaller, by the strategy that the settings name.

    Parameters
    ----------
    session
        Which session.
    setup
        The model that writes a summary, and the settings.
    auto
        Whether the run loop asked for it, not a person.
    overflow
        Whether the provider had refused the request for its length.
    replay
        Whether the newest question is still to be answered. It is kept in the tail, or left out
        of the summary and asked again behind it, where there is anything before it.
    hijacked
        Parity only: the question whose place the summary of an earlier request takes.

    Returns
    -------
    CompactionResult
        Outcome ``nothing to do`` when there is nothing to replace; nothing is written then.

    Raises
    ------
    UsageError
        When there is no such strategy.
    CompactionError
        When a strategy of the user's own raises something.
    """
    strategy = known_strategy(setup.settings.strategy)
    job = _job(session, setup, auto=auto, overflow=overflow, replay=replay)
    if hijacked is not None:
        head = [item for item in job.head if item.message.id != hijacked.message.id]
        job = dataclasses.replace(job, head=head, hijacked=hijacked)
    if not to_model_messages(job.head):
        before = estimate_view(job.visible)
        return CompactionResult(outcome="nothing to do", tokens_before=before, tokens_after=before)
    result = await _run(strategy, job)
    if result.outcome != "done" or result.summary_id is None or result.replayed_id is not None:
        return result
    if job.replay is None:
        kept = question_to_replay(job.visible) if replay else None
        return msgspec.structs.replace(result, replayed_id=kept and kept.message.id)
    replayed_id, events = replay_events(session, job.replay, strip_media=overflow)
    await session.write(events)
    after = estimate_view(session.visible(parity=setup.settings.parity))
    return msgspec.structs.replace(result, replayed_id=replayed_id, tokens_after=after)


async def _run(strategy: Strategy, job: CompactionJob) -> CompactionResult:
    try:
        return await strategy.compact(job)
    except ForgeError:
        raise
    except Exception as error:
        name = job.settings.strategy
        msg = f"the compaction strategy {name!r} failed: {type(error).__name__}: {error}; mend it"
        raise CompactionError(msg, strategy=name) from error


def _job(
    session: Session, setup: RunSetup, *, auto: bool, overflow: bool, replay: bool
) -> CompactionJob:
    visible = session.visible(parity=setup.settings.parity)
    limits = setup.provider.limits(setup.model.model_id)
    usable = usable_tokens(limits, reserved=setup.settings.reserved, parity=setup.settings.parity)
    asked = question_to_replay(visible) if replay or overflow else None
    history: Sequence[MessageWithParts] = without_boundaries(visible)
    tail_start = None
    if asked is None or not overflow:
        tail_start = _tail_start(history, visible, setup.settings, usable)
    if asked is not None and (overflow or tail_start is None):
        history = _left_out(history, asked, parity=setup.settings.parity)
        if setup.settings.parity:
            tail_start = _tail_start(history, visible, setup.settings, usable)
    else:
        asked = None  # it stays where it is, in the tail
    return CompactionJob(
        session=session,
        setup=setup,
        auto=auto,
        overflow=overflow,
        visible=visible,
        head=_before(history, tail_start),
        tail_start_id=tail_start,
        prior=_prior(visible),
        replay=asked,
        usable=usable,
    )


def _tail_start(
    history: Sequence[MessageWithParts],
    visible: Sequence[MessageWithParts],
    settings: Settings,
    usable: int | None,
) -> str | None:
    return select_tail(
        history,
        budget_tokens=tail_budget(settings, usable),
        max_turns=settings.tail_turns,
        after_seq=0 if settings.parity else _newest_summary_seq(visible),
        parity=settings.parity,
    )


def _left_out(
    history: Sequence[MessageWithParts], asked: MessageWithParts, *, parity: bool
) -> Sequence[MessageWithParts]:
    """Return a history without the question that is asked again.

    What was done about it stays, so that it is not done again; opencode leaves that out too.
    """
    place = next(n for n, item in enumerate(history) if item.message.id == asked.message.id)
    return history[:place] if parity else [*history[:place], *history[place + 1 :]]


def _before(
    history: Sequence[MessageWithParts], tail_start: str | None
) -> Sequence[MessageWithParts]:
    for place, item in enumerate(history):
        if item.message.id == tail_start:
            return history[:place]
    return history


def _newest_summary_seq(visible: Sequence[MessageWithParts]) -> int:
    summaries = (
        item.seq
        for item in visible
        if isinstance(item.message, AssistantMessage) and item.message.is_summary
    )
    return max(summaries, default=0)


def _prior(visible: Sequence[MessageWithParts]) -> str | None:
    """Return the text of the newest summary in a view; None where there is none."""
    summaries = [
        item
        for item in visible
        if isinstance(item.message, AssistantMessage)
        if item.message.is_summary and item.message.is_finished
    ]
    if not summaries:
        return None
    newest = max(summaries, key=lambda item: item.seq)
    texts = [part.text.strip() for part in newest.parts if isinstance(part, TextPart)]
    return "\n\n".join(text for text in texts if text) or None
