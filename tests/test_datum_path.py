"""One datum's way through the package: each room is entered once, and no room is left out.

When somebody adds a detour, the list changes and the failure names it. And the ten part kinds are
the same ten wherever they are listed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from forge_nb.messages.parts import PART_KINDS, KnownPart, PartKind
from forge_nb.messages.stream import StepFinish, StepStart, TextDelta, TextEnd, TextStart
from tests.helpers import USED, Saying, workbench

if TYPE_CHECKING:
    from types import FrameType

    from forge_nb.messages.stream import StreamEvent

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "forge_nb"
WATCHED = ("processor", "session", "bus", "store", "projection")
ASSEMBLER = "messages/assemble"


def room_of(frame: FrameType) -> str | None:
    """Return the module of ours that a frame runs in, where it is one that is watched."""
    try:
        path = Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()
    except ValueError:
        return None
    if path == ASSEMBLER:
        return "messages"
    room = path.split("/", 1)[0]
    return room if room in WATCHED else None


def rooms_of(mark: str) -> list[str]:
    """Return the rooms that the stream event at this mark passes, repetitions folded."""
    rooms = ["processor"]  # it drains the stream, so it is there already
    is_on = False

    def note(frame: FrameType, what: str, _given: object) -> None:
        room = room_of(frame) if is_on and what == "call" else None
        if room is not None and rooms[-1:] != [room]:
            rooms.append(room)

    class Marked(Saying):
        async def stream(self, request: Any) -> Any:
            nonlocal is_on
            async for event in super().stream(request):
                is_on = type(event).__name__ == mark
                yield event
                is_on = False

    spoken: list[StreamEvent] = [StepStart(), TextStart(), TextDelta(text="hi"), TextEnd()]
    provider = Marked([*spoken, StepFinish(reason="stop", usage=USED)])
    with workbench(provider) as wb:
        conversation = wb.session("t")
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            asyncio.run(conversation.prompt("go"))
        finally:
            sys.setprofile(before)
    return rooms


def first_visits(rooms: list[str]) -> list[str]:
    return list(dict.fromkeys(rooms))


def test_a_delta_passes_processor_messages_session_and_bus_and_never_the_store() -> None:
    rooms = rooms_of("TextDelta")
    assert first_visits(rooms) == ["processor", "messages", "session", "bus"]


def test_a_step_finish_is_assembled_then_written_then_published() -> None:
    """The store's own thread is not profiled; what it calls is told by its contract tests."""
    rooms = first_visits(rooms_of("StepFinish"))
    assert rooms[:4] == ["processor", "messages", "session", "store"]
    assert rooms[4:] == ["bus"]


def test_the_part_kinds_are_the_same_ten_everywhere() -> None:
    kinds = list(get_args(PartKind))
    assert list(PART_KINDS) == kinds
    assert [str(member.__struct_config__.tag) for member in get_args(KnownPart)] == kinds
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme.split("## Part kinds", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert rows == kinds
