"""Old tool outputs are hidden, never deleted: pruning after a run, masking as a strategy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import forge_nb
from forge_nb.compaction.mask import MaskOutputs, maskable
from forge_nb.compaction.prune import prunable
from forge_nb.compaction.strategies import register_strategy
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.parts import ToolCompleted, ToolPart
from forge_nb.messages.stream import StepFinish, StepStart, ToolCall
from forge_nb.messages.wire import TOOL_OUTPUT_CLEARED
from forge_nb.settings import Settings
from tests.helpers import USED, Saying, text, workbench
from tests.histories import answer, discarded, having, read_file, user

if TYPE_CHECKING:
    from forge_nb.conversation import Conversation
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.workbench import Workbench


@forge_nb.tool
def look() -> str:
    """Look around."""
    return "word " * 2_000


def looking(count: int) -> list[list[StreamEvent]]:
    """Return so many turns of a call and an answer."""
    answers: list[list[StreamEvent]] = []
    for n in range(count):
        call = ToolCall(call_id=f"c{n}", tool="look", input={})
        answers += [[StepStart(), call, StepFinish(reason="tool-calls", usage=USED)], text("ok")]
    return answers


def turns(*sizes: int) -> list[MessageWithParts]:
    """Return a turn for each size of an output in estimated tokens, oldest first."""
    history: list[MessageWithParts] = []
    for n, size in enumerate(sizes):
        part = read_file(f"a{n}", output="x" * (4 * size))
        history += [user(f"u{n}"), having(answer(f"a{n}", f"u{n}"), part)]
    return [msgspec.structs.replace(item, seq=place + 1) for place, item in enumerate(history)]


def pruned(history: list[MessageWithParts], protect: int = 100, least: int = 50) -> list[str]:
    found = prunable(reversed(history), protect_tokens=protect, minimum_tokens=least)
    return [part.id for part in found]


def tool_parts(conversation: Conversation) -> list[ToolPart]:
    parts = (part for item in conversation.messages() for part in item.parts)
    return [part for part in parts if isinstance(part, ToolPart)]


def is_cleared(part: ToolPart) -> bool:
    return isinstance(part.state, ToolCompleted) and part.state.time.compacted is not None


def failures(wb: Workbench) -> list[object]:
    return [one for one in wb.verify() if one.level == "failure"]


# ---------------------------------------------------------------------------------------- prune


def test_the_last_two_turns_are_left_alone_however_large() -> None:
    assert pruned(turns(900, 900)) == []
    assert pruned(turns(900, 900, 900)) == ["t_a0"]


def test_it_is_all_or_nothing_at_the_minimum() -> None:
    assert pruned(turns(50, 90, 1, 1), protect=90) == []
    assert pruned(turns(51, 90, 1, 1), protect=90) == ["t_a0"]


def test_a_protected_tool_and_a_failed_attempt_are_never_cleared_and_never_counted() -> None:
    history = turns(900, 900, 900, 1, 1)
    skill = msgspec.structs.replace(history[1].parts[0], tool="skill")
    history[1] = having(history[1], skill)
    history[3] = having(history[3], discarded(history[3].parts[0]))
    assert pruned(history, protect=0) == ["t_a2"]


def test_a_cleared_output_ends_the_search_and_so_does_a_summary() -> None:
    history = turns(900, 900, 900, 1, 1)
    cleared = having(history[3], read_file("a1", output="x" * 3_600, compacted=9))
    assert pruned([*history[:3], cleared, *history[4:]], protect=0) == ["t_a2"]
    summary = answer("s", "u1", summary=True)
    assert pruned([*history[:4], summary, *history[4:]], protect=0) == ["t_a2"]


def test_pruning_is_done_after_a_run_where_the_settings_say_so() -> None:
    settings = Settings(prune=True, prune_protect=3_000, prune_minimum=1_000, doom_loop=0)
    with workbench(Saying(*looking(4)), tools=[look], settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> None:
            for n in range(4):
                await conversation.prompt(f"look {n}")

        asyncio.run(main())
        parts = tool_parts(conversation)
        assert [is_cleared(part) for part in parts] == [True, False, False, False]
        assert all(len(getattr(part.state, "output", "")) > 9_000 for part in parts)
        assert list(wb.tools()["cleared_at"].notna()) == [True, False, False, False]
        assert failures(wb) == []


def test_by_default_nothing_is_pruned() -> None:
    settings = Settings(prune_protect=1, prune_minimum=1, doom_loop=0)
    with workbench(Saying(*looking(3)), tools=[look], settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> None:
            for n in range(3):
                await conversation.prompt(f"look {n}")

        asyncio.run(main())
        assert not any(map(is_cleared, tool_parts(conversation)))


sizes = st.lists(st.integers(0, 60), max_size=9)


@given(sizes, st.integers(0, 200), st.integers(0, 200))
def test_what_is_pruned_is_old_and_enough(drawn: list[int], protect: int, least: int) -> None:
    history = turns(*drawn)
    found = prunable(reversed(history), protect_tokens=protect, minimum_tokens=least)
    weights = [size for size in drawn[:-2] if size or protect >= 0]
    names = [f"t_a{n}" for n in range(len(weights))]
    cleared = [part.id for part in found]
    assert cleared == [name for name in reversed(names) if name in cleared]
    total = sum(estimate_tokens(getattr(part.state, "output", "")) for part in found)
    assert not found or total > least
    kept = [weight for name, weight in zip(names, weights, strict=True) if name not in cleared]
    assert not found or sum(kept) <= protect


# ----------------------------------------------------------------------------------------- mask


def masked(history: list[MessageWithParts], outputs: int = 10, tokens: int = 10_000) -> list[str]:
    return [part.id for part in maskable(history, keep_outputs=outputs, keep_tokens=tokens)]


def test_outputs_beyond_the_count_or_the_tokens_are_masked() -> None:
    history = [*turns(50, 50, 50, 50), answer("z", "u3")]
    assert masked(history, outputs=2) == ["t_a1", "t_a0"]
    assert masked(history, tokens=150) == ["t_a0"]
    assert masked(history, outputs=4) == []


def test_outputs_that_wait_for_an_answer_stay() -> None:
    history = turns(50, 50)
    assert masked(history, outputs=0) == ["t_a0"]


def test_an_output_no_longer_than_the_placeholder_stays() -> None:
    short, long = len(TOOL_OUTPUT_CLEARED), len(TOOL_OUTPUT_CLEARED) + 1
    history = turns(1, 1, 1)
    history[1] = having(history[1], read_file("a0", output="x" * short))
    history[3] = having(history[3], read_file("a1", output="x" * long))
    assert masked(history, outputs=0) == ["t_a1"]


def test_protected_tools_failed_attempts_and_cleared_outputs_are_not_masked() -> None:
    history = turns(50, 50, 50, 50)
    history[1] = having(history[1], msgspec.structs.replace(history[1].parts[0], tool="skill"))
    history[3] = having(history[3], discarded(history[3].parts[0]))
    history[5] = having(history[5], read_file("a2", output="x" * 200, compacted=4))
    assert masked(history, outputs=0) == []


def test_order_is_that_of_the_session_not_of_the_view() -> None:
    """A tail stands behind a summary that is newer than it."""
    history = turns(50, 50)
    summary = msgspec.structs.replace(answer("s", "r", summary=True), seq=9)
    assert masked([summary, *history], outputs=1) == ["t_a0"]


def test_masking_is_a_strategy_that_makes_no_call_and_no_boundary() -> None:
    register_strategy("mask one", lambda: MaskOutputs(keep_outputs=1, keep_tokens=99_999))
    settings = Settings(strategy="mask one", doom_loop=0)
    provider = Saying(*looking(3), text("again"))
    with workbench(provider, tools=[look], settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> list[Any]:
            for n in range(3):
                await conversation.prompt(f"look {n}")
            results = [await conversation.compact(), await conversation.compact()]
            await conversation.prompt("and now?")
            return results

        first, second = asyncio.run(main())
        assert (first.outcome, first.cleared, first.summary_id) == ("done", 2, None)
        assert first.tokens_after < first.tokens_before
        assert "2 outputs cleared" in repr(first)
        assert second.outcome == "nothing to do"
        assert [is_cleared(part) for part in tool_parts(conversation)] == [True, True, False]
        sent = [part.text for one in provider.requests[-1].messages for part in one.parts]
        assert sent.count(TOOL_OUTPUT_CLEARED) == 2
        assert [words for words in sent if words.startswith("look ")] == [
            "look 0",
            "look 1",
            "look 2",
        ]
        assert len(wb.compactions()) == 0
        assert list(wb.tools()["cleared_at"].notna()) == [True, True, False]
        assert failures(wb) == []


@pytest.mark.parametrize("keep_tail", [True, False])
def test_without_bounds_of_its_own_a_mask_keeps_what_a_tail_may_have(
    keep_tail: bool,  # noqa: FBT001
) -> None:
    settings = Settings(strategy="mask", keep_tail=keep_tail, tail_tokens=3_000, doom_loop=0)
    with workbench(Saying(*looking(2)), tools=[look], settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> Any:
            for n in range(2):
                await conversation.prompt(f"look {n}")
            return await conversation.compact()

        assert asyncio.run(main()).cleared == (1 if keep_tail else 2)
