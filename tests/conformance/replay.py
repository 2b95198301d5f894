"""Drive our engine as a recording's driver drove the real one, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec

from forge_nb.agents import GENERAL
from forge_nb.clock import FixedClock
from forge_nb.errors import ForgeError
from forge_nb.events import Committed, MessageUpdated, PartDelta, PartUpdated
from forge_nb.inputs import File, Mention, Subtask, Text
from forge_nb.messages.codec import message_to_dict, part_to_dict
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.usage import ModelLimits, UnitPrices
from forge_nb.providers.live import LiveProvider
from forge_nb.providers.registry import register_provider
from forge_nb.settings import PARITY
from forge_nb.workbench import Workbench
from tests.conformance.recording import SessionRows
from tests.conformance.stand_ins import RecordedChanges, Workspace, recorded_tools
from tests.helpers import wait_for
from tests.wire.replies import Refusal, recorded
from tests.wire.server import WireServer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forge_nb.bus import Subscription
    from forge_nb.conversation import Conversation
    from forge_nb.events import BusEvent
    from forge_nb.inputs import Input
    from forge_nb.settings import Settings
    from tests.conformance.recording import Call, Recording, Request
    from tests.wire.replies import Reply
    from tests.wire.server import WireRequest

__all__ = ["Replayed", "UnsupportedRequestError", "replay"]

_PRICES = ("input", "output", "cache_read", "cache_write")
TITLE_REQUEST = "Generate a title for this conversation:"
WAIT_S = 20.0


class UnsupportedRequestError(Exception):
    """The scenario does something that has no counterpart here."""


class Replayed(msgspec.Struct, kw_only=True):
    """What our engine did."""

    sessions: list[SessionRows]
    events: list[list[tuple[str, dict[str, Any]]]]
    """Durable events of each session, in the family's JSON."""
    deltas: list[list[str]]
    """Joined deltas of each session's parts."""
    requests: list[list[dict[str, Any]]]
    """Messages of each call of the model, titles left out, in order."""
    titles: int
    """How many titles were asked for."""


async def replay(recording: Recording, scratch: Path) -> Replayed:
    """Do what the scenario says, and return what came of it; files are made in `scratch`."""
    script = _Script(recording)
    with mock.patch("forge_nb.tools.registry.truncate", _as_it_is):
        return await _replay(recording, script, scratch)


def _as_it_is(text: str, **_: Any) -> tuple[str, bool]:
    """Return a recorded output: it was cut before it was recorded."""
    return text, False


async def _replay(recording: Recording, script: _Script, scratch: Path) -> Replayed:
    async with WireServer(script.reply) as server:
        _register(recording.config, server)
        with (
            Workbench(
                ":memory:",
                model=_spec(recording.config.get("model", "fake/big")),
                settings=_settings(recording.config),
                agents=[GENERAL],
                clock=FixedClock(),
                seed=1,
            ) as wb,
            wb.bus.subscribe(max_queue=1_000_000) as subscription,
        ):
            wb._setups.tools = recorded_tools(recording)
            wb._setups.snapshots = RecordedChanges(recording)
            watch = _Watch(subscription)
            driver = _Driver(recording, wb, server=server, watch=watch, scratch=scratch)
            await driver.run()
            return driver.result(script)


# ------------------------------------------------------------------------------- the model


class _Script:
    """Serves the recorded replies: titles by themselves, all else in order."""

    def __init__(self, recording: Recording) -> None:
        self.titles = [call for call in recording.calls if call.purpose == "title"]
        self.calls = [call for call in recording.calls if call.purpose != "title"]
        self.sent: list[list[dict[str, Any]]] = []
        self.titles_asked = 0

    def reply(self, served: WireRequest) -> Reply:
        messages = served.body["messages"]
        if TITLE_REQUEST in json.dumps(messages[-2:]):
            self.titles_asked += 1
            return _reply(self.titles.pop(0)) if self.titles else _out_of_calls()
        self.sent.append(messages)
        return _reply(self.calls.pop(0)) if self.calls else _out_of_calls()


def _out_of_calls() -> Refusal:
    return Refusal(status=400, body={"error": {"message": "the recording has no further call"}})


def _reply(call: Call) -> Reply:
    """Return a recorded reply, sent at once: its pace is not what is compared."""
    reply = {name: value for name, value in call.reply.items() if name != "delay"}
    return recorded(reply)


def _register(config: dict[str, Any], server: WireServer) -> None:
    for name, provider in config["provider"].items():
        endpoint = "anthropic" if "anthropic" in provider["npm"] else "openai-compatible"
        register_provider(name, _factory(name, endpoint, server.base_url, provider["models"]))


def _factory(name: str, endpoint: str, url: str, models: dict[str, Any]) -> Any:
    return lambda model: _Provider(
        name, f"{endpoint}:{model}?base_url={url}", models.get(model, {})
    )


class _Provider(LiveProvider):
    """A provider of a recording's configuration: its own name, limits and prices."""

    def __init__(self, name: str, spec: str, facts: dict[str, Any]) -> None:
        endpoint, _, model = spec.partition(":")
        super().__init__(endpoint, model)
        self.id = name
        self._facts = facts

    def limits(self, model_id: str) -> ModelLimits:
        del model_id
        known = self._facts.get("limit", {})
        return ModelLimits(
            context=known.get("context"), input=known.get("input"), output=known.get("output")
        )

    def prices(self, model_id: str) -> UnitPrices:
        del model_id
        return self.prices_at(0)

    def prices_at(self, context_tokens: int) -> UnitPrices:
        del context_tokens
        cost = self._facts.get("cost", {})
        return UnitPrices(**{name: cost.get(name, 0) for name in _PRICES})


def _spec(name: str) -> str:
    return name.replace("/", ":", 1)


def _settings(config: dict[str, Any]) -> Settings:
    own = config.get("compaction") or {}
    small = config.get("small_model")
    return msgspec.structs.replace(
        PARITY,
        asks=True,
        small_model=_spec(small) if small else None,
        auto_compact=own.get("auto", True),
        prune=own.get("prune", False),
        tail_turns=own.get("tail_turns"),
        tail_tokens=own.get("preserve_recent_tokens"),
        reserved=own.get("reserved"),
        retry_base_s=0.01,
        retry_max_s=0.01,
    )


# ------------------------------------------------------------------------------ the driver


class _Watch:
    """Reads the bus and knows when the engine has come to rest."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.events: list[BusEvent] = []
        self._quiet = 0

    def take(self) -> None:
        while (event := self._subscription.get_nowait()) is not None:
            self.events.append(event)

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


class _Driver:
    def __init__(
        self,
        recording: Recording,
        wb: Workbench,
        *,
        server: WireServer,
        watch: _Watch,
        scratch: Path,
    ) -> None:
        self._recording = recording
        self._wb = wb
        self._server = server
        self._watch = watch
        self._workspace = Workspace(recording, scratch)
        roots = [one for one in recording.sessions if one.info.parent_id is None]
        self._roots = iter([one.info.id for one in roots])
        self._by_recorded: dict[str, Conversation] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._reverted: dict[str, str | None] = {}

    async def run(self) -> None:
        for request in self._recording.requests:
            if not self._was_busy(request):
                await self._finish_tasks()
            await self._do(request)
        await self._finish_tasks()

    def _was_busy(self, request: Request) -> bool:
        """Return whether the recorded engine was at work when the request came."""
        now_ms = request.time_s * 1000
        return any(
            message.time.created <= now_ms < (message.time.completed or float("inf"))
            for session in self._recording.sessions
            for message in (item.message for item in session.messages)
            if isinstance(message, AssistantMessage)
        )

    async def _finish_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            with suppress(ForgeError, asyncio.CancelledError):
                await asyncio.wait_for(task, WAIT_S)
        self._watch.take()

    async def _do(self, request: Request) -> None:
        words = request.words
        if request.method == "GET":
            return
        if words[:1] == ["permission"]:
            await self._answer(request.body)
            return
        if request.method == "POST" and words == ["session"]:
            conversation = self._wb.session()
            self._by_recorded[next(self._roots)] = conversation
            if rules := (request.body or {}).get("permission"):
                info = self._wb.store.session(conversation.id).info
                info = msgspec.structs.replace(info, permission=rules)
                await self._wb.writer(conversation.id).update_session(info)
            return
        known = words[:1] == ["session"] and len(words) == 3 and request.method == "POST"
        if not known or words[1] not in self._by_recorded:
            raise UnsupportedRequestError(f"{request.method} {request.path}")
        await self._on_session(self._by_recorded[words[1]], words[2], request.body or {})

    async def _answer(self, body: dict[str, Any]) -> None:
        """Answer what waits longest, wherever it waits."""
        everybody = list(self._by_recorded.values())

        def waiting() -> list[Conversation]:
            return [one for one in everybody if one.permissions.pending]

        await wait_for(lambda: bool(waiting()), timeout_s=WAIT_S)
        permissions = waiting()[0].permissions
        permissions.reply(permissions.pending[0].id, body["reply"], body.get("message"))

    async def _on_session(self, conversation: Conversation, what: str, body: Any) -> None:
        match what:
            case "message" | "prompt_async":
                task = asyncio.ensure_future(self._prompt(conversation, body))
                self._tasks.append(task)
                if what == "message":
                    await self._finish_tasks()
                else:
                    await asyncio.sleep(0)
            case "abort":
                await self._watch.rest()
                conversation.abort()
                await self._finish_tasks()
            case "fork":
                at = self._message_of(conversation, body.get("messageID"))
                self._by_recorded[next(self._roots)] = conversation.fork(at=at)
            case "revert":
                self._reverted[conversation.id] = self._message_of(conversation, body["messageID"])
            case "unrevert":
                self._reverted.pop(conversation.id, None)
            case "summarize":
                task = asyncio.ensure_future(self._summarize(conversation, body))
                self._tasks.append(task)
                await self._finish_tasks()
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
        model = body.get("model")
        if model:
            spec = f"{model['providerID']}:{model['modelID']}"
            if conversation.model != spec:
                conversation.model, conversation._setup = spec, None
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
        spec = f"{body['providerID']}:{body['modelID']}"
        if conversation.model != spec:
            conversation.model, conversation._setup = spec, None
        if body.get("auto"):
            await conversation.compact_and_go_on(show=False)
        else:
            await conversation.compact(show=False)

    # ------------------------------------------------------------------------------- results

    def result(self, script: _Script) -> Replayed:
        self._watch.take()
        rows = [row.info for row in self._wb.store.sessions()]
        rows.sort(key=lambda info: (info.time.created, info.parent_id is not None))
        sessions = [
            SessionRows(info=info, messages=list(self._wb.store.messages(info.id))[::-1])
            for info in rows
        ]
        ids = [session.info.id for session in sessions]
        return Replayed(
            sessions=sessions,
            events=[list(_durable(self._watch.events, one)) for one in ids],
            deltas=[_joined(self._watch.events, one) for one in ids],
            requests=script.sent,
            titles=script.titles_asked,
        )


def _durable(events: Iterable[BusEvent], session_id: str) -> Iterable[tuple[str, dict[str, Any]]]:
    for event in events:
        if not isinstance(event, Committed) or event.session_id != session_id:
            continue
        match event.event:
            case MessageUpdated(message=message, prompt_state=state):
                if state in {None, "waiting"}:  # a prompt's state is ours alone
                    yield "message.updated", {"info": message_to_dict(message)}
            case PartUpdated(part=part):
                yield "message.part.updated", {"part": part_to_dict(part)}
            case _:
                pass


def _joined(events: Iterable[BusEvent], session_id: str) -> list[str]:
    joined: dict[str, str] = {}
    for event in events:
        if isinstance(event, PartDelta) and event.session_id == session_id:
            joined[event.part_id] = joined.get(event.part_id, "") + event.delta
    return list(joined.values())
