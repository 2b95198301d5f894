"""Runs whose model says anything in any order, and what is left of them in the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

import forge_nb
from forge_nb.clock import FixedClock
from forge_nb.errors import CompactionError
from forge_nb.events import Committed, PartDelta
from forge_nb.messages.stream import (
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepFinish,
    StepStart,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolFailure,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolProgress,
    ToolResult,
    Usage,
)
from forge_nb.messages.usage import CacheTokens, ModelLimits, TokenUsage, UnitPrices
from forge_nb.providers.registry import register_provider
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from forge_nb.events import BusEvent, SyncEvent, UsageRecord
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.stream import StreamEvent
    from forge_nb.providers.base import ModelRequest
    from forge_nb.run_loop import RunResult
    from forge_nb.settings import Settings
    from forge_nb.store.base import StoredSession

__all__ = ["ABORT", "HostileModel", "Run", "answers", "run_of", "summaries"]

WRAP_MS = 1_786_706_395_136  # here the clock of the ids begins anew
ABORT = "abort"
"""In an answer: somebody stops the run here, and the model says nothing more."""


# ---------------------------------------------------------------------------------- any answer

_block = st.sampled_from(["a", "b"])
_call = st.sampled_from(["c1", "c2", "c3"])
_tool = st.sampled_from(["quick", "slow", "broken", "nowhere"])
_words = st.text(max_size=6)
_count = st.none() | st.integers(0, 9_000)
_usage = st.builds(
    TokenUsage,
    input=_count,
    output=_count,
    reasoning=_count,
    cache=st.builds(CacheTokens, read=_count, write=_count),
    total=_count,
)
_failure = st.builds(
    StreamError,
    message=_words,
    kind=st.sampled_from(["connection", "rate-limit", "rejected", "unknown", "api"]),
)
_event: st.SearchStrategy[Any] = st.one_of(
    st.builds(StepStart),
    st.builds(TextStart, id=_block),
    st.builds(TextDelta, id=_block, text=_words),
    st.builds(TextEnd, id=_block),
    st.builds(ReasoningStart, id=_block),
    st.builds(ReasoningDelta, id=_block, text=_words),
    st.builds(ReasoningEnd, id=_block),
    st.builds(ToolInputStart, call_id=_call, tool=_tool),
    st.builds(ToolInputDelta, call_id=_call, text=_words),
    st.builds(ToolInputEnd, call_id=_call),
    st.builds(ToolCall, call_id=_call, tool=_tool, input=st.just({})),
    st.builds(ToolProgress, call_id=_call, title=_words),
    st.builds(ToolResult, call_id=_call, output=_words),
    st.builds(ToolFailure, call_id=_call, error=_words),
    st.builds(Usage, usage=_usage),
)
_finish = st.builds(
    StepFinish,
    reason=st.sampled_from(["stop", "tool-calls", "length", "unknown"]),
    usage=_usage,
)
_end: st.SearchStrategy[Any] = _finish | _failure | st.just(ABORT) | st.just(OSError("gone"))


@st.composite
def _well_formed(draw: st.DrawFn) -> list[Any]:
    """Draw an answer as a provider should give it: blocks that open, grow and close."""
    said: list[Any] = [StepStart()]
    for number in range(draw(st.integers(0, 4))):
        name = str(number)
        words = draw(st.lists(_words, max_size=4))
        match draw(st.sampled_from(["text", "reasoning", "call"])):
            case "text":
                deltas: list[Any] = [TextDelta(id=name, text=word) for word in words]
                said += [TextStart(id=name), *deltas, TextEnd(id=name)]
            case "reasoning":
                deltas = [ReasoningDelta(id=name, text=word) for word in words]
                said += [ReasoningStart(id=name), *deltas, ReasoningEnd(id=name)]
            case _:
                tool = draw(_tool)
                said += [
                    ToolInputStart(call_id=name, tool=tool),
                    ToolCall(call_id=name, tool=tool, input={"n": number}),
                ]
    return [*said, draw(_end)]


@st.composite
def _hostile(draw: st.DrawFn) -> list[Any]:
    """Draw anything: events after the end, several ends, or none."""
    said = draw(st.lists(_event, max_size=16))
    for _ in range(draw(st.integers(0, 2))):
        said.insert(draw(st.integers(0, len(said))), draw(_end))
    return said


answers: st.SearchStrategy[list[list[Any]]] = st.lists(
    _well_formed() | _hostile(), min_size=1, max_size=3
)
"""What a model says to one request after the other, before it says that it is done."""

summaries: st.SearchStrategy[list[list[Any]]] = st.lists(
    st.sampled_from(["a good summary", "  \n", "long " * 4_000, ""]).map(
        lambda text: [StepStart(), TextStart(), TextDelta(text=text), TextEnd(), _done(9)]
    )
    | _hostile(),
    min_size=1,
    max_size=4,
)
"""What a model says to one request for a summary after the other."""


def _done(context: int, reason: str = "stop") -> StepFinish:
    return StepFinish(reason=reason, usage=TokenUsage(input=context, output=3))


def _last_words(context: int) -> list[Any]:
    return [StepStart(), TextStart(), TextDelta(text="done"), TextEnd(), _done(context)]


class HostileModel:
    """Says what was drawn, then that it is done."""

    id = "hostile"

    def __init__(
        self,
        said: Sequence[list[Any]],
        summaries: Sequence[list[Any]] = (),
        *,
        limits: ModelLimits | None = None,
    ) -> None:
        self.requests: list[ModelRequest] = []
        self.abort: Callable[[], object] = lambda: None
        self._said = {"turn": list(said), "compaction": list(summaries)}
        self._limits = limits or ModelLimits()

    def limits(self, model_id: str) -> ModelLimits:
        del model_id
        return self._limits

    def prices(self, model_id: str) -> UnitPrices | None:
        del model_id
        return UnitPrices(input=1, output=2)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        self.requests.append(request)
        waiting = self._said.get(request.purpose, [])
        for event in waiting.pop(0) if waiting else _last_words(10):
            if event == ABORT:
                self.abort()
                await asyncio.Event().wait()
            if isinstance(event, Exception):
                raise type(event)(*event.args)
            yield event


@forge_nb.tool
async def quick(n: int = 0) -> str:
    """Answer at once."""
    return f"quick {n}"


@forge_nb.tool
async def slow(n: int = 0) -> str:
    """Answer after some turns of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)
    return f"slow {n}"


@forge_nb.tool
async def broken(n: int = 0) -> str:
    """Fail."""
    msg = f"broken {n}"
    raise KeyError(msg)


# ------------------------------------------------------------------------------ what is left


@dataclass(frozen=True)
class Run:
    """Everything that can be known of a run."""

    result: RunResult | None
    """None when it ended with a CompactionError."""
    session: StoredSession
    messages: list[MessageWithParts]
    """Oldest first."""
    usage: list[UsageRecord]
    heard: list[BusEvent]
    transactions: list[list[SyncEvent]]
    requests: list[ModelRequest]
    waiting: int
    """Prompts without an answer."""
    findings: list[str]
    visible: list[MessageWithParts]

    @property
    def deltas(self) -> list[PartDelta]:
        """What was heard of texts as they grew, in order."""
        return [event for event in self.heard if isinstance(event, PartDelta)]

    @property
    def committed(self) -> list[Committed]:
        """What was heard of the store, in order."""
        return [event for event in self.heard if isinstance(event, Committed)]


def run_of(model: HostileModel, *, settings: Settings, prompts: Sequence[str] = ("go",)) -> Run:
    """Prompt a hostile model with a clock at which ids begin anew, in a store in memory."""
    register_provider("hostile", lambda _model: model)
    clock = FixedClock(WRAP_MS - 200)
    with Workbench(
        ":memory:",
        model="hostile:m",
        tools=[quick, slow, broken],
        settings=settings,
        clock=clock,
        seed=5,
    ) as wb:
        transactions = _watched(wb)
        talk = wb.session("t")
        model.abort = talk.abort

        async def main() -> RunResult | None:
            result = None
            for prompt in prompts:
                try:
                    result = await asyncio.wait_for(talk.prompt(prompt), timeout=20)
                except CompactionError:
                    result = None
            return result

        with wb.bus.subscribe(talk.id) as heard:
            result = asyncio.run(main())
            events = list(_drained(heard))
        return Run(
            result=result,
            session=wb.store.session(talk.id),
            messages=talk.messages(),
            usage=wb.store.usage(talk.id),
            heard=events,
            transactions=transactions,
            requests=model.requests,
            waiting=len(wb.store.prompts(talk.id, "waiting", "taken")),
            findings=[one.detail for one in wb.verify() if one.level == "failure"],
            visible=wb.writer(talk.id).visible(),
        )


def _watched(wb: Workbench) -> list[list[SyncEvent]]:
    """Note what is written together from now on."""
    written: list[list[SyncEvent]] = []
    apply = wb.store.apply

    def noting(events: Any) -> Any:
        written.append(list(events))
        return apply(written[-1])

    wb.store.apply = noting  # type: ignore[method-assign]
    return written


def _drained(heard: Any) -> Any:
    while (event := heard.get_nowait()) is not None:
        yield event
