"""What a program of the family wrote comes back as it was, also what we do not know."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, get_args

import pytest

from forge_nb.errors import ExchangeError
from forge_nb.messages.codec import (
    message_from_dict,
    message_to_dict,
    part_from_dict,
    part_to_dict,
    session_from_dict,
    session_to_dict,
)
from forge_nb.messages.parts import PART_KINDS, KnownPart, ToolPart, UnknownPart

if TYPE_CHECKING:
    from pathlib import Path

IDS = {"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1"}


def tool(**state: Any) -> dict[str, Any]:
    return {**IDS, "type": "tool", "tool": "read", "callID": "c1", "state": state}


SAMPLES: list[dict[str, Any]] = [
    {**IDS, "type": "text", "text": "hi", "synthetic": True, "time": {"start": 1, "end": 2}},
    {**IDS, "type": "reasoning", "text": "", "time": {"start": 1}, "metadata": {"a": {"b": None}}},
    {**IDS, "type": "file", "mime": "text/plain", "url": "file:///x", "source": {"type": "file"}},
    {**IDS, "type": "agent", "name": "general", "source": {"value": "@general", "start": 0}},
    {**IDS, "type": "compaction", "auto": True, "overflow": False, "tail_start_id": "msg_0"},
    {**IDS, "type": "subtask", "prompt": "p", "description": "d", "agent": "general"},
    {**IDS, "type": "step-start", "snapshot": "abc"},
    {
        **IDS,
        "type": "step-finish",
        "reason": "stop",
        "cost": 0,
        "tokens": {
            "total": 3,
            "input": 1,
            "output": 2,
            "reasoning": 0,
            "cache": {"read": 0, "write": 0},
        },
    },
    {**IDS, "type": "patch", "hash": "h", "files": ["/a"]},
    tool(status="pending", input={}, raw=""),
    tool(status="running", input={"x": 1}, time={"start": 5}, title=None),
    tool(
        status="completed",
        input={},
        output="o",
        title="t",
        metadata={},
        time={"start": 1, "end": 2, "compacted": 3, "later": 4},
        attachments=[{"mime": "image/png"}],
    ),
    tool(status="error", input="text", error="e", time={"start": 1, "end": 2}, raw=""),
    tool(status="dreaming", depth=3),
    {**IDS, "type": "snapshot", "snapshot": "abc", "$attempt": 7},
    {**IDS, "type": "text", "text": "hi", "text2": "new field", "time": None},
]


@pytest.mark.parametrize("raw", SAMPLES, ids=lambda raw: str(raw["type"]))
def test_a_part_comes_back_as_it_was_read(raw: dict[str, Any]) -> None:
    assert part_to_dict(part_from_dict(raw)) == raw


def test_the_ten_kinds_are_the_union_s_members() -> None:
    tags = [str(member.__struct_config__.tag) for member in get_args(KnownPart)]
    assert sorted(tags) == sorted(PART_KINDS)
    assert len(PART_KINDS) == 10


def test_a_tool_state_that_nobody_knows_keeps_the_part_as_it_is() -> None:
    part = part_from_dict(tool(status="dreaming", depth=3))
    assert isinstance(part, UnknownPart)
    assert part.kind == "tool"


def test_a_known_kind_without_its_fields_says_which_and_where() -> None:
    with pytest.raises(ExchangeError, match="time") as caught:
        part_from_dict(tool(status="running", input={}))
    assert caught.value.place == "$.state"


@pytest.mark.parametrize("missing", ["id", "sessionID", "messageID"])
def test_a_part_without_an_id_is_refused(missing: str) -> None:
    raw = {"type": "mystery", **IDS}
    del raw[missing]
    with pytest.raises(ExchangeError, match=missing):
        part_from_dict(raw)


def test_status_is_the_word_in_the_json() -> None:
    part = part_from_dict(tool(status="error", input={}, error="e", time={"start": 1, "end": 2}))
    assert isinstance(part, ToolPart)
    assert part.status == "error"


def test_every_recorded_export_survives_the_round_trip(cases: Path) -> None:
    """Thousands of real messages and parts: nothing is lost, nothing is added."""
    paths = [*cases.glob("recorded/*/export-*.json.gz"), *cases.glob("sessions/opencode-*.json.gz")]
    assert len(paths) > 15
    parts = 0
    for path in paths:
        export = json.loads(gzip.decompress(path.read_bytes()))
        assert session_to_dict(session_from_dict(export["info"])) == export["info"]
        for item in export["messages"]:
            assert message_to_dict(message_from_dict(item["info"])) == item["info"]
            for raw in item["parts"]:
                part = part_from_dict(raw)
                assert not isinstance(part, UnknownPart)
                assert part_to_dict(part) == raw
                parts += 1
    assert parts > 2_000
