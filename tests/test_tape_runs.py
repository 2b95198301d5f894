"""Whole runs on a tape: recorded from a workbench, played back, forked."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import forge_nb as forge
from forge_nb.clock import FixedClock
from forge_nb.errors import TapeError, ToolRejectedError, UsageError
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import TextPart, ToolCompleted, ToolFailed, ToolPart, ToolRunning
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamError,
    TextDelta,
    TextStart,
    ToolCall,
)
from forge_nb.messages.usage import ModelLimits
from forge_nb.providers.registry import register_provider, resolve_model
from forge_nb.providers.tape import TapeProvider
from forge_nb.providers.tape_rows import read_tape
from forge_nb.settings import Settings
from forge_nb.workbench import Workbench
from tests.helpers import USED, Saying, text, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.conversation import Conversation
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.tools.registry import Tool

ROOT = Path(__file__).parent.parent
TIMES = ("time", "start", "end", "created", "completed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the tape is."""
    return tmp_path / "run.jsonl"


def opened(
    model: str, *, tools: Sequence[Tool] = (), settings: Settings | None = None
) -> Workbench:
    return Workbench(
        ":memory:", model=model, tools=tools, settings=settings, clock=FixedClock(), seed=3
    )


def saying(*answers: Sequence[StreamEvent | float | Exception], **options: Any) -> Saying:
    provider = Saying(*answers, **options)
    register_provider("saying", lambda _model: provider)
    return provider


def rows(conversation: Conversation) -> list[Any]:
    """Return what a session holds: ids by their order, no times, no places, not who answered."""
    items = [msgspec.to_builtins(item, str_keys=True) for item in conversation.messages()]
    text = json.dumps([without_times(item) for item in items])
    numbers: dict[str, str] = {}
    ids = re.compile(r"\b(?:ses|msg|prt)_\w+")
    text = ids.sub(lambda found: numbers.setdefault(found[0], f"id {len(numbers)}"), text)
    found: list[Any] = json.loads(text)
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = {
            *TIMES,
            "model",
            "modelID",
            "providerID",
            "seq",
            "part_seqs",
        }  # tools run at will
        return {key: without_times(one) for key, one in value.items() if key not in left_out}
    return [without_times(one) for one in value] if isinstance(value, list | tuple) else value


def prompted(wb: Workbench, *questions: str, title: str | None = "t") -> list[Any]:
    async def main() -> list[Any]:
        conversation = wb.session(title)
        for question in questions:
            await conversation.prompt(question)
        return rows(conversation)

    return asyncio.run(main())


def calls(*names: str) -> list[StreamEvent]:
    made = [ToolCall(call_id=f"call_{name}", tool=name, input={}) for name in names]
    return [StepStart(), *made, StepFinish(reason="tool-calls", usage=USED)]


def parts(conversation: Conversation, kind: type[Any]) -> list[Any]:
    found = [part for item in conversation.messages() for part in item.parts]
    return [part for part in found if isinstance(part, kind)]


# ---------------------------------------------------------------------------------------- exact


def test_a_replay_of_the_tour_gives_the_same_rows_without_its_model_and_its_tools(
    path: Path,
) -> None:
    with opened(forge.record(path, model="scripted:tour")) as wb:
        recorded = prompted(wb, "Why does it fail?", "And now?", title=None)
        stored = wb.conversations()[0]
        assert stored.spec == f"record:{path}?of=scripted:tour"
        assert {step["model"] for step in wb.steps().to_dict("records")} == {"tour"}
    with opened(forge.replay(path, match="key")) as wb:
        assert prompted(wb, "Why does it fail?", "And now?", title=None) == recorded
        assert wb.conversations()[0].title == stored_title(path)
        assert len(wb.compactions()) >= 1


def stored_title(path: Path) -> str:
    """Return what the model said to the request for a title."""
    [turn] = [one for one in read_tape(path).turns.values() if one.row.purpose == "title"]
    return "".join(event.text for _, event in turn.events if isinstance(event, TextDelta))


def test_recorded_costs_and_windows_are_those_of_the_replay(path: Path) -> None:
    with opened(forge.record(path, model="scripted:tour")) as wb:
        prompted(wb, "Why?")
        recorded = wb.steps()[["cost_usd", "tokens_total", "context_tokens"]]
    with opened(forge.replay(path)) as wb:
        prompted(wb, "Why?")
        assert wb.steps()[["cost_usd", "tokens_total", "context_tokens"]].equals(recorded)


def test_failures_and_their_retries_are_played_without_the_waits(path: Path) -> None:
    busy = StreamError(message="slow down", kind="rate-limit", status=429, retry_after_s=0.01)
    saying([StepStart(), TextStart(), TextDelta(text="so"), busy], text("there"))
    with opened(forge.record(path, model="saying:m")) as wb:
        recorded = prompted(wb, "go")
    slow = path.read_bytes().replace(b'"retry_after_s":0.01', b'"retry_after_s":60.0')
    path.write_bytes(slow)
    with opened(forge.replay(path, match="key")) as wb:
        assert prompted(wb, "go") == recorded
        assert [part.discarded for part in parts(wb.session("t"), TextPart)][1:] == [True, False]


def test_a_failure_for_good_and_an_exception_end_the_replay_as_they_ended_the_run(
    path: Path,
) -> None:
    refused = StreamError(message="no", kind="rejected", status=400)
    saying([StepStart(), refused], [StepStart(), OSError("gone")])
    with opened(forge.record(path, model="saying:m")) as wb:
        recorded = prompted(wb, "one", "two")
    with opened(forge.replay(path, match="sequence")) as wb:
        assert prompted(wb, "one", "two") == recorded
        said = [str(row["message"]["error"]) for row in recorded if "error" in row["message"]]
        assert ["no" in said[0], "OSError: gone" in said[1]] == [True, True]


@forge.tool
def quick() -> str:
    """Answer at once."""
    return "done"


@forge.tool
async def hang() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return "never"


@pytest.mark.parametrize(
    ("answer", "tool_states"),
    [
        ([StepStart(), TextStart(), TextDelta(text="so far"), 30.0], []),
        (calls("quick", "hang"), [ToolCompleted, ToolFailed]),
    ],
    ids=["in its words", "in its tools"],
)
def test_an_aborted_run_is_aborted_again_at_the_same_place(
    path: Path, answer: list[StreamEvent | float | Exception], tool_states: list[type]
) -> None:
    saying(answer, text("again"))

    async def run(wb: Workbench, *, stop: bool) -> list[Any]:
        conversation = wb.session("t")
        task = asyncio.ensure_future(conversation.prompt("go"))
        if stop:
            await wait_for(lambda: is_under_way(conversation))
            conversation.abort()
        result = await task
        assert result.outcome == "aborted"
        states = [type(part.state) for part in parts(conversation, ToolPart)]
        assert states == tool_states
        assert (await conversation.prompt("more")).text == "again"
        return rows(conversation)

    def is_under_way(conversation: Conversation) -> bool:
        done = [type(part.state) for part in parts(conversation, ToolPart)]
        said = path.exists() and b"so far" in path.read_bytes()
        return said if not tool_states else done == [ToolCompleted, ToolRunning]

    with opened(forge.record(path, model="saying:m"), tools=[quick, hang]) as wb:
        recorded = asyncio.run(run(wb, stop=True))
    with opened(forge.replay(path)) as wb:
        assert asyncio.run(run(wb, stop=False)) == recorded


# ---------------------------------------------------------------------------------------- tools


def counted(*, fails: Exception | None = None) -> tuple[Tool, list[int]]:
    """Return a tool that reports its progress, and how often it ran."""
    ran: list[int] = []

    def look(context: Any) -> dict[str, Any]:
        ran.append(1)
        context.progress(title="half way", metadata={"half": True})
        if fails is not None:
            raise fails
        return {"output": f"look {len(ran)}", "title": "a look", "metadata": {"n": len(ran)}}

    return forge.tool(look), ran


@pytest.mark.parametrize(
    "fails", [None, KeyError("nothing there"), ToolRejectedError("no", reason="not now")]
)
def test_recorded_results_are_given_and_no_tool_is_run(path: Path, fails: Exception | None) -> None:
    look, ran = counted(fails=fails)
    saying(calls("look"), text("seen"))
    with opened(forge.record(path, model="saying:m"), tools=[look]) as wb:
        recorded = prompted(wb, "go")
    for tools in ([look], []):
        with opened(forge.replay(path, match="key"), tools=tools) as wb:
            assert prompted(wb, "go") == recorded
            assert wb.verify() == []
    assert len(ran) == 1


def test_a_call_that_was_rejected_without_a_word_ends_the_replayed_turn_too(path: Path) -> None:
    look, _ = counted(fails=ToolRejectedError("no"))
    saying(calls("look"), text("not reached"))
    with opened(forge.record(path, model="saying:m"), tools=[look]) as wb:
        recorded = prompted(wb, "go")
    with opened(forge.replay(path)) as wb:
        assert prompted(wb, "go") == recorded
        assert len(recorded) == 2


def test_tools_may_be_run_again_and_what_they_give_now_is_seen(path: Path) -> None:
    look, ran = counted()
    saying(calls("look"), text("seen"))
    with opened(forge.record(path, model="saying:m"), tools=[look]) as wb:
        prompted(wb, "go")
    with opened(forge.replay(path, tools="run"), tools=[look]) as wb:
        prompted(wb, "go")
        [part] = parts(wb.session("t"), ToolPart)
        assert part.state.output == "look 2"
    assert len(ran) == 2
    with opened(forge.replay(path, tools="run", match="key"), tools=[look]) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("go"))
        assert "recorded 'look 1', asked 'look 3'" in str(result.error)


def test_an_answer_in_a_given_shape_is_captured_in_a_replay_too(path: Path) -> None:
    given = ToolCall(call_id="c", tool="StructuredOutput", input={"n": 7})
    saying([StepStart(), given, StepFinish(reason="tool-calls", usage=USED)])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    results = []
    for model in (forge.record(path, model="saying:m"), forge.replay(path, match="key")):
        with opened(model) as wb:
            results.append(asyncio.run(wb.session("t").prompt("go", output=schema)))
    assert [result.structured for result in results] == [{"n": 7}, {"n": 7}]


# ---------------------------------------------------------------------------------------- forks


def fork_of(path: Path, at: int, **options: Any) -> Workbench:
    return opened(forge.replay(path, fork_at=at, **options))


def test_a_fork_plays_the_turns_before_it_and_another_model_goes_on(path: Path) -> None:
    with opened(forge.record(path, model="scripted:tour")) as wb:
        prompted(wb, "Why does it fail?")
        recorded = [part.text for part in parts(wb.session("t"), TextPart)]
    other = saying(text("I say it is the locale."), limits=ModelLimits(context=9_000))
    with fork_of(path, 2, match="key", then="saying:m") as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("Why does it fail?"))
        said = [part.text for part in parts(conversation, TextPart)]
        assert said == [*recorded[:3], "I say it is the locale."]
        assert conversation.setup.provider.limits("m") == other.limits("m")
        assert wb.steps()["cost_usd"].tolist()[-1] == pytest.approx(100e-6 + 2 * 10e-6)
    [request] = other.requests
    assert request.model.provider_id == "saying"
    assert [message.role for message in request.messages] == ["user", *["assistant"] * 2]


def test_a_fork_without_a_next_model_stops_there_and_a_prompt_goes_on(path: Path) -> None:
    with opened(forge.record(path, model="scripted:tour")) as wb:
        prompted(wb, "Why does it fail?")

    async def main(wb: Workbench) -> list[str]:
        stopped = await wb.session("t").prompt("Why does it fail?")
        result = await wb.session("t", model="saying:m").prompt("Go on.")
        return [stopped.outcome, result.outcome, result.text]

    other = saying(text("It is the locale."))
    with fork_of(path, 2) as wb:
        assert asyncio.run(main(wb)) == ["aborted", "completed", "It is the locale."]
    roles = [message.role for message in other.requests[0].messages]
    assert roles == ["user", "assistant", "assistant", "user"]


def test_other_settings_take_over_at_a_fork(path: Path) -> None:
    with opened(forge.record(path, model="scripted:tour")) as wb:
        prompted(wb, "Why does it fail?")
    other = saying(text("It is the locale."))
    store = path.parent / "forked.db"
    with Workbench(store, model=forge.replay(path, fork_at=2)) as wb:
        asyncio.run(wb.session("t").prompt("Why does it fail?"))
    with Workbench(store, model="saying:m", settings=Settings(system=("brief",))) as wb:
        assert asyncio.run(wb.session("t").prompt("Go on.")).text == "It is the locale."
        assert [failure for failure in wb.verify() if failure.level == "failure"] == []
    assert other.requests[0].system == ["brief"]


def test_a_fork_at_the_first_turn_plays_nothing(path: Path) -> None:
    with opened(forge.record(path, model="scripted:hello")) as wb:
        prompted(wb, "hi")
    saying(text("mine"))
    with fork_of(path, 0, then="saying:m") as wb:
        assert "mine" in str(prompted(wb, "hi"))


# ---------------------------------------------------------------------------------------- specs


def test_a_tape_s_options_stand_behind_its_name(path: Path) -> None:
    with opened(forge.record(path, model="scripted:hello")) as wb:
        prompted(wb, "hi")
    spec = f"tape:{path}?speed=1&match=sequence&fork_at=3&then=scripted:flood?n=7&tools=run"
    provider, ref = resolve_model(spec)
    assert isinstance(provider, TapeProvider)
    assert ref.provider_id == "tape"
    assert forge.replay(
        path, match="sequence", speed=1, tools="run", fork_at=3, then="scripted:flood?n=7"
    ).startswith(f"tape:{path}?match=sequence&speed=1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("speed=fast", "speed takes a number"),
        ("speed=-1", "recorded pace"),
        ("match=fuzzy", "none of auto, key, sequence"),
        ("tools=no", "none of recorded, run"),
        ("fork_at=-1", "number of a turn"),
        ("then=scripted:hello", "fork_at="),
        ("fork_at=1&then=nobody:x", "nobody:x"),
        ("pace=1", r"\['pace'\]"),
    ],
)
def test_an_option_that_cannot_be_right_is_refused_with_what_can(
    path: Path, options: str, said: str
) -> None:
    with opened(forge.record(path, model="scripted:hello")) as wb:
        prompted(wb, "hi")
    with pytest.raises(UsageError, match=said):
        resolve_model(f"tape:{path}?{options}")


@pytest.mark.parametrize("spec", ["record:x.jsonl", "record:?of=scripted:hello", "record:x?off=y"])
def test_a_recording_says_where_and_whom(spec: str) -> None:
    with pytest.raises(UsageError, match=r"of|no file"):
        resolve_model(spec)


def test_a_miss_in_a_run_is_the_answer_s_error_and_names_the_difference(path: Path) -> None:
    with opened(forge.record(path, model="scripted:hello")) as wb:
        prompted(wb, "hi")
    with opened(forge.replay(path, match="key")) as wb:
        result = asyncio.run(wb.session("t").prompt("hey"))
        assert result.outcome == "failed"
        assert "TapeError" in str(result.error)
        assert "recorded 'hi', asked 'hey'" in str(result.error)
        [_, answer] = [item.message for item in wb.session("t").messages()]
        assert isinstance(answer, AssistantMessage)


def test_sessions_of_one_workbench_share_a_tape(path: Path) -> None:
    with opened(forge.record(path, model="scripted:echo")) as wb:
        prompted(wb, "one", title="a")
        prompted(wb, "two", title="b")
    assert [turn.how for turn in read_tape(path).turns.values()] == ["done", "done"]
    with opened(forge.replay(path, match="key")) as wb:
        assert "two" in str(prompted(wb, "two"))


def test_the_command_line_records_and_plays(path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forge_nb", "run", "hello", *words]
        return subprocess.run(
            [*command, "--db", str(path.parent / "x.db")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    recorded = run("--model", "scripted:hello", "--record", str(path))
    played = run("--model", f"tape:{path}")
    assert (recorded.returncode, played.returncode) == (0, 0), recorded.stderr + played.stderr
    assert recorded.stdout.splitlines()[0] == played.stdout.splitlines()[0] != ""
    refused = run("--record", str(path))
    assert "which model" in refused.stderr


def test_what_is_no_tape_stops_a_recording_before_anything_is_stored(path: Path) -> None:
    path.write_text("my notes")
    with opened(forge.record(path, model="scripted:hello")) as wb:
        conversation = wb.session("t")
        with pytest.raises(TapeError, match="no tape"):
            asyncio.run(conversation.prompt("hi"))
        assert conversation.messages() == []
