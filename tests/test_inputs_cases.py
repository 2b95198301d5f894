"""What a person types gives the parts that a real engine stored of it: kinds, flags and words.

The recorded requests name files and agents as parts. Here they are typed where the recording says
where they stood in the text, and given by path or as bytes where it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.files import parse_data_url
from forge_nb.inputs import File, PartSource, Subtask, Text, resolve_inputs
from forge_nb.messages.codec import part_to_dict
from forge_nb.messages.message import UserMessage
from forge_nb.messages.parts import CompactionPart
from tests.conformance.recording import read_recording
from tests.conformance.stand_ins import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forge_nb.inputs import Input
    from forge_nb.messages.parts import Part
    from tests.conformance.recording import Recording

CASES = {"k-files": 9, "j-subagent": 4}
"""Recorded prompts of each case, requests to compact left out."""


def inputs_of(parts: list[dict[str, Any]], root: Path) -> Iterator[Input]:
    for part in parts:
        flags = part.get("synthetic", False), part.get("ignored", False)
        match part["type"]:
            case "text":
                yield Text(part["text"], *flags) if any(flags) else part["text"]
            case "subtask":
                yield Subtask(**{key: part[key] for key in ("prompt", "description", "agent")})
            case _ if "source" in part:
                pass  # typed
            case "file" if part["url"].startswith("data:"):
                yield File(data=parse_data_url(part["url"]), filename=part["filename"])
            case "file":
                path = root / part["url"].removeprefix("file:///")
                yield File(path=path, filename=part["filename"])
            case kind:
                pytest.fail(f"a recorded part of kind {kind!r} is given by nothing")


def asked_in(recording: Recording) -> list[list[dict[str, Any]]]:
    return [
        request.body["parts"]
        for request in recording.requests
        if request.method == "POST" and isinstance(request.body, dict) and "parts" in request.body
    ]


def plain(parts: Sequence[Part], root: str = "") -> list[dict[str, Any]]:
    """Return parts without ids, and without the folder under which they were made again."""
    ids = {"id", "messageID", "sessionID"}
    return [
        {
            key: value.replace(root, "") if root and isinstance(value, str) else value
            for key, value in part_to_dict(part).items()
            if key not in ids
        }
        for part in parts
    ]


def test_what_is_typed_gives_the_recorded_parts(cases: Path, tmp_path: Path) -> None:
    for name, count in CASES.items():
        scratch = tmp_path / name
        scratch.mkdir()
        recording = read_recording(cases / "recorded" / name, scratch)
        Workspace(recording, scratch)  # makes the files
        root = scratch / "workspace"
        session = recording.sessions[0]
        recorded = [
            plain(item.parts)
            for item in session.messages
            if isinstance(item.message, UserMessage)
            if not any(isinstance(part, CompactionPart) for part in item.parts)
        ]
        ids = iter(range(1_000))
        source = PartSource(
            session_id="s",
            message_id="m",
            new_id=lambda prefix, ids=ids: f"{prefix}_{next(ids)}",  # type: ignore[misc]
            workspace=root / (session.info.directory or "").lstrip("/"),
            agents=frozenset({"general"}),
            may_fail=True,
        )
        given = [list(inputs_of(parts, root)) for parts in asked_in(recording)]
        ours = [plain(resolve_inputs(inputs, source), str(root)) for inputs in given]
        assert ours == recorded
        assert len(ours) == count
