"""Where a live view appears: a notebook's output that becomes a static transcript, or a terminal.

A saved widget shows nothing without its kernel, whatever stands beside it in the bundle. So the
view is displayed under a display id, and when the run is over the same output is replaced by HTML
and its plain twin.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from forge_nb.events import PartDelta, PartUpdated, RunStatus
from forge_nb.messages.parts import CompactionPart, ReasoningPart, TextPart, ToolCompleted, ToolPart
from forge_nb.widgets.feed import TranscriptState
from forge_nb.widgets.static import transcript_html, transcript_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from forge_nb.bus import Bus, Subscription
    from forge_nb.events import BusEvent
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part
    from forge_nb.widgets.transcript import TranscriptView

__all__ = ["LiveDisplay", "LiveRun", "Shown", "has_front_end", "live_view", "show_session"]


class Shown(Protocol):
    """What of a session is needed to show it; `Conversation` has it."""

    @property
    def id(self) -> str:
        """The session's id."""
        ...

    @property
    def title(self) -> str:
        """The session's title."""
        ...

    @property
    def workbench(self) -> Any:
        """Has `bus` and `runners`."""
        ...

    def messages(self) -> list[MessageWithParts]:
        """Return the whole session, oldest first."""
        ...

    def usable(self) -> int | None:
        """Return the usable window in tokens."""
        ...

    def abort(self) -> bool:
        """Stop the run."""
        ...


def has_front_end() -> bool:
    """Return whether this Python runs in a Jupyter kernel, where a widget may be seen."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def live_view(session: Shown, *, show: bool | None = None) -> LiveRun:
    """Return a context in which a session's run is shown, from here on.

    Parameters
    ----------
    session
        Whose run it is.
    show
        False for nothing, True for a widget or, outside Jupyter, printed text; None for a widget in
        Jupyter and nothing elsewhere.

    Returns
    -------
    LiveRun
        Use it in a with block; `finish` leaves the transcript of what was added.
    """
    if show is False or (show is None and not has_front_end()):
        return LiveRun(session, None)
    before = session.messages()
    view = _view(session, TranscriptState(before=before)) if has_front_end() else None
    return LiveRun(session, LiveDisplay(view), before=before)


def show_session(session: Shown) -> Transcript | None:
    """Show a whole session: live while it runs, else as a transcript that needs no kernel.

    Returns
    -------
    Transcript or None
        Something that shows itself; None when a live view was displayed.
    """
    history = session.messages()
    if session.id not in session.workbench.runners or not has_front_end():
        return Transcript(history, title=session.title, usable=session.usable())
    view = _view(session, TranscriptState())
    run = LiveRun(session, LiveDisplay(view))
    run.__enter__()
    view.load(history)
    run.follow(session.workbench.runners[session.id])
    return None


def _view(session: Shown, state: TranscriptState) -> TranscriptView:
    from forge_nb.widgets.transcript import TranscriptView  # noqa: PLC0415  only in Jupyter

    return TranscriptView(
        session.id,
        title=session.title,
        usable=session.usable(),
        on_stop=session.abort,
        reload=lambda part_id: _whole_text(session.messages(), part_id),
        state=state,
    )


def _whole_text(messages: Sequence[MessageWithParts], part_id: str) -> str:
    for message in messages:
        for part in message.parts:
            if part.id == part_id:
                return _text_of(part)
    return ""


def _text_of(part: Part) -> str:
    match part:
        case TextPart() | ReasoningPart():
            return part.text
        case ToolPart(state=ToolCompleted(output=output)):
            return output
        case ToolPart():
            return getattr(part.state, "error", "")
        case _:
            return ""


class Transcript:
    """A session that shows itself: HTML where that can be shown, plain text elsewhere.

    Parameters
    ----------
    messages
        The history, oldest first.
    title, usable
        As in `transcript_html`.
    """

    def __init__(
        self,
        messages: Sequence[MessageWithParts],
        *,
        title: str | None = None,
        usable: int | None = None,
    ) -> None:
        self._messages = messages
        self._title = title
        self._usable = usable

    def __repr__(self) -> str:
        """Return the transcript as plain text."""
        return transcript_text(self._messages, title=self._title, usable=self._usable)

    def _repr_html_(self) -> str:
        return transcript_html(self._messages, title=self._title, usable=self._usable)


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
        if self.view is not None:
            self.view.flush()
        if self._handle is not None:
            self._handle.update({"text/html": html, "text/plain": text}, raw=True)
        elif self._printer is not None:
            self._printer.end_line()


class LiveRun:
    """One run on display: listens to the bus from `with` to its end.

    Parameters
    ----------
    session
        Whose run.
    display
        Where it is shown; None for nowhere.
    before
        History that the display does not repeat.
    """

    def __init__(
        self,
        session: Shown,
        display: LiveDisplay | None,
        *,
        before: Sequence[MessageWithParts] = (),
    ) -> None:
        self._session = session
        self._display = display
        self._before = before
        self._feed: Subscription | None = None
        self._pump: asyncio.Task[None] | None = None
        self._is_finished = False

    def __enter__(self) -> LiveRun:
        """Show the view and listen."""
        if self._display is not None:
            bus: Bus = self._session.workbench.bus
            self._feed = bus.subscribe(self._session.id)
            self._display.start()
            self._pump = asyncio.ensure_future(self._run(self._feed, self._display))
        return self

    async def _run(self, feed: Subscription, display: LiveDisplay) -> None:
        async for event in feed:
            display.feed(event)

    def follow(self, runner: asyncio.Task[Any]) -> None:
        """Stay until a run that goes on by itself is over."""
        runner.add_done_callback(lambda _task: self.__exit__(None, None, None))

    def finish(self, messages: Sequence[MessageWithParts]) -> None:
        """Leave the transcript of what `messages` has beyond the history before."""
        if self._display is None or self._is_finished:
            return
        self._is_finished = True
        self._drain(self._display)
        known = {each.message.id for each in self._before}
        added = [each for each in messages if each.message.id not in known]
        title, usable = self._session.title, self._session.usable()
        facts: dict[str, Any] = {"title": title, "usable": usable, "before": self._before}
        self._display.finish(transcript_html(added, **facts), transcript_text(added, **facts))

    def _drain(self, display: LiveDisplay) -> None:
        while self._feed is not None and (event := self._feed.get_nowait()) is not None:
            display.feed(event)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish if nobody did, and stop listening."""
        if self._display is not None and not self._is_finished:
            self.finish(self._session.messages())
        if self._feed is not None:
            self._feed.close()
        if self._pump is not None:
            self._pump.cancel()


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
        elif isinstance(event.event, PartUpdated):
            self._part(event.event.part)

    def _part(self, part: Part) -> None:
        known = self._shown.get(part.id)
        word = ""
        match part:
            case ToolPart():
                word = part.status
                if word not in {known, "pending"}:
                    self._line(f"[{part.tool}: {word}]")
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
