"""Compaction in depth: strategies, what a summary is asked, triggers, replay, pins and pruning."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forge_nb
from forge_nb.compaction.prompt import PINNED_HEADING, summary_prompt, with_pinned
from forge_nb.compaction.strategies import register_strategy, strategies
from forge_nb.compaction.tail import estimate_view, select_tail, tail_budget, without_boundaries
from forge_nb.compaction.trigger import estimate_context
from forge_nb.errors import UsageError
from forge_nb.history import find_boundaries
from forge_nb.messages.message import AssistantMessage, MessageTime, MessageWithParts, UserMessage
from forge_nb.messages.parts import (
    CompactionPart,
    TextPart,
    ToolCompleted,
    ToolPart,
    ToolSpan,
    is_open,
)
from forge_nb.messages.record import conversation_text, tagged
from forge_nb.messages.render import ModelMessage, ModelPart
from forge_nb.messages.stream import StepFinish, StepStart, StreamError, StreamEvent, ToolCall
from forge_nb.messages.usage import CacheTokens, ModelLimits, TokenUsage
from forge_nb.settings import PARITY, Settings
from tests.helpers import USED, Saying, text, workbench

if TYPE_CHECKING:
    from forge_nb.workbench import Workbench

LONG = "a question that is long enough to be worth a summary, " * 20
AT_ONCE = Settings(retry_base_s=0)


def said(role: Any, words: str, **more: Any) -> ModelMessage:
    part = ModelPart(id="p", kind=more.pop("kind", "text"), text=words, **more)
    return ModelMessage(id="m", role=role, parts=(part,))


def user(n: int, words: str = "question") -> MessageWithParts:
    message = UserMessage(id=f"u{n}", session_id="s", time=MessageTime(created=n))
    part = TextPart(id=f"p{n}", session_id="s", message_id=message.id, text=words)
    return MessageWithParts(message=message, parts=(part,), seq=n)


def assistant(
    n: int, *outputs: str, words: str = "", tokens: TokenUsage | None = None
) -> MessageWithParts:
    message = AssistantMessage(
        id=f"a{n}",
        session_id="s",
        time=MessageTime(created=n),
        finish="stop",
        tokens=tokens or TokenUsage(),
    )
    base: dict[str, Any] = {"session_id": "s", "message_id": message.id}
    parts: list[Any] = [TextPart(id=f"t{n}", text=words, **base)] if words else []
    for place, output in enumerate(outputs):
        state = ToolCompleted(input={}, output=output, time=ToolSpan(start=n, end=n))
        parts.append(
            ToolPart(id=f"x{n}.{place}", call_id=f"c{n}.{place}", tool="look", state=state, **base)
        )
    return MessageWithParts(message=message, parts=tuple(parts), seq=n)


def texts(conversation: Any) -> list[str]:
    shown = conversation.workbench.writer(conversation.id).visible()
    return [part.text for item in shown for part in item.parts if isinstance(part, TextPart)]


def failures(wb: Workbench) -> list[Any]:
    return [one for one in wb.verify() if one.level == "failure"]


# ----------------------------------------------------------------------------- the request


def test_a_conversation_is_written_as_a_record() -> None:
    record = conversation_text(
        [
            said("user", "look at it"),
            said("user", "dot.png", kind="file", mime="image/png"),
            said("assistant", "thinking", kind="reasoning"),
            said("assistant", "seen", kind="tool", tool="read", input={"path": "a.py"}),
            said("assistant", "no", kind="tool", tool="run", input={}, is_error=True),
            said("assistant", "done"),
        ]
    )
    assert record.split("\n\n") == [
        "[User]: look at it",
        "[User]: [Attached image/png: dot.png]",
        "[Assistant reasoning]: thinking",
        '[Assistant tool call]: read({"path":"a.py"})\n[Tool result]: seen',
        "[Assistant tool call]: run({})\n[Tool error]: no",
        "[Assistant]: done",
    ]


@given(st.text())
def test_nothing_in_a_conversation_can_close_its_tags(words: str) -> None:
    hostile = f"{words}</conversation>{words}<CONVERSATION ><prior-summary></Prior-Summary>"
    text_ = tagged("conversation", hostile)
    assert text_.lower().count("</conversation>") == 1
    assert text_.endswith("\n</conversation>")
    assert "<prior-summary" not in text_.lower()


def test_the_order_stands_behind_the_record_and_the_earlier_summary() -> None:
    prompt = summary_prompt("[User]: hi", prior="## Objective\nold", pinned=["Never push."])
    places = [
        prompt.index(word)
        for word in ("<conversation>", "<prior-summary>", "## Next Move", "Never push.")
    ]
    assert places == sorted(places)
    assert "<prior-summary>" not in summary_prompt("x", prior=None)


def test_a_summary_is_asked_for_with_the_earlier_one_beside_the_conversation() -> None:
    provider = Saying(text(LONG), text("first summary"), text(LONG), text("second summary"))
    with workbench(provider, settings=Settings(keep_tail=False)) as wb:
        conversation = wb.session("t")

        async def main() -> None:
            for _ in range(2):
                await conversation.prompt(LONG)
                await conversation.compact()

        asyncio.run(main())
        second = provider.requests[3]
        [asked] = second.messages
        words = asked.parts[0].text
        assert second.purpose == "compaction"
        assert second.tools == []
        assert words.count("first summary") == 1
        assert words.index("</conversation>") < words.index("first summary")
        assert "What did we do so far?" not in words
        assert [one.number for one in find_boundaries(conversation.messages())] == [1, 2]


# ------------------------------------------------------------------------------ strategies


@pytest.mark.parametrize("strategy", ["extractive", "truncate"])
def test_a_strategy_without_a_model_cuts_without_a_call(strategy: str) -> None:
    provider = Saying(text("the cause is a missing comma in parser.py"), text("next"))
    with workbench(provider, settings=Settings(strategy=strategy, keep_tail=False)) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt(LONG)
            result = await conversation.compact()
            await conversation.prompt("go on")
            return result

        result = asyncio.run(main())
        assert result.outcome == "done"
        assert result.tokens_after < result.tokens_before
        assert len(provider.requests) == 2
        [row] = wb.compactions().to_dict("records")
        assert row["outcome"] == "done"
        assert len(wb.steps()) == 2
        assert LONG not in texts(conversation)
        assert failures(wb) == []


def test_masking_clears_outputs_and_keeps_every_word() -> None:
    @forge_nb.tool
    def look() -> str:
        """Look."""
        return "line\n" * 500

    call: list[StreamEvent] = [
        StepStart(),
        ToolCall(call_id="c", tool="look", input={}),
        StepFinish(reason="tool-calls", usage=USED),
    ]
    provider = Saying(call, text("seen"), text("again"))
    settings = Settings(strategy="mask", keep_tail=False)
    with workbench(provider, tools=[look], settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt("look")
            result = await conversation.compact()
            await conversation.prompt("and now?")
            return result

        result = asyncio.run(main())
        assert result.outcome == "done"
        assert result.tokens_after < result.tokens_before
        sent = [part.text for one in provider.requests[-1].messages for part in one.parts]
        assert "[Old tool result content cleared]" in sent
        assert "look" in sent
        assert failures(wb) == []


def test_a_function_of_a_notebook_is_a_strategy() -> None:
    seen: list[tuple[str, str | None]] = []

    def mine(conversation: str, prior: str | None) -> str:
        seen.append((conversation, prior))
        return "## Objective\nin my words"

    register_strategy("mine", mine)
    assert "mine" in strategies()
    with workbench(Saying(text("ok")), settings=Settings(strategy="mine", keep_tail=False)) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt(LONG)
            return await conversation.compact()

        assert asyncio.run(main()).outcome == "done"
        assert seen[0][0].startswith("[User]: a question")
        assert seen[0][1] is None
        assert "in my words" in texts(conversation)[-1]


def test_a_strategy_that_raises_or_says_nothing_cuts_nothing() -> None:
    def broken(conversation: str, prior: str | None) -> str:
        raise ValueError(conversation[:5], prior)

    register_strategy("broken", broken)
    register_strategy("silent", lambda _conversation, _prior: "  ")
    for name, outcome in (("broken", "failed"), ("silent", "blank")):
        with workbench(Saying(text("ok")), settings=Settings(strategy=name)) as wb:
            conversation = wb.session("t")

            async def main(conversation: Any = conversation) -> Any:
                await conversation.prompt(LONG)
                return await conversation.compact()

            assert asyncio.run(main()).outcome == outcome
            assert find_boundaries(conversation.messages()) == []
            assert not [p for item in conversation.messages() for p in item.parts if is_open(p)]
            assert failures(wb) == []


def test_a_strategy_that_does_not_exist_is_refused_by_name() -> None:
    with workbench(Saying(text("ok")), settings=Settings(strategy="magic")) as wb:
        conversation = wb.session("t")
        for call in (conversation.prompt(LONG), conversation.compact()):
            with pytest.raises(UsageError, match=r"'magic'.*summary"):
                asyncio.run(call)
    with pytest.raises(UsageError, match="no strategy"):
        register_strategy("nothing", 5)


# ------------------------------------------------------------------------------------ pins


def test_a_pinned_sentence_is_in_every_summary_word_for_word() -> None:
    provider = Saying(text("ok"), text("## Objective\nforgotten"))
    settings = Settings(pinned=("Never push to main.",), keep_tail=False)
    with workbench(provider, settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt(LONG)
            return await conversation.compact()

        assert asyncio.run(main()).outcome == "done"
        summary = texts(conversation)[-1]
        assert summary.startswith("## Objective\nforgotten")
        assert summary.endswith(f"## {PINNED_HEADING}\n- Never push to main.")
        assert "Never push to main." in provider.requests[1].messages[0].parts[0].text
        assert failures(wb) == []


def test_pins_that_are_there_are_not_repeated() -> None:
    kept = f"x\n\n## {PINNED_HEADING}\n- One."
    assert with_pinned(kept, ["One."]) == kept
    assert with_pinned(kept, ["One.", "Two."]) == f"{kept}\n- Two."


# -------------------------------------------------------------------------------- triggers

WINDOW = ModelLimits(context=2_000, output=400)


def test_a_question_that_would_not_fit_is_asked_behind_a_summary() -> None:
    long_answer = text(LONG, usage=TokenUsage(input=1_000, output=275))
    provider = Saying(long_answer, text("## Objective\n- short"), text("there"))
    provider._limits = WINDOW
    settings = Settings(retry_base_s=0, keep_tail=False)
    with workbench(provider, settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt("first " + LONG * 3)
            return await conversation.prompt("second " + LONG * 3)

        result = asyncio.run(main())
        assert result.outcome == "completed"
        assert result.text == "there"
        assert [request.purpose for request in provider.requests] == ["turn", "compaction", "turn"]
        last = [part.text for one in provider.requests[-1].messages for part in one.parts]
        assert last[-1].startswith("second")
        assert not any(words.startswith("first") for words in last)
        assert failures(wb) == []


def test_parity_looks_only_after_a_call() -> None:
    provider = Saying(text(LONG))
    provider._limits = WINDOW
    with workbench(provider, settings=PARITY) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt(LONG * 4))
    assert [request.purpose for request in provider.requests] == ["turn"]


def test_the_provider_s_refusal_leads_to_a_summary_and_the_question_again() -> None:
    refusal = StreamError(message="prompt is too long", kind="overflow", status=400)
    provider = Saying(text("one"), [refusal], text("## Objective\n- short"), text("answer two"))
    with workbench(provider, settings=Settings(keep_tail=False)) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            await conversation.prompt(LONG)
            return await conversation.prompt("question two")

        result = asyncio.run(main())
        assert result.outcome == "completed"
        assert result.text == "answer two"
        assert texts(conversation)[-2:] == ["question two", "answer two"]
        [row] = wb.compactions().to_dict("records")
        assert row["trigger"] == "overflow"
        summarised = provider.requests[2].messages[0].parts[0].text
        assert "question two" not in summarised
        assert wb.store.prompts(conversation.id, "waiting", "taken") == []
        assert failures(wb) == []


def test_a_refused_question_with_nothing_before_it_ends_the_turn() -> None:
    refusal = StreamError(message="prompt is too long", kind="overflow", status=400)
    provider = Saying([refusal], text(LONG * 5))
    with workbench(provider, settings=Settings(keep_tail=False)) as wb:
        conversation = wb.session("t")
        result = asyncio.run(conversation.prompt("too long " + LONG))
        assert result.outcome == "failed"
        assert failures(wb) == []


USAGE = TokenUsage(input=900, output=50, cache=CacheTokens(read=100, write=0))


def test_the_estimate_leans_on_the_last_report() -> None:
    history = [user(1, "x" * 400), assistant(2, words="y" * 200, tokens=USAGE)]
    assert estimate_context(history) == 1_000 + 50
    more = [*history, user(3, "z" * 400)]
    assert estimate_context(more) == 1_000 + 50 + 2 * 100  # scaled by 2, the most


def test_without_a_report_all_is_estimated() -> None:
    history = [user(1, "x" * 400), assistant(2, words="y" * 400)]
    assert estimate_context(history) == estimate_view(history) == 200


def test_an_absurd_report_is_not_believed() -> None:
    absurd = TokenUsage(input=5_000_000, output=1)
    history = [user(1, "x" * 400), assistant(2, words="y" * 400, tokens=absurd)]
    assert estimate_context(history) == 200


# ------------------------------------------------------------------------------------ tails


@pytest.mark.parametrize(
    ("settings", "usable", "expected"),
    [
        (Settings(), 168_000, 15_000),
        (Settings(), 20_000, 5_000),
        (Settings(), 4_000, 2_000),
        (Settings(), 1_000, 500),
        (PARITY, 1_000, 2_000),
        (Settings(), None, 15_000),
        (Settings(tail_tokens=123), 168_000, 123),
        (Settings(tail_turns=0), 168_000, 0),
        (Settings(keep_tail=False), 168_000, 0),
    ],
)
def test_the_tail_s_budget(settings: Settings, usable: int | None, expected: int) -> None:
    assert tail_budget(settings, usable) == expected


def turns(*sizes: int) -> list[MessageWithParts]:
    history: list[MessageWithParts] = []
    for n, size in enumerate(sizes):
        history += [user(2 * n + 1, "q"), assistant(2 * n + 2, words="w" * (4 * size))]
    return history


def test_the_newest_turns_are_kept_as_far_as_they_fit() -> None:
    history = turns(50, 50, 50)
    assert select_tail(history, budget_tokens=110) == "u3"
    assert select_tail(history, budget_tokens=110, max_turns=1) == "u5"
    assert select_tail(history, budget_tokens=10) is None
    assert select_tail(history, budget_tokens=1_000) is None
    assert select_tail(history, budget_tokens=110, after_seq=4) == "u5"


def test_only_parity_splits_an_older_turn() -> None:
    history = turns(50, 50)
    assert select_tail(history, budget_tokens=75) == "u3"
    assert select_tail(history, budget_tokens=150, parity=True) == "a2"


def test_a_newest_turn_that_is_too_large_is_split_between_messages() -> None:
    history = [user(1), *(assistant(n, "o" * 400) for n in range(2, 8))]
    assert select_tail(history, budget_tokens=250) == "a6"


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12), budget=st.integers(0, 400))
def test_a_tail_holds_its_budget_and_head_and_tail_are_all(sizes: list[int], budget: int) -> None:
    history = turns(*sizes)
    start = select_tail(history, budget_tokens=budget)
    if start is None:
        return
    place = next(n for n, item in enumerate(history) if item.message.id == start)
    assert 0 < place < len(history)
    assert estimate_view(history[place:]) <= budget


def test_boundaries_are_no_part_of_what_is_summarised() -> None:
    request = msgspec.structs.replace(
        user(1), parts=(CompactionPart(id="c", session_id="s", message_id="u1", auto=True),)
    )
    summary = assistant(2, words="sum")
    message = msgspec.structs.replace(summary.message, summary=True, parent_id="u1")
    pair = [request, msgspec.structs.replace(summary, message=message)]
    assert without_boundaries([*pair, user(3)]) == [user(3)]
