"""The live view of one session: an anywidget fed with bus events.

State in, messages out. Small facts (title, status, counters, gauge) are synced traits; text travels
as custom messages, at most one per frame. A browser that opens a view, or finds a gap in what it
got, asks for a snapshot. What is sent and not yet acknowledged is bounded; without an open view
nothing is sent at all.

Kernel to browser; `n` is how many characters were sent so far, `seq` numbers the frames::

    {"kind": "ops", "seq", "n", "ops": [op, …]}    one frame
        {"kind": "d", "part", "off", "s"}          more text; off in UTF-16 units
        {"kind": "part", "message", "item"}        a part, whole: appears or replaces
        {"kind": "message", "item"}                a message's own line
        {"kind": "gone", "part" | "message"}
    {"kind": "snap", "seq", "n", "older", "messages": [item + parts]}
    {"kind": "text", "part", "s"}                  older text that was asked for

Browser to kernel, each with `view`, a name the view gave itself::

    {"kind": "hydrate"}         opens the view, or brings it up after a gap
    {"kind": "ack", "n"}        at most every half second
    {"kind": "text", "part"}    asks for a closed part's whole text
    {"kind": "stop"}  {"kind": "bye"}

Callbacks of a comm may come on any thread, so they only `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from forge_nb.events import Committed, RunStatus
from forge_nb.widgets.coalescer import Coalescer
from forge_nb.widgets.feed import TranscriptState
from forge_nb.widgets.items import printable
from forge_nb.widgets.panel import running_loop
from forge_nb.widgets.sources import script, style

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forge_nb.events import BusEvent
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.widgets.feed import Op

__all__ = ["TranscriptView"]

UNACKED_LIMIT = 256 * 1024  # characters a view may be behind before deltas stop
SILENT_AFTER_S = 15.0  # a view that is behind and says nothing for so long is gone
OP_CHARS = 100  # what an operation weighs beside its text


class TranscriptView(anywidget.AnyWidget):
    """Shows a session while it runs.

    Call `feed`, `load` and `flush` on the loop's thread.

    Parameters
    ----------
    session_id
        Which session; events of others are ignored.
    title
        Shown on top; follows the session's own title.
    usable
        Tokens of context that the session may use; the gauge measures against it.
    on_stop
        Called on the loop's thread when somebody presses Stop.
    reload
        Returns a closed part's whole text by its id, for "show all" of what the view let go.
    state
        Where events are kept; give one to change its limits, or to go on behind a history.
    loop
        The loop that runs the session; the running one when None.
    """

    _esm = script("parts", "transcript")
    _css = style("transcript")

    session_id = traitlets.Unicode("").tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)
    status = traitlets.Dict({"state": "idle"}).tag(sync=True)
    counters = traitlets.Dict().tag(sync=True)
    gauge = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        session_id: str,
        *,
        title: str = "",
        usable: int | None = None,
        on_stop: Callable[[], object] | None = None,
        reload: Callable[[str], str] | None = None,
        state: TranscriptState | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.state = state or TranscriptState()
        self.usable = usable
        self.on_stop = on_stop
        self._reload = reload
        self._loop = loop or running_loop()
        self._coalescer: Coalescer | None = None
        self._views: dict[str, _Peer] = {}
        self._sent = 0
        self._seq = 0
        self._is_retired = False
        self._stale = False  # whether the browser lacks something that only a snapshot brings
        super().__init__(session_id=session_id, title=printable(title))
        self._update_facts()
        self.on_msg(self._receive)

    def __repr__(self) -> str:
        """Return the same text every time, so that saved outputs can be compared."""
        return f"TranscriptView(session_id={self.session_id!r})"

    # ----------------------------------------------------------------------------- feeding

    def feed(self, event: BusEvent) -> None:
        """Take one bus event of the session."""
        if event.session_id != self.session_id:
            return
        if isinstance(event, RunStatus):
            self._take_status(event)
            return
        ops = self.state.feed(event)
        if self._views:
            self._collect(ops)
            if isinstance(event, Committed):
                self._frames().boundary()

    def load(self, messages: Iterable[MessageWithParts]) -> None:
        """Show a stored history, oldest first; call it before the first `feed`."""
        self.state.load(messages)
        self._update_facts()
        self._stale = True
        self._catch_up()

    def flush(self) -> None:
        """Send what waits, now: a cell is about to end, or to block the loop."""
        if self._views:
            self._frames().flush()

    def retire(self) -> None:
        """Close the widget once no browser shows it: something else has taken its place."""
        self.flush()
        self._is_retired = True
        self._close_if_unseen()

    def _close_if_unseen(self) -> None:
        if self._is_retired and not self._views:
            self.close()

    def _collect(self, ops: list[Op]) -> None:
        frames = self._frames()
        for op in ops:
            match op["kind"]:
                case "d":
                    frames.add_text(op["part"], op["off"], op["s"])
                case "part":
                    frames.add_row(op["item"]["id"], op)
                case "message":
                    frames.add_row(op["item"]["id"], op)
                case _:
                    frames.add_row(op.get("part") or op["message"], op)

    def _take_status(self, event: RunStatus) -> None:
        self.flush()
        self._update_facts()
        facts: dict[str, Any] = {
            "state": event.state,
            "attempt": event.attempt,
            "message": printable(event.message or ""),
            "next_ms": event.next_ms,
        }
        self.status = facts

    def _update_facts(self) -> None:
        state = self.state
        with self.hold_sync():
            if state.title:
                self.title = state.title
            self.counters = state.counters()
            self.gauge = {"used": state.context, "usable": self.usable}

    def _frames(self) -> Coalescer:
        if self._coalescer is None:
            self._loop = self._loop or asyncio.get_running_loop()
            self._coalescer = Coalescer(self._loop, self._send_ops)
        return self._coalescer

    # ----------------------------------------------------------------------------- sending

    def _send_ops(self, ops: list[Op]) -> None:
        """Send one frame, unless the slowest view is too far behind: then a snapshot, later."""
        if self._stale or self._is_behind():
            self._stale = True
            return
        self._update_facts()
        self._sent += sum(_weight(op) for op in ops)
        self._seq += 1
        self.send({"kind": "ops", "seq": self._seq, "n": self._sent, "ops": ops})

    def _is_behind(self) -> bool:
        now = time.monotonic()
        for name, peer in list(self._views.items()):
            if self._sent - peer.acked > UNACKED_LIMIT:
                if now - peer.heard_s <= SILENT_AFTER_S:
                    return True
                del self._views[name]
        return False

    def _catch_up(self) -> None:
        """Send a snapshot when the browser lacks something and is ready for it."""
        if not self._stale or not self._views or self._is_behind():
            return
        self._stale = False
        self._send_snapshot()

    def _send_snapshot(self) -> None:
        if self._coalescer is not None:
            self._coalescer.clear()
        self._update_facts()
        snap = self.state.snapshot()
        self._sent += sum(_item_weight(part) for each in snap["messages"] for part in each["parts"])
        self.send(snap | {"seq": self._seq, "n": self._sent})

    # ---------------------------------------------------------------------------- receiving

    def _receive(self, _widget: object, content: Any, _buffers: object) -> None:
        """Take a browser's message on whatever thread it comes; act on the loop's."""
        if not isinstance(content, dict):
            return
        loop = self._loop
        if loop is None or loop.is_closed():
            self._handle(content)  # no session runs: there is no other thread to respect
        else:
            loop.call_soon_threadsafe(self._handle, content)

    def _handle(self, content: dict[str, Any]) -> None:
        view = str(content.get("view", ""))
        match content.get("kind"):
            case "hydrate":
                self._open_view(view)
            case "ack":
                self._hear(view, content.get("n"))
            case "stop" if self.on_stop is not None:
                self.on_stop()
            case "text":
                self._send_text(str(content.get("part", "")))
            case "bye":
                self._views.pop(view, None)
                self._close_if_unseen()
            case _:
                pass  # a newer browser side may say more

    def _open_view(self, view: str) -> None:
        """Answer a view that begins or found a gap; the answer reaches, and suits, every view."""
        self._views[view] = _Peer(self._sent, time.monotonic())
        self._stale = False
        self._send_snapshot()

    def _hear(self, view: str, n: Any) -> None:
        if not isinstance(n, int):
            return
        peer = self._views.get(view)
        if peer is None:  # it was thought gone, and lives
            self._views[view] = _Peer(self._sent, time.monotonic())
            self._stale = True
        else:
            peer.acked, peer.heard_s = max(peer.acked, n), time.monotonic()
        self._catch_up()

    def _send_text(self, part_id: str) -> None:
        read = self._reload or self.state.text
        text = read(part_id)
        self.send({"kind": "text", "part": part_id, "s": printable(text)})


class _Peer:
    """An open view in a browser: what it has acknowledged, and when it last spoke."""

    __slots__ = ("acked", "heard_s")

    def __init__(self, acked: int, heard_s: float) -> None:
        self.acked = acked
        self.heard_s = heard_s


def _weight(op: Op) -> int:
    if op["kind"] == "d":
        return OP_CHARS + len(op["s"])
    return _item_weight(op["item"]) if op["kind"] == "part" else OP_CHARS


def _item_weight(item: dict[str, Any]) -> int:
    texts = sum(len(item.get(key) or "") for key in ("text", "input", "output", "error"))
    return OP_CHARS + texts + (0 if "text" in item else int(item.get("chars", 0)))
