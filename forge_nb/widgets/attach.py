"""Attach a live view to a session: subscribe, feed, and leave a transcript behind.

Nothing here knows the workbench; it takes the bus, the reads and the stop as arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.bus import Bus
from forge_nb.messages.message import MessageWithParts
from forge_nb.widgets.live import LiveDisplay, has_front_end

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from forge_nb.bus import Subscription

__all__ = ["Attached", "Source", "Transcript"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a view needs of a session."""

    session_id: str
    title: str
    usable: int | None
    bus: Bus
    messages: Callable[[], Sequence[MessageWithParts]]
    """The stored messages, oldest first."""
    stop: Callable[[], object]


class Transcript:
    """A stored session for people: HTML where it can be shown, text elsewhere.

    Parameters
    ----------
    source
        The session.
    since
        Number of messages to leave out at the beginning: what an earlier cell shows already.
    """

    def __init__(self, source: Source, *, since: int = 0) -> None:
        messages = list(source.messages())
        self._before = messages[:since]
        self._messages = messages[since:]
        self._source = source

    def __repr__(self) -> str:
        """Return the plain transcript."""
        from forge_nb.widgets.static import transcript_text  # noqa: PLC0415  display only

        source = self._source
        return transcript_text(
            self._messages, title=source.title, usable=source.usable, before=self._before
        )

    def _repr_html_(self) -> str:
        from forge_nb.widgets.static import transcript_html  # noqa: PLC0415  display only

        source = self._source
        return transcript_html(
            self._messages, title=source.title, usable=source.usable, before=self._before
        )


class Attached:
    """A view for as long as the block runs; afterwards the output is a static transcript.

    Parameters
    ----------
    source
        The session.
    show
        Whether to show anything; None for yes in a notebook and no elsewhere.
    """

    def __init__(self, source: Source, *, show: bool | None = None) -> None:
        self._source = source
        self._is_on = has_front_end() if show is None else show
        self._before: list[MessageWithParts] = []
        self._display: LiveDisplay | None = None
        self._subscription: Subscription | None = None
        self._pump: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        """Subscribe before anything happens, and show the view."""
        if not self._is_on:
            return self
        self._before = list(self._source.messages())
        self._display = LiveDisplay(self._view())
        self._subscription = self._source.bus.subscribe(self._source.session_id)
        self._display.start()
        self._pump = asyncio.ensure_future(self._feed())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Feed what is left, and put the transcript in the place of the view."""
        if self._display is None or self._subscription is None or self._pump is None:
            return
        self._pump.cancel()
        while (event := self._subscription.get_nowait()) is not None:
            self._display.feed(event)
        self._subscription.close()
        transcript = Transcript(self._source, since=len(self._before))
        self._display.finish(transcript._repr_html_(), repr(transcript))
        if self._display.view is not None:
            self._display.view.retire()

    async def _feed(self) -> None:
        display, subscription = self._display, self._subscription
        if display is None or subscription is None:
            return
        async for event in subscription:
            display.feed(event)

    def _view(self) -> Any:
        if not has_front_end():
            return None
        from forge_nb.widgets.feed import TranscriptState  # noqa: PLC0415  display only
        from forge_nb.widgets.transcript import TranscriptView  # noqa: PLC0415  heavy

        source = self._source
        return TranscriptView(
            source.session_id,
            title=source.title,
            usable=source.usable,
            on_stop=source.stop,
            reload=lambda part_id: _text_of(source, part_id),
            state=TranscriptState(before=self._before),
        )


def _text_of(source: Source, part_id: str) -> str:
    """Return a stored part's whole text, for "show all" in the view."""
    from forge_nb.widgets.items import whole_text  # noqa: PLC0415  display only

    for item in source.messages():
        for part in item.parts:
            if part.id == part_id:
                return whole_text(part)
    return ""
