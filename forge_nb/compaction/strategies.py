"""The strategies by name, and the one entry by which a session is compacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.compaction.base import CompactionJob, CompactionResult
from forge_nb.compaction.prune import MaskOutputs
from forge_nb.compaction.replay import question_to_replay, replay_events
from forge_nb.compaction.summary import ModelSummary
from forge_nb.compaction.tail import (
    estimate_view,
    select_tail,
    tail_budget,
    without_boundaries,
)
from forge_nb.compaction.written import WrittenSummary, extractive, truncate
from forge_nb.errors import UsageError
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import TextPart
from forge_nb.messages.render import to_model_messages
from forge_nb.messages.usage import usable_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.compaction.base import RunSetup, Strategy
    from forge_nb.compaction.written import Summariser
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.session import Session

__all__ = ["compact", "register_strategy", "strategies"]

_STRATEGIES: dict[str, Strategy] = {
    "summary": ModelSummary(),
    "extractive": WrittenSummary("extractive", extractive),
    "truncate": WrittenSummary("truncate", truncate),
    "mask": MaskOutputs(),
}


def strategies() -> tuple[str, ...]:
    """Return the names of the strategies, in the order of the alphabet."""
    return tuple(sorted(_STRATEGIES))


def register_strategy(name: str, strategy: Strategy | Summariser) -> None:
    """Make a strategy known by a name, to be chosen by ``Settings(strategy=name)``.

    Parameters
    ----------
    name
        Its name; a known one is replaced.
    strategy
        An object with `compact`, or a plain function ``(conversation, prior) -> summary`` that
        writes the summary from the record of what is to be replaced and the earlier summary.

    Examples
    --------
    >>> register_strategy("last words", lambda conversation, prior: conversation[-200:])
    >>> "last words" in strategies()
    True
    """
    if not name.strip():
        msg = f"a strategy needs a name, not {name!r}"
        raise UsageError(msg)
    if hasattr(strategy, "compact"):
        _STRATEGIES[name] = strategy  # type: ignore[assignment]  # it has what a strategy has
    elif callable(strategy):
        _STRATEGIES[name] = WrittenSummary(name, strategy)
    else:
        msg = f"{strategy!r} is no strategy; give a function of two texts, or an object to compact"
        raise UsageError(msg)


def _strategy(name: str) -> Strategy:
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
        Whether the newest question is left out of the summary and asked again behind it, where
        there is anything before it.

    Returns
    -------
    CompactionResult
        Outcome ``nothing to do`` when there is nothing to replace; nothing is written then.

    Raises
    ------
    UsageError
        When there is no such strategy.
    """
    strategy = _strategy(setup.settings.strategy)
    job = _job(session, setup, auto=auto, overflow=overflow, replay=replay)
    if not to_model_messages(job.head):
        before = estimate_view(job.visible)
        return CompactionResult(outcome="nothing to do", tokens_before=before, tokens_after=before)
    result = await strategy.compact(job)
    if job.replay is None or result.outcome != "done" or result.summary_id is None:
        return result
    replayed_id, events = replay_events(session, job.replay)
    await session.write(events)
    after = estimate_view(session.visible(parity=setup.settings.parity))
    return msgspec.structs.replace(result, replayed_id=replayed_id, tokens_after=after)


def _job(
    session: Session, setup: RunSetup, *, auto: bool, overflow: bool, replay: bool
) -> CompactionJob:
    visible = session.visible(parity=setup.settings.parity)
    asked = question_to_replay(visible) if replay or overflow else None
    history = without_boundaries(visible)
    if asked is not None:
        history = history[: history.index(asked)]
    usable = usable_tokens(
        setup.provider.limits(setup.model.model_id), reserved=setup.settings.reserved
    )
    tail_start = select_tail(
        history,
        budget_tokens=tail_budget(setup.settings, usable),
        max_turns=setup.settings.tail_turns,
        after_seq=0 if setup.settings.parity else _newest_summary_seq(visible),
        parity=setup.settings.parity,
    )
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
    )


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
