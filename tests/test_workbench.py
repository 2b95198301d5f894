"""Running sessions: prompts wait and are answered, compaction is checked, crashes are mended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import forge_nb
from forge_nb.clock import FixedClock, system_clock
from forge_nb.errors import CompactionError, NotFoundError, SessionBusyError, UsageError
from forge_nb.events import MessageUpdated, PartUpdated
from forge_nb.history import find_boundaries
from forge_nb.messages.message import AssistantMessage, MessageTime, UserMessage
from forge_nb.messages.parts import CompactionPart, Span, TextPart, is_open
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamError,
    TextDelta,
    TextStart,
    ToolCall,
)
from forge_nb.messages.usage import CacheTokens, ModelLimits, TokenUsage
from forge_nb.messages.wire import COMPACTION_ASKED, CONTINUE_AFTER_COMPACTION
from forge_nb.providers.registry import register_provider
from forge_nb.settings import Settings
from forge_nb.store.sql import LEASE_DEAD_MS
from forge_nb.testing import memory_workbench
from forge_nb.workbench import Workbench
from tests.helpers import USED, Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from forge_nb.conversation import Conversation
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.run_loop import RunResult

RECORDED = Path(__file__).parents[1] / "notebooks" / "data" / "parser-fix.json"
FULL = TokenUsage(input=900, output=10, reasoning=0, cache=CacheTokens(read=0, write=0))
WINDOW = ModelLimits(context=1_200, output=300)  # usable: 900
LONG = "The test fails because the month table has no German names. " * 40


@forge_nb.tool
def look() -> str:
    """Look around."""
    return "nothing new"


LOOK: list[StreamEvent] = [
    StepStart(),
    ToolCall(call_id="c", tool="look", input={}),
]


def looking(usage: TokenUsage = USED) -> list[StreamEvent]:
    return [*LOOK, StepFinish(reason="tool-calls", usage=usage)]


def failures(wb: Workbench) -> list[object]:
    return [one for one in wb.verify() if one.level == "failure"]


def texts(conversation: Conversation) -> list[str]:
    return [part.text for message in conversation.view().messages for part in message.parts]


# ------------------------------------------------------------------------------------ prompts


def test_prompts_that_wait_together_are_answered_together() -> None:
    async def main(conversation: Conversation, provider: Saying) -> list[RunResult]:
        first = asyncio.ensure_future(conversation.prompt("one"))
        await wait_for(lambda: bool(provider.requests))
        more = [asyncio.ensure_future(conversation.prompt(word)) for word in ("two", "three")]
        return [await first, *[await task for task in more]]

    provider = Saying([StepStart(), TextStart(), 0.1, *text("first")[2:]], text("both"))
    with workbench(provider) as wb:
        conversation = wb.session("t")
        results = asyncio.run(main(conversation, provider))
        assert [result.text for result in results] == ["both"] * 3
        assert len(provider.requests) == 2
        assert [part.text for part in provider.requests[1].messages[-1].parts] == ["three"]
        assert wb.store.prompts(conversation.id, "waiting", "taken") == []
        assert failures(wb) == []


def test_an_abort_cancels_the_taken_prompt_and_the_waiting_one_is_answered() -> None:
    async def main(conversation: Conversation, provider: Saying) -> list[RunResult]:
        running = asyncio.ensure_future(conversation.prompt("one"))
        await wait_for(lambda: bool(provider.requests))
        waiting = asyncio.ensure_future(conversation.prompt("two"))
        await wait_for(lambda: len(wb.store.prompts(conversation.id, "waiting")) == 1)
        conversation.abort()
        return [await running, await waiting]

    provider = Saying([StepStart(), 60.0], text("answered all the same"))
    with workbench(provider) as wb:
        conversation = wb.session("t")
        stopped, answered = asyncio.run(main(conversation, provider))
        assert stopped.outcome == "aborted"
        assert answered.text == "answered all the same"
        assert len(wb.store.prompts(conversation.id, "cancelled")) == 1
        assert wb.store.prompts(conversation.id, "waiting", "taken") == []
        assert failures(wb) == []


def test_a_prompt_during_a_compaction_is_answered_and_not_by_the_summary() -> None:
    async def main(conversation: Conversation, provider: Saying) -> RunResult:
        await conversation.prompt(LONG)
        compacting = asyncio.ensure_future(conversation.compact())
        await wait_for(lambda: len(provider.requests) == 2)
        asked = asyncio.ensure_future(conversation.prompt("and now?"))
        await compacting
        return await asked

    summary = [StepStart(), TextStart(), TextDelta(text="in"), 0.05, *text(" short")[2:]]
    provider = Saying(text("an answer"), summary, text("now this"))
    with workbench(provider) as wb:
        conversation = wb.session("t")
        result = asyncio.run(main(conversation, provider))
        assert result.text == "now this"
        assert wb.store.prompts(conversation.id, "waiting", "taken") == []
        assert failures(wb) == []


def test_settings_that_allow_no_step_are_refused_and_never_wait() -> None:
    none = Settings(max_steps=0)
    with (
        workbench(Saying(text("x")), settings=none) as wb,
        pytest.raises(UsageError, match="max_steps is 0"),
    ):
        asyncio.run(wb.session("t").prompt("go"))


def test_a_prompt_that_nobody_waits_for_any_more_is_answered_by_whoever_resumes() -> None:
    async def main(conversation: Conversation, provider: Saying) -> RunResult:
        running = asyncio.ensure_future(conversation.prompt("one"))
        await wait_for(lambda: bool(provider.requests))
        waiting = asyncio.ensure_future(conversation.prompt("two"))
        await wait_for(lambda: len(wb.store.prompts(conversation.id, "waiting")) == 1)
        waiting.cancel()
        await asyncio.wait({running, waiting})
        assert len(wb.store.prompts(conversation.id, "waiting")) == 1
        return await conversation.resume()

    provider = Saying([StepStart(), 60.0], text("answered later"))
    with workbench(provider) as wb:
        conversation = wb.session("t")
        result = asyncio.run(main(conversation, provider))
        assert result.text == "answered later"
        assert wb.store.prompts(conversation.id, "waiting", "taken") == []


def test_cancelling_whoever_awaits_a_prompt_aborts_the_run_and_passes_the_cancellation_on() -> None:
    async def main(conversation: Conversation, provider: Saying) -> None:
        task = asyncio.ensure_future(conversation.prompt("go"))
        await wait_for(lambda: bool(provider.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not [p for item in conversation.messages() for p in item.parts if is_open(p)]

    provider = Saying([StepStart(), TextStart(), TextDelta(text="x"), 60.0])
    with workbench(provider) as wb:
        asyncio.run(main(wb.session("t"), provider))
        assert failures(wb) == []


def test_resuming_an_answered_session_gives_the_answer_and_calls_nobody() -> None:
    """So does a prompt that another process answered while this one waited."""
    provider = Saying(text("the answer"), text("never asked"))
    with workbench(provider) as wb:
        conversation = wb.session("t")

        async def main() -> RunResult:
            await conversation.prompt("go")
            return await conversation.resume()

        assert asyncio.run(main()).text == "the answer"
        assert len(provider.requests) == 1


def test_a_blank_prompt_is_refused_and_nothing_is_stored() -> None:
    with workbench(Saying(text("x"))) as wb:
        conversation = wb.session("t")
        with pytest.raises(UsageError, match="blank"):
            asyncio.run(conversation.prompt("  \n"))
        assert conversation.messages() == []


def test_a_session_that_another_process_runs_says_who_does() -> None:
    with workbench(Saying(text("x"))) as wb:
        conversation = wb.session("t")
        now = wb.take_lease("ses_other")
        assert now is None
        wb.store.acquire_lease(conversation.id, "other:1", now_ms=system_clock())
        with pytest.raises(SessionBusyError, match="other:1"):
            asyncio.run(conversation.prompt("go", wait=False))


def test_a_turn_that_never_ends_is_stopped_by_the_step_limit() -> None:
    provider = Saying(looking())
    with workbench(provider, tools=[look], settings=Settings(max_steps=4, doom_loop=0)) as wb:
        result = asyncio.run(wb.session("t").prompt("go"))
    assert result.outcome == "failed"
    assert len(provider.requests) == 4
    assert "4 steps" in (result.error or "")


# --------------------------------------------------------------------------------- compaction


def test_a_full_window_is_compacted_and_the_turn_goes_on() -> None:
    provider = Saying(looking(FULL), text("## Objective\n- go on"), text("done"))
    with workbench(provider, tools=[look], settings=Settings(keep_tail=False)) as wb:
        provider._limits = WINDOW
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt(LONG))
        assert result.compactions == 1
        assert texts(conversation)[:3] == [
            COMPACTION_ASKED,
            "## Objective\n- go on",
            CONTINUE_AFTER_COMPACTION,
        ]
        [row] = wb.compactions().to_dict("records")
        assert (row["outcome"], row["trigger"]) == ("done", "threshold")
        assert failures(wb) == []


def test_a_full_window_after_the_last_word_is_compacted_without_another_call() -> None:
    provider = Saying(text("all done", usage=FULL), text("short"))
    with workbench(provider) as wb:
        provider._limits = WINDOW
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt(LONG))
        assert result.compactions == 1
        assert len(provider.requests) == 2


def test_a_tail_stays_word_for_word_and_is_committed_with_its_summary() -> None:
    provider = Saying(text("first answer"), text("second answer"), text("in short"))
    with workbench(provider, settings=Settings(tail_tokens_max=40)) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt(LONG)
            await conversation.prompt("a short question")
            return await conversation.compact()

        result = asyncio.run(main())
        assert result.outcome == "done"
        [boundary] = find_boundaries(conversation.messages())
        assert boundary.tail_start_id == result.tail_start_id is not None
        assert texts(conversation) == [
            COMPACTION_ASKED,
            "in short",
            "a short question",
            "second answer",
        ]


@pytest.mark.parametrize(
    ("summary", "outcome"),
    [
        (text("  \n"), "blank"),
        (text(LONG * 3), "not smaller"),
        ([StepStart(), StreamError(message="no", kind="api")], "failed"),
        ([StepStart(), TextStart(), TextDelta(text="half")], "failed"),
    ],
    ids=["blank", "longer", "error", "cut"],
)
def test_a_bad_summary_cuts_nothing_and_never_takes_the_next_question(
    summary: list[StreamEvent], outcome: str
) -> None:
    provider = Saying(text("an answer"), summary, text("the next answer"))
    with workbench(provider, settings=Settings(retries=0)) as wb:
        conversation = wb.session("t")

        async def main() -> tuple[Any, RunResult]:
            await conversation.prompt(LONG)
            return await conversation.compact(), await conversation.prompt("and now?")

        result, following = asyncio.run(main())
        assert result.outcome == outcome
        assert following.text == "the next answer"
        assert find_boundaries(conversation.messages()) == []
        assert LONG in texts(conversation)
        [row] = wb.compactions().to_dict("records")
        assert row["outcome"] == outcome
        assert failures(wb) == []


def test_compacting_that_does_not_help_stops_with_a_named_error() -> None:
    """Every step reports a full window, so one compaction would follow another for ever."""
    provider = Saying(looking(FULL), text("s"), looking(FULL), text("s"), looking(FULL), text("s"))
    with workbench(provider, tools=[look], settings=Settings(max_steps=30)) as wb:
        provider._limits = WINDOW
        conversation = wb.session("t")
        with pytest.raises(CompactionError, match="did not shrink"):
            asyncio.run(conversation.prompt("short"))
        assert not [p for item in conversation.messages() for p in item.parts if is_open(p)]
        assert wb.store.prompts(conversation.id, "waiting", "taken") == []


def test_an_empty_session_has_nothing_to_compact() -> None:
    with workbench(Saying(text("x"))) as wb:
        result = asyncio.run(wb.session("t").compact())
        assert result.outcome == "nothing to do"
        assert wb.session("t").messages() == []


def test_aborting_a_compaction_leaves_the_history_as_it_was() -> None:
    async def main(conversation: Conversation, provider: Saying) -> None:
        await conversation.prompt(LONG)
        task = asyncio.ensure_future(conversation.compact())
        await wait_for(lambda: len(provider.requests) == 2)
        conversation.abort()
        with pytest.raises(asyncio.CancelledError):
            await task

    provider = Saying(text("an answer"), [StepStart(), TextStart(), TextDelta(text="hm"), 60.0])
    with workbench(provider) as wb:
        conversation = wb.session("t")
        asyncio.run(main(conversation, provider))
        assert LONG in texts(conversation)
        assert not [p for item in conversation.messages() for p in item.parts if is_open(p)]
        [row] = wb.compactions().to_dict("records")
        assert row["outcome"] == "aborted"
        assert failures(wb) == []


def test_the_tour_is_compacted_twice_and_everything_reconciles() -> None:
    with memory_workbench() as wb:
        conversation = wb.session("tour")

        async def main() -> int:
            results = [await conversation.prompt(f"Question {n}: why?") for n in range(5)]
            return sum(result.compactions for result in results)

        assert asyncio.run(main()) >= 2
        assert failures(wb) == []
        steps = wb.steps()
        stored = wb.store.session(conversation.id)
        assert steps["cost_usd"].sum() == pytest.approx(stored.cost_usd)
        assert int(steps["tokens_cache_read"].sum()) == stored.tokens.cache_read
        turns = steps[steps["purpose"] == "turn"]
        misses = turns[turns["tokens_cache_read"] < turns["context_tokens"] * 0.3]
        assert len(misses) >= 3, "the first call and those behind a boundary find no cache"
        requests = [
            item
            for item in conversation.messages()
            if any(isinstance(part, CompactionPart) for part in item.parts)
        ]
        assert all(isinstance(item.message, UserMessage) for item in requests)


# ------------------------------------------------------------------------------------ crashes

CRASH = """
import asyncio, sys
from forge_nb.workbench import Workbench
async def main():
    with Workbench(sys.argv[1], model="scripted:slow") as wb:
        subscription = wb.bus.subscribe()
        task = asyncio.ensure_future(wb.session("crash").prompt("hello"))
        seen = 0
        async for event in subscription:
            seen += type(event).__name__ == "PartDelta"
            if seen == 8:
                print("ready", flush=True)
asyncio.run(main())
"""


def test_a_killed_run_is_closed_when_the_store_is_opened_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "crash.db"
    command = [sys.executable, "-c", textwrap.dedent(CRASH), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    register_provider("saying", lambda _model: Saying(text("back again")))
    with Workbench(path, model="saying:m", clock=lambda: 9_999_999_999_999) as wb:
        conversation = wb.session("crash")
        wb.store.acquire_lease(conversation.id, "later", now_ms=9_999_999_999_999)
        wb.store.release_lease(conversation.id, "later")
        result = asyncio.run(conversation.prompt("go on"))
        assert result.text == "back again"
        assert not [p for item in conversation.messages() for p in item.parts if is_open(p)]
        answers = [
            item.message
            for item in conversation.messages()
            if isinstance(item.message, AssistantMessage)
        ]
        assert answers[0].time.completed is not None
        assert list(wb.steps()["outcome"]) == ["interrupted", "completed"]
        assert failures(wb) == []


def test_what_a_dead_runner_left_open_is_closed_by_whoever_waited_for_its_lease() -> None:
    """The lease outlives its process for a while; recovery comes when it is taken over."""
    with workbench(Saying(text("mine"))) as wb:
        conversation = wb.session("t")
        writer = wb.writer(conversation.id)
        message = AssistantMessage(
            id="msg_dead", session_id=conversation.id, time=MessageTime(created=1)
        )
        part = TextPart(
            id="prt_dead",
            session_id=conversation.id,
            message_id="msg_dead",
            text="",
            time=Span(start=1),
        )
        asyncio.run(writer.write([MessageUpdated(message=message), PartUpdated(part=part)]))
        almost_dead_ms = system_clock() - LEASE_DEAD_MS + 400
        wb.store.acquire_lease(conversation.id, "dead:1", now_ms=almost_dead_ms)
        result = asyncio.run(conversation.prompt("go"))
        assert result.text == "mine"
        assert not [p for item in conversation.messages() for p in item.parts if is_open(p)]


# ------------------------------------------------------------------------------------- handles


def test_a_session_is_found_by_title_and_by_id_and_a_wrong_id_says_so() -> None:
    with workbench(Saying(text("x"))) as wb:
        made = wb.session("t")
        assert wb.session("t").id == made.id
        assert wb.session(made.id).title == "t"
        with pytest.raises(NotFoundError, match="ses_nope"):
            wb.session("ses_nope")


def test_a_prompt_moves_the_session_s_time_and_a_recording_is_still_given_back_as_it_came() -> None:
    register_provider("saying", lambda _model: Saying(text("x")))
    with Workbench(":memory:", model="saying:m", clock=FixedClock(1_900_000_000_000)) as wb:
        wb.load(RECORDED)
        [conversation] = wb.conversations()
        original = json.loads(RECORDED.read_text("utf-8"))
        before = wb.sessions()["updated_at"][0]
        asyncio.run(conversation.prompt("go on"))
        [row] = wb.sessions().to_dict("records")
        assert row["updated_at"] > before
        assert (row["provider"], row["model"]) == ("saying", "m")
        assert wb.export(conversation.id, as_imported=True) == original
        assert failures(wb) == []
        assert [one.change for one in wb.load(RECORDED).sessions] == ["unchanged"]


def test_a_view_takes_a_step_or_a_message_and_refuses_what_is_neither() -> None:
    with memory_workbench("scripted:hello") as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("hi"))
        answer = conversation.messages()[-1].message.id
        assert conversation.view(at=1).messages == conversation.view(at=answer).messages
        for wrong in (0, 2, "msg_nope", conversation.messages()[0].message.id):
            with pytest.raises(NotFoundError):
                conversation.view(at=wrong)


def test_hostile_text_is_escaped_wherever_it_is_shown() -> None:
    bad = "</script><img src=x onerror=alert(1)>"
    with workbench(Saying(text(bad))) as wb:
        conversation = wb.session(bad)
        asyncio.run(conversation.prompt(bad))
        shown = [
            conversation.show()._repr_html_(),
            conversation.view()._repr_html_(),
            conversation.chart()._repr_svg_(),
        ]
        assert any(isinstance(part, TextPart) for part in conversation.messages()[0].parts)
    for page in shown:
        assert "<img" not in page
        assert "</script>" not in page


def test_the_same_seed_and_clock_give_the_same_rows() -> None:
    def exported() -> dict[str, Any]:
        with memory_workbench() as wb:
            conversation = wb.session("t")
            asyncio.run(conversation.prompt("why?"))
            return wb.export(conversation.id)

    first, second = exported(), exported()
    first["info"].pop("directory")
    second["info"].pop("directory")
    assert [item["info"]["id"] for item in first["messages"]] == [
        item["info"]["id"] for item in second["messages"]
    ]
