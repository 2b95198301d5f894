"""What holds after any run, whatever the model said, in which order, and where it was stopped.

The numbers are those of the list of invariants that the engine was built to. Each is a function
`invariant_NN_…` that a test calls on every run that Hypothesis draws.
"""

from __future__ import annotations

import asyncio
import math
import string
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_nb.clock import FixedClock
from forge_nb.errors import CursorError, NotFoundError, UsageError
from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.history import filter_compacted, find_boundaries, view_at
from forge_nb.messages.message import AssistantMessage, MessageWithParts, UserMessage
from forge_nb.messages.parts import (
    CompactionPart,
    ReasoningPart,
    StepFinishPart,
    TextPart,
    is_open,
)
from forge_nb.messages.render import to_model_messages
from forge_nb.messages.stream import StepFinish, StepStart, TextDelta, TextEnd, TextStart, ToolCall
from forge_nb.messages.usage import ModelLimits, TokenUsage
from forge_nb.providers.registry import register_provider
from forge_nb.recovery import recover
from forge_nb.requests import is_final_answer
from forge_nb.settings import Settings
from forge_nb.store.cursor import encode_cursor
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from forge_nb.workbench import Workbench
from tests.contracts.store_events import SESSION, asked, session
from tests.helpers import USED, Saying, text
from tests.properties.hostile import HostileModel, Run, answers, run_of, summaries

if TYPE_CHECKING:
    from forge_nb.events import SyncEvent
    from forge_nb.store.base import Store
    from forge_nb.store.sql import SqlStore

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
        assert finals[-1:] == run.messages[-1:]


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
            if part.attempt < last:
                assert part.discarded
                failed.add(part.id)
    sent = {part.id for message in to_model_messages(run.visible) for part in message.parts}
    assert sent & failed == set()
    for request in run.requests:
        assert not {part.id for message in request.messages for part in message.parts} & failed


def invariant_12_every_call_that_reported_usage_has_one_record(run: Run) -> None:
    parts = [part for item, _ in answers_of(run) for part in item.parts]
    finishes = [part.id for part in parts if isinstance(part, StepFinishPart)]
    assert sorted(record.id for record in run.usage) == sorted(finishes)
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
    is_closed_and_goes_on(run, kept)


@pytest.mark.parametrize("keep_tail", [True, False])
def test_a_compacted_run_that_is_cut_at_each_of_its_writes_goes_on(*, keep_tail: bool) -> None:
    good = [StepStart(), TextStart(), TextDelta(text="a good summary"), TextEnd()]
    end = StepFinish(reason="stop", usage=TokenUsage(input=9, output=3))
    own = msgspec.structs.replace(OWN, keep_tail=keep_tail)
    model = HostileModel([big_step(0), big_step(1)], [[*good, end], [*good, end]], limits=SMALL)
    run = run_of(model, settings=own, prompts=("word " * 300,))
    assert len(find_boundaries(run.messages)) == 2
    for length in range(2, len(run.transactions)):
        is_closed_and_goes_on(run, run.transactions[:length])


def is_closed_and_goes_on(run: Run, kept: list[list[SyncEvent]]) -> None:
    """Open a store that holds these transactions of a run, and resume the session."""
    name = run.session.info.id
    register_provider("hostile", lambda _model: HostileModel([]))
    with Workbench(":memory:", model="hostile:m", settings=OWN, clock=FixedClock()) as wb:
        for events in kept:
            wb.store.apply(events).result()
        invariant_07_recovery_closes_what_was_open(run, wb.store)
        resumed = asyncio.run(wb.session(name).resume())
        assert resumed.text == "done" or resumed.outcome != "failed"
        assert wb.store.prompts(name, "waiting", "taken") == []
        invariant_07_recovery_closes_what_was_open(run, wb.store)


def invariant_07_recovery_closes_what_was_open(run: Run, store: Store) -> None:
    """And a second recovery finds nothing to do."""
    name = run.session.info.id
    recover(store, name, now_ms=9_999_999_999_999)
    for item in store.messages(name):
        assert [part for part in item.parts if is_open(part)] == []
        if isinstance(item.message, AssistantMessage):
            assert item.message.time.completed is not None
    assert [one for one in verify(store) if one.level == "failure"] == []
    again = recover(store, name, now_ms=9_999_999_999_999)
    assert (again.messages, again.parts, again.prompts) == (0, 0, 0)


def test_a_turn_goes_on_after_a_stop_beside_tool_calls() -> None:
    """Some providers report that; the tools' results have to be read by the model."""
    stop = StepFinish(reason="stop", usage=USED)
    call = ToolCall(call_id="c", tool="quick", input={})
    run = run_of(HostileModel([[StepStart(), call, stop]]), settings=OWN)
    assert len(run.requests) == 2


# --------------------------------------------------------------------------------- compactions


@given(summaries, st.integers(1, 3), st.booleans())
@settings(max_examples=settings().max_examples // 4)
def test_any_summaries_keep_the_invariants_of_compaction(
    said: list[list[object]],
    limit: int,
    keep_tail: bool,  # noqa: FBT001  drawn
) -> None:
    steps = [big_step(n) for n in range(4)]
    own = msgspec.structs.replace(OWN, max_compactions=limit, keep_tail=keep_tail)
    model = HostileModel(steps, said, limits=SMALL)
    run = run_of(model, settings=own, prompts=("word " * 300, "and " * 300))

    invariant_08_a_boundary_is_a_good_summary(run)
    invariant_09_the_view_is_a_function_of_the_rows(run)
    invariant_10_compactions_in_a_row_are_bounded(run, limit)
    invariant_01_order_is_a_number_that_the_store_gives(run)
    invariant_06_nothing_is_open_when_the_call_is_over(run)
    invariant_12_every_call_that_reported_usage_has_one_record(run)
    assert run.findings == []


def big_step(number: int) -> list[object]:
    """Return a step that fills the window."""
    call = ToolCall(call_id=f"c{number}", tool="quick", input={"n": number})
    used = TokenUsage(input=1_900, output=20)
    words = [TextStart(), TextDelta(text="word " * 200), TextEnd()]
    return [StepStart(), *words, call, StepFinish(reason="tool-calls", usage=used)]


def invariant_08_a_boundary_is_a_good_summary(run: Run) -> None:
    good = []
    tails: dict[str, str | None] = {}
    for item in run.messages:
        for part in item.parts:
            if isinstance(part, CompactionPart):
                tails[item.message.id] = part.tail_start_id
    for item, message in answers_of(run):
        said = [part for part in item.parts if isinstance(part, TextPart) and not part.discarded]
        is_said = any(part.text.strip() for part in said)
        is_whole = message.finish not in {None, "error"} and message.error is None
        if message.is_summary and is_said and is_whole:
            good.append(message.parent_id)
    boundaries = find_boundaries(run.messages)
    assert [one.request_id for one in boundaries] == list(dict.fromkeys(good))
    made = {one.request_id for one in boundaries}
    assert {name for name, tail in tails.items() if tail is not None} <= made
    for events in run.transactions:  # the marker is in the transaction that ends the summary
        marked = [event for event in events if _names_a_tail(event)]
        ended = [event for event in events if isinstance(event, MessageUpdated)]
        assert not marked or any(
            isinstance(event.message, AssistantMessage) and event.message.is_summary
            for event in ended
        )


def _names_a_tail(event: SyncEvent) -> bool:
    return (
        isinstance(event, PartUpdated)
        and isinstance(event.part, CompactionPart)
        and event.part.tail_start_id is not None
    )


def invariant_09_the_view_is_a_function_of_the_rows(run: Run) -> None:
    """Nothing is deleted, and every part that is not seen says which boundary dropped it."""
    written = {
        event.event.message.id for event in run.committed if isinstance(event.event, MessageUpdated)
    }
    assert {item.message.id for item in run.messages} == written
    assert filter_compacted(run.messages[::-1]) == filter_compacted(iter(run.messages[::-1]))
    view = view_at(run.messages, None)
    assert list(view.messages) == run.visible
    numbers = {boundary.number for boundary in view.boundaries}
    seen = {part.id for item in view.messages for part in item.parts}
    for item in run.messages:
        for part in item.parts:
            label = view.labels[part.id]
            if label.state == "dropped":
                assert label.boundary in numbers or part.discarded
            else:
                assert part.id in seen


def invariant_10_compactions_in_a_row_are_bounded(run: Run, limit: int) -> None:
    in_row = 0
    for _, message in answers_of(run):
        in_row = in_row + 1 if message.is_summary else 0
        assert in_row <= 2 * (
            limit + 1
        )  # the last of one run may stand before the first of another


# ------------------------------------------------------------------------- cursors and tenants


def refuses_what_is_like_it(store: Store, cursor: str, data: st.DataObject) -> None:
    assert not set(cursor) - set(string.ascii_letters + string.digits + "-_")
    place = data.draw(st.integers(0, len(cursor) - 1))
    for wrong in (cursor[:place], cursor[:place] + "*" + cursor[place:]):
        with pytest.raises(CursorError):
            store.page(SESSION, before=wrong)


@given(st.integers(1, 7), st.integers(1, 30), st.data())
@settings(max_examples=settings().max_examples // 4)
def test_invariant_14_cursors_are_opaque_checked_and_bounded(
    size: int, count: int, data: st.DataObject
) -> None:
    with open_store(":memory:") as store:
        names = [f"msg_{n}" for n in range(count)]
        store.apply([session(), *(asked(name) for name in names)]).result()
        cursor: str | None = None
        read: list[str] = []
        while cursor is not None or not read:
            page = store.page(SESSION, limit=size, before=cursor)
            assert len(page.messages) <= size
            read += [item.message.id for item in page.messages]
            cursor = page.next_cursor
            if cursor is not None:
                refuses_what_is_like_it(store, cursor, data)
        assert read == names[::-1]
        with pytest.raises(CursorError):
            store.page(SESSION, before=encode_cursor("ses_other", 1))
        for limit in (0, 501):
            with pytest.raises(UsageError):
                store.page(SESSION, limit=limit)


@given(answers)
@settings(max_examples=10)
def test_invariant_15_another_tenant_reads_nothing(said: list[list[object]]) -> None:
    run = run_of(HostileModel(said), settings=OWN)
    name = run.session.info.id
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forge.db"
        with open_store(path, tenant="one") as own, open_store(path, tenant="two") as other:
            for events in run.transactions:
                own.apply(events).result()
            assert len(list(own.messages(name))) == len(run.messages)
            reads_nothing(other, name, [item.message.id for item in run.messages])


def reads_nothing(store: SqlStore, name: str, message_ids: list[str]) -> None:
    assert store.sessions() == []
    assert store.usage(name) == []
    assert store.prompts(name, "waiting", "taken", "answered", "cancelled") == []
    assert verify(store) == []
    with pytest.raises(NotFoundError):
        store.session(name)
    for message_id in message_ids:
        with pytest.raises(NotFoundError):
            store.message(name, message_id)


def test_invariant_12_a_fork_points_at_the_original_calls_and_totals_count_each_once() -> None:
    register_provider("saying", lambda _model: Saying(text("x")))
    with Workbench(":memory:", model="saying:m", clock=FixedClock()) as wb:
        talk = wb.session("t")
        for words in ("one", "two"):
            asyncio.run(talk.prompt(words))
        paid = wb.sessions()["cost_usd"].sum()
        fork = talk.fork().fork()
        assert wb.sessions()["cost_usd"].sum() == pytest.approx(paid)
        originals = [record.id for record in wb.store.usage(talk.id)]
        assert [record.origin_id for record in wb.store.usage(fork.id)] == originals
