"""What a tape keeps besides the events, and what it refuses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from forge_nb.errors import TapeError
from forge_nb.messages.stream import StepFinish, StepStart, StreamError, TextDelta, TextStart
from forge_nb.messages.usage import ModelLimits, UnitPrices
from forge_nb.providers.scripted import ScriptedProvider
from forge_nb.providers.scripts import make_script
from forge_nb.providers.tape import Recorder, TapeProvider
from tests.contracts.provider_contract import asked, drain
from tests.helpers import Saying, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from forge_nb.messages.stream import StreamEvent
    from forge_nb.providers.base import ModelRequest


class Endless:
    """A provider that talks until it is hung up on, and notes it."""

    id = "endless"

    def __init__(self) -> None:
        self.is_closed = False

    def limits(self, model_id: str) -> ModelLimits:
        del model_id
        return ModelLimits()

    def prices(self, model_id: str) -> UnitPrices | None:
        del model_id
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        del request
        try:
            yield StepStart()
            yield TextStart()
            while True:
                yield TextDelta(text="x")
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)  # as a real one, which closes its connection
            self.is_closed = True


async def hang_up(provider: Recorder, *, after: int) -> None:
    stream = provider.stream(asked("why?"))
    for _ in range(after):
        await anext(stream)
    await stream.aclose()


async def test_hanging_up_on_a_recorder_hangs_up_on_the_recorded_provider(tmp_path: Path) -> None:
    endless = Endless()
    await hang_up(Recorder(endless, tmp_path / "tape.jsonl"), after=4)
    assert endless.is_closed


async def test_a_turn_that_was_broken_off_replays_what_was_heard_and_then_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tape.jsonl"
    await hang_up(Recorder(Endless(), path), after=4)
    *heard, last = await drain(TapeProvider(path), asked("why?"))
    assert heard == [StepStart(), TextStart(), TextDelta(text="x"), TextDelta(text="x")]
    assert isinstance(last, StreamError)
    assert "cancelled" in last.message


async def test_hanging_up_after_the_last_event_leaves_a_whole_turn(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    said = text("done")
    await hang_up(Recorder(Saying(said), path), after=len(said))
    assert await drain(TapeProvider(path), asked("why?")) == said


async def test_a_provider_that_raises_leaves_a_tape_that_can_be_played(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = Recorder(Saying([StepStart(), OSError("gone")]), path)
    with pytest.raises(OSError, match="gone"):
        await drain(recorder, asked("why?"))
    first, last = await drain(TapeProvider(path), asked("why?"))
    assert first == StepStart()
    assert isinstance(last, StreamError)


async def test_a_tape_knows_the_window_and_the_prices_of_the_recorded_model(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    tour = ScriptedProvider(make_script("tour", {}))
    await drain(Recorder(tour, path), asked("why?"))
    played = TapeProvider(path)
    assert played.limits("any") == tour.limits("any") != ModelLimits()
    assert played.prices("any") == tour.prices("any") is not None


async def test_a_tape_without_a_window_and_prices_is_still_played(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(
        b'{"k":"tape","v":1}\n{"k":"turn","n":0,"key":"a","purpose":"turn"}\n'
        b'{"k":"ev","t":0.1,"e":{"type":"step-finish","reason":"stop"}}\n{"k":"end","how":"done"}\n'
    )
    played = TapeProvider(path)
    assert (played.limits("any"), played.prices("any")) == (ModelLimits(), None)
    assert await drain(played, asked("why?")) == [StepFinish(reason="stop")]


async def test_a_second_recording_goes_on_with_the_tape(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    for question in ("one", "two"):
        await drain(Recorder(Saying(text(question)), path), asked(question))
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [row["n"] for row in rows if row["k"] == "turn"] == [0, 1]
    assert sum(row["k"] == "tape" for row in rows) == 1
    played = TapeProvider(path, match="key")
    assert await drain(played, asked("two")) == text("two")


async def test_an_empty_file_becomes_a_tape(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.touch()
    await drain(Recorder(Saying(text("hello")), path), asked("one"))
    assert await drain(TapeProvider(path), asked("one")) == text("hello")


@pytest.mark.parametrize("content", [b"my notes", b'{"k":"tape","v":9}\n', b"[1]\n"])
def test_a_file_that_is_no_tape_is_not_recorded_onto(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(TapeError, match=r"notes\.txt"):
        Recorder(Saying(text("hello")), path)
    assert path.read_bytes() == content


async def test_a_tape_cut_anywhere_is_refused_and_names_the_file(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    recorder = Recorder(Saying(text("hello")), whole)
    for question in ("one", "two"):
        await drain(recorder, asked(question))
    content = whole.read_bytes()
    at_turn = content.index(b'{"k":"turn","n":1')  # cut here it is a shorter tape, not a broken one
    for length in range(len(content) - 1):
        if length in {at_turn, at_turn - 1}:
            continue
        cut.write_bytes(content[:length])
        with pytest.raises(TapeError, match=r"cut\.jsonl"):
            TapeProvider(cut)


async def test_half_a_character_does_not_stop_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await drain(Recorder(Saying(text("a\ud83d!")), path), asked("why \udc80?"))
    played = await drain(TapeProvider(path, match="key"), asked("why \udc80?"))
    assert TextDelta(text="a?!") in played
