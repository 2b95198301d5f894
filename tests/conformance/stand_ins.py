"""What stands in for the world of a recording: its tools, its files, its changes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ToolError
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import (
    PatchPart,
    StepStartPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolRunning,
)
from forge_nb.messages.render import ToolSpec
from forge_nb.tools.registry import Tool, ToolOutput
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forge_nb.tools.registry import ToolContext
    from tests.conformance.course import Course
    from tests.conformance.driver import Watch
    from tests.conformance.recording import Recording

__all__ = ["RecordedChanges", "Workspace", "recorded_tools"]

_ORDER_S = 2.0
_READ = re.compile(
    r"<path>(.*?)</path>\n<type>(\w+)</type>\n<(?:content|entries)>\n(.*)\n</", re.DOTALL
)


class RecordedTool(Tool):
    """Gives every call the state that was recorded for it, when it was recorded to be given."""

    def __init__(self, name: str, recording: Recording, course: Course, watch: Watch) -> None:
        super().__init__(self._run, name=name, description="recorded")
        self._parts = {part.call_id: part for part in _tool_parts(recording)}
        self._asked = _asked(recording)
        self._progress = _progress_of(recording)
        self._order = _order_of(recording)
        self._course = course
        self._watch = watch

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description="recorded", schema={"type": "object"})

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"given": given}

    async def _run(self, given: dict[str, Any], context: ToolContext) -> ToolOutput:
        part = self._parts.get(context.call_id)
        if part is not None and isinstance(part.state, ToolRunning):
            await asyncio.Event().wait()  # the recorded engine was killed meanwhile
        if part is None or not isinstance(part.state, ToolCompleted | ToolFailed):
            msg = f"no state was recorded for call {context.call_id!r} of {given!r}"
            raise ToolError(msg)
        asked = self._asked.get(context.call_id)
        if asked is not None:
            await context.ask(asked["permission"], asked["patterns"], always=asked["always"])
        for known in self._progress.get(part.id, ()):
            await self._wait_for_others(context.call_id)
            before = self._watch.tool_rows()[context.call_id]
            context.progress(title=known.get("title"), metadata=known.get("metadata"))
            await self._until_stored(context.call_id, before)
        await self._wait_for_requests(context.call_id)
        await self._wait_for_others(context.call_id)
        state = part.state
        if isinstance(state, ToolFailed):
            raise ToolError(state.error)
        return ToolOutput(
            output=state.output,
            title=state.title,
            metadata=state.metadata,
            attachments=state.attachments,
        )

    async def _wait_for_requests(self, call_id: str) -> None:
        """Wait for the requests that came while the call ran, for ever if one stopped it."""
        waits, is_stopped = self._course.pause_of(call_id)
        for made in waits:
            await made.wait()
        if is_stopped:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def _wait_for_others(self, call_id: str) -> None:
        """Wait until the other calls of the message are where they were at this call's next row."""
        order = self._order.get(call_id, [])
        place = self._watch.tool_rows()[call_id]
        wanted = order[place] if place < len(order) else {}
        await self._until(
            lambda: all(self._watch.tool_rows()[other] >= n for other, n in wanted.items())
        )

    async def _until_stored(self, call_id: str, before: int) -> None:
        await self._until(lambda: self._watch.tool_rows()[call_id] > before)

    async def _until(self, condition: Callable[[], bool]) -> None:
        with suppress(TimeoutError):  # an engine that never gets there is told by the comparison
            await wait_for(condition, timeout_s=_ORDER_S)


def _tool_parts(recording: Recording) -> list[ToolPart]:
    return [
        part
        for session in recording.sessions
        for item in session.messages
        for part in item.parts
        if isinstance(part, ToolPart)
    ]


def _asked(recording: Recording) -> dict[str, dict[str, Any]]:
    """Return what calls asked leave for, by the call's id."""
    facts = [live.facts for live in recording.live if live.kind == "permission.asked"]
    return {one["tool"]["callID"]: one for one in facts if one.get("tool")}


def _order_of(recording: Recording) -> dict[str, list[dict[str, int]]]:
    """Return, for each row of each call, how many rows the message's other calls had before it."""
    order: dict[str, list[dict[str, int]]] = {}
    for events in recording.events.values():
        rows: dict[str, Counter[str]] = {}
        for kind, data in events:
            part = data.get("part") or {}
            if kind != "message.part.updated" or part.get("type") != "tool":
                continue
            call_id, counts = part["callID"], rows.setdefault(part["messageID"], Counter())
            others = {one: count for one, count in counts.items() if one != call_id}
            order.setdefault(call_id, []).append(others)
            counts[call_id] += 1
    return order


class RecordedChanges:
    """Says of every message in turn whether files were recorded to change in it."""

    def __init__(self, recording: Recording) -> None:
        answers = [
            item
            for session in recording.sessions
            for item in session.messages
            if isinstance(item.message, AssistantMessage) and not item.message.is_summary
            if any(isinstance(part, StepStartPart) for part in item.parts)
            or not any(isinstance(part, ToolPart) for part in item.parts)
        ]
        answers.sort(key=lambda item: item.message.time.completed or float("inf"))
        self._files = [
            [name for part in item.parts if isinstance(part, PatchPart) for name in part.files]
            for item in answers
        ]

    def track(self) -> str | None:
        return "state"

    def changed(self, since: str) -> list[str]:
        del since
        return self._files.pop(0) if self._files else []


def _progress_of(recording: Recording) -> dict[str, list[dict[str, Any]]]:
    """Return what each running tool was recorded to show after it had started."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, data in (event for events in recording.events.values() for event in events):
        part = data.get("part") or {}
        if kind != "message.part.updated" or part.get("type") != "tool":
            continue
        if part["state"]["status"] == "running":
            found.setdefault(part["id"], []).append(part["state"])
    return {part_id: states[1:] for part_id, states in found.items()}


def recorded_tools(recording: Recording, course: Course, watch: Watch) -> list[Tool]:
    """Return a tool of every name that was called; subtasks run by themselves."""
    names = {part.tool for part in _tool_parts(recording)} - {"task"}
    return [RecordedTool(name, recording, course, watch) for name in sorted(names)]


# ------------------------------------------------------------------------------- the files


class Workspace:
    """The files that prompts named, made again from what was recorded of them.

    A text file's lines and a folder's names stand in the parts that reading it gave.
    """

    def __init__(self, recording: Recording, scratch: Path) -> None:
        self._root = scratch / "workspace"
        texts = (
            part.text
            for session in recording.sessions
            for item in session.messages
            for part in item.parts
            if isinstance(part, TextPart) and part.synthetic
        )
        for text in texts:
            if found := _READ.match(text):
                self._make(*found.groups())

    def _make(self, path: str, kind: str, content: str) -> None:
        place = self._root / path.lstrip("/")
        lines = content.split("\n\n(", maxsplit=1)[0].splitlines()
        if kind == "file":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("".join(f"{line.partition(': ')[2]}\n" for line in lines))
            return
        place.mkdir(parents=True, exist_ok=True)
        for name in lines:
            if name.endswith("/"):
                (place / name).mkdir(exist_ok=True)
            elif not (place / name).exists():
                (place / name).write_text("")

    def find(self, url: str) -> str:
        """Return a URL, of a file that was made here where it is one of a file."""
        if not url.startswith("file:"):
            return url
        return (self._root / url.removeprefix("file:///")).as_uri()
