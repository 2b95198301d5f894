"""Every answer that a recorded engine was given, served again word for word."""

from __future__ import annotations

import dataclasses
import gzip
import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.messages.stream import StepFinish, StreamError, TextDelta
from forge_nb.providers.registry import resolve_model
from tests.contracts.provider_contract import asked, drain, is_well_formed
from tests.live import set_keys
from tests.wire.replies import recorded
from tests.wire.server import WireServer

if TYPE_CHECKING:
    from pathlib import Path

    from forge_nb.messages.stream import StreamEvent


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for every provider."""
    set_keys(monkeypatch)


def replies(case: Path) -> list[dict[str, Any]]:
    """Return a case's answers that end by themselves."""
    with gzip.open(case, "rt", encoding="utf-8") as file:
        found = [json.loads(line)["reply"] for line in file]
    return [reply for reply in found if reply.get("hang_after") is None]


async def answer(reply: dict[str, Any]) -> list[StreamEvent]:
    served = dataclasses.replace(recorded(reply), delay_s=0.0)
    name = "anthropic" if reply["kind"] == "anthropic" else "openai-compatible"
    async with WireServer([served]) as server:
        provider, _ = resolve_model(f"{name}:m?base_url={server.base_url}")
        return await drain(provider, asked("Hi"))


def words(reply: dict[str, Any]) -> str:
    """Return the text that an answer's chunks hold."""
    if reply["kind"] == "anthropic":
        deltas = [data.get("delta", {}) for _, data in reply["chunks"]]
        return "".join(delta.get("text", "") for delta in deltas)
    sent = takewhile(lambda chunk: "error" not in chunk, reply["chunks"][: reply.get("drop_after")])
    deltas = [one.get("delta") or {} for chunk in sent for one in chunk.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.each_case("recorded/*/calls.jsonl.gz")
async def test_a_recorded_answer_is_understood(case: Path) -> None:
    for reply in replies(case):
        events = await answer(reply)
        assert is_well_formed(events)
        end = events[-1]
        if reply["kind"] == "error":
            assert isinstance(end, StreamError)
            assert end.status == reply["status"]
            assert end.kind != "unknown"
            continue
        assert isinstance(end, StepFinish | StreamError)
        assert not isinstance(end, StreamError) or end.kind != "unknown"
        said = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert said == words(reply)
