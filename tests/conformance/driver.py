"""Do what a recording's driver did, in the same order, at the same points of the same replies."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import ForgeError
from forge_nb.events import Committed, PartDelta, PartUpdated, PermissionReply
from forge_nb.inputs import File, Mention, Subtask, Text
from forge_nb.messages.parts import ToolPart
from forge_nb.settings import PARITY
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge_nb.bus import Subscription
    from forge_nb.conversation import Conversation
    from forge_nb.events import BusEvent
    from forge_nb.inputs import Input
    from forge_nb.workbench import Workbench
    from tests.conformance.course import Course
    from tests.conformance.recording import Recording, Request
    from tests.conformance.stand_ins import Workspace

__all__ = ["Driver", "UnsupportedRequestError", "Watch", "World"]

_PROMPT_FIELDS = {"agent", "format", "model", "noReply", "parts", "system"}
WAIT_S = 20.0
SAME_S = 5.0  # how long to wait for a call that was recorded before a request


class UnsupportedRequestError(Exception):
    """The scenario does something that has no counterpart here."""


class Watch:
    """Reads the bus and knows when the engine has come to rest."""

    def __init__(self) -> None:
        self._subscription: Subscription | None = None
        self.events: list[BusEvent] = []
        self._quiet = 0
        self._characters = 0
        self._tool_rows: Counter[str] = Counter()

    def turn_to(self, subscription: Subscription) -> None:
        """Read another bus from now on."""
        self._subscription = subscription

    def take(self) -> None:
        """Take what is new."""
        while self._subscription and (event := self._subscription.get_nowait()) is not None:
            self.events.append(event)
            if isinstance(event, Committed) and isinstance(event.event, PartUpdated):
                part = event.event.part
                if isinstance(part, ToolPart):
                    self._tool_rows[part.call_id] += 1
            elif isinstance(event, PartDelta):
                self._characters += len(event.delta)

    def tool_rows(self) -> Counter[str]:
        """Return how many rows of each tool call were stored, by the call's id."""
        self.take()
        return self._tool_rows

    def has_shown(self, characters: int, tool_rows: int) -> bool:
        """Return whether so much of what models say and tools do was told."""
        return self.tool_rows().total() >= tool_rows and self._characters >= characters

    def is_quiet(self) -> bool:
        """Return whether nothing has happened for a few looks."""
        before = len(self.events)
        self.take()
        self._quiet = self._quiet + 1 if len(self.events) == before else 0
        return self._quiet > 4

    async def rest(self) -> None:
        """Wait until nothing happens any more."""
        self._quiet = 0
        await wait_for(self.is_quiet, timeout_s=WAIT_S)


@dataclass(frozen=True)
class World:
    """What a recording is replayed in."""

    recording: Recording
    course: Course
    watch: Watch
    workspace: Workspace


class Driver:
    """Makes the requests of a recording.

    Parameters
    ----------
    world
        The recording and what stands in for its surroundings.
    restart
        Returns our engine as it is when its process is started, anew after it was killed.
    asked
        Says how many calls of the model, titles left out, have come in.
    """

    def __init__(
        self, world: World, restart: Callable[[], Workbench], *, asked: Callable[[], int]
    ) -> None:
        self._recording = world.recording
        self._course = world.course
        self._watch = world.watch
        self._workspace = world.workspace
        self._restart = restart
        self._wb = restart()
        self._asked = asked
        roots = [one for one in self._recording.sessions if one.info.parent_id is None]
        self._roots = iter([one.info.id for one in roots])
        self._by_recorded: dict[str, Conversation] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._reverted: dict[str, str | None] = {}
        self._crashes_s = list(world.course.crashes_s)

    async def run(self) -> None:
        """Make every request, and wait until all are answered."""
        for place, request in enumerate(self._recording.requests):
            if request.method == "GET":
                continue
            await self._crash_before(request.time_s)
            is_busy = self._course.is_busy_at(request.time_s)
            if is_busy:
                await self._come_to(request.time_s)
            else:
                await self._finish_tasks()
            await self._do(request)
            if is_busy:
                await self._watch.rest()
            self._course.done[place].set()
        await self._finish_tasks()

    async def _crash_before(self, now_s: float) -> None:
        """Kill our engine where the recorded one was killed, and start it again."""
        while self._crashes_s and self._crashes_s[0] <= now_s:
            await self._come_to(self._crashes_s.pop(0))
            self._wb = self._restart()
            for one in self._by_recorded.values():
                one.workbench = self._wb
                one._setup = None
            tasks, self._tasks = self._tasks, []
            for task in tasks:  # whoever waited for the dead process waits no more
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _come_to(self, now_s: float) -> None:
        """Wait until our engine stands where the recorded one stood then."""
        calls = self._course.calls_before(now_s)
        shown = self._course.shown_before(now_s)
        with suppress(TimeoutError):  # what never comes is found when all is compared
            await wait_for(
                lambda: self._asked() >= calls and self._watch.has_shown(*shown), timeout_s=SAME_S
            )
        await self._watch.rest()

    async def _finish_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            with suppress(ForgeError, asyncio.CancelledError):
                await asyncio.wait_for(task, WAIT_S)
        self._watch.take()

    async def _do(self, request: Request) -> None:
        words, body = request.words, request.body or {}
        if words[0] == "permission" or "permissions" in words:
            await self._answer(words, body)
        elif request.method == "POST" and words == ["session"]:
            await self._open(body)
        elif request.method == "POST" and words[0] == "session" and len(words) == 3:
            if words[1] not in self._by_recorded:
                raise UnsupportedRequestError(f"{request.path}: the recording has no such session")
            self._on_session(self._by_recorded[words[1]], words[2], body)
        else:
            raise UnsupportedRequestError(f"{request.method} {request.path}")

    async def _open(self, body: dict[str, Any]) -> None:
        conversation = self._wb.session()
        self._by_recorded[next(self._roots)] = conversation
        info = self._wb.store.session(conversation.id).info
        given = {name: body[name] for name in ("permission", "title") if name in body}
        if given:
            changed = msgspec.structs.replace(info, **given)
            await self._wb.writer(conversation.id).update_session(changed)

    async def _answer(self, words: list[str], body: dict[str, Any]) -> None:
        """Answer the call that was answered in the recording, wherever it waits."""
        recorded_id = words[words.index("permissions") + 1] if "permissions" in words else words[1]
        call_id = next(
            (
                live.facts["tool"]["callID"]
                for live in self._recording.live
                if live.kind == "permission.asked" and live.facts["id"] == recorded_id
                if live.facts.get("tool")
            ),
            None,
        )
        everybody = list(self._by_recorded.values())

        def waiting() -> list[tuple[Conversation, str]]:
            return [
                (one, asked.id)
                for one in everybody
                for asked in one.permissions.pending
                if call_id in {None, asked.call_id}
            ]

        await wait_for(lambda: bool(waiting()), timeout_s=WAIT_S)
        conversation, asked_id = waiting()[0]
        reply = msgspec.convert(body.get("reply") or body.get("response"), PermissionReply)
        conversation.permissions.reply(asked_id, reply, body.get("message"))

    def _on_session(self, conversation: Conversation, what: str, body: Any) -> None:
        match what:
            case "message" | "prompt_async":
                if unknown := set(body) - _PROMPT_FIELDS:
                    raise UnsupportedRequestError(f"prompt with {sorted(unknown)}")
                self._tasks.append(asyncio.ensure_future(self._prompt(conversation, body)))
            case "abort":
                conversation.abort()
            case "fork":
                at = self._message_of(conversation, body.get("messageID"))
                self._by_recorded[next(self._roots)] = conversation.fork(at=at)
            case "revert":
                if body.get("partID"):
                    raise UnsupportedRequestError("revert of part of a message")
                self._reverted[conversation.id] = self._message_of(conversation, body["messageID"])
            case "unrevert":
                self._reverted.pop(conversation.id, None)
            case "summarize":
                self._tasks.append(asyncio.ensure_future(self._summarize(conversation, body)))
            case _:
                raise UnsupportedRequestError(what)

    def _message_of(self, conversation: Conversation, recorded_id: str | None) -> str | None:
        """Return our message at the place that a recorded one has in its session."""
        if recorded_id is None:
            return None
        for session in self._recording.sessions:
            ids = [item.message.id for item in session.messages]
            if recorded_id in ids:
                return conversation.messages()[ids.index(recorded_id)].message.id
        raise UnsupportedRequestError(f"message {recorded_id} was removed in the recording")

    async def _prompt(self, conversation: Conversation, body: dict[str, Any]) -> None:
        reverted = self._reverted.pop(conversation.id, None)
        if reverted is not None:
            conversation.undo(reverted)
        model, agent = body.get("model"), body.get("agent")
        if model:
            _choose(conversation, f"{model['providerID']}:{model['modelID']}")
        if agent not in {conversation.agent, None, PARITY.agent}:
            conversation.agent, conversation._setup = agent, None
        inputs = [self._input(part) for part in body["parts"]]
        if body.get("noReply"):
            await conversation.tell(inputs)
            return
        wanted = (body.get("format") or {}).get("schema")
        await conversation.prompt(inputs, system=body.get("system"), output=wanted, show=False)

    def _input(self, part: dict[str, Any]) -> Input:
        match part["type"]:
            case "text":
                flags = part.get("synthetic", False), part.get("ignored", False)
                return Text(part["text"], *flags)
            case "file":
                known = {name: part.get(name) for name in ("filename", "mime", "source")}
                return File(url=self._workspace.find(part["url"]), **known)
            case "agent":
                return Mention(part["name"], part.get("source"))
            case "subtask":
                told = {name: part[name] for name in ("prompt", "description", "agent")}
                return Subtask(**told)
            case kind:
                raise UnsupportedRequestError(kind)

    async def _summarize(self, conversation: Conversation, body: dict[str, Any]) -> None:
        _choose(conversation, f"{body['providerID']}:{body['modelID']}")
        if body.get("auto"):
            await conversation.compact_and_go_on(show=False)
        else:
            await conversation.compact(show=False)


def _choose(conversation: Conversation, spec: str) -> None:
    """Let a model answer from now on."""
    if conversation.model != spec:
        conversation.model, conversation._setup = spec, None
