"""Models without a network: scripts, tapes, prices, and the summariser that invents nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from forge_nb.errors import TapeError, UsageError
from forge_nb.messages.parts import ModelRef
from forge_nb.messages.render import ModelMessage, ModelPart
from forge_nb.messages.stream import StepFinish, StreamError, StreamEvent, TextDelta
from forge_nb.providers.base import ModelRequest
from forge_nb.providers.catalog import limits_for, prices_for
from forge_nb.providers.extractive import HEADINGS, summarise
from forge_nb.providers.recorder import Recorder
from forge_nb.providers.registry import resolve_model
from forge_nb.providers.scripted import ScriptedProvider
from forge_nb.providers.scripts import SCRIPTS, make_script
from forge_nb.providers.tape import TapeProvider
from forge_nb.providers.tape_requests import request_key

if TYPE_CHECKING:
    from pathlib import Path

    from forge_nb.providers.base import Provider


def said(role: str, text: str) -> ModelMessage:
    part = ModelPart(id="p", kind="text", text=text)
    return ModelMessage(id="m", role="user" if role == "user" else "assistant", parts=(part,))


def request(*texts: str, purpose: str = "turn") -> ModelRequest:
    return ModelRequest(
        model=ModelRef(provider_id="scripted", model_id="x"),
        system=[],
        messages=[said("user", text) for text in texts],
        tools=[],
        purpose="compaction" if purpose == "compaction" else "turn",
    )


def events(provider: Provider, asked: ModelRequest) -> list[StreamEvent]:
    async def main() -> list[StreamEvent]:
        return [event async for event in provider.stream(asked)]

    return asyncio.run(main())


@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - {"slow"}))
def test_a_script_ends_its_turn_and_says_the_same_twice(name: str) -> None:
    first, second = (ScriptedProvider(make_script(name, {})) for _ in range(2))
    once = events(first, request("why?"))
    assert once == events(second, request("why?"))
    assert isinstance(once[-1], StreamError if name in {"broken", "flaky"} else StepFinish)


def test_a_scripted_call_reports_what_the_cache_holds() -> None:
    provider = ScriptedProvider(make_script("hello", {}))
    usages = []
    for asked in (request("one"), request("one", "two " * 50), request("something else")):
        finish = events(provider, asked)[-1]
        assert isinstance(finish, StepFinish)
        usages.append(finish.usage)
    assert usages[0].cache_read == 0
    assert usages[1].cache_read == usages[0].cache_write
    assert usages[2].cache_read == 0


def test_flood_has_as_many_words_as_asked() -> None:
    provider, ref = resolve_model("scripted:flood?n=250")
    assert ref.model_id == "flood?n=250"
    assert sum(isinstance(e, TextDelta) for e in events(provider, request("go"))) == 250


@pytest.mark.parametrize(
    "spec",
    ["", "tour", "scripted:", "scripted:nope", "scripted:tour?n=3", "nobody:gpt", "flood?n=x"],
)
def test_a_model_that_does_not_exist_is_refused_with_what_does(spec: str) -> None:
    with pytest.raises(UsageError, match=r"scripted|there are|flood"):
        resolve_model(spec)


def test_a_tape_gives_back_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorder = Recorder(ScriptedProvider(make_script("tour", {})), path)
    asked = [request("one"), request("one", "two")]
    recorded = [events(recorder, one) for one in asked]
    assert events(TapeProvider(path), asked[0]) == recorded[0]
    backwards = TapeProvider(path, match="key")
    assert [events(backwards, one) for one in reversed(asked)] == recorded[::-1]


def test_a_request_that_is_not_on_the_tape_is_refused_in_key_mode(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    events(Recorder(ScriptedProvider(make_script("hello", {})), path), request("one"))
    other = request("another")
    with pytest.raises(TapeError, match=request_key(other)):
        events(TapeProvider(path, match="key"), other)
    played = TapeProvider(path, match="sequence")
    events(played, other)
    with pytest.raises(TapeError, match="every turn is played"):
        events(played, other)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no turn"),
        (b"not json\n", "line 1"),
        (b'{"k":"tape","v":9}\n', "version 1"),
        (b'{"k":"tape","v":1}\n{"k":"ev","t":1}\n', "line 2"),
        (
            b'{"k":"tape","v":1}\n{"k":"turn","key":"a"}\n{"k":"ev","t":1,"e":{"type":"x"}}\n',
            "line 3",
        ),
        (b'{"k":"tape","v":1}\n[1]\n', "line 2"),
    ],
)
def test_a_damaged_tape_names_the_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(TapeError, match=said):
        TapeProvider(path)
    with pytest.raises(TapeError, match="no such tape"):
        TapeProvider(tmp_path / "missing.jsonl")


def test_prices_come_from_the_table_and_the_tier_of_the_context() -> None:
    known = prices_for("anthropic", "claude-sonnet-4-5")
    assert known is not None
    assert (known.input, known.output, known.cache_read, known.cache_write) == (3, 15, 0.3, 3.75)
    assert (known.source or "").startswith("genai-prices ")
    tiered = prices_for("anthropic", "claude-sonnet-4-5", context_tokens=300_000)
    assert tiered is not None
    assert tiered.input is not None
    assert tiered.input > 3


@pytest.mark.parametrize(("provider", "model"), [("nobody", "x"), (None, "x"), ("fake", None)])
def test_an_unknown_model_has_no_price_and_no_window(
    provider: str | None, model: str | None
) -> None:
    assert prices_for(provider, model) is None
    assert limits_for(provider, model).context is None


def test_a_summary_holds_goal_constraint_and_paths_and_is_shorter_than_its_source() -> None:
    messages = [
        said("user", "Find out why src/almanac/parse.py fails. Never change parse_date."),
        said("assistant", "The test failed because months.py has no German names. " * 8),
        said("user", "Please summarise."),
    ]
    summary = summarise(messages)
    assert [line[3:] for line in summary.splitlines() if line.startswith("## ")] == list(HEADINGS)
    assert "Never change parse_date." in summary
    assert "src/almanac/parse.py" in summary
    source = sum(len(part.text) for message in messages for part in message.parts)
    assert len(summary) < source
    again = summarise([said("assistant", summary), said("user", "And on."), said("user", "Sum up")])
    assert "Never change parse_date." in again or len(again) < len(summary)
    assert summarise([said("user", "Please summarise.")]) == ""
