from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from forge_nb.widgets.coalescer import FRAME_S, Coalescer

if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandTurnedLoop:
    """The part of a loop that a coalescer needs; time passes when it is told to."""

    def __init__(self) -> None:
        self._now = 0.0
        self._queue: list[tuple[float, int, Call]] = []
        self._count = 0

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Call:
        call = Call(callback)
        self._count += 1
        heapq.heappush(self._queue, (self._now + delay, self._count, call))
        return call

    def advance(self, seconds: float) -> None:
        until = self._now + seconds
        while self._queue and self._queue[0][0] <= until:
            self._now, _, call = heapq.heappop(self._queue)
            if not call.is_cancelled:
                call.callback()
        self._now = until


def coalescing() -> tuple[HandTurnedLoop, Coalescer, list[list[Any]]]:
    loop = HandTurnedLoop()
    frames: list[list[Any]] = []
    return loop, Coalescer(loop, frames.append), frames


def row(part_id: str, **item: Any) -> dict[str, Any]:
    return {"kind": "part", "message": "m", "item": {"id": part_id, **item}}


def test_a_second_of_deltas_is_thirty_messages_whatever_the_rate() -> None:
    loop, coalescer, frames = coalescing()

    for number in range(2_000):
        coalescer.add_text("p", number * 4, "abcd")
        loop.advance(1 / 2_000)
    loop.advance(FRAME_S)

    assert 28 <= len(frames) <= 31
    assert "".join(op["s"] for ops in frames for op in ops) == "abcd" * 2_000
    assert [op["off"] for ops in frames for op in ops][:2] == [0, frames[0][0]["s"].count("a") * 4]


def test_nothing_is_scheduled_while_nothing_waits() -> None:
    loop, coalescer, frames = coalescing()

    coalescer.add_text("p", 0, "a")
    loop.advance(1)
    coalescer.flush()
    loop.advance(1)

    assert len(frames) == 1


def test_open_parts_are_joined_each_for_itself() -> None:
    _, coalescer, frames = coalescing()

    coalescer.add_text("p", 0, "ab")
    coalescer.add_text("q", 5, "x")
    coalescer.add_text("p", 2, "🙂")
    coalescer.add_text("p", 4, "c")
    coalescer.flush()

    assert frames == [
        [
            {"kind": "d", "part": "p", "off": 0, "s": "ab🙂c"},
            {"kind": "d", "part": "q", "off": 5, "s": "x"},
        ]
    ]


def test_a_gap_begins_a_new_delta() -> None:
    _, coalescer, frames = coalescing()

    coalescer.add_text("p", 0, "ab")
    coalescer.add_text("p", 7, "cd")
    coalescer.flush()

    assert [(op["off"], op["s"]) for op in frames[0]] == [(0, "ab"), (7, "cd")]


def test_text_goes_out_before_the_row_that_closes_it() -> None:
    loop, coalescer, frames = coalescing()
    loop.advance(1)

    coalescer.add_text("p", 0, "ab")
    coalescer.add_row("p", row("p", text="ab"))
    coalescer.boundary()

    assert [op["kind"] for op in frames[0]] == ["d", "part"]


def test_boundaries_in_a_burst_wait_for_the_frame() -> None:
    """A replay of thousands of rows must not send thousands of messages."""
    loop, coalescer, frames = coalescing()

    for number in range(3_000):
        coalescer.add_row(f"p{number}", row(f"p{number}"))
        coalescer.boundary()
        loop.advance(1 / 3_000)
    loop.advance(FRAME_S)

    assert len(frames) <= 61
    assert sum(map(len, frames)) == 3_000


def test_a_later_row_takes_the_place_of_one_that_waits_and_its_deltas() -> None:
    _, coalescer, frames = coalescing()

    coalescer.add_row("p", row("p", text=""))
    coalescer.add_row("q", row("q"))
    coalescer.add_text("p", 0, "ab")
    coalescer.add_text("q", 0, "x")
    coalescer.add_row("p", row("p", text="ab!"))
    coalescer.flush()

    assert [op["item"]["id"] if op["kind"] == "part" else "d" for op in frames[0]] == [
        "p",
        "q",
        "d",
    ]
    assert frames[0][0]["item"]["text"] == "ab!"


def test_what_is_cleared_is_not_sent() -> None:
    loop, coalescer, frames = coalescing()

    coalescer.add_text("p", 0, "ab")
    coalescer.clear()
    loop.advance(1)

    assert frames == []


@given(
    st.lists(
        st.tuples(st.sampled_from("pqr"), st.text("a🙂", min_size=1, max_size=4), st.booleans()),
        max_size=60,
    )
)
def test_any_interleaving_gives_each_part_its_text(steps: list[tuple[str, str, bool]]) -> None:
    loop, coalescer, frames = coalescing()
    whole = dict.fromkeys("pqr", "")

    for part_id, text, waits in steps:
        place = len(whole[part_id].encode("utf-16-le")) // 2
        coalescer.add_text(part_id, place, text)
        whole[part_id] += text
        if waits:
            loop.advance(FRAME_S)
    coalescer.flush()

    for part_id, text in whole.items():
        ops = [op for frame in frames for op in frame if op["part"] == part_id]
        assert "".join(op["s"] for op in ops) == text
