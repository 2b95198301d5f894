"""Run our engine in the world of a recording, and return what it did."""

from __future__ import annotations

import dataclasses
import functools
import json
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec

from forge_nb.agents import GENERAL
from forge_nb.clock import FixedClock
from forge_nb.events import (
    Committed,
    MessageRemoved,
    MessageUpdated,
    PartDelta,
    PartRemoved,
    PartUpdated,
    RunStatus,
    SessionUpdated,
)
from forge_nb.messages.codec import message_to_dict, part_to_dict, session_to_dict
from forge_nb.messages.usage import NO_TOKENS, ModelLimits, UnitPrices, add
from forge_nb.providers.live import LiveProvider
from forge_nb.providers.registry import register_provider
from forge_nb.settings import PARITY
from forge_nb.workbench import Workbench
from tests.conformance.course import Course
from tests.conformance.driver import Driver, Watch, World
from tests.conformance.normal import normal_request
from tests.conformance.recording import Event, SessionRows
from tests.conformance.stand_ins import RecordedChanges, Workspace, recorded_tools
from tests.wire.replies import Refusal, recorded
from tests.wire.server import WireServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.events import BusEvent
    from forge_nb.settings import Settings
    from forge_nb.store.base import StoredSession
    from tests.conformance.recording import Call, Recording
    from tests.wire.replies import Reply
    from tests.wire.server import WireRequest

__all__ = ["Replayed", "Sent", "replay"]

_LIMITS = ("context", "input", "output")
_PRICES = ("input", "output", "cache_read", "cache_write")
TITLE_REQUEST = "Generate a title for this conversation:"


class Sent(msgspec.Struct, kw_only=True):
    """One request to the model as it came over the wire."""

    model: str
    max_tokens: int | None
    has_tools: bool
    messages: list[dict[str, Any]]


class Replayed(msgspec.Struct, kw_only=True):
    """What our engine did."""

    sessions: list[SessionRows]
    events: list[list[Event]]
    """Durable events of each session, in the family's JSON."""
    deltas: list[list[str]]
    """Joined deltas of each session's parts."""
    waits: list[list[str]]
    """What each session told of further attempts."""
    requests: list[Sent]
    """Each call of the model, titles left out, in the order of the recording."""
    titles: list[Sent]
    """Each call for a title."""


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
        with ExitStack() as stack:
            watch = Watch()
            process = _Process(recording, script, watch, scratch=scratch, stack=stack)
            world = World(recording, script.course, watch, Workspace(recording, scratch))
            await Driver(world, process.start, asked=lambda: len(script.sent)).run()
            watch.take()
            return _result(process.workbenches[-1], watch.events, script)


class _Process:
    """Our engine's process: started once, and again after every kill.

    What a killed process leaves is its file as it is then, and a lease that nobody renews.
    """

    def __init__(
        self,
        recording: Recording,
        script: _Script,
        watch: Watch,
        *,
        scratch: Path,
        stack: ExitStack,
    ) -> None:
        self.workbenches: list[Workbench] = []
        self._config = recording.config
        self._scratch = scratch
        self._stack = stack
        self._watch = watch
        self._is_killed = bool(script.course.crashes_s)
        self._clock = FixedClock()
        self._tools = recorded_tools(recording, script.course, watch)
        self._changes = RecordedChanges(recording)

    def start(self) -> Workbench:
        """Return a workbench on what the one before it had stored."""
        file: Path | str = ":memory:"
        if self._is_killed:
            file = self._scratch / f"replay-{len(self.workbenches)}.db"
        if self.workbenches:
            _copy(Path(self.workbenches[-1].store.path), Path(file))
        wb = Workbench(
            file,
            model=_spec(self._config.get("model", "fake/big")),
            settings=_settings(self._config),
            agents=[GENERAL],
            clock=self._clock,
            seed=len(self.workbenches),
        )
        self._stack.enter_context(wb)
        self._watch.take()
        self._watch.turn_to(self._stack.enter_context(wb.bus.subscribe(max_queue=1_000_000)))
        wb._setups.tools = self._tools
        wb._setups.snapshots = self._changes
        self.workbenches.append(wb)
        return wb


def _copy(store: Path, file: Path) -> None:
    with closing(sqlite3.connect(store)) as old, closing(sqlite3.connect(file)) as new:
        old.backup(new)
        new.execute("delete from lease")
        new.commit()


# ------------------------------------------------------------------------------- the model


class _Script:
    """Serves the recorded replies: titles by themselves, all else to whoever asks the same."""

    def __init__(self, recording: Recording) -> None:
        self.course = Course(recording)
        self.sent: list[tuple[int, Sent]] = []
        self.titles_sent: list[Sent] = []
        self._titles = [call for call in recording.calls if call.purpose == "title"]
        calls = [call for call in recording.calls if call.purpose != "title"]
        self._calls = [
            (place, call, normal_request(call.messages)) for place, call in enumerate(calls)
        ]

    def reply(self, served: WireRequest) -> Reply:
        sent = _sent(served.body)
        if TITLE_REQUEST in json.dumps(sent.messages[-2:]):
            self.titles_sent.append(sent)
            return recorded(_at_once(self._titles.pop(0))) if self._titles else _out_of_calls()
        found = self._take(sent)
        self.sent.append((len(self.sent) if found is None else found[0], sent))
        return _out_of_calls() if found is None else self._paced(found[1])

    def _take(self, sent: Sent) -> tuple[int, Call] | None:
        """Return the first call that asked the same, else the first of all that are left.

        Sessions that run side by side may ask in another order than they were recorded to.
        """
        said = normal_request(sent.messages)
        same = (place for place, (_, _, asked) in enumerate(self._calls) if asked == said)
        if not self._calls:
            return None
        place, call, _ = self._calls.pop(next(same, 0))
        return place, call

    def _paced(self, call: Call) -> Reply:
        reply = recorded(_at_once(call))
        if isinstance(reply, Refusal):
            return reply
        holds, hang_after = self.course.pauses_of(call)
        hang_after = reply.hang_after if hang_after is None else hang_after
        return dataclasses.replace(reply, holds=tuple(holds), hang_after=hang_after)

    def requests(self) -> list[Sent]:
        """Return what was asked in the order in which the recorded engine asked it."""
        return [sent for _, sent in sorted(self.sent, key=lambda one: one[0])]


def _sent(body: dict[str, Any]) -> Sent:
    return Sent(
        model=body["model"],
        max_tokens=body.get("max_completion_tokens", body.get("max_tokens")),
        has_tools=bool(body.get("tools")),
        messages=body["messages"],
    )


def _out_of_calls() -> Refusal:
    return Refusal(status=400, body={"error": {"message": "the recording has no further call"}})


def _at_once(call: Call) -> dict[str, Any]:
    """Return a recorded reply without its pace, which is not what is compared."""
    return {name: value for name, value in call.reply.items() if name != "delay"}


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
        known, cost = facts.get("limit", {}), facts.get("cost", {})
        self._limits = ModelLimits(**{name: known.get(name) for name in _LIMITS})
        self._prices = UnitPrices(**{name: cost.get(name, 0) for name in _PRICES})

    def prices_at(self, context_tokens: int) -> UnitPrices | None:
        del context_tokens
        return self._prices


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


# ----------------------------------------------------------------------------- what came of it


def _result(wb: Workbench, events: Sequence[BusEvent], script: _Script) -> Replayed:
    rows = wb.store.sessions()
    rows.sort(key=lambda row: (row.info.time.created, row.info.parent_id is not None))
    ids = [row.info.id for row in rows]
    return Replayed(
        sessions=[_rows_of(wb, row) for row in rows],
        events=[list(_durable(events, one)) for one in ids],
        deltas=[_joined(events, one) for one in ids],
        waits=[list(_waits(events, one)) for one in ids],
        requests=script.requests(),
        titles=script.titles_sent,
    )


def _rows_of(wb: Workbench, row: StoredSession) -> SessionRows:
    used = [one for one in wb.store.usage(row.info.id) if one.purpose != "title"]
    costs = [one.cost.usd for one in used if one.cost.usd is not None]
    return SessionRows(
        info=row.info,
        messages=list(wb.store.messages(row.info.id))[::-1],
        tokens=functools.reduce(add, (one.tokens for one in used), NO_TOKENS),
        cost_usd=sum(costs),
    )


def _durable(events: Iterable[BusEvent], session_id: str) -> Iterable[Event]:
    for event in events:
        if not isinstance(event, Committed) or event.session_id != session_id:
            continue
        match event.event:
            case MessageUpdated(message=message, prompt_state=state):
                if state in {None, "waiting"}:  # a prompt's state is ours alone
                    yield "message.updated", {"info": message_to_dict(message)}
            case PartUpdated(part=part):
                yield "message.part.updated", {"part": part_to_dict(part)}
            case SessionUpdated(info=info):
                yield "session.updated", {"info": session_to_dict(info)}
            case MessageRemoved(message_id=message_id):
                yield "message.removed", {"messageID": message_id}
            case PartRemoved(part_id=part_id):
                yield "message.part.removed", {"partID": part_id}
            case _:
                pass


def _joined(events: Iterable[BusEvent], session_id: str) -> list[str]:
    joined: dict[str, str] = {}
    for event in events:
        if isinstance(event, PartDelta) and event.session_id == session_id:
            joined[event.part_id] = joined.get(event.part_id, "") + event.delta
    return list(joined.values())


def _waits(events: Iterable[BusEvent], session_id: str) -> Iterable[str]:
    for event in events:
        if not isinstance(event, RunStatus) or event.session_id != session_id:
            continue
        if event.state == "retry":
            yield f"attempt {event.attempt}: {event.message}"
