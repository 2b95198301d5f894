"""What a tape keeps besides the events, and what it refuses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from forge_nb.errors import TapeError, UsageError
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamError,
    TextDelta,
    TextStart,
    ToolCall,
)
from forge_nb.messages.usage import ModelLimits, UnitPrices
from forge_nb.providers.recorder import Recorder
from forge_nb.providers.scripted import ScriptedProvider
from forge_nb.providers.scripts import make_script
from forge_nb.providers.secrets import Secrets
from forge_nb.providers.tape import TapeProvider
from forge_nb.providers.tape_requests import request_key
from forge_nb.providers.tape_rows import read_tape
from forge_nb.retry import failure_of
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


async def test_a_turn_that_was_cancelled_replays_what_was_heard_and_is_cancelled_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tape.jsonl"
    await hang_up(Recorder(Endless(), path), after=4)
    stream = TapeProvider(path).stream(asked("why?"))
    heard = [await anext(stream) for _ in range(4)]
    assert heard == [StepStart(), TextStart(), TextDelta(text="x"), TextDelta(text="x")]
    with pytest.raises(asyncio.CancelledError):
        await anext(stream)


async def test_a_title_that_was_cancelled_only_fails_since_it_runs_beside_the_turn(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = Recorder(Endless(), path).stream(asked("why?", purpose="title"))
    await anext(recorder)
    await recorder.aclose()
    [_, last] = await drain(TapeProvider(path), asked("why?", purpose="title"))
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
    heard = await drain(TapeProvider(path), asked("why?"))
    assert heard == [StepStart(), failure_of(OSError("gone"))]


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


async def test_a_tape_cut_anywhere_plays_what_is_there_and_says_so(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    recorder = Recorder(Saying(text("hello")), whole)
    for question in ("one", "two"):
        await drain(recorder, asked(question))
    content = whole.read_bytes()
    first_end = content.index(b'{"k":"end"')
    second = content.index(b"\n", content.rindex(b'"k":"turn"'))  # its row is whole from here on
    for length in range(first_end, len(content) - 1):
        cut.write_bytes(content[:length])
        tape = TapeProvider(cut)
        assert await drain(tape, asked("one")) == text("hello")
        is_whole = content[length : length + 1] == b"\n" or content[length - 1 : length] == b"\n"
        assert any("line" in note and "left out" in note for note in tape.notes) != is_whole
        if length >= second:
            *heard, last = await drain(tape, asked("two"))
            assert isinstance(last, StepFinish) or "was cut" in getattr(last, "message", "")
            assert heard == text("hello")[: len(heard)]


@pytest.mark.parametrize("at", [2, 3, 5])
async def test_a_line_that_is_damaged_in_the_middle_is_named(tmp_path: Path, at: int) -> None:
    path = tmp_path / "tape.jsonl"
    await drain(Recorder(Saying(text("hello")), path), asked("one"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[at - 1] = lines[at - 1][:-8] + b"\n"
    path.write_bytes(b"".join(lines))
    for opened in (TapeProvider, lambda path: Recorder(Saying(text("x")), path)):
        with pytest.raises(TapeError, match=f"line {at} is damaged") as caught:
            opened(path)
        assert (caught.value.line, caught.value.path) == (at, str(path))
    assert path.read_bytes() == b"".join(lines)


async def test_recording_goes_on_behind_what_a_crash_has_cut(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await drain(Recorder(Saying(text("hello")), path), asked("one"))
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b'{"k":"end"') - 10])
    await drain(Recorder(Saying(text("again")), path), asked("two"))
    played = TapeProvider(path, match="key")
    assert played.notes == []
    assert await drain(played, asked("two")) == text("again")
    *_, last = await drain(played, asked("one"))
    assert isinstance(last, StreamError)


async def test_every_event_is_on_the_tape_before_the_next_one_comes(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    stream = Recorder(Saying(text("hello")), path).stream(asked("one"))
    for count in range(1, 4):
        await anext(stream)
        assert path.read_bytes().count(b'"k":"ev"') == count
        assert path.read_bytes().endswith(b"\n")
    await stream.aclose()


async def test_a_tape_that_cannot_be_written_ends_the_recording_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = Recorder(Saying(text("hello")), path)
    path.mkdir()
    assert await drain(recorder, asked("one")) == text("hello")
    assert "the recording ends here" in caplog.text


def test_a_tape_in_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="make it first"):
        Recorder(Saying(text("hello")), tmp_path / "nowhere" / "tape.jsonl")


async def test_requests_that_overlap_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = Recorder(Saying(text("first"), text("second")), path)
    one = recorder.stream(asked("one"))
    heard = [await anext(one), await anext(one)]
    second = await drain(recorder, asked("two"))
    heard += [event async for event in one]
    played = TapeProvider(path, match="key")
    assert await drain(played, asked("one")) == heard == text("first")
    assert await drain(played, asked("two")) == second == text("second")


async def test_a_message_that_is_sent_again_is_on_the_tape_once(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = Recorder(Saying(text("hello")), path)
    said = [f"question {n} " + "x" * 1000 for n in range(20)]
    for n in range(1, 21):
        await drain(recorder, asked(*said[:n]))
    assert path.stat().st_size < 40_000
    assert len(read_tape(path).pieces) == 20


# ------------------------------------------------------------------------------------- matching


async def test_a_request_that_was_not_recorded_is_refused_with_the_first_difference(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tape.jsonl"
    await drain(Recorder(Saying(text("x")), path), asked("hello", "why is the sky blue?"))
    other = asked("hello", "why is the sea blue?")
    with pytest.raises(TapeError) as caught:
        await drain(TapeProvider(path, match="key"), other)
    place = "messages[1].parts[0].text, character 12"
    assert caught.value.difference.startswith(place)
    assert "recorded 'why is the sky blue?', asked 'why is the sea blue?'" in str(caught.value)
    assert caught.value.line == 5
    assert caught.value.got == request_key(other)


async def test_auto_plays_the_next_turn_for_another_request_and_notes_what_differs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tape.jsonl"
    await drain(Recorder(Saying(text("x")), path), asked("hello"))
    played = TapeProvider(path)
    assert await drain(played, asked("hello", "there")) == text("x")
    [note] = played.notes
    assert "messages: recorded 1, asked 2" in note


async def test_a_sequence_plays_the_turns_of_each_purpose_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    recorder = Recorder(Saying(text("title"), text("answer")), path)
    await drain(recorder, asked("one", purpose="title"))
    await drain(recorder, asked("one"))
    played = TapeProvider(path, match="sequence")
    assert await drain(played, asked("other")) == text("answer")
    assert await drain(played, asked("other", purpose="title")) == text("title")


async def test_a_tape_without_requests_still_names_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(
        b'{"k":"tape","v":1}\n{"k":"turn","key":"abc"}\n'
        b'{"k":"ev","t":0,"e":{"type":"step-finish","reason":"stop"}}\n{"k":"end","how":"done"}\n'
    )
    with pytest.raises(TapeError, match=r"key 'abc' \(the tape does not hold what was asked\)"):
        await drain(TapeProvider(path, match="key"), asked("why?"))


# ---------------------------------------------------------------------------------------- time


class Watch:
    """Stands in for the waits of the loop: it notes them and does not wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[float] = []
        self._sleep = asyncio.sleep
        monkeypatch.setattr("forge_nb.providers.tape.asyncio.sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self._sleep(0)


@pytest.mark.parametrize(("speed", "waited"), [(0, []), (1, [1, 2]), (0.25, [0.25, 0.5])])
async def test_a_tape_plays_without_waits_at_the_recorded_pace_or_a_scaled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, waited: list[float]
) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(
        b'{"k":"tape","v":1}\n{"k":"turn","key":"a"}\n'
        b'{"k":"ev","t":1000,"e":{"type":"step-start"}}\n'
        b'{"k":"ev","t":2000,"e":{"type":"step-finish","reason":"stop"}}\n'
        b'{"k":"end","how":"done"}\n'
    )
    watch = Watch(monkeypatch)
    assert len(await drain(TapeProvider(path, speed=speed), asked("why?"))) == 2
    assert watch.waits == pytest.approx(waited, abs=0.1)


@pytest.mark.parametrize("speed", [-1.0, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(tmp_path: Path, speed: float) -> None:
    with pytest.raises(UsageError, match="recorded pace"):
        TapeProvider(tmp_path / "tape.jsonl", speed=speed)


# ------------------------------------------------------------------------------------- secrets


async def test_no_key_and_no_password_is_on_the_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_VENDOR_API_KEY", 'a "quoted" secret')
    path = tmp_path / "tape.jsonl"
    bearer, key = "Bearer abcdef.ghijkl-123", "sk-" + "a1B2" * 8
    failure = StreamError(
        message=f"refused: {key}",
        headers={"set-cookie": "id=1234", "retry-after": "3", "x-ratelimit-remaining-tokens": "9"},
        body='{"sent": "a \\"quoted\\" secret"}',
    )
    said = ToolCall(call_id="c", tool="curl", input={"header": bearer, "k": ['a "quoted" secret']})
    recorder = Recorder(Saying([StepStart(), said, failure]), path)
    question = asked(f"my key is {key}", 'and a "quoted" secret')
    await drain(recorder, question)
    written = path.read_text("utf-8")
    for secret in (key, bearer, "quoted", "id=1234"):
        assert secret not in written
    played = await drain(TapeProvider(path, match="key"), question)
    assert isinstance(played[-1], StreamError)
    assert set(played[-1].headers or {}) == {"retry-after", "x-ratelimit-remaining-tokens"}


def test_words_that_only_look_like_keys_stay() -> None:
    words = "task-force-of-nature-in-the-woods, sk-short, ghost_writer, Bearer of news"
    assert Secrets({"X_TOKEN": "abc", "HOME": "task-force"}).without(words) == words


async def test_half_a_character_does_not_stop_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    await drain(Recorder(Saying(text("a\ud83d!")), path), asked("why \udc80?"))
    played = await drain(TapeProvider(path, match="key"), asked("why \udc80?"))
    assert TextDelta(text="a?!") in played
