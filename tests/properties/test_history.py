"""The view against a second, slower definition, and what holds of it for every session.

Ids are shuffled, so that nothing can lean on their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import assume, given
from hypothesis import strategies as st

from forge_nb.history import ViewRule, filter_compacted, find_boundaries, view_at
from forge_nb.messages.message import AssistantMessage, MessageWithParts, UserMessage
from forge_nb.messages.parts import CompactionPart
from tests.histories import answer, discarded, having, ids, request, said, user

if TYPE_CHECKING:
    from collections.abc import Iterator

Session = list[MessageWithParts]

BAD: dict[str, dict[str, str | None]] = {
    "failed": {"error": "APIError"},
    "cut": {"finish": None},
    "blank": {"text": " \n"},
}
kinds = st.sampled_from(["turn", "turn", "steps", "compact", "failed", "cut", "blank", "retried"])
rules = st.sampled_from(["classic", "tail", None])


@st.composite
def sessions(draw: st.DrawFn, *, over_older: bool = True) -> Session:
    """Draw a session; with `over_older` a tail may reach back over an older boundary."""
    plan = draw(st.lists(kinds, max_size=9))
    names = iter(draw(st.permutations([f"m{number}" for number in range(40)])))
    messages: Session = []
    free_from = 0  # a tail may start here
    for kind in plan:
        asked = next(names)
        if kind in {"turn", "steps"}:
            count = 1 if kind == "turn" else 3
            messages += [user(asked), *(answer(next(names), asked) for _ in range(count))]
            continue
        tail = draw(st.sampled_from([None, "gone", *ids(messages[free_from:])]))
        messages += [request(asked, tail), *_summaries(kind, asked, names)]
        if kind in {"compact", "retried"} and not over_older:
            free_from = len(messages)
    return messages


def _summaries(kind: str, asked: str, names: Iterator[str]) -> Session:
    bad = BAD.get(kind, {})
    made = answer(name := next(names), asked, summary=True, **bad)  # type: ignore[arg-type]
    if kind != "retried":
        return [made]
    lost = having(made, discarded(said(name)))
    return [lost, answer(next(names), asked, summary=True)]


# --------------------------------------------------------------------------- a second definition


def is_good(item: MessageWithParts) -> bool:
    message = item.message
    return (
        isinstance(message, AssistantMessage)
        and message.summary is True
        and message.finish is not None
        and message.error is None
        and any(getattr(part, "text", "").strip() and not part.discarded for part in item.parts)
    )


def compactions(whole: Session) -> list[tuple[int, int, str | None]]:
    """Return for every good compaction: place of its request, of its summary, and the tail's id."""
    return [
        (asked, next(made for made in answers if made > asked), part.tail_start_id)
        for asked, item in enumerate(whole)
        if isinstance(item.message, UserMessage)
        for part in item.parts
        if isinstance(part, CompactionPart)
        for answers in [[n for n, one in enumerate(whole) if is_good(one) and _of(one, item)]]
        if any(made > asked for made in answers)
    ]


def _of(summary: MessageWithParts, asked: MessageWithParts) -> bool:
    return getattr(summary.message, "parent_id", None) == asked.message.id


def expected_view(whole: Session, rule: ViewRule | None) -> Session:
    if not (found := compactions(whole)):
        return whole
    asked, made, tail = found[-1]
    if tail is None or rule == "classic":
        return whole[asked:]
    if tail not in ids(whole[:asked]):
        return whole
    start = ids(whole).index(tail)
    return [*whole[asked : made + 1], *whole[start:asked], *whole[made + 1 :]]


# ------------------------------------------------------------------------------------ properties


@given(sessions(), rules)
def test_the_view_is_what_the_slow_definition_says(whole: Session, rule: ViewRule | None) -> None:
    assert ids(filter_compacted(reversed(whole), rule=rule)) == ids(expected_view(whole, rule))
    requests = [whole[asked].message.id for asked, _, _ in compactions(whole)]
    assert [one.request_id for one in find_boundaries(whole)] == requests


@given(sessions(), rules)
def test_the_messages_of_a_view_are_those_of_a_suffix(
    whole: Session, rule: ViewRule | None
) -> None:
    view = filter_compacted(reversed(whole), rule=rule)
    places = sorted(ids(whole).index(name) for name in ids(view))
    assert places == list(range(len(whole) - len(view), len(whole)))


@given(sessions(over_older=False), rules)
def test_filtering_a_view_again_changes_nothing(whole: Session, rule: ViewRule | None) -> None:
    """A tail that reaches over an older boundary shows that boundary again: it is left out here."""
    view = filter_compacted(reversed(whole), rule=rule)
    assert ids(filter_compacted(reversed(view), rule=rule)) == ids(view)


@given(sessions())
def test_a_classic_view_filtered_again_changes_nothing(whole: Session) -> None:
    view = filter_compacted(reversed(whole), rule="classic")
    assert filter_compacted(reversed(view), rule="classic") == view


@given(sessions(), rules)
def test_no_message_is_read_beyond_the_view(whole: Session, rule: ViewRule | None) -> None:
    taken = 0

    def newest_first() -> Iterator[MessageWithParts]:
        nonlocal taken
        for item in reversed(whole):
            taken += 1
            yield item

    assert len(filter_compacted(newest_first(), rule=rule)) == taken


@given(sessions(), st.data())
def test_what_came_later_does_not_change_the_view_before_a_call(
    whole: Session, data: st.DataObject
) -> None:
    calls = [n for n, item in enumerate(whole) if isinstance(item.message, AssistantMessage)]
    assume(calls)
    place = data.draw(st.sampled_from(calls))
    at = whole[place].message.id
    then, now = (view_at(rows, at, rule="tail") for rows in (whole[: place + 1], whole))
    assert (then.messages, then.boundaries) == (now.messages, now.boundaries)
    known = {part.id for item in whole[: place + 1] for part in item.parts}
    assert then.labels == {name: now.labels[name] for name in known}
    assert {now.labels[name].state for name in now.labels.keys() - known} <= {"future"}


@given(sessions(), rules)
def test_every_part_has_one_label_and_the_visible_ones_are_those_of_the_view(
    whole: Session, rule: ViewRule | None
) -> None:
    view = view_at(whole, None, rule=rule)
    assert view.labels.keys() == {part.id for item in whole for part in item.parts}
    visible = {name for name, label in view.labels.items() if label.state == "visible"}
    sent = {part.id for item in view.messages for part in item.parts if not part.discarded}
    assert visible == sent


@given(sessions(over_older=False), rules)
def test_a_part_that_boundary_k_dropped_was_seen_until_boundary_k(
    whole: Session, rule: ViewRule | None
) -> None:
    view = view_at(whole, None, rule=rule)
    before = {
        one.number: ids(view_at(whole, one.summary_id, rule=view.rule).messages)
        for one in view.boundaries
    }
    for item in whole:
        for part in item.parts:
            label = view.labels[part.id]
            if label.state == "dropped" and not part.discarded:
                assert item.message.id in before[label.boundary or 0]
