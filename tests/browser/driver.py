"""Bus events by hand, for notebooks and tests that drive a view without a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from forge_nb.events import Committed, MessageUpdated, PartDelta, PartUpdated, RunStatus
from forge_nb.messages.message import (
    AssistantMessage,
    ErrorData,
    Message,
    MessageError,
    MessageTime,
    MessageWithParts,
    UserMessage,
)
from forge_nb.messages.parts import (
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    Span,
    StepFinishPart,
    SubtaskPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolRunning,
    ToolSpan,
)
from forge_nb.messages.usage import CacheTokens, TokenUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge_nb.events import BusEvent
    from forge_nb.messages.parts import Part

SESSION = "ses_1"

ANSWER = """The parser drops the last field because `split` is called with **maxsplit**.

1. `parse` reads the line
2. it splits at the comma, *twice at most*
3. the rest stays glued together

```python
def parse(line: str) -> list[str]:
    return line.split(",")   # no maxsplit
```

| case | before | after |
|---|---|---|
| `a,b,c,d` | 3 fields | 4 fields |
| `a` | 1 field | 1 field |

See [the docs](https://docs.python.org/3/library/stdtypes.html) — 🙂 <script>alert(1)</script>
"""


class Driver:
    """Feeds events and keeps the history that they make."""

    def __init__(self, feed: Callable[[BusEvent], object], session_id: str = SESSION) -> None:
        self.session_id = session_id
        self.history: dict[str, tuple[Message, dict[str, Part]]] = {}
        self._feed = feed
        self._seq = 0
        self._now = 1_767_225_600_000
        self.message_id = ""

    def tick(self, ms: int = 400) -> int:
        self._now += ms
        return self._now

    def commit(self, event: Any) -> None:
        self._seq += 1
        if isinstance(event, MessageUpdated):
            _, parts = self.history.get(event.message.id, (None, {}))
            self.history[event.message.id] = (event.message, parts)
        elif isinstance(event, PartUpdated):
            self.history[event.part.message_id][1][event.part.id] = event.part
        self._feed(Committed(event=event, session_id=self.session_id, seq=self._seq, rev=self._seq))

    def messages(self) -> list[MessageWithParts]:
        rows = self.history.values()
        return [MessageWithParts(message=m, parts=tuple(p.values())) for m, p in rows]

    def status(self, state: Any, **facts: Any) -> None:
        self._feed(RunStatus(session_id=self.session_id, state=state, **facts))

    def message(self, message_id: str, *, role: str = "assistant", **fields: Any) -> None:
        self.message_id = message_id
        time = MessageTime(created=self.tick(), completed=fields.pop("completed", None))
        kind = UserMessage if role == "user" else AssistantMessage
        if role != "user":
            fields = {"provider_id": "scripted", "model_id": "tour", **fields}
        self.commit(
            MessageUpdated(
                message=kind(id=message_id, session_id=self.session_id, time=time, **fields)
            )
        )

    def base(self, part_id: str) -> dict[str, Any]:
        return {"id": part_id, "session_id": self.session_id, "message_id": self.message_id}

    def part(self, part: Part) -> None:
        self.commit(PartUpdated(part=part))

    def user(self, message_id: str, text: str) -> None:
        self.message(message_id, role="user")
        self.part(TextPart(text=text, **self.base(message_id + "t")))

    def open(self, part_id: str, kind: type = TextPart) -> None:
        self.part(kind(text="", time=Span(start=self.tick()), **self.base(part_id)))

    def delta(self, part_id: str, text: str, offset: int) -> None:
        self._feed(
            PartDelta(
                session_id=self.session_id,
                message_id=self.message_id,
                part_id=part_id,
                field="text",
                delta=text,
                offset=offset,
            )
        )

    def close(self, part_id: str, text: str, kind: type = TextPart) -> None:
        start = self._now
        self.part(
            kind(text=text, time=Span(start=start, end=self.tick(2300)), **self.base(part_id))
        )

    def text(self, part_id: str, text: str, kind: type = TextPart, size: int = 4) -> None:
        self.open(part_id, kind)
        for place in range(0, len(text), size):
            self.delta(part_id, text[place : place + size], place)
        self.close(part_id, text, kind)

    def tool(
        self, part_id: str, name: str, given: dict[str, Any], *, state: str, said: str = ""
    ) -> None:
        base = {**self.base(part_id), "call_id": part_id, "tool": name}
        self.part(ToolPart(state=ToolPending(input={}), **base))
        start = self.tick()
        running = ToolRunning(input=given, time=Span(start=start))
        self.part(ToolPart(state=running, **base))
        span = ToolSpan(start=start, end=self.tick(1234))
        if state == "completed":
            self.part(ToolPart(state=ToolCompleted(input=given, output=said, time=span), **base))
        elif state == "error":
            self.part(ToolPart(state=ToolFailed(input=given, error=said, time=span), **base))

    def step(self, part_id: str, tokens: TokenUsage, cost: float | None = None) -> None:
        self.part(
            StepFinishPart(
                reason="stop",
                tokens=tokens,
                cost=cost,
                cost_source="computed" if cost is not None else "unpriced",
                **self.base(part_id),
            )
        )

    async def stream(
        self,
        count: int,
        *,
        per_second: int = 2_000,
        part_id: str = "prt_stream",
        piece: Callable[[int], str] = lambda n: f"{n % 1000:03d} ",
    ) -> str:
        """Send deltas at a rate; close the text whatever happens; return the text."""
        loop = asyncio.get_running_loop()
        self.status("busy")
        self.open(part_id)
        began, sent, pieces, offset = loop.time(), 0, [], 0
        try:
            while sent < count:
                due = min(count, int((loop.time() - began) * per_second) + 1)
                for number in range(sent, due):
                    text = piece(number)
                    self.delta(part_id, text, offset)
                    pieces.append(text)
                    offset += len(text)
                sent = due
                await asyncio.sleep(0.005)
        finally:
            whole = "".join([*pieces, "END."])
            self.close(part_id, whole)
            self.status("idle")
        return whole


def usage(
    given: int,
    said: int,
    thought: int | None = None,
    *,
    read: int | None = None,
    wrote: int | None = None,
) -> TokenUsage:
    return TokenUsage(
        input=given, output=said, reasoning=thought, cache=CacheTokens(read=read, write=wrote)
    )


def tour(driver: Driver) -> None:
    """Send one of everything that a view can show."""
    driver.status("busy")
    driver.user("msg_1", "Why does test_parse fail?\nPlease fix it — and keep the API.")
    driver.part(
        FilePart(
            mime="text/x-python",
            url="file:///w/parse.py",
            filename="parse.py",
            **driver.base("prt_file"),
        )
    )
    driver.message("msg_2")
    driver.text("prt_r", "The test wants four fields. Let me read the parser first.", ReasoningPart)
    driver.tool(
        "prt_t1",
        "read",
        {"path": "src/parse.py"},
        state="completed",
        said="def parse(line):\n" * 12,
    )
    driver.tool(
        "prt_t2",
        "bash",
        {"command": "pytest -q tests/test_parse.py --maxfail=1 -x"},
        state="error",
        said="exit status 1\nE   assert 3 == 4",
    )
    driver.step("prt_s1", usage(11_204, 310, 84, wrote=9_000), 0.0123)
    driver.message("msg_3")
    driver.text("prt_a", ANSWER)
    driver.part(
        PatchPart(hash="a1", files=["src/parse.py", "tests/test_parse.py"], **driver.base("prt_p"))
    )
    driver.step("prt_s2", usage(812, 460, read=19_804))
    driver.message("msg_4", role="user")
    driver.part(CompactionPart(auto=True, tail_start_id="msg_3", **driver.base("prt_c")))
    driver.message("msg_5", summary=True, parent_id="msg_4")
    driver.text(
        "prt_sum", "## Goal\nFix the parser.\n\n## Done\n- read `parse.py`\n- found maxsplit"
    )
    driver.step("prt_s3", usage(21_000, 700), 0.02)
    driver.message("msg_5", summary=True, parent_id="msg_4", finish="stop", completed=driver.tick())
    driver.message("msg_6")
    driver.part(
        SubtaskPart(
            prompt="look", description="Look for callers", agent="explore", **driver.base("prt_sub")
        )
    )
    driver.text("prt_b", "Going on behind the boundary.")
    driver.step("prt_s4", usage(4_100, 90, read=1_000), 0.004)


def stopped(driver: Driver) -> None:
    """End the last message as aborted."""
    error = MessageError(name="MessageAbortedError", data=ErrorData(message="Aborted"))
    driver.message(driver.message_id, finish="error", error=error, completed=driver.tick())
    driver.status("idle")
