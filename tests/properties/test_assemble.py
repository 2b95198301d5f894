"""Properties of the assembler: splits do not matter, offsets tile, nothing stays open."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forge_nb.clock import FixedClock
from forge_nb.messages.assemble import AppendDelta, PartAssembler, SavePart
from forge_nb.messages.ids import IdSource
from forge_nb.messages.parts import Part, ReasoningPart, TextPart, is_open
from forge_nb.messages.stream import (
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepFinish,
    StepStart,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolFailure,
    ToolInputStart,
    ToolResult,
)


def assembler(*, trim: bool = True) -> PartAssembler:
    clock = FixedClock(1_000)
    return PartAssembler("ses_1", "msg_1", IdSource(clock, random.Random(1)), clock, trim=trim)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


block = st.sampled_from(["a", "b"])
event = st.one_of(
    st.builds(StepStart),
    st.builds(TextStart, id=block),
    st.builds(TextDelta, id=block, text=st.text(max_size=8)),
    st.builds(TextEnd, id=block),
    st.builds(ReasoningStart, id=block),
    st.builds(ReasoningDelta, id=block, text=st.text(max_size=8)),
    st.builds(ReasoningEnd, id=block),
    st.builds(ToolInputStart, call_id=block, tool=st.just("read")),
    st.builds(ToolCall, call_id=block, tool=st.just("read"), input=st.just({"path": "x"})),
    st.builds(ToolResult, call_id=block, output=st.text(max_size=5)),
    st.builds(ToolFailure, call_id=block, error=st.text(max_size=5)),
    st.builds(StepFinish, reason=st.just("stop")),
)


@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_any_split_of_a_text_into_deltas_gives_the_same_part(text: str, cuts: list[int]) -> None:
    whole, split = assembler(trim=False), assembler(trim=False)
    for target, deltas in ((whole, [text]), (split, pieces_of(text, cuts))):
        target.feed(TextStart())
        for delta in deltas:
            target.feed(TextDelta(text=delta))
    one, other = whole.feed(TextEnd())[0], split.feed(TextEnd())[0]
    assert isinstance(one, SavePart)
    assert one == other
    assert isinstance(one.part, TextPart)
    assert one.part.text == text


@given(st.lists(event, max_size=40))
def test_nothing_is_open_after_closing_and_offsets_tile_the_text(events: list[StreamEvent]) -> None:
    made = assembler(trim=False)
    rows: dict[str, Part] = {}
    grown: dict[str, str] = {}
    for one in events:
        for change in made.feed(one):
            if isinstance(change, AppendDelta):
                assert change.offset == len(grown.get(change.part_id, ""))
                grown[change.part_id] = grown.get(change.part_id, "") + change.delta
            else:
                rows[change.part.id] = change.part
    for change in made.close():
        rows[change.part.id] = change.part
    assert not [part for part in rows.values() if is_open(part)]
    for part_id, text in grown.items():
        part = rows[part_id]
        assert isinstance(part, TextPart | ReasoningPart)
        assert part.text == text
    assert made.close() == []
