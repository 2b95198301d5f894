"""The course of a recording: what had happened before what, so that no clock is needed.

Every request of the driver came at some point of a reply or of a tool's run. The replay holds the
reply or the tool there until it has made the same request.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import ToolCompleted, ToolFailed, ToolPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.recording import Call, Recording, Request, SessionRows

__all__ = ["Course", "marks_of"]

_LATE_S = 0.05  # what a cut call or tool wrote last may be stored this long after the request


class Course:
    """Says where a recording's requests fell.

    Attributes
    ----------
    done
        One event for each request of the recording, set when the replay has made it.
    crashes_s
        When the recorded engine was killed, found by what was never ended before it came back.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.done = [asyncio.Event() for _ in recording.requests]
        self.crashes_s = list(_crashes(recording))
        self._sessions = {session.info.id: session for session in recording.sessions}
        self._tools = list(_tool_spans(recording))

    def is_busy_at(self, now_s: float) -> bool:
        """Return whether the recorded engine was at work."""
        return any(start <= now_s < end for start, end in self._turns())

    def calls_before(self, now_s: float) -> int:
        """Return how many calls of the model, titles left out, had begun."""
        calls = (call for call in self._recording.calls if call.purpose != "title")
        return sum(call.time_s < now_s for call in calls)

    def shown_before(self, now_s: float) -> tuple[int, int]:
        """Return how many characters and rows of tools had been shown."""
        characters = rows = 0
        for live in self._recording.live:
            if live.time_s >= now_s:
                break
            if live.kind == "message.part.delta":
                characters += len(live.facts["delta"])
            elif live.kind == "message.part.updated":
                rows += live.facts["part"]["type"] == "tool"
        return characters, rows

    def pause_of(self, call_id: str) -> tuple[list[asyncio.Event], bool]:
        """Return what a tool's run waits for, and whether it was then stopped."""
        pairs = [
            (place, request, end)
            for _, session_id, start, end in (one for one in self._tools if one[0] == call_id)
            for place, request in self._requests_to(session_id)
            if start <= request.time_s <= end + _LATE_S and "permissions" not in request.words
        ]
        is_stopped = any(_is_abort(request) for _, request, _ in pairs)
        waits = [
            self.done[place]
            for place, request, end in pairs
            if request.time_s <= end and not _is_abort(request)
        ]
        return waits, is_stopped

    def pauses_of(self, call: Call) -> tuple[list[tuple[int, asyncio.Event]], int | None]:
        """Return where a reply is held, and after how many chunks it was hung up on.

        A reply that says itself where it hangs, drops or fails is left alone; so is one that was
        sent whole while a tool ran, for then the tool is held.
        """
        own = {"hang_after", "drop_after"} & set(call.reply)
        if own or call.reply["kind"] == "error" or call.session_id is None:
            return [], None
        holds: list[tuple[int, asyncio.Event]] = []
        message = self._message_of(call)
        end = self._end_of(call, message)
        if end in self.crashes_s and not call.sent_all:
            return [], self._chunks_before(call, message, end)
        for place, request in self._requests_to(call.session_id):
            if not call.time_s < request.time_s < end:
                continue
            chunks = self._chunks_before(call, message, request.time_s)
            if _is_abort(request):
                if not call.sent_all:
                    return holds, chunks
            elif not self._runs_a_tool(request, call):
                holds.append((chunks, self.done[place]))
        return holds, None

    # ----------------------------------------------------------------------------- the recording

    def _turns(self) -> Iterator[tuple[float, float]]:
        """Yield when the recorded engine worked; what was never ended ends with its crash."""
        for session in self._recording.sessions:
            for message in (item.message for item in session.messages):
                if isinstance(message, AssistantMessage):
                    start = message.time.created / 1000
                    crashes = (at_s for at_s in self.crashes_s if at_s > start)
                    end = min(crashes, default=float("inf"))
                    done = message.time.completed
                    yield start, end if done is None else done / 1000

    def _requests_to(self, session_id: str) -> Iterator[tuple[int, Request]]:
        """Yield what was asked of a session or of one that it works for."""
        line = {session_id, *self._ancestors(session_id)}
        for place, request in enumerate(self._recording.requests):
            words = request.words
            if request.method == "POST" and len(words) > 1 and words[1] in line:
                yield place, request

    def _ancestors(self, session_id: str) -> Iterator[str]:
        session = self._sessions.get(session_id)
        while session is not None and session.info.parent_id is not None:
            yield session.info.parent_id
            session = self._sessions.get(session.info.parent_id)

    def _message_of(self, call: Call) -> AssistantMessage | None:
        """Return the message that a call wrote: the newest of its session when it began."""
        session: SessionRows | None = self._sessions.get(call.session_id or "")
        found = [
            item.message
            for item in (session.messages if session else ())
            if isinstance(item.message, AssistantMessage)
            if item.message.time.created / 1000 <= call.time_s
        ]
        return found[-1] if found else None

    def _end_of(self, call: Call, message: AssistantMessage | None) -> float:
        following = [
            one.time_s
            for one in self._recording.calls
            if one.session_id == call.session_id
            and one.purpose != "title"
            and one.time_s > call.time_s
        ]
        crashes = [at_s for at_s in self.crashes_s if at_s > call.time_s]
        ends = [min([*following, *crashes], default=float("inf"))]
        if message is not None and message.time.completed is not None:
            ends.append(message.time.completed / 1000)
        return min(ends)

    def _runs_a_tool(self, request: Request, call: Call) -> bool:
        return any(
            session_id == call.session_id and start <= request.time_s <= end
            for _, session_id, start, end in self._tools
        )

    def _chunks_before(self, call: Call, message: AssistantMessage | None, now_s: float) -> int:
        """Return how many chunks of a reply had come, by what had been published."""
        seen = {"delta": 0, "tool": 0}
        tools: set[str] = set()
        for live in self._recording.live:
            if message is None or not call.time_s <= live.time_s < now_s:
                continue
            part = live.facts.get("part") or {}
            if live.kind == "message.part.delta" and live.facts["messageID"] == message.id:
                seen["delta"] += 1
            elif part.get("type") == "tool" and part["messageID"] == message.id:
                tools.add(part["id"])
        seen["tool"] = len(tools)
        return _prefix(call.reply, seen)


def _prefix(reply: dict[str, Any], seen: dict[str, int]) -> int:
    """Return the length of the shortest beginning of a reply that shows what was seen."""
    left = dict(seen)
    for place, chunk in enumerate(reply["chunks"]):
        if not any(count > 0 for count in left.values()):
            return place
        for mark in marks_of(chunk):
            left[mark] -= 1
    return len(reply["chunks"])


def marks_of(chunk: Any) -> list[str]:
    """Return what a chunk makes visible: ``delta`` for words, ``tool`` for a call that begins."""
    if isinstance(chunk, list):
        _, facts = chunk
        begun = (facts.get("content_block") or {}).get("type") == "tool_use"
        said = (facts.get("delta") or {}).get("type") in {"text_delta", "thinking_delta"}
        return ["tool"] * begun + ["delta"] * said
    if not isinstance(chunk, dict):
        return []
    marks: list[str] = []
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or {}
        marks += ["delta"] * bool(delta.get("content"))
        marks += ["delta"] * bool(delta.get("reasoning_content"))
        marks += ["tool" for call in delta.get("tool_calls") or [] if call.get("id")]
    return marks


def _is_abort(request: Request) -> bool:
    return request.words[-1:] == ["abort"]


def _crashes(recording: Recording) -> Iterator[float]:
    """Yield when a client connected again while something had been begun and was never ended."""
    connected = [live.time_s for live in recording.live if live.kind == "server.connected"]
    begun = [
        item.message.time.created / 1000
        for session in recording.sessions
        for item in session.messages
        if isinstance(item.message, AssistantMessage) and item.message.time.completed is None
    ]
    for before_s, at_s in itertools.pairwise(connected):
        if any(before_s < start < at_s for start in begun):
            yield at_s


def _tool_spans(recording: Recording) -> Iterator[tuple[str, str, float, float]]:
    """Yield call id, session id, start and end of every tool's run."""
    for session in recording.sessions:
        for part in (part for item in session.messages for part in item.parts):
            if isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted | ToolFailed):
                time = part.state.time
                yield part.call_id, session.info.id, time.start / 1000, time.end / 1000
