"""What holds after any run, whatever the model said, in which order, and where it was stopped.

The numbers are those of the list of invariants that the engine was built to. Each is a function
`invariant_NN_…` that a test calls on every run that Hypothesis draws.
"""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from forge_nb.events import MessageUpdated
from forge_nb.messages.message import AssistantMessage, MessageWithParts, UserMessage
from forge_nb.messages.parts import (
    ReasoningPart,
    StepFinishPart,
    TextPart,
    is_open,
)
from forge_nb.messages.render import to_model_messages
from forge_nb.messages.usage import ModelLimits
from forge_nb.recovery import recover
from forge_nb.requests import is_final_answer
from forge_nb.settings import Settings
from forge_nb.store.open import open_store
from tests.properties.hostile import HostileModel, Run, answers, run_of

OWN = Settings(title=False, trim=False, retries=2, retry_base_s=0.0, max_steps=6)
SMALL = ModelLimits(context=2_000, output=500)


def answers_of(run: Run) -> list[tuple[MessageWithParts, AssistantMessage]]:
    """Return the assistant messages of a run."""
    return [
        (item, item.message) for item in run.messages if isinstance(item.message, AssistantMessage)
    ]


# --------------------------------------------------------------------------- any stream of events


@given(answers)
def test_a_run_of_any_events_keeps_every_invariant(said: list[list[object]]) -> None:
    run = run_of(HostileModel(said), settings=OWN)

    invariant_01_order_is_a_number_that_the_store_gives(run)
    invariant_02_an_answer_is_found_by_its_link_and_its_finish(run)
    invariant_03_what_is_written_twice_is_written_once(run)
    invariant_04_deltas_say_where_they_belong(run)
    invariant_05_the_closing_row_is_the_sum_of_the_deltas(run)
    invariant_06_nothing_is_open_when_the_call_is_over(run)
    invariant_11_a_failed_attempt_is_marked_and_not_sent(run)
    invariant_12_every_call_that_reported_usage_has_one_record(run)
    invariant_13_costs_are_numbers_and_kinds_are_disjoint(run)
    assert run.findings == []


def invariant_01_order_is_a_number_that_the_store_gives(run: Run) -> None:
    """The ids wrap in the middle of the run; messages, parts and log entries stay in order."""
    logged = [event.seq for event in run.committed]
    assert logged == list(range(logged[0], logged[0] + len(logged)))
    assert [item.seq for item in run.messages] == sorted({item.seq for item in run.messages})
    for item in run.messages:
        assert list(item.part_seqs) == sorted(set(item.part_seqs))
        assert all(seq > item.seq for seq in item.part_seqs)
    written = list(
        dict.fromkeys(
            event.event.message.id
            for event in run.committed
            if isinstance(event.event, MessageUpdated)
        )
    )
    assert [item.message.id for item in run.messages] == written


def invariant_02_an_answer_is_found_by_its_link_and_its_finish(run: Run) -> None:
    assert run.waiting == 0
    asked = {item.message.id for item in run.messages if isinstance(item.message, UserMessage)}
    for _, message in answers_of(run):
        assert message.parent_id in asked
    if run.result is not None and run.result.outcome == "completed":
        [question] = asked
        finals = [item for item in run.messages if is_final_answer(item, question)]
        assert len(finals) >= 1
        assert finals[-1] == run.messages[-1]


def invariant_03_what_is_written_twice_is_written_once(run: Run) -> None:
    with open_store(":memory:") as store:
        for number in (1, 2):
            for events in run.transactions:
                store.apply(events).result()
            again = list(store.messages(run.session.info.id))[::-1]
            assert [_values(item) for item in again] == [_values(item) for item in run.messages]
            stored = store.session(run.session.info.id)
            assert stored.tokens == run.session.tokens, number
            assert _is_same(stored.cost_usd, run.session.cost_usd)


def _values(item: MessageWithParts) -> tuple[object, ...]:
    return item.message, item.parts


def _is_same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, abs_tol=1e-12)


def invariant_04_deltas_say_where_they_belong(run: Run) -> None:
    """A subscriber that came late, at whatever delta, sees by its offset what it has missed."""
    grown: dict[str, int] = {}
    for delta in run.deltas:
        assert delta.offset == grown.get(delta.part_id, 0)
        grown[delta.part_id] = delta.offset + len(delta.delta)
    revs = [event.rev for event in run.committed]
    assert all(before < after for before, after in pairwise(revs))


def invariant_05_the_closing_row_is_the_sum_of_the_deltas(run: Run) -> None:
    texts: dict[str, str] = {}
    for delta in run.deltas:
        texts[delta.part_id] = texts.get(delta.part_id, "") + delta.delta
    for item in run.messages:
        for part in item.parts:
            if isinstance(item.message, AssistantMessage) and isinstance(
                part, TextPart | ReasoningPart
            ):
                assert part.text == texts.get(part.id, "")


def invariant_06_nothing_is_open_when_the_call_is_over(run: Run) -> None:
    for item, message in answers_of(run):
        assert [part for part in item.parts if is_open(part)] == []
        assert message.time.completed is not None
        assert message.finish is not None


def invariant_11_a_failed_attempt_is_marked_and_not_sent(run: Run) -> None:
    failed = set()
    for item, _ in answers_of(run):
        last = max((part.attempt for part in item.parts), default=1)
        for part in item.parts:
            assert part.discarded == (part.attempt < last) or part.discarded
            if part.attempt < last:
                assert part.discarded
                failed.add(part.id)
    sent = {part.id for message in to_model_messages(run.visible) for part in message.parts}
    assert sent & failed == set()
    for request in run.requests:
        assert not {part.id for message in request.messages for part in message.parts} & failed


def invariant_12_every_call_that_reported_usage_has_one_record(run: Run) -> None:
    finishes = {
        part.id
        for item, _ in answers_of(run)
        for part in item.parts
        if isinstance(part, StepFinishPart)
    }
    assert {record.id for record in run.usage} == finishes
    assert len(run.usage) == len(finishes) <= len(run.requests)
    assert {record.purpose for record in run.usage} <= {"turn", "compaction"}
    messages = {message.id for _, message in answers_of(run)}
    assert all(record.message_id in messages for record in run.usage)


def invariant_13_costs_are_numbers_and_kinds_are_disjoint(run: Run) -> None:
    for record in run.usage:
        known = [kind for kind in record.tokens.kinds if kind is not None]
        assert record.tokens.sum == (sum(known) if known else None)
        assert record.cost.usd is None or (math.isfinite(record.cost.usd) and record.cost.usd >= 0)
        assert (record.cost.usd is None) == (not known)
    costs = [record.cost.usd for record in run.usage if record.cost.usd is not None]
    assert _is_same(run.session.cost_usd, sum(costs) if costs else None)


@given(answers, st.data())
@settings(max_examples=settings().max_examples // 2)
def test_a_run_that_is_cut_anywhere_is_closed_when_the_store_is_opened(
    said: list[list[object]], data: st.DataObject
) -> None:
    run = run_of(HostileModel(said), settings=OWN)
    kept = run.transactions[: data.draw(st.integers(2, len(run.transactions)))]
    with open_store(":memory:") as store:
        for events in kept:
            store.apply(events).result()
        invariant_07_recovery_closes_what_was_open(run, store)


def invariant_07_recovery_closes_what_was_open(run: Run, store: object) -> None:
    """And a second recovery finds nothing to do."""
    from forge_nb.store.sql import SqlStore
    from forge_nb.store.verify import verify

    assert isinstance(store, SqlStore)
    name = run.session.info.id
    recover(store, name, now_ms=9_999_999_999_999)
    for item in store.messages(name):
        assert [part for part in item.parts if is_open(part)] == []
        if isinstance(item.message, AssistantMessage):
            assert item.message.time.completed is not None
    assert [one for one in verify(store) if one.level == "failure"] == []
    again = recover(store, name, now_ms=9_999_999_999_999)
    assert (again.messages, again.parts, again.prompts) == (0, 0, 0)
