"""Where a live view appears: a notebook's output that becomes a static transcript, or a terminal.

A saved widget shows nothing without its kernel, whatever stands beside it in the bundle. So the
view is displayed under a display id, and when the run is over the same output is replaced by HTML
and its plain twin.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TextIO

from forge_nb.events import Committed, PartDelta, PartUpdated, RunStatus
from forge_nb.messages.parts import CompactionPart, TextPart, ToolPart
from forge_nb.widgets.items import printable

if TYPE_CHECKING:
    from forge_nb.events import BusEvent
    from forge_nb.messages.parts import Part
    from forge_nb.widgets.transcript import TranscriptView

__all__ = ["LiveDisplay", "has_front_end"]


def has_front_end() -> bool:
    """Return whether this Python runs in a Jupyter kernel, where a widget may be seen."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class LiveDisplay:
    """Shows a session while it runs, and its transcript afterwards.

    Parameters
    ----------
    view
        The widget; without one, or outside Jupyter, text is printed as it comes.
    out
        Where text is printed; standard output when None.

    Examples
    --------
    >>> show = LiveDisplay(None)
    >>> show.start()
    >>> show.finish("<p>done</p>", "done")
    """

    def __init__(self, view: TranscriptView | None, *, out: TextIO | None = None) -> None:
        self.view = view
        self.is_rich = view is not None and has_front_end()
        """Whether the widget is shown; else text is printed."""
        self._handle: Any = None
        self._printer = None if self.is_rich else _Printer(out or sys.stdout)

    def start(self) -> None:
        """Show the view where the running cell's output goes."""
        if self.is_rich and self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(self.view, display_id=True)

    def feed(self, event: BusEvent) -> None:
        """Pass one bus event on; call it on the loop's thread."""
        if self.view is not None:
            self.view.feed(event)
        if self._printer is not None:
            self._printer.feed(event)

    def finish(self, html: str, text: str) -> None:
        """Replace the live view by what can be read without a kernel.

        Parameters
        ----------
        html, text
            From `transcript_html` and `transcript_text`.
        """
        if self._handle is not None:
            self._handle.update({"text/html": html, "text/plain": text}, raw=True)
        elif self._printer is not None:
            self._printer.end_line()
        if self.view is not None:
            self.view.retire()


class _Printer:
    """Prints a session's text as it comes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._midline = False
        self._shown: dict[str, str] = {}

    def feed(self, event: BusEvent) -> None:
        """Print what an event adds."""
        if isinstance(event, PartDelta):
            if self._shown.get(event.part_id) == "text":
                self._write(event.delta)
        elif isinstance(event, RunStatus):
            if event.state == "idle":
                self.end_line()
            elif event.state == "retry":
                why = printable(event.message or "the call failed")
                self._line(f"[attempt {event.attempt} failed, trying again: {why}]")
        elif isinstance(event, Committed) and isinstance(event.event, PartUpdated):
            self._part(event.event.part)

    def _part(self, part: Part) -> None:
        known = self._shown.get(part.id)
        word = ""
        match part:
            case ToolPart():
                word = part.status
                if word not in {known, "pending"}:
                    self._line(f"[{printable(part.tool)}: {word}]")
            case CompactionPart():
                word = "compaction"
                if known is None:
                    self._line("[compacting]")
            case TextPart():
                word = "text"
                if part.time is not None and part.time.end is not None:
                    self.end_line()
            case _:
                pass
        self._shown[part.id] = word

    def _line(self, text: str) -> None:
        self.end_line()
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._midline = not text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line unless one has just begun."""
        if self._midline:
            self._write("\n")
