"""At most one message per frame, whatever the rate of the stream.

Jupyter drops messages for good when a kernel sends more than about 1,000 in a second, so what a
view has to say is collected and sent as one batch 30 times a second. Inside a batch everything
keeps its order; deltas of one part that follow each other become one delta, and of two rows of the
same part only the later is sent, in the place of the earlier. At the end of a block the batch goes
out at once.

Proved in `tests/test_widgets_coalescer.py` on a loop whose clock is turned by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from forge_nb.widgets.items import units

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge_nb.widgets.feed import Op

__all__ = ["FRAME_S", "Coalescer", "Timer"]

FRAME_S = 1 / 30
"""Seconds between two batches."""
SOONEST_S = FRAME_S / 2
"""A batch at the end of a block goes out at once, but not sooner than this after the last one."""


class Timer(Protocol):
    """What the coalescer needs of an asyncio loop."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Any:
        """Call back after a delay; the result has `cancel`."""
        ...

    def time(self) -> float:
        """Return the loop's clock in seconds."""
        ...


class Coalescer:
    """Collects operations and hands them over once per frame.

    Call it on the loop's thread only.

    Parameters
    ----------
    timer
        The running loop, or something like it.
    send
        Gets the operations of one frame, in order.
    """

    def __init__(self, timer: Timer, send: Callable[[list[Op]], None]) -> None:
        self._timer = timer
        self._send = send
        self._ops: list[Op | None] = []
        self._texts: dict[str, _Run] = {}
        self._rows: dict[str, int] = {}
        self._due: Any = None
        self._last_sent = float("-inf")

    def add_text(self, part_id: str, off: int, text: str) -> None:
        """Collect more text of an open part; `off` is in UTF-16 units."""
        run = self._texts.get(part_id)
        if run is None or run.next != off:
            if run is not None:
                run.seal()
            op: Op = {"kind": "d", "part": part_id, "off": off, "s": ""}
            run = self._texts[part_id] = _Run(op, off)
            self._ops.append(op)
        run.pieces.append(text)
        run.next += len(text) if text.isascii() else units(text)
        if self._due is None:
            self._schedule()

    def add_row(self, key: str, op: Op) -> None:
        """Collect a row; it takes the place of what waits with the same key, deltas included."""
        self._seal()
        earlier = self._rows.get(key)
        if earlier is None:
            self._rows[key] = len(self._ops)
            self._ops.append(op)
        else:
            self._ops[earlier] = op
            for place in range(earlier + 1, len(self._ops)):
                other = self._ops[place]
                if other is not None and other["kind"] == "d" and other["part"] == key:
                    self._ops[place] = None
        if self._due is None:
            self._schedule()

    def boundary(self) -> None:
        """Send what waits now, unless the last batch went out a moment ago: then with the frame."""
        if self._timer.time() - self._last_sent >= SOONEST_S:
            self.flush()

    def flush(self) -> None:
        """Send what waits, now."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self._ops:
            return
        self._seal()
        ops = [op for op in self._ops if op is not None]
        self._ops = []
        self._rows.clear()
        self._last_sent = self._timer.time()
        self._send(ops)

    def clear(self) -> None:
        """Forget what waits: a snapshot says it all."""
        self._ops.clear()
        self._texts.clear()
        self._rows.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _seal(self) -> None:
        for run in self._texts.values():
            run.seal()
        self._texts.clear()

    def _schedule(self) -> None:
        self._due = self._timer.call_later(FRAME_S, self.flush)


class _Run:
    """Deltas of one part that follow each other."""

    __slots__ = ("next", "op", "pieces")

    def __init__(self, op: Op, off: int) -> None:
        self.op = op
        self.next = off
        self.pieces: list[str] = []

    def seal(self) -> None:
        """Put the text into the operation."""
        self.op["s"] = "".join(self.pieces)
