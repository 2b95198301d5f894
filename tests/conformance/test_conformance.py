"""Our engine in its parity profile does what the real one was recorded to do.

Every recorded case is driven anew: the same prompts and aborts in the same order, the model's
recorded words over real HTTP, each tool call answered with its recorded result. Rows, durable
events, deltas and requests are compared in a normal form. What differs is listed, with its reason,
in `deviations.toml`; a difference that is not listed fails, and so does an entry that no longer
holds. `pytest tests/conformance --cases DIR` runs it on other recordings.
"""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.comparison import compared
from tests.conformance.driver import UnsupportedRequestError
from tests.conformance.recording import read_recording
from tests.conformance.replay import replay
from tests.live import set_keys

pytest.importorskip("pydantic_ai", reason="the extra `models` is not installed")

DEVIATIONS = Path(__file__).with_name("deviations.toml")


def deviations_of(case: str) -> list[dict[str, Any]]:
    """Return the listed differences of a case."""
    listed = tomllib.loads(DEVIATIONS.read_text("utf-8")).get("deviation", [])
    return [one for one in listed if fnmatch.fnmatch(case, one["case"])]


@pytest.mark.each_case("recorded/*/calls.jsonl.gz", elsewhere="*/calls.jsonl.gz")
async def test_a_recorded_run_is_done_again(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch)
    recording = read_recording(case.parent, tmp_path)
    turns = sum(
        any(part.__class__.__name__ == "StepFinishPart" for part in item.parts)
        for session in recording.sessions
        for item in session.messages
    )
    if len(recording.calls) < turns:
        return  # most of its calls were not kept: such a case is for import and speed alone
    listed = deviations_of(recording.name)
    try:
        replayed = await replay(recording, tmp_path)
    except UnsupportedRequestError as error:
        pytest.fail(f"{recording.name}: {error}")
    lines = compared(recording, replayed)
    unlisted = [
        line for line in lines if not any(fnmatch.fnmatch(line, one["what"]) for one in listed)
    ]
    assert not unlisted, "\n".join([f"{len(unlisted)} differences", *unlisted[:40]])
    stale = [
        one["what"]
        for one in listed
        if one["case"] == recording.name
        if not any(fnmatch.fnmatch(line, one["what"]) for line in lines)
    ]
    assert not stale, f"listed but no longer so: {stale}"
