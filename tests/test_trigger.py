"""The estimate before a call: it leans on the last report, and doubts what cannot be true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.compaction.tail import estimate_view
from forge_nb.compaction.trigger import estimate_context, is_absurd
from forge_nb.messages.parts import FilePart
from forge_nb.messages.usage import CacheTokens, TokenUsage
from tests.histories import S, answer, having, read_file, request, said, user

if TYPE_CHECKING:
    from forge_nb.messages.message import MessageWithParts

REPORT = TokenUsage(input=300, output=30, cache=CacheTokens(read=100, write=0))


def numbered(*messages: MessageWithParts) -> list[MessageWithParts]:
    return [msgspec.structs.replace(item, seq=n + 1) for n, item in enumerate(messages)]


def step(tokens: TokenUsage, *parts: Any, created: int = 5, **how: Any) -> MessageWithParts:
    item = having(answer("a", "u", created=created, **how), *(parts or (said("a", "so"),)))
    return msgspec.structs.replace(
        item, message=msgspec.structs.replace(item.message, tokens=tokens)
    )


def asked(words: str, name: str = "u") -> MessageWithParts:
    return having(user(name), said(name, words))


def test_results_of_the_last_step_are_added_to_its_report_whatever_it_thought() -> None:
    """They are no part of the answer, so a long thought does not hide them."""
    result = read_file("a", output="o" * 800)
    thoughtful = msgspec.structs.replace(REPORT, reasoning=5_000)
    view = numbered(asked("q" * 1_600), step(thoughtful, result))
    assert estimate_context(view) == 400 + 30 + 5_000 + 200


@pytest.mark.parametrize(
    ("words", "scale"), [(1_600, 1.0), (800, 2.0), (80, 2.0), (3_200, 0.5), (9_000, 0.5)]
)
def test_news_are_scaled_by_what_the_estimate_was_off_within_bounds(
    words: int, scale: float
) -> None:
    view = numbered(asked("q" * words), step(REPORT), asked("n" * 400, "v"))
    assert estimate_context(view) == 430 + round(scale * 100)


def test_what_was_cleared_after_the_last_step_is_taken_off() -> None:
    def view(compacted: int | None) -> list[MessageWithParts]:
        old = having(answer("b", "u"), read_file("b", output="o" * 1_200, compacted=compacted))
        return numbered(asked("q" * 400), old, step(REPORT, created=5))

    assert estimate_context(view(None)) == 430
    assert estimate_context(view(4)) == 430
    assert estimate_context(view(6)) < 430


@pytest.mark.parametrize(
    "unfit",
    [
        step(TokenUsage()),
        step(REPORT, error="APIError"),
        step(REPORT, finish=None),
        step(TokenUsage(input=-5)),
        step(REPORT, summary=True),
    ],
    ids=["silent", "failed", "cut", "negative", "a summary"],
)
def test_a_step_without_an_end_or_a_report_is_no_anchor(unfit: MessageWithParts) -> None:
    view = numbered(asked("q" * 400), unfit)
    assert estimate_context(view) == estimate_view(view)


def test_a_report_from_before_the_newest_summary_is_no_anchor() -> None:
    """A kept tail stands behind the summary in the view; its steps read a longer view."""
    old = numbered(
        asked("q" * 400), step(REPORT), request("c", "u"), answer("s", "c", summary=True)
    )
    view = [old[2], old[3], old[0], old[1]]
    assert estimate_context(view) == estimate_view(view) < 430


def test_a_provider_that_tells_only_its_total_is_believed() -> None:
    view = numbered(asked("q" * 400), step(TokenUsage(total=900)))
    assert estimate_context(view) == 900


def test_an_absurd_report_is_doubted_unless_there_are_media() -> None:
    absurd = TokenUsage(input=5_000_000, output=1)
    plain = numbered(asked("q" * 400), step(absurd))
    assert estimate_context(plain) == estimate_view(plain)
    image = FilePart(id="f", session_id=S, message_id="u", mime="image/png", url="data:,")
    pictured = numbered(having(plain[0], *plain[0].parts, image), step(absurd))
    assert estimate_context(pictured) == 5_000_001
    seen = read_file("b")
    state = msgspec.structs.replace(seen.state, attachments=[{"mime": "image/png"}])
    result = having(answer("b", "u"), msgspec.structs.replace(seen, state=state))
    assert estimate_context(numbered(asked("q"), result, step(absurd))) == 5_000_001


def test_a_large_system_prompt_is_not_absurd() -> None:
    assert not is_absurd(55_000, 10)
    assert is_absurd(60_041, 10)


@given(st.integers(0, 4_000), st.integers(0, 4_000), st.integers(1, 100_000))
def test_the_estimate_grows_with_what_is_new(words: int, more: int, reported: int) -> None:
    base = [asked("q" * 400), step(TokenUsage(input=reported, output=1))]
    small = estimate_context(numbered(*base, asked("n" * words, "v")))
    large = estimate_context(numbered(*base, asked("n" * (words + more), "v")))
    assert 0 <= small <= large
