"""What the model may see of a session: everything since the last boundary.

Pure: no I/O and no clock. Order is position, never an id. A store yields messages newest first,
page by page; `filter_compacted` stops reading at the boundary, so older pages are not fetched.

A boundary is a user message with a compaction part that was answered, by parent link, by a
successful summary: finished, free of error, not blank. A summary that failed, was interrupted or
is blank cuts nothing, and never reorders anything. Where the compaction part names a tail, the
messages from there on stay verbatim behind the summary, so the view's order is: request, summary,
tail, what came after. Parts of a failed attempt are stored but never seen: they make no summary
and are labelled dropped.

Invariants, proved in `tests/properties/test_history.py`: the messages of a view are those of a
suffix of the session; filtering a view again changes nothing, unless its tail reaches back over
an older boundary; no message is read beyond the view; what came later never changes the view
before a call; a part dropped by boundary k was seen until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from forge_nb.errors import NotFoundError
from forge_nb.messages.message import AssistantMessage, MessageWithParts, UserMessage
from forge_nb.messages.parts import CompactionPart, TextPart, ToolCompleted, ToolPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.messages.parts import Part

__all__ = [
    "Boundary",
    "Label",
    "View",
    "ViewRule",
    "choose_rule",
    "filter_compacted",
    "find_boundaries",
    "view_at",
]

ViewRule = Literal["classic", "tail"]
"""``tail`` honours `tail_start_id`; ``classic`` cuts everything before the request."""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """A successful compaction; `number` counts from 1 in the session's order."""

    number: int
    request_id: str
    summary_id: str
    tail_start_id: str | None


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stored part stands in a view."""

    state: Literal["visible", "dropped", "cleared", "future"]
    boundary: int | None = None
    """Number of the boundary that dropped it; None where a failed attempt left it behind."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The model-facing view before one call."""

    rule: ViewRule
    at: str | None
    """The assistant message whose call it is; None for the next call."""
    messages: tuple[MessageWithParts, ...]
    """In the order in which the model gets them."""
    labels: dict[str, Label]
    """One per stored part of the session, by part id."""
    boundaries: tuple[Boundary, ...]
    """Those that had happened by then, oldest first."""


def filter_compacted(
    newest_first: Iterable[MessageWithParts],
    *,
    rule: ViewRule | None = None,
    parity: bool = False,
) -> list[MessageWithParts]:
    """Return the messages the model may see, in the order in which it gets them.

    Parameters
    ----------
    newest_first
        Messages of one session, newest first. Read only as far as the boundary, or its tail.
    rule
        ``classic`` ignores tails; ``tail`` and None honour a tail where the data names one.
    parity
        Reproduce opencode 1.18: a blank summary is a boundary, and a tail reorders the view even
        when its summary failed.

    Returns
    -------
    list of MessageWithParts
        The whole session in its order when it was never compacted.
    """
    kept: list[MessageWithParts] = []
    answered: set[str | None] = set()  # user messages that a successful summary answers
    tail_start: str | None = None
    for item in newest_first:
        kept.append(item)
        if tail_start is not None:
            if item.message.id == tail_start:
                break
            continue
        if _is_summary(item, parity=parity):
            answered.add(_parent(item))
        elif item.message.id in answered and _request(item) is not None:
            tail_start = None if rule == "classic" else _tail_of(item)
            if tail_start in {None, item.message.id}:
                break
    kept.reverse()
    return kept if rule == "classic" else _move_tail(kept, parity=parity)


def _move_tail(kept: list[MessageWithParts], *, parity: bool) -> list[MessageWithParts]:
    """Put the newest boundary's tail behind its summary."""
    for asked in range(len(kept) - 1, -1, -1):
        tail_start = _tail_of(kept[asked])
        if tail_start is None:
            continue
        summary = _answer_to(kept, asked, parity=parity)
        start = next((n for n in range(asked) if kept[n].message.id == tail_start), None)
        if summary is not None and start is not None:
            after = summary + 1
            return [*kept[asked:after], *kept[start:asked], *kept[after:]]
        if parity or summary is not None:
            return kept
    return kept


def _answer_to(kept: list[MessageWithParts], asked: int, *, parity: bool) -> int | None:
    """Return the place of the summary that answers a request; parity takes a failed one too."""
    for place in range(asked + 1, len(kept)):
        item = kept[place]
        message = item.message
        if not isinstance(message, AssistantMessage) or not message.is_summary:
            continue
        if message.parent_id == kept[asked].message.id and (parity or _is_summary(item)):
            return place
    return None


def find_boundaries(oldest_first: Iterable[MessageWithParts]) -> list[Boundary]:
    """Return the successful compactions of a session, in the order of their summaries.

    A request that was answered well twice is one boundary, made by the first answer.
    """
    requests: dict[str, str | None] = {}
    found: list[Boundary] = []
    for item in oldest_first:
        if _request(item) is not None:
            requests[item.message.id] = _tail_of(item)
        parent = _parent(item)
        if parent in requests and _is_summary(item):
            boundary = Boundary(
                number=len(found) + 1,
                request_id=parent,
                summary_id=item.message.id,
                tail_start_id=requests.pop(parent),
            )
            found.append(boundary)
    return found


def choose_rule(messages: Iterable[MessageWithParts]) -> ViewRule:
    """Return ``tail`` where a compaction part names a tail, else ``classic``."""
    has_tail = any(_tail_of(item) is not None for item in messages)
    return "tail" if has_tail else "classic"


def view_at(
    oldest_first: Sequence[MessageWithParts], at: str | None, *, rule: ViewRule | None = None
) -> View:
    """Return what the model saw before one call, and where every stored part stood then.

    Parameters
    ----------
    oldest_first
        The whole session.
    at
        Id of the assistant message that the call wrote; None for what the next call would get.
    rule
        Chosen from the data when None.

    Returns
    -------
    View
        At a summary: the summariser's input, which is the view before its request, with what
        then stayed verbatim as the tail.

    Raises
    ------
    NotFoundError
        When the session has no assistant message of this id.
    """
    chosen = rule or choose_rule(oldest_first)
    past = _rows_before(oldest_first, at)
    started_ms = None if at is None else _message(oldest_first, at).time.created
    past = [_as_of(item, started_ms) for item in past]
    messages = filter_compacted(reversed(past), rule=chosen)
    boundaries = find_boundaries(past)
    return View(
        rule=chosen,
        at=at,
        messages=tuple(messages),
        labels=_labels(oldest_first, messages, _cuts(past, boundaries, chosen)),
        boundaries=tuple(boundaries),
    )


def _message(messages: Sequence[MessageWithParts], message_id: str) -> AssistantMessage:
    for item in messages:
        if item.message.id == message_id and isinstance(item.message, AssistantMessage):
            return item.message
    msg = f"{message_id!r} is no assistant message of this session; list them with messages()"
    raise NotFoundError(msg, at=message_id)


def _rows_before(messages: Sequence[MessageWithParts], at: str | None) -> list[MessageWithParts]:
    """Return the rows before a call; before a summary's request when the call is a summary."""
    if at is None:
        return list(messages)
    call = _message(messages, at)
    places = {item.message.id: place for place, item in enumerate(messages)}
    asked = places.get(call.parent_id or "", places[at])
    if call.is_summary and _request(messages[asked]) is not None:
        return list(messages[: min(asked, places[at])])
    return list(messages[: places[at]])


def _as_of(item: MessageWithParts, started_ms: int | None) -> MessageWithParts:
    """Take back what happened to a message only after the call had started."""
    if started_ms is None:
        return item
    if _is_summary(item) and not _had_ended(item, started_ms):
        unfinished = msgspec.structs.replace(item.message, finish=None)
        return msgspec.structs.replace(item, message=unfinished)
    if not any(_cleared_ms(part) is not None for part in item.parts):
        return item
    parts = tuple(_uncleared(part, started_ms) for part in item.parts)
    return msgspec.structs.replace(item, parts=parts)


def _had_ended(item: MessageWithParts, started_ms: int) -> bool:
    message = item.message
    completed = message.time.completed
    return completed is None or completed <= started_ms


def _cleared_ms(part: Part) -> int | None:
    if isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted):
        return part.state.time.compacted
    return None


def _uncleared(part: Part, started_ms: int) -> Part:
    cleared_ms = _cleared_ms(part)
    if cleared_ms is None or cleared_ms <= started_ms or not isinstance(part, ToolPart):
        return part
    state = part.state
    if not isinstance(state, ToolCompleted):
        return part
    time = msgspec.structs.replace(state.time, compacted=None)
    return msgspec.structs.replace(part, state=msgspec.structs.replace(state, time=time))


def _labels(
    whole: Sequence[MessageWithParts],
    visible: Sequence[MessageWithParts],
    cuts: dict[str, int | None],
) -> dict[str, Label]:
    """Label every part; `cuts` has every message of the past and the boundary that dropped it."""
    seen = {item.message.id for item in visible}
    labels: dict[str, Label] = {}
    for item in whole:
        message_id = item.message.id
        if message_id not in cuts:
            label = Label(state="future")
        elif message_id in seen:
            label = Label(state="visible")
        else:
            label = Label(state="dropped", boundary=cuts[message_id])
        labels |= dict.fromkeys((part.id for part in item.parts), label)
    for part in (part for item in visible for part in item.parts):
        if part.discarded:
            labels[part.id] = Label(state="dropped")
        elif _cleared_ms(part) is not None:
            labels[part.id] = Label(state="cleared")
    return labels


def _cuts(
    past: Sequence[MessageWithParts], boundaries: Sequence[Boundary], rule: ViewRule
) -> dict[str, int | None]:
    """Return for every message the number of the first boundary that cut it, None if none did."""
    places = {item.message.id: place for place, item in enumerate(past)}
    kept_from = [(one.number, _kept_from(one, places, rule)) for one in boundaries]
    return {
        message_id: next((number for number, start in kept_from if place < start), None)
        for message_id, place in places.items()
    }


def _kept_from(boundary: Boundary, places: dict[str, int], rule: ViewRule) -> int:
    """Return from which place on a boundary kept what there was; 0 where its tail is missing."""
    asked = places[boundary.request_id]
    if rule == "classic" or boundary.tail_start_id is None:
        return asked
    start = places.get(boundary.tail_start_id, 0)
    return start if start <= asked else 0


def _request(item: MessageWithParts) -> CompactionPart | None:
    if not isinstance(item.message, UserMessage):
        return None
    return next((part for part in item.parts if isinstance(part, CompactionPart)), None)


def _tail_of(item: MessageWithParts) -> str | None:
    request = _request(item)
    return None if request is None else request.tail_start_id


def _parent(item: MessageWithParts) -> str | None:
    message = item.message
    return message.parent_id if isinstance(message, AssistantMessage) else None


def _is_summary(item: MessageWithParts, *, parity: bool = False) -> bool:
    """Return whether a message is a successful summary."""
    message = item.message
    if not isinstance(message, AssistantMessage) or not message.is_summary:
        return False
    if not message.is_finished:
        return False
    return parity or any(_is_said(part) for part in item.parts)


def _is_said(part: Part) -> bool:
    return isinstance(part, TextPart) and bool(part.text.strip()) and not part.discarded
