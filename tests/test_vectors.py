"""Vectors of the family's behaviour, by number, and what each profile gives.

Those of compaction stand in `test_vectors_compaction.py`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import forge_nb
from forge_nb.errors import CursorError
from forge_nb.events import (
    Committed,
    MessageUpdated,
    PartDelta,
    PartUpdated,
    PermissionAsked,
)
from forge_nb.messages.ids import make_id
from forge_nb.messages.message import AssistantMessage, MessageTime, UserMessage
from forge_nb.messages.parts import Part, TextPart, ToolPart
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamError,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolFailure,
    ToolInputDelta,
    ToolInputStart,
    ToolResult,
)
from forge_nb.messages.usage import (
    NO_TOKENS,
    UnitPrices,
    cost_of,
)
from forge_nb.providers.live_usage import to_token_usage
from forge_nb.retry import retry_wait_s
from forge_nb.settings import PARITY, Settings
from forge_nb.store.open import open_store
from tests.contracts.store_events import SESSION, asked, billed, conversation, session
from tests.helpers import USED, Saying, text, workbench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.conversation import Conversation
    from forge_nb.events import BusEvent
    from forge_nb.workbench import Workbench

SAME: Any = object()  # parity gives what this package gives
END = StepFinish(reason="stop", usage=USED)


class Vector(msgspec.Struct, frozen=True):
    """One row of the table."""

    number: int
    says: str
    observe: Callable[[Settings], Any]
    ours: Any
    parity: Any = SAME

    @property
    def mark(self) -> str:
        """Whether both profiles give the same."""
        return "both" if self.parity is SAME else "differs"


# ---------------------------------------------------------------------------------- observing


class Seen(msgspec.Struct, frozen=True):
    """What a run left and what was heard of it."""

    message: AssistantMessage
    parts: list[Part]
    rows: list[Part]
    """Parts as they were stored, one row after the other."""
    deltas: list[str]
    asked: list[str]
    """Permissions that were asked for."""

    def of(self, kind: type[Any], *, stored: bool = False) -> list[Any]:
        """Return the parts of a kind, or their rows."""
        return [part for part in (self.rows if stored else self.parts) if isinstance(part, kind)]


@forge_nb.tool
def look(path: str = "") -> str:
    """Look at a file."""
    return path


def seen(settings: Settings, *answers: Sequence[Any], stop_at: str | None = None) -> Seen:
    """Run one prompt whose answers are these events; abort it when a text was heard."""
    quiet = msgspec.structs.replace(settings, title=False, asks=True, retry_base_s=0.0)

    async def main(wb: Workbench) -> Seen:
        talk = wb.session("t")
        events: list[BusEvent] = []
        with wb.bus.subscribe(talk.id) as heard:
            run = asyncio.ensure_future(talk.prompt("go"))
            while not run.done():
                await asyncio.wait({run}, timeout=0.002)
                new: list[BusEvent] = list(iter(heard.get_nowait, None))
                events += new
                _react(talk, new, stop_at)
        return _seen(talk, events)

    with workbench(Saying(*answers), tools=[look], settings=quiet) as wb:
        return asyncio.run(main(wb))


def _react(talk: Conversation, events: Sequence[BusEvent], stop_at: str | None) -> None:
    """Give leave to whoever asks, and stop the run at a word."""
    for event in events:
        if isinstance(event, PermissionAsked):
            talk.permissions.reply(event.id, "once")
        if isinstance(event, PartDelta) and event.delta == stop_at:
            talk.abort()


def _seen(talk: Conversation, events: Sequence[BusEvent]) -> Seen:
    answers = [item for item in talk.messages() if isinstance(item.message, AssistantMessage)]
    message = answers[0].message
    assert isinstance(message, AssistantMessage)
    synced = [event.event for event in events if isinstance(event, Committed)]
    return Seen(
        message=message,
        parts=[part for item in answers for part in item.parts],
        rows=[event.part for event in synced if isinstance(event, PartUpdated)][1:],
        deltas=[event.delta for event in events if isinstance(event, PartDelta)],
        asked=[event.permission for event in events if isinstance(event, PermissionAsked)],
    )


def spoken(*deltas: str, end: bool = True) -> list[StreamEvent]:
    said = [TextDelta(text=delta) for delta in deltas]
    return [TextStart(), *said, *([TextEnd()] if end else [])]


def called(*names: str, given: dict[str, Any] | None = None) -> list[StreamEvent]:
    return [ToolCall(call_id=name, tool="look", input=given or {}) for name in names]


# ------------------------------------------------------------------------------------ stream


def a_text_block(settings: Settings) -> Any:
    run = seen(settings, [StepStart(), *spoken("a ", "b \n"), END])
    return [part.text for part in run.of(TextPart, stored=True)], run.deltas


def a_delta_without_a_start(settings: Settings) -> Any:
    run = seen(settings, [StepStart(), TextDelta(text="lost"), TextEnd(), END])
    return run.of(TextPart, stored=True), run.deltas


def an_abort_in_a_text(settings: Settings) -> Any:
    run = seen(settings, [StepStart(), *spoken("x", end=False), 30.0], stop_at="x")
    [part] = run.of(TextPart)
    error = run.message.error
    is_closed = part.time is not None and part.time.end is not None
    name = None if error is None else error.name
    return part.text, is_closed, name, run.message.time.completed is not None, run.message.finish


def a_call_from_its_first_word_to_its_result(settings: Settings) -> Any:
    pieces = [ToolInputDelta(call_id="c", text=piece) for piece in ('{"pa', 'th":', ' "x"}')]
    call = ToolCall(call_id="c", tool="look", input={"path": "x"})
    end = StepFinish(reason="tool-calls", usage=USED)
    events = [StepStart(), ToolInputStart(call_id="c", tool="look"), *pieces, call, end]
    run = seen(settings, events, [StepStart(), END])
    states = [_state(part) for part in run.of(ToolPart, stored=True)]
    return states, run.deltas


def _state(part: ToolPart) -> str:
    return type(part.state).__name__.removeprefix("Tool").lower()


def an_abort_of_a_call_that_never_returns(settings: Settings) -> Any:
    began, release = asyncio.Event(), asyncio.Event()

    @forge_nb.tool
    async def stubborn() -> str:
        """Go on whatever happens."""
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
        return "late"

    async def main(wb: Workbench) -> float:
        talk = wb.session("t")
        run = asyncio.ensure_future(talk.prompt("go"))
        await began.wait()
        started = time.monotonic()
        talk.abort()
        await run
        release.set()
        return time.monotonic() - started

    call = ToolCall(call_id="c", tool="stubborn", input={})
    with workbench(Saying([StepStart(), call, END]), tools=[stubborn], settings=settings) as wb:
        waited_s = asyncio.run(main(wb))
        [part] = _seen(wb.session("t"), []).of(ToolPart)
    metadata = part.state.metadata or {}
    return part.state.error, metadata["interrupted"], 0.2 < waited_s < 3.0


def a_result_for_an_unknown_call(settings: Settings) -> Any:
    orphans = [ToolFailure(call_id="nobody", error="no"), ToolResult(call_id="nobody", output="x")]
    run = seen(settings, [StepStart(), *orphans, *spoken("hi"), END])
    return run.of(ToolPart), run.message.error, [part.text for part in run.of(TextPart)]


def three_identical_calls_in_one_message(settings: Settings) -> Any:
    end = StepFinish(reason="tool-calls", usage=USED)
    run = seen(settings, [StepStart(), *called("a", "b", "c"), end], text("done"))
    return run.asked, [_state(part) for part in run.of(ToolPart)]


def three_identical_calls_in_three_messages(settings: Settings) -> Any:
    end = StepFinish(reason="tool-calls", usage=USED)
    answers = [[StepStart(), *called(name), end] for name in "abc"]
    return seen(settings, *answers, text("done")).asked


# --------------------------------------------------------------------------------- accounting


def a_step_that_is_written_again_with_another_cost(settings: Settings) -> Any:
    del settings
    with open_store(":memory:") as store:
        store.apply(conversation()).result()
        before = store.session(SESSION).cost_usd
        store.apply([billed(usd=0.7)]).result()
        after = store.session(SESSION).cost_usd
    assert before is not None
    assert after is not None
    return round(before, 6), round(after, 6)


def a_message_that_is_removed_with_its_step(settings: Settings) -> Any:
    with workbench(Saying(text("x")), settings=settings) as wb:
        talk = wb.session("t")
        asyncio.run(talk.prompt("go"))
        before = wb.store.session(talk.id).cost_usd
        talk.undo()
        after = wb.store.session(talk.id).cost_usd
        return len(talk.messages()), before is not None and before == after


class Reported(msgspec.Struct):
    """What a vendor's library adds up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_reasoning_tokens: int = 0
    unmeasured_requests: int = 0


def the_usage_of_a_call(settings: Settings) -> Any:
    del settings
    reported: Any = Reported(
        input_tokens=150_000,
        output_tokens=3_000,
        cache_read_tokens=100_000,
        cache_write_tokens=20_000,
        output_reasoning_tokens=1_000,
    )
    used = to_token_usage(reported, [])
    prices = UnitPrices(input=3, output=15, cache_read=0.3, cache_write=3.75)
    cost = cost_of(used, prices).usd
    return used.kinds, None if cost is None else round(cost, 9)


def usage_that_makes_no_sense(settings: Settings) -> Any:
    del settings
    less_than_its_cache: Any = Reported(input_tokens=10, output_tokens=5, cache_read_tokens=30)
    nothing: Any = Reported()
    return (
        to_token_usage(less_than_its_cache, []).input,
        to_token_usage(nothing, []).kinds,
        cost_of(NO_TOKENS, UnitPrices(input=3, output=15)).usd,
    )


# --------------------------------------------------------------------------------- reading


def pages_of_120_messages_of_one_moment(settings: Settings) -> Any:
    del settings
    ids = [f"msg_{number:03d}" for number in range(120)]
    shuffled = random.Random(7).sample(ids, k=len(ids))
    with open_store(":memory:") as store:
        store.apply([session(), *(asked(name) for name in shuffled)]).result()
        sizes, cursors, read, cursor = [], [], [], None
        while True:
            page = store.page(SESSION, limit=50, before=cursor)
            sizes.append(len(page.messages))
            cursors.append(page.next_cursor is not None)
            read += [item.message.id for item in page.messages]
            cursor = page.next_cursor
            if cursor is None:
                break
    return sizes, cursors, read[::-1] == shuffled


def a_cursor_that_is_garbage(settings: Settings) -> Any:
    del settings
    with open_store(":memory:") as store:
        store.apply([session()]).result()
        try:
            store.page(SESSION, before="garbage")
        except CursorError as error:
            return isinstance(error, ValueError), "garbage" in str(error)
    return None


def a_fork_at_the_second_question(settings: Settings) -> Any:
    with workbench(Saying(text("x")), settings=settings) as wb:
        talk = wb.session("t")
        for words in ("one", "two"):
            asyncio.run(talk.prompt(words))
        second = [item for item in talk.messages() if isinstance(item.message, UserMessage)][1]
        fork = talk.fork(second.message.id)
        [question, answer] = [item.message for item in fork.messages()]
        assert isinstance(answer, AssistantMessage)
        old_ids = {item.message.id for item in talk.messages()}
        costs = wb.sql("select sum(cost_usd) as usd from sessions")["usd"][0]
        return (
            answer.parent_id == question.id,
            bool({question.id, answer.id} & old_ids),
            wb.store.session(fork.id).cost_usd,
            costs == pytest.approx(wb.store.session(talk.id).cost_usd),
        )


def ids_around_the_wrap_of_their_clock(settings: Settings) -> Any:
    del settings
    source = random.Random(0)
    before, after = (
        make_id("msg", at_ms=at, counter=1, random=source) for at in (1786706395135, 1786706395136)
    )
    times = [MessageTime(created=at) for at in (1786706395135, 1786706395136)]
    messages = [
        UserMessage(id=name, session_id=SESSION, time=time)
        for name, time in zip((before, after), times, strict=True)
    ]
    with open_store(":memory:") as store:
        store.apply([session(), *(MessageUpdated(message=one) for one in messages)]).result()
        read = [item.message.id for item in store.page(SESSION).messages]
    return after < before, read == [after, before]


def the_wait_before_the_next_attempt(settings: Settings) -> Any:
    def wait_ms(attempt: int, *, jitter: float = 0.0, **headers: str) -> float | None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        error = StreamError(message="busy", kind="rate-limit", status=429, headers=named)
        wait = retry_wait_s(error, settings, attempt=attempt, waited_s=0.0, jitter=jitter, now_ms=0)
        return None if wait is None else wait * 1000

    return (
        wait_ms(1, retry_after="2"),
        wait_ms(1, retry_after_ms="1500"),
        wait_ms(3),
        wait_ms(3, jitter=1.0),
    )


TABLE = [
    Vector(
        1,
        "a text block is two rows and its deltas; the blanks at its end are cut",
        a_text_block,
        ours=(["", "a b"], ["a ", "b \n"]),
        parity=(["", "a b \n"], ["a ", "b \n"]),
    ),
    Vector(2, "a text delta without a start is nothing", a_delta_without_a_start, ours=([], [])),
    Vector(
        3,
        "an abort keeps the text so far, closed, and ends the message with an error",
        an_abort_in_a_text,
        ours=("x", True, "MessageAbortedError", True, "error"),
        parity=("x", True, "MessageAbortedError", True, None),
    ),
    Vector(
        4,
        "a call is three rows, and its input is not broadcast",
        a_call_from_its_first_word_to_its_result,
        ours=(["pending", "running", "completed"], []),
    ),
    Vector(
        5,
        "a call that never returns is aborted after a moment",
        an_abort_of_a_call_that_never_returns,
        ours=("Tool execution aborted", True, True),
    ),
    Vector(
        6,
        "a result for an unknown call is ignored",
        a_result_for_an_unknown_call,
        ours=([], None, ["hi"]),
    ),
    Vector(
        7,
        "the third of three identical calls in one message needs leave",
        three_identical_calls_in_one_message,
        ours=(["doom_loop"], ["completed"] * 3),
    ),
    Vector(
        7,
        "so does the third in a turn, and with parity it does not",
        three_identical_calls_in_three_messages,
        ours=["doom_loop"],
        parity=[],
    ),
    Vector(
        8,
        "a step that is written again changes the sum by the difference",
        a_step_that_is_written_again_with_another_cost,
        ours=(0.5, 0.7),
    ),
    Vector(
        9,
        "a message that is removed stays paid (opencode takes its cost off the session)",
        a_message_that_is_removed_with_its_step,
        ours=(0, True),
    ),
    Vector(
        10,
        "what a call used falls into five disjoint kinds, each with its price",
        the_usage_of_a_call,
        ours=((30_000, 2_000, 1_000, 100_000, 20_000), 0.24),
    ),
    Vector(
        11,
        "usage below zero is zero, usage that is missing is unknown (opencode: zeros)",
        usage_that_makes_no_sense,
        ours=(0, (None,) * 5, None),
    ),
    Vector(
        19,
        "pages do not overlap, and messages of one moment stand as they were written",
        pages_of_120_messages_of_one_moment,
        ours=([50, 50, 20], [True, True, False], True),
    ),
    Vector(20, "a garbage cursor is refused", a_cursor_that_is_garbage, ours=(True, True)),
    Vector(
        25,
        "a fork copies what is before the question, with new links and nothing to pay",
        a_fork_at_the_second_question,
        ours=(True, False, None, True),
    ),
    Vector(
        26,
        "ids around the wrap of their clock sort wrongly, and messages do not",
        ids_around_the_wrap_of_their_clock,
        ours=(True, True),
    ),
    Vector(
        29,
        "a provider's wish is obeyed; without one the wait doubles, and some of it is random",
        the_wait_before_the_next_attempt,
        ours=(2000, 1500, 8000, 10_000),
    ),
]


@pytest.mark.parametrize("profile", ["ours", "parity"])
@pytest.mark.parametrize("vector", TABLE, ids=lambda one: f"{one.number:02d}-{one.mark}")
def test_a_vector_gives_what_its_profile_says(vector: Vector, profile: str) -> None:
    settings = Settings() if profile == "ours" else PARITY
    expected = vector.ours if profile == "ours" or vector.parity is SAME else vector.parity

    assert vector.observe(settings) == expected, vector.says


def test_the_table_holds_every_vector_that_is_not_about_compaction() -> None:
    compaction = {*range(12, 19), *range(21, 25), 27, 28, 30}
    assert {vector.number for vector in TABLE} == {*range(1, 31)} - compaction
