"""Our engine in its parity profile does what the real one was recorded to do.

Every recorded case is driven anew: the same prompts and aborts in the same order, the model's
recorded words over real HTTP, each tool call answered with its recorded result. Rows, durable
events, deltas and requests are compared in a normal form. What differs is listed, with its reason,
in `deviations.toml`; a difference that is not listed fails, and so does an entry that no longer
holds. `pytest tests/conformance --cases DIR` runs it on other recordings.
"""

from __future__ import annotations

import asyncio
import fnmatch
import tomllib
from pathlib import Path

import msgspec
import pytest

from forge_nb.messages.parts import StepFinishPart
from tests.conformance.comparison import compared
from tests.conformance.driver import UnsupportedRequestError
from tests.conformance.normal import difference
from tests.conformance.normal_rows import normal_rows
from tests.conformance.recording import Recording, read_recording, rows_of_events
from tests.conformance.replay import replay
from tests.live import set_keys

pytest.importorskip("pydantic_ai", reason="the extra `models` is not installed")

DEVIATIONS = Path(__file__).with_name("deviations.toml")
FOUND: dict[str, list[str] | None] = {}
"""Differences of the cases that were driven so far; None for one that cannot be."""


class Deviation(msgspec.Struct, frozen=True):
    """A listed difference."""

    case: str
    what: str
    reason: str

    def covers(self, case: str, line: str) -> bool:
        """Return whether this is the entry of a case's difference."""
        return fnmatch.fnmatchcase(case, self.case) and fnmatch.fnmatchcase(line, self.what)


def deviations() -> list[Deviation]:
    listed = tomllib.loads(DEVIATIONS.read_text("utf-8")).get("deviation", [])
    return msgspec.convert(listed, list[Deviation])


def has_its_calls(recording: Recording) -> bool:
    """Return whether a recording can be driven: of some, most calls were not kept."""
    steps = sum(
        isinstance(part, StepFinishPart)
        for session in recording.sessions
        for item in session.messages
        for part in item.parts
    )
    return len(recording.calls) >= steps


def differences_of(case: Path, scratch: Path) -> list[str] | None:
    """Return how our engine differs from a recorded run; each is driven once."""
    if str(case) not in FOUND:
        scratch.mkdir(exist_ok=True)
        recording = read_recording(case.parent, scratch)
        found = None
        if has_its_calls(recording):
            found = compared(recording, asyncio.run(replay(recording, scratch)))
        FOUND[str(case)] = found
    return FOUND[str(case)]


@pytest.mark.each_case("recorded/*/calls.jsonl.gz", elsewhere="*/calls.jsonl.gz")
@pytest.mark.may_skip
def test_a_recorded_run_is_done_again(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch)
    name = case.parent.name
    try:
        lines = differences_of(case, tmp_path)
    except UnsupportedRequestError as error:
        pytest.fail(f"{name}: {error}")
    if lines is None:
        pytest.skip(f"most calls of {name} were not kept: it is for import and speed")
    listed = deviations()
    unlisted = [line for line in lines if not any(one.covers(name, line) for one in listed)]
    assert not unlisted, "\n".join([f"{len(unlisted)} differences", *unlisted])
    own = [one for one in listed if one.case == name]
    stale = [one.what for one in own if not any(one.covers(name, line) for line in lines)]
    assert not stale, f"listed but no longer so: {stale}"


@pytest.mark.each_case("recorded/*/calls.jsonl.gz", elsewhere="*/calls.jsonl.gz")
def test_a_recordings_events_lead_to_its_rows(case: Path, tmp_path: Path) -> None:
    recording = read_recording(case.parent, tmp_path)
    led_to = [
        rows_of_events(session, recording.events.get(session.info.id, ()))
        for session in recording.sessions
    ]
    assert difference(normal_rows(recording.sessions), normal_rows(led_to), "rows") == []


def test_every_listed_difference_still_occurs(
    cases: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch)
    if request.config.getoption("cases", default=None) is not None:
        return  # the list is about the usual recordings; others need not show all of it
    lines = [
        (case.parent.name, line)
        for case in sorted(cases.glob("recorded/*/calls.jsonl.gz"))
        for line in differences_of(case, tmp_path / case.parent.name) or []
    ]
    stale = [one for one in deviations() if not any(one.covers(*line) for line in lines)]
    assert not stale, f"listed but no longer so: {stale}"


def test_every_listed_difference_has_a_reason() -> None:
    listed = deviations()
    assert len({(one.case, one.what) for one in listed}) == len(listed)
    assert all(one.reason.strip() for one in listed)
