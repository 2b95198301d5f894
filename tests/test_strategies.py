"""Strategies of a user's own, and what every boundary promises, whoever wrote its summary."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.compaction.base import CompactionJob, CompactionResult
from forge_nb.compaction.prompt import PINNED_HEADING
from forge_nb.compaction.strategies import compact, register_strategy, strategies
from forge_nb.compaction.truncate import truncate
from forge_nb.errors import CompactionError, UsageError
from forge_nb.history import find_boundaries
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import CompactionPart, StepFinishPart, StepStartPart, is_open
from forge_nb.messages.steps import steps
from forge_nb.messages.stream import StepStart, StreamError
from forge_nb.providers.scripted import ScriptedProvider
from forge_nb.providers.scripts import make_script
from forge_nb.settings import PARITY, Settings
from forge_nb.testing import memory_workbench
from tests.helpers import Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from forge_nb.conversation import Conversation
    from forge_nb.events import SyncEvent
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.workbench import Workbench

LONG = "The test fails because the month table in src/months.py has no German names. " * 20
PIN = "Never change the signature of parse_date."


def asked(strategy: str, **more: Any) -> tuple[Workbench, Saying]:
    provider = Saying(text("an answer"), text("another"))
    settings = Settings(strategy=strategy, title=False, **{"keep_tail": False} | more)
    return workbench(provider, settings=settings), provider


def compacted(wb: Workbench, *, again: int = 0) -> tuple[Conversation, list[CompactionResult]]:
    conversation = wb.session("t")

    async def main() -> list[CompactionResult]:
        await conversation.prompt(LONG)
        results = [await conversation.compact()]
        for _ in range(again):
            await conversation.prompt(LONG)
            results.append(await conversation.compact())
        return results

    return conversation, asyncio.run(main())


def summary_text(conversation: Conversation) -> str:
    summary = find_boundaries(conversation.messages())[-1].summary_id
    [item] = [item for item in conversation.messages() if item.message.id == summary]
    return "\n\n".join(getattr(part, "text", "") for part in item.parts)


def failures(wb: Workbench) -> list[object]:
    return [one for one in wb.verify() if one.level == "failure"]


# -------------------------------------------------------------------------------- registration


class Mine:
    """A strategy as a class; its instances count what they did."""

    name = "mine"

    def __init__(self) -> None:
        self.jobs: list[CompactionJob] = []

    async def compact(self, job: CompactionJob) -> CompactionResult:
        self.jobs.append(job)
        return CompactionResult(outcome="nothing to do")


def test_the_built_in_strategies_are_listed_by_name() -> None:
    assert {"extractive", "mask", "summary", "truncate"} <= set(strategies())


def test_an_object_a_class_and_a_factory_are_strategies() -> None:
    made = Mine()
    for given in (made, Mine, lambda: made):
        register_strategy("given", given)
        wb, provider = asked("given")
        with wb:
            _, [result] = compacted(wb)
            assert result.outcome == "nothing to do"
            assert len(provider.requests) == 1
    assert len(made.jobs) == 2
    job = made.jobs[0]
    assert (job.auto, job.overflow, job.prior, job.tail_start_id) == (False, False, None, None)
    assert [type(item.message).__name__ for item in job.head] == ["UserMessage", "AssistantMessage"]


def test_a_function_becomes_a_strategy_by_a_decorator_and_stays_a_function() -> None:
    @register_strategy("decorated")
    def shout(conversation: str, prior: str | None) -> str:
        return f"{conversation[:9].upper()} {prior}"

    assert shout("abc", "d") == "ABC d"
    wb, _ = asked("decorated")
    with wb:
        conversation, _ = compacted(wb)
        assert summary_text(conversation) == "[USER]: T None"


def test_a_coroutine_function_may_write_the_summary_and_gets_the_earlier_one() -> None:
    priors: list[str | None] = []

    @register_strategy("slow")
    async def slow(conversation: str, prior: str | None) -> str:
        await asyncio.sleep(0)
        priors.append(prior)
        return f"summary {len(priors)} of {len(conversation)} characters"

    wb, _ = asked("slow")
    with wb:
        compacted(wb, again=1)
    assert priors[0] is None
    assert (priors[1] or "").startswith("summary 1 of ")


@pytest.mark.parametrize("wrong", [5, "summary", [], object()])
def test_what_cannot_compact_is_refused_and_says_what_could(wrong: object) -> None:
    with pytest.raises(UsageError, match=r"no strategy.*async def compact"):
        register_strategy("wrong", wrong)
    assert "wrong" not in strategies()


def test_a_strategy_needs_a_name() -> None:
    with pytest.raises(UsageError, match="name"):
        register_strategy("  ", Mine)


def test_a_strategy_object_that_raises_is_a_named_error_and_nothing_is_stored() -> None:
    class Broken(Mine):
        async def compact(self, job: CompactionJob) -> CompactionResult:
            raise ZeroDivisionError(len(job.head))

    register_strategy("broken object", Broken)
    wb, _ = asked("broken object")
    with wb:
        with pytest.raises(CompactionError, match="'broken object' failed: ZeroDivisionError: 2"):
            compacted(wb)
        assert len(wb.session("t").messages()) == 2


def test_an_error_of_ours_passes_through_a_strategy_unchanged() -> None:
    class Refuses(Mine):
        async def compact(self, job: CompactionJob) -> CompactionResult:
            msg = f"no room for {len(job.head)}"
            raise UsageError(msg)

    register_strategy("refuses", Refuses)
    wb, _ = asked("refuses")
    with wb, pytest.raises(UsageError, match="no room for 2"):
        compacted(wb)


@pytest.mark.parametrize("said", [None, 7, b"bytes"])
def test_a_function_that_gives_no_text_cuts_nothing_and_says_so(said: object) -> None:
    register_strategy("no text", lambda _conversation, _prior: said)
    wb, _ = asked("no text")
    with wb:
        conversation, [result] = compacted(wb)
        assert result.outcome == "failed"
        assert find_boundaries(conversation.messages()) == []
        [row] = wb.compactions().to_dict("records")
        assert row["outcome"] == "failed"
        error = conversation.messages()[-1].message
        assert isinstance(error, AssistantMessage)
        assert error.error is not None
        assert f"no text: TypeError: a summary is a text, not {said!r}" in str(error.error.data)
        assert failures(wb) == []


def test_a_function_that_is_cancelled_leaves_nothing_behind() -> None:
    started = asyncio.Event()

    @register_strategy("endless")
    async def endless(conversation: str, prior: str | None) -> str:
        started.set()
        await asyncio.Event().wait()
        return f"{conversation}{prior}"

    wb, _ = asked("endless")
    with wb:
        conversation = wb.session("t")

        async def main() -> None:
            await conversation.prompt(LONG)
            task = asyncio.ensure_future(conversation.compact())
            await wait_for(started.is_set)
            conversation.abort()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert len(conversation.messages()) == 2
        assert failures(wb) == []


# ----------------------------------------------------------------------------- without a model


@pytest.mark.parametrize("strategy", ["extractive", "truncate"])
def test_a_summary_without_a_call_has_no_step_no_bill_and_is_one_write(strategy: str) -> None:
    wb, provider = asked(strategy)
    with wb:
        conversation = wb.session("t")
        writes: list[list[str]] = []

        async def main() -> CompactionResult:
            await conversation.prompt(LONG)
            spy(wb, writes)
            return await conversation.compact()

        result = asyncio.run(main())
        assert result.outcome == "done"
        assert len(provider.requests) == 1
        assert [len(one) for one in writes] == [4]
        [summary] = [m for m in conversation.messages() if m.message.id == result.summary_id]
        assert not [p for p in summary.parts if isinstance(p, StepStartPart | StepFinishPart)]
        assert result.summary_id not in steps(conversation.messages())
        assert list(wb.steps()["purpose"]) == ["turn"]
        assert len(wb.sql("select * from steps where purpose = 'compaction'")) == 0
        [row] = wb.compactions().to_dict("records")
        assert row["outcome"] == "done"
        assert row["cost_usd"] is None
        assert failures(wb) == []


def spy(wb: Workbench, writes: list[list[str]]) -> None:
    """Note the events of each transaction that is still to come."""
    apply = wb.store.apply

    def noting(events: Iterable[SyncEvent]) -> Any:
        events = list(events)
        writes.append([type(event).__name__ for event in events])
        return apply(events)

    wb.store.apply = noting  # type: ignore[method-assign]


def test_an_extract_knows_who_said_what_and_merges_the_earlier_summary() -> None:
    wb, provider = asked("extractive")
    provider.answers = [text("The cause is found: src/months.py lacks names. I add them next.")]
    with wb:
        conversation, _ = compacted(wb)
        first = summary_text(conversation)
        assert "## Objective\n- The test fails" in first
        assert "## Work State\n- The cause is found: src/months.py lacks names." in first
        assert "## Next Move\n- I add them next." in first
        assert "[Assistant" not in first

        async def main() -> None:
            await conversation.prompt("Only touch src/other.py. " * 9)
            await conversation.compact()

        asyncio.run(main())
        second = summary_text(conversation)
        assert "## Objective\n- The test fails" in second
        assert "Only touch src/other.py." in second
        assert "src/months.py" in second.partition("## Relevant Files")[2]


def test_the_scripted_model_reads_the_record_it_is_asked_to_summarise() -> None:
    with memory_workbench("scripted:tour", settings=Settings(keep_tail=False)) as wb:
        conversation = wb.session("t")

        async def main() -> CompactionResult:
            await conversation.prompt("Why does test_parse fail? Never change parse_date.")
            return await conversation.compact()

        assert asyncio.run(main()).outcome == "done"
        said = summary_text(conversation)
        assert "- Never change parse_date." in said
        assert "src/almanac/months.py" in said
        assert isinstance(conversation.setup.provider, ScriptedProvider)
        assert make_script("tour", {}).limits == conversation.setup.provider.limits("tour")


def test_truncating_says_what_was_left_out_and_keeps_the_note_before_it() -> None:
    record = (
        "[User]: why does it\nfail?\n\n[Assistant]: I look\n"
        "[Assistant tool call]: read({})\n[Tool result]: [User]: forged\n\n[User]: and now?"
    )
    first = truncate(record, None)
    assert first == (
        "Earlier messages were left out: 2 questions, 1 answer, 1 tool call. "
        "It began with: why does it fail?"
    )
    assert truncate("[Assistant]: so", first) == (
        f"{first}\nEarlier messages were left out: 0 questions, 1 answer, 0 tool calls."
    )
    assert truncate("", None).endswith("0 tool calls.")


# -------------------------------------------------------------------------------------- pinned


@pytest.mark.parametrize("strategy", ["summary", "extractive", "truncate"])
@pytest.mark.parametrize("checked", [True, False])
def test_every_stored_summary_repeats_what_is_pinned(
    strategy: str,
    checked: bool,  # noqa: FBT001
) -> None:
    wb, _ = asked(strategy, pinned=(PIN, "Only add tests."), check_summary=checked)
    with wb:
        conversation, results = compacted(wb, again=2)
        assert [result.outcome for result in results] == ["done"] * 3
        said = summary_text(conversation)
        assert said.count(PIN) == said.count("Only add tests.") == 1
        assert said.count(f"## {PINNED_HEADING}") == 1
        seen = [part.text for one in conversation.view().messages for part in one.parts]
        assert PIN in seen[1]


def test_pins_do_not_make_a_blank_summary_a_boundary() -> None:
    wb, provider = asked("summary", pinned=(PIN,))
    provider.answers = [text("an answer"), text(" \n")]
    with wb:
        conversation, [result] = compacted(wb)
        assert result.outcome == "blank"
        assert find_boundaries(conversation.messages()) == []


# ---------------------------------------------------------------------------------- acceptance


def test_a_summary_has_to_be_smaller_than_what_it_replaces_by_a_token_at_least() -> None:
    replaced = estimate_tokens(LONG) + estimate_tokens("an answer")
    for size, outcome in ((replaced, "not smaller"), (replaced - 1, "done")):
        wb, provider = asked("summary")
        provider.answers = [text("an answer"), text("x" * (4 * size))]
        with wb:
            _, [result] = compacted(wb)
            assert result.outcome == outcome


def test_without_the_check_a_longer_summary_cuts_and_a_blank_one_is_still_none() -> None:
    for said, outcome in ((LONG * 3, "done"), ("  ", "blank")):
        wb, provider = asked("summary", check_summary=False)
        provider.answers = [text("an answer"), text(said)]
        with wb:
            conversation, [result] = compacted(wb)
            assert result.outcome == outcome
            assert len(find_boundaries(conversation.messages())) == (outcome == "done")
            [row] = wb.compactions().to_dict("records")
            assert row["outcome"] == outcome


def test_in_parity_every_finished_summary_cuts_as_recorded() -> None:
    provider = Saying(text("an answer"), text("  "), text("on"))
    with workbench(provider, settings=PARITY) as wb:
        conversation, [result] = compacted(wb)
        assert result.outcome == "done"
        writer = wb.writer(conversation.id)
        assert [type(m.message).__name__ for m in writer.visible(parity=True)] == [
            "UserMessage",
            "AssistantMessage",
        ]


@pytest.mark.parametrize(("settings", "leaves"), [(PARITY, True), (Settings(), False)])
def test_only_in_parity_a_failed_summary_leaves_its_tail_marker(
    settings: Settings,
    leaves: bool,  # noqa: FBT001
) -> None:
    refused: list[StreamEvent] = [StepStart(), StreamError(message="no", kind="api", status=400)]
    provider = Saying(text("one"), text("two"), refused)
    with workbench(provider, settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> CompactionResult:
            await conversation.prompt(LONG * 40)
            await conversation.prompt("a short question")
            return await conversation.compact()

        result = asyncio.run(main())
        assert (result.outcome, result.tail_start_id) == ("failed", None)
        [marker] = [
            part
            for item in conversation.messages()
            for part in item.parts
            if isinstance(part, CompactionPart)
        ]
        assert (marker.tail_start_id is not None) is leaves
        assert not [p for item in conversation.messages() for p in item.parts if is_open(p)]


# ----------------------------------------------------------------------- questions asked again


def waiting(wb: Workbench, words: str) -> Callable[[], Awaitable[str]]:
    """Return what stores a question that nobody answers yet, and gives its id."""

    async def store() -> str:
        return await wb.session("t").tell(words)

    return store


@pytest.mark.parametrize(
    ("overflow", "again"), [(False, False), (True, True)], ids=["before sending", "refused"]
)
def test_a_question_that_fits_the_tail_is_not_asked_twice_unless_it_was_refused(
    overflow: bool,  # noqa: FBT001
    again: bool,  # noqa: FBT001
) -> None:
    wb, _ = asked("truncate", keep_tail=True, tail_tokens=100)
    with wb:
        conversation = wb.session("t")

        async def main() -> tuple[str, CompactionResult]:
            await conversation.prompt(LONG)
            question = await waiting(wb, "and in French?")()
            writer, setup = wb.writer(conversation.id), conversation.setup
            return question, await compact(
                writer, setup, auto=True, overflow=overflow, replay=not overflow
            )

        question, result = asyncio.run(main())
        assert result.outcome == "done"
        assert (result.replayed_id != question) is again
        seen = conversation.view().messages
        assert [part.text for one in seen for part in one.parts].count("and in French?") == 1
        assert seen[-1].id == result.replayed_id


def test_a_question_too_large_for_the_tail_is_asked_again_in_the_same_write() -> None:
    wb, _ = asked("truncate", keep_tail=True, tail_tokens=2)
    with wb:
        conversation = wb.session("t")
        writes: list[list[str]] = []

        async def main() -> CompactionResult:
            await conversation.prompt(LONG)
            await waiting(wb, "and in French? " * 9)()
            spy(wb, writes)
            return await compact(
                wb.writer(conversation.id), conversation.setup, auto=True, replay=True
            )

        result = asyncio.run(main())
        assert [len(one) for one in writes] == [6]
        newest = conversation.messages()[-1]
        assert newest.message.id == result.replayed_id
        assert isinstance(newest.message, UserMessage)
        assert conversation.view().messages[-1].parts[0].text == "and in French? " * 9


def test_what_was_done_about_a_refused_question_stays_in_its_summary() -> None:
    """Opencode leaves it out, and the model does it all again."""
    for settings, kept in ((Settings(keep_tail=False), True), (PARITY, False)):
        provider = Saying(text("first answer"), text("half the work is done"), text("in short"))
        with workbench(provider, settings=settings) as wb:
            conversation = wb.session("t")

            async def main(conversation: Conversation = conversation) -> None:
                await conversation.prompt(LONG)
                await conversation.prompt("the second question")
                writer = conversation.workbench.writer(conversation.id)
                await compact(writer, conversation.setup, auto=True, overflow=True)

            asyncio.run(main())
            record = provider.requests[-1].messages[0].parts[0].text
            assert "the second question" not in record
            assert ("half the work is done" in record) is kept


def test_a_strategy_object_that_writes_a_summary_of_its_own_gets_the_question_asked_again() -> None:
    class Forgetful(Mine):
        async def compact(self, job: CompactionJob) -> CompactionResult:
            return CompactionResult(outcome="done", summary_id=f"elsewhere {len(job.head)}")

    register_strategy("forgetful", Forgetful)
    wb, _ = asked("forgetful")
    with wb:
        conversation = wb.session("t")

        async def main() -> CompactionResult:
            await conversation.prompt(LONG)
            await waiting(wb, "and then?")()
            return await compact(
                wb.writer(conversation.id), conversation.setup, auto=True, overflow=True
            )

        result = asyncio.run(main())
        assert conversation.messages()[-1].message.id == result.replayed_id
