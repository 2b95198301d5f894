"""What a live view knows: messages, parts and open text, kept as plain values.

Pure: bus events in, operations for the screen out; no widget, no loop, no clock but the one it is
given, so that a server can feed a page in the same way. Text of an open part is a list of pieces;
places in it are counted in UTF-16 units, as the browser counts. What is kept is bounded: the end of
each text, a budget for all texts together, a number of parts.

Proved in `tests/test_widgets_feed.py`: any splitting and merging of a text into deltas gives the
text; a snapshot taken at any moment and the operations after it give the same screen.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from forge_nb.events import (
    Committed,
    MessageRemoved,
    MessageUpdated,
    PartDelta,
    PartRemoved,
    PartUpdated,
    SessionUpdated,
)
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import StepFinishPart
from forge_nb.widgets.items import (
    OUTPUT_CHARS,
    TOKEN_LABELS,
    Item,
    message_item,
    part_item,
    printable,
    tail_of,
    units,
)
from forge_nb.widgets.markdown import to_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forge_nb.events import BusEvent
    from forge_nb.messages.message import Message, MessageWithParts
    from forge_nb.messages.parts import Part

__all__ = ["Op", "OpenText", "TranscriptState"]

Op = dict[str, Any]
"""One operation on the screen: ``d`` (more text), ``part``, ``message``, ``gone``."""

KEEP_CHARS = 64 * 1024  # of each text, from its end
TOTAL_CHARS = 1_000_000  # of all closed texts together
MAX_PARTS = 2_000


class OpenText:
    """The end of a text that grows.

    Attributes
    ----------
    start, end
        Where what is kept begins and ends, in UTF-16 units of the whole text.
    points
        Code points of the whole text so far.
    """

    __slots__ = ("_kept", "_limit", "_pieces", "end", "points", "start")

    def __init__(self, text: str = "", *, limit: int = KEEP_CHARS) -> None:
        self._pieces: deque[str] = deque()
        self._kept = 0
        self._limit = limit
        self.start = self.end = self.points = 0
        if text:
            self.append(text, 0)

    def append(self, delta: str, offset: int) -> tuple[int, str] | None:
        """Add a delta that belongs at `offset` code points.

        Returns
        -------
        tuple or None
            Where the new text begins in UTF-16 units, and the text; None for a repetition. After a
            gap the text begins anew behind it.
        """
        if offset != self.points:
            if offset < self.points:
                delta = delta[self.points - offset :]
            else:
                self._skip_to(offset)
        if not delta:
            return None
        delta = printable(delta)
        place = self.end
        self._pieces.append(delta)
        self._kept += len(delta)
        self.points += len(delta)
        self.end = place + (len(delta) if delta.isascii() else units(delta))
        if self._kept > self._limit:
            self._shorten()
        return place, delta

    def _skip_to(self, offset: int) -> None:
        """Go on behind a gap; what it held comes with the closing row."""
        self._pieces.clear()
        self._kept = 0
        self.end += offset - self.points
        self.start, self.points = self.end, offset

    def _shorten(self) -> None:
        pieces = self._pieces
        while self._kept - len(pieces[0]) >= self._limit:
            piece = pieces.popleft()
            self._kept -= len(piece)
            self.start += units(piece)
        if len(pieces) == 1 and self._kept > self._limit:
            pieces[0], before = tail_of(pieces[0], self._limit)
            self._kept = self._limit
            self.start += before

    @property
    def text(self) -> str:
        """What is kept of the text."""
        if len(self._pieces) > 1:
            whole = "".join(self._pieces)
            self._pieces = deque([whole])
        return self._pieces[0] if self._pieces else ""


class _Entry:
    """A part as it is shown."""

    __slots__ = ("item", "live", "message_id", "seen_s")

    def __init__(self, item: Item, message_id: str, seen_s: float) -> None:
        self.item = item
        self.message_id = message_id
        self.seen_s = seen_s
        self.live: OpenText | None = None


class TranscriptState:
    """Everything a view shows of one session.

    Attributes
    ----------
    context
        Tokens in the window at the last call; None before one and after a compaction.
    older
        How many parts were let go for `max_parts`.

    Parameters
    ----------
    keep_chars
        How much of each text is kept, from its end.
    total_chars
        How much of all closed texts is kept, from the newest.
    output_chars
        How much of each tool output is kept, from its end.
    max_parts
        How many parts are kept; the oldest messages go first, as a whole.
    before
        History that is not shown, oldest first; steps are numbered and boundaries measured after
        it.
    now
        Seconds on some steady clock, for the age of what is open.
    """

    def __init__(
        self,
        *,
        keep_chars: int = KEEP_CHARS,
        total_chars: int = TOTAL_CHARS,
        output_chars: int = OUTPUT_CHARS,
        max_parts: int = MAX_PARTS,
        before: Iterable[MessageWithParts] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = ""
        self._next_step, self.context = _counted(before)
        self.older = 0
        self._keep_chars = keep_chars
        self._total_chars = total_chars
        self._output_chars = output_chars
        self._max_parts = max_parts
        self._now = now
        self._messages: dict[str, Item] = {}
        self._parts_of: dict[str, list[str]] = {}
        self._parts: dict[str, _Entry] = {}
        self._closed: deque[tuple[str, int]] = deque()
        self._closed_chars = 0
        self._bills: dict[str, tuple[list[int | None], float | None]] = {}
        self._tools: set[str] = set()
        self._unmeasured: str | None = None  # a boundary whose next step tells what it gained

    # ------------------------------------------------------------------------------ events

    def feed(self, event: BusEvent) -> list[Op]:
        """Take one bus event; return what changes on the screen, in order."""
        if type(event) is PartDelta:
            return self._delta(event)
        if not isinstance(event, Committed):
            return []
        match event.event:
            case PartUpdated(part=part):
                ops = self._part(part)
            case MessageUpdated(message=message):
                ops = self._message(message)
            case PartRemoved(part_id=part_id):
                ops = self._remove_part(part_id)
            case MessageRemoved(message_id=message_id):
                ops = self._remove_message(message_id)
            case SessionUpdated(info=info):
                ops, self.title = [], printable(info.title)
            case _:
                ops = []
        return ops

    def load(self, messages: Iterable[MessageWithParts]) -> None:
        """Take a stored history, oldest first."""
        for each in messages:
            self._message(each.message)
            for part in each.parts:
                self._part(part)
            self._message(each.message)  # a boundary is judged when its summary's parts are known

    def _delta(self, event: PartDelta) -> list[Op]:
        entry = self._parts.get(event.part_id)
        if entry is None:  # the view was opened in mid-stream: the row came before it
            item: Item = {"kind": event.field, "text": "", "id": event.part_id, "open": True}
            if event.field not in {"text", "reasoning"}:
                item["kind"] = "text"
            entry = self._place(item, event.message_id)
            entry.live = OpenText(limit=self._keep_chars)
        if entry.live is None:
            return []
        grown = entry.live.append(event.delta, event.offset)
        if grown is None:
            return []
        return [{"kind": "d", "part": event.part_id, "off": grown[0], "s": grown[1]}]

    def _part(self, part: Part) -> list[Op]:
        item = part_item(part, output_chars=self._output_chars)
        if item is None:
            return []
        changed: list[Op] = []
        known = self._parts.get(part.id)
        entry = known or self._place(item, part.message_id)
        if known is not None and known.item.get("open") and item["kind"] == "tool":
            entry.seen_s = self._now() if known.item["status"] != item["status"] else entry.seen_s
        earlier = entry.item
        self._take_text(entry, item)
        if item["kind"] == "step":
            changed += self._bill(item, part.message_id)
        elif item["kind"] == "compaction":
            changed += self._mark(entry, earlier)
        elif item["kind"] == "tool":
            self._tools.add(part.id)
        return [self._row(entry), *changed, *self._let_go()]

    def _place(self, item: Item, message_id: str) -> _Entry:
        if message_id not in self._messages:
            self._messages[message_id] = {
                "id": message_id,
                "role": "assistant",
                "face": "assistant",
            }
            self._parts_of[message_id] = []
        entry = self._parts[item["id"]] = _Entry(item, message_id, self._now())
        self._parts_of[message_id].append(item["id"])
        return entry

    def _take_text(self, entry: _Entry, item: Item) -> None:
        """Replace an entry's item; keep its text in the form that suits its state."""
        entry.item = item
        if "text" not in item:
            return
        if item["open"]:
            entry.live = OpenText(item["text"], limit=self._keep_chars)
            item["text"] = ""
            return
        entry.live = None
        whole = printable(item["text"])
        item["text"], item["off"] = tail_of(whole, self._keep_chars)
        if item["kind"] == "text" and not item["off"] and self._is_markdown(entry):
            item["nodes"], item["chars"] = to_nodes(whole), len(whole)
        self._closed.append((item["id"], len(item["text"])))
        self._closed_chars += len(item["text"])
        while self._closed_chars > self._total_chars and len(self._closed) > 1:
            self._forget_text()

    def _is_markdown(self, entry: _Entry) -> bool:
        return bool(self._messages[entry.message_id]["role"] == "assistant")

    def _forget_text(self) -> None:
        part_id, chars = self._closed.popleft()
        self._closed_chars -= chars
        entry = self._parts.get(part_id)
        if entry is not None and entry.live is None and entry.item.get("text"):
            item = entry.item
            rest = {key: value for key, value in item.items() if key != "nodes"}
            entry.item = rest | {"text": "", "off": item["off"] + units(item["text"])}

    # ---------------------------------------------------------------- messages and steps

    def _message(self, message: Message) -> list[Op]:
        item = message_item(message)
        earlier = self._messages.get(message.id)
        if earlier is not None and earlier["face"] == "marker":
            item["face"] = "marker"
        if isinstance(message, AssistantMessage):
            step = (earlier or {}).get("step")
            if step is None:
                step, self._next_step = self._next_step, self._next_step + 1
            item["step"] = step
        self._messages[message.id] = item
        self._parts_of.setdefault(message.id, [])
        changed: list[Op] = [{"kind": "message", "item": item}]
        if isinstance(message, AssistantMessage) and message.is_summary:
            changed += self._judge(message)
        return changed

    def _judge(self, summary: AssistantMessage) -> list[Op]:
        """Tell the marker of a compaction how its summary went."""
        marker = self._marker_of(summary.parent_id)
        if marker is None:
            return []
        if summary.error is not None:
            marker.item["state"] = "failed"
        elif summary.is_finished and marker.item["state"] != "done":
            marker.item["state"] = "done"
            marker.item["summary_tokens"] = summary.tokens.output
            self._unmeasured = marker.item["id"]
            self.context = None
        return [self._row(marker)]

    def _marker_of(self, message_id: str | None) -> _Entry | None:
        for part_id in self._parts_of.get(message_id or "", ()):
            entry = self._parts[part_id]
            if entry.item["kind"] == "compaction":
                return entry
        return None

    def _mark(self, entry: _Entry, earlier: Item) -> list[Op]:
        """Draw the message of a compaction request as a marker."""
        message = self._messages[entry.message_id]
        message["face"] = "marker"
        entry.item["before"] = self.context
        for key in ("before", "after", "state", "summary_tokens"):
            if earlier is not entry.item and key in earlier:
                entry.item[key] = earlier[key]
        return [{"kind": "message", "item": message}]

    def _bill(self, item: Item, message_id: str) -> list[Op]:
        """Note what a step used; the first one after a boundary measures it."""
        message = self._messages[message_id]
        item["step"] = message.get("step")
        self._bills[item["id"]] = (item["tokens"], item["cost"])
        if message["face"] == "summary" or item["context"] is None:
            return []
        self.context = item["context"]
        marker = self._parts.get(self._unmeasured or "")
        self._unmeasured = None
        if marker is None:
            return []
        marker.item["after"] = self.context
        return [self._row(marker)]

    # ------------------------------------------------------------------------- removing

    def _remove_part(self, part_id: str) -> list[Op]:
        entry = self._parts.pop(part_id, None)
        if entry is None:
            return []
        self._parts_of[entry.message_id].remove(part_id)
        self._bills.pop(part_id, None)
        self._tools.discard(part_id)
        return [{"kind": "gone", "part": part_id}]

    def _remove_message(self, message_id: str) -> list[Op]:
        if self._messages.pop(message_id, None) is None:
            return []
        for part_id in self._parts_of.pop(message_id):
            del self._parts[part_id]
            self._bills.pop(part_id, None)
            self._tools.discard(part_id)
        return [{"kind": "gone", "message": message_id}]

    def _let_go(self) -> list[Op]:
        """Drop what is oldest when there are too many parts; what it cost stays counted."""
        gone: list[Op] = []
        while len(self._parts) > self._max_parts and len(self._messages) > 1:
            oldest = next(iter(self._messages))
            del self._messages[oldest]
            for part_id in self._parts_of.pop(oldest):
                del self._parts[part_id]
                self.older += 1
            gone.append({"kind": "gone", "message": oldest, "older": self.older})
        while len(self._parts) > self._max_parts:  # all of one message
            oldest = next(iter(self._parts))
            self._parts_of[self._parts.pop(oldest).message_id].remove(oldest)
            self.older += 1
            gone.append({"kind": "gone", "part": oldest, "older": self.older})
        return gone

    # --------------------------------------------------------------------------- reading

    def _row(self, entry: _Entry) -> Op:
        return {"kind": "part", "message": entry.message_id, "item": self._shown(entry)}

    def _shown(self, entry: _Entry) -> Item:
        """Return an entry as it is sent: open text filled in, age instead of a start time."""
        item = dict(entry.item)
        if entry.live is not None:
            item["text"], item["off"] = entry.live.text, entry.live.start
        elif item.get("nodes") is not None:
            del item["text"]
        if item.get("open"):
            item["age_ms"] = int(1000 * (self._now() - entry.seen_s))
        return item

    def text(self, part_id: str) -> str:
        """Return what is kept of a part's text, open or closed; empty when nothing is."""
        entry = self._parts.get(part_id)
        if entry is None:
            return ""
        return entry.live.text if entry.live is not None else str(entry.item.get("text", ""))

    def snapshot(self) -> Op:
        """Return the whole screen: ``{"kind": "snap", "older", "messages"}``.

        Each message is its item with `parts`, the items of its parts in order.
        """
        messages = [
            item | {"parts": [self._shown(self._parts[key]) for key in self._parts_of[message_id]]}
            for message_id, item in self._messages.items()
        ]
        return {"kind": "snap", "older": self.older, "messages": messages}

    def counters(self) -> dict[str, Any]:
        """Return sums over what was seen: steps, tools, the five token kinds, money.

        `cost` is None when no step has a known cost; `unpriced` says how many have none.
        """
        bills = list(self._bills.values())
        sums: list[int | None] = []
        for place in range(len(TOKEN_LABELS)):
            known = [kinds[place] for kinds, _ in bills if kinds[place] is not None]
            sums.append(sum(filter(None, known)) if known else None)
        costs = [cost for _, cost in bills if cost is not None]
        return {
            "steps": len(bills),
            "tools": len(self._tools),
            "tokens": sums,
            "cost": sum(costs) if costs else None,
            "unpriced": len(bills) - len(costs),
        }


def _counted(messages: Iterable[MessageWithParts]) -> tuple[int, int | None]:
    """Return the number of the next step after a history, and the tokens in the window."""
    step, context = 1, None
    for each in messages:
        message = each.message
        if not isinstance(message, AssistantMessage):
            continue
        step += 1
        if message.is_summary:
            context = None if message.is_finished else context
            continue
        for part in each.parts:
            if isinstance(part, StepFinishPart) and part.tokens.is_reported:
                context = part.tokens.context
    return step, context
