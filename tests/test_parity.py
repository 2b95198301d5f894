"""Faults of opencode 1.18 that the parity profile repeats, and the default one does not have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from forge_nb.history import find_boundaries
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import TextPart
from forge_nb.messages.stream import StreamError
from forge_nb.messages.usage import ModelLimits, TokenUsage
from forge_nb.settings import PARITY, Settings
from tests.helpers import Saying, text, workbench

if TYPE_CHECKING:
    from forge_nb.conversation import Conversation

LONG = "a question that is long enough to be worth a summary, " * 20
REFUSED = StreamError(message="no", kind="rejected", status=400)


def said(conversation: Conversation) -> list[str]:
    return [
        part.text
        for item in conversation.messages()
        for part in item.parts
        if isinstance(part, TextPart)
    ]


async def summarised_in_vain(conversation: Conversation) -> Any:
    await conversation.prompt(LONG)
    assert (await conversation.compact()).outcome == "failed"
    return await conversation.prompt("and now?")


def test_a_failed_summary_takes_the_next_question_in_parity_alone() -> None:
    for settings, answered in ((PARITY, False), (Settings(), True)):
        provider = Saying(text("one"), [REFUSED], text("the third thing that is said"))
        with workbench(provider, settings=settings) as wb:
            conversation = wb.session("t")
            result = asyncio.run(summarised_in_vain(conversation))
            last = conversation.messages()[-1].message
            assert isinstance(last, AssistantMessage)
            assert last.is_summary is not answered
            assert find_boundaries(conversation.messages()) == []
            if answered:
                assert result.text == "the third thing that is said"
            else:
                asked = next(
                    item
                    for item in conversation.messages()
                    if any(isinstance(p, TextPart) and p.text == "and now?" for p in item.parts)
                )
                assert last.parent_id == asked.message.id
                assert len(provider.requests) == 3
                words = provider.requests[2].messages[0].parts[0].text
                assert "and now?" not in words


@pytest.mark.parametrize("check", [False, True])
def test_a_blank_summary_loses_the_history_in_parity_alone(*, check: bool) -> None:
    settings = msgspec.structs.replace(PARITY, check_summary=check, parity=not check)
    with workbench(Saying(text("one"), text("  ")), settings=settings) as wb:
        conversation = wb.session("t")

        async def main() -> None:
            await conversation.prompt(LONG)
            await conversation.compact()

        asyncio.run(main())
        shown = wb.writer(conversation.id).visible(parity=not check)
        texts = [p.text for item in shown for p in item.parts if isinstance(p, TextPart)]
        assert (LONG in texts) is check


def test_a_full_window_after_the_last_word_asks_once_more_in_parity_alone() -> None:
    full = TokenUsage(input=1_500, output=150)
    for settings, calls in ((PARITY, 3), (Settings(), 2)):
        answers = [text("done", usage=full), text("short"), text("gone on")]
        provider = Saying(*answers, limits=ModelLimits(context=2_000, output=400))
        with workbench(provider, settings=settings) as wb:
            asyncio.run(wb.session("t").prompt(LONG))
        assert len(provider.requests) == calls
