"""The numbered test vectors of compaction and of the model's view, in both profiles.

The numbers are those of the behaviour that this package was specified by. Each row says what the
default profile gives and what parity gives; where both are the same, the row says so.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from forge_nb.compaction.prune import prunable
from forge_nb.compaction.strategies import compact
from forge_nb.compaction.tail import select_tail, tail_budget, without_boundaries
from forge_nb.exchange.load import load
from forge_nb.history import filter_compacted, view_at
from forge_nb.messages.message import AssistantMessage, MessageTime, UserMessage
from forge_nb.messages.parts import (
    CompactionPart,
    FilePart,
    ModelRef,
    ReasoningPart,
    Span,
    StepStartPart,
    TextPart,
    ToolPart,
    ToolRunning,
)
from forge_nb.messages.render import to_model_messages
from forge_nb.messages.usage import (
    CacheTokens,
    ModelLimits,
    TokenUsage,
    is_over,
    usable_tokens,
    used_tokens,
)
from forge_nb.settings import PARITY, Settings
from forge_nb.store.open import open_store
from tests.helpers import Saying, text, workbench
from tests.histories import S, answer, having, ids, read_file, request, said, user

if TYPE_CHECKING:
    from pathlib import Path

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part

Profile = Literal["default", "parity"]
both_profiles = pytest.mark.parametrize("profile", ["default", "parity"])

BIG = ModelLimits(context=200_000, output=64_000)


def tokens(*, total: int | None, fresh: int, read: int, reasoning: int) -> TokenUsage:
    return TokenUsage(
        input=fresh,
        output=0,
        reasoning=reasoning,
        cache=CacheTokens(read=read, write=0),
        total=total,
    )


# --------------------------------------------------------------------- 12, 13: is the window full?

WINDOWS: list[tuple[str, TokenUsage, bool, bool]] = [
    # vector, usage, full by default, full in parity
    ("12 below", tokens(total=167_999, fresh=0, read=0, reasoning=0), False, False),
    ("12 at", tokens(total=168_000, fresh=0, read=0, reasoning=0), True, True),
    ("13 at", tokens(total=0, fresh=100_000, read=68_000, reasoning=50_000), True, True),
    ("13 below", tokens(total=0, fresh=99_999, read=68_000, reasoning=50_000), True, False),
]


@both_profiles
@pytest.mark.parametrize(
    ("usage", "default", "parity"),
    [row[1:] for row in WINDOWS],
    ids=[row[0] for row in WINDOWS],
)
def test_vectors_12_and_13_when_the_window_is_full(
    profile: Profile, *, usage: TokenUsage, default: bool, parity: bool
) -> None:
    """Reasoning that was billed counts by default; parity leaves it out without a total."""
    is_parity = profile == "parity"
    usable = usable_tokens(BIG, parity=is_parity)
    assert usable == 168_000
    assert is_over(used_tokens(usage, parity=is_parity), usable) is (
        parity if is_parity else default
    )


# ------------------------------------------------------------------------------ 14-18: the view

OK: dict[str, Any] = {"summary": True}
FAILED: dict[str, Any] = {"summary": True, "error": "APIError"}


def session(tail: str | None, summary: dict[str, Any]) -> list[MessageWithParts]:
    return [
        user("u1"),
        answer("a1", "u1"),
        user("u2"),
        answer("a2", "u2"),
        request("uC", tail),
        answer("aS", "uC", **summary),
        user("u3"),
    ]


WHOLE = "u1 a1 u2 a2 uC aS u3"
VIEWS: list[tuple[str, str | None, dict[str, Any], str, str]] = [
    # vector, tail, summary, view by default, view in parity
    ("14", None, OK, "uC aS u3", "uC aS u3"),
    ("15", "u2", OK, "uC aS u2 a2 u3", "uC aS u2 a2 u3"),
    ("16", None, FAILED, WHOLE, WHOLE),
    ("17", "u2", FAILED, WHOLE, "uC aS u2 a2 u3"),
    ("18", "gone", OK, WHOLE, WHOLE),
]


@both_profiles
@pytest.mark.parametrize(
    ("tail", "summary", "default", "parity"), [row[1:] for row in VIEWS], ids=[v[0] for v in VIEWS]
)
def test_vectors_14_to_18_what_a_boundary_leaves(
    profile: Profile, *, tail: str | None, summary: dict[str, Any], default: str, parity: str
) -> None:
    is_parity = profile == "parity"
    seen = filter_compacted(reversed(session(tail, summary)), parity=is_parity)
    assert ids(seen) == (parity if is_parity else default).split()


# --------------------------------------------------------------------------- 21-24: what is sent

BASE: dict[str, Any] = {"id": "p", "session_id": S, "message_id": "a"}
THOUGHT = ReasoningPart(**BASE, text="hm", metadata={"anthropic": {"signature": "s"}})
RUNNING = ToolPart(
    **BASE, call_id="c", tool="bash", state=ToolRunning(input={}, time=Span(start=1))
)
STARTED = StepStartPart(**BASE)
OWN, OTHER = (ModelRef(provider_id="maker", model_id=name) for name in ("model", "other"))
ABORTED = "MessageAbortedError"

SENT: list[tuple[str, list[Part], str | None, ModelRef, list[tuple[str, str]]]] = [
    # vector, parts, error, target, kinds and texts that are sent: the same in both profiles
    ("21 nothing", [STARTED, THOUGHT], ABORTED, OWN, []),
    (
        "21 a word",
        [STARTED, THOUGHT, said("a", "hi")],
        ABORTED,
        OWN,
        [("reasoning", "hm"), ("text", "hi")],
    ),
    (
        "22",
        [read_file("a", output="secret", compacted=5)],
        None,
        OWN,
        [("tool", "[Old tool result content cleared]")],
    ),
    ("23", [RUNNING], None, OWN, [("tool", "[Tool execution was interrupted]")]),
    ("24", [THOUGHT, said("a", "so")], None, OTHER, [("text", "hm"), ("text", "so")]),
]


@both_profiles
@pytest.mark.parametrize(
    ("parts", "error", "target", "expected"), [row[1:] for row in SENT], ids=[r[0] for r in SENT]
)
def test_vectors_21_to_24_what_is_sent(
    profile: Profile,
    *,
    parts: list[Part],
    error: str | None,
    target: ModelRef,
    expected: list[tuple[str, str]],
) -> None:
    item = having(answer("a", "u", error=error), *parts)
    sent = to_model_messages([item], target=target, parity=profile == "parity")
    assert [(part.kind, part.text) for one in sent for part in one.parts] == expected
    if target is OTHER:
        assert all(part.metadata is None for one in sent for part in one.parts)


# -------------------------------------------------------------------------------- 27, 28: pruning


def with_outputs(*sizes: int) -> list[MessageWithParts]:
    """Return a turn for each size in estimated tokens, oldest first, and two newer turns."""
    history: list[MessageWithParts] = []
    for number, size in enumerate(sizes):
        part = read_file(f"a{number}", output="x" * (4 * size))
        history += [user(f"u{number}"), having(answer(f"a{number}", f"u{number}"), part)]
    return [*history, user("v"), answer("b", "v"), user("w"), answer("c", "w")]


@pytest.mark.parametrize(
    ("sizes", "cleared"),
    [
        ((30_000, 30_000, 30_000), ["t_a1", "t_a0"]),
        ((15_000, 40_000), []),
    ],
    ids=["27", "28"],
)
def test_vectors_27_and_28_which_outputs_are_pruned(
    sizes: tuple[int, ...], cleared: list[str]
) -> None:
    """The same in both profiles; pruning is off in both until it is asked for."""
    settings = Settings()
    found = prunable(
        reversed(with_outputs(*sizes)),
        protect_tokens=settings.prune_protect,
        minimum_tokens=settings.prune_minimum,
    )
    assert [part.id for part in found] == cleared
    assert not settings.prune
    assert not PARITY.prune


# ------------------------------------------------------------------------------------ 30: replay


@both_profiles
def test_vector_30_a_refused_question_is_asked_again_behind_the_summary(profile: Profile) -> None:
    base = PARITY if profile == "parity" else Settings()
    settings = msgspec.structs.replace(base, title=False)
    provider = Saying(text("a long answer " * 60), text("in short"))
    with workbench(provider, settings=settings) as wb:
        conversation = wb.session("t")
        writer = wb.writer(conversation.id)

        async def main() -> Any:
            await conversation.prompt("the first question " * 20)
            image = FilePart(
                id="prt_image",
                session_id=writer.id,
                message_id="msg_last",
                mime="image/png",
                url="data:image/png;base64,AA",
                filename="dot.png",
            )
            asked = msgspec.structs.replace(image, id="prt_asked", mime="text/plain")
            await writer.update_message(_question(writer.id))
            await writer.update_part(TextPart(**_words(writer.id)))
            await writer.update_part(image)
            await writer.update_part(asked)
            return await compact(writer, conversation.setup, auto=True, overflow=True)

        result = asyncio.run(main())
        assert result.outcome == "done"
        record = provider.requests[-1].messages[0].parts[0].text
        assert "the last question" not in record
        messages = conversation.messages()
        [marker] = [p for m in messages for p in m.parts if isinstance(p, CompactionPart)]
        assert (marker.auto, marker.overflow) == (True, True)
        again = messages[-1]
        assert again.message.id == result.replayed_id
        assert isinstance(again.message, UserMessage)
        assert again.message.system == "be brief"
        known = {part.id for item in messages[:-1] for part in item.parts}
        assert not known & {part.id for part in again.parts}
        words = [getattr(part, "text", part) for part in again.parts]
        assert words[:2] == ["the last question", "[Attached image/png: dot.png]"]
        view = conversation.view().messages
        assert [part.text for part in view[-1].parts] == words[:2]
        assert [failure for failure in wb.verify() if failure.level == "failure"] == []


def _question(session_id: str) -> UserMessage:
    model = ModelRef(provider_id="saying", model_id="m")
    return UserMessage(
        id="msg_last",
        session_id=session_id,
        time=MessageTime(created=1),
        model=model,
        system="be brief",
    )


def _words(session_id: str) -> dict[str, Any]:
    return {
        "id": "prt_last",
        "session_id": session_id,
        "message_id": "msg_last",
        "text": "the last question",
    }


# ----------------------------------------------------------- the recorded tails, choice by choice


def test_parity_chooses_the_tails_that_were_recorded(cases: Path, tmp_path: Path) -> None:
    """Three compactions: three whole turns and an old request to go on; one turn is split."""
    folder = cases / "recorded" / "g2-compaction-tail"
    (tmp_path / "opencode.db").write_bytes(gzip.decompress((folder / "store.db.gz").read_bytes()))
    with open_store(tmp_path / "forge.db") as store:
        [one] = load(store, tmp_path / "opencode.db").sessions
        messages = list(store.messages(one.id))[::-1]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    limit = config["provider"]["fake"]["models"]["small"]["limit"]
    limits = ModelLimits(context=limit["context"], output=limit["output"])
    usable = usable_tokens(limits, parity=True)
    chosen, recorded = [], []
    for item in messages:
        message = item.message
        if not isinstance(message, AssistantMessage) or not message.is_summary:
            continue
        view = view_at(messages, message.id, rule="tail").messages
        tail = select_tail(
            without_boundaries(view),
            budget_tokens=tail_budget(PARITY, usable),
            max_turns=PARITY.tail_turns,
            parity=True,
        )
        chosen.append(tail)
        recorded += [
            part.tail_start_id
            for asked in messages
            if asked.message.id == message.parent_id
            for part in asked.parts
            if isinstance(part, CompactionPart)
        ]
    assert chosen == recorded
    assert len(recorded) == 3
    starts = {item.message.id: item.message for item in messages}
    kinds = [type(starts[tail]).__name__ for tail in recorded if tail is not None]
    assert kinds == ["UserMessage", "UserMessage", "AssistantMessage"]
