"""A widget that answers a browser's questions, and has a twin that needs no kernel.

Browser to kernel, and back; `id` is the browser's::

    {"kind": "ask", "id", "what", "args": {…}}
    {"kind": "answer", "id", "value"}     or     {"kind": "answer", "id", "error": words}

A saved widget shows nothing without its kernel, whatever stands beside it in its bundle. So a panel
is displayed as two outputs: its twin, static HTML with plain text, and the widget, which hides the
twin while it lives.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import logging
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from forge_nb.errors import ForgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Answer = Callable[..., Any]

__all__ = ["Panel"]

_log = logging.getLogger(__name__)
_names = itertools.count(1)

QUIET_ERROR = (
    "<style>.jp-OutputArea-child:has(.fnb-twin) + .jp-OutputArea-child:not(:has(.fnb)) "
    "{ display: none; }</style>"
)
"""Where the widget is dead its twin speaks; JupyterLab's message about that is not needed."""


class Panel(anywidget.AnyWidget):
    """A widget with questions, answers and a twin.

    Subclasses set `_esm` and `_css`, fill `answers`, and write the twin. On the browser's side an
    ``Asker`` asks, and ``hideTwin(el, model.get("twin"))`` hides the twin.

    Parameters
    ----------
    loop
        The loop whose thread answers; the running one when None.
    traits
        Values of the synced traits.
    """

    twin = traitlets.Unicode("").tag(sync=True)

    def __init__(self, *, loop: asyncio.AbstractEventLoop | None = None, **traits: Any) -> None:
        self._loop = loop or running_loop()
        super().__init__(twin=f"twin-{next(_names)}", **traits)
        self.on_msg(self._receive)

    def __repr__(self) -> str:
        """Return the plain twin: the same text every time for the same data."""
        return self.twin_text()

    @property
    def answers(self) -> Mapping[str, Answer]:
        """What may be asked: name to a function of the arguments, plain or awaitable."""
        return {}

    def twin_html(self) -> str:
        """Return what is shown without a kernel: a safe fragment."""
        raise NotImplementedError

    def twin_text(self) -> str:
        """Return what is shown where there is no HTML."""
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        display = importlib.import_module("IPython.display").display
        html = (
            f'<div class="fnb-twin" data-twin="{self.twin}">{QUIET_ERROR}{self.twin_html()}</div>'
        )
        display({"text/html": html, "text/plain": self.twin_text()}, raw=True)
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        bundle = {"application/vnd.jupyter.widget-view+json": view, "text/plain": ""}
        display(bundle, raw=True)

    # ---------------------------------------------------------------------------- receiving

    def _receive(self, _widget: object, content: Any, _buffers: object) -> None:
        """Take a browser's message on whatever thread it comes; act on the loop's."""
        if not isinstance(content, dict) or content.get("kind") != "ask":
            return
        loop = self._loop
        if loop is None or loop.is_closed():
            self._handle(content)  # nothing runs: there is no other thread to respect
        else:
            loop.call_soon_threadsafe(self._handle, content)

    def _handle(self, content: dict[str, Any]) -> None:
        asked = content.get("id")
        try:
            value = self._ask(str(content.get("what")), content.get("args") or {})
        except Exception as error:  # noqa: BLE001  the border to the browser: it gets the words
            self._fail(asked, error)
            return
        if inspect.isawaitable(value):
            task = asyncio.ensure_future(value)
            task.add_done_callback(lambda done: self._settle(asked, done))
        else:
            self.send({"kind": "answer", "id": asked, "value": value})

    def _ask(self, what: str, args: dict[str, Any]) -> Any:
        known = self.answers
        if what not in known:
            msg = f"nothing is known of {what!r}; this view answers {sorted(known)}"
            raise ForgeError(msg)
        return known[what](**args)

    def _settle(self, asked: Any, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self.send({"kind": "answer", "id": asked, "error": "cancelled"})
        elif (error := done.exception()) is not None:
            self._fail(asked, error)
        else:
            self.send({"kind": "answer", "id": asked, "value": done.result()})

    def _fail(self, asked: Any, error: BaseException) -> None:
        if not isinstance(error, ForgeError):
            _log.error("a view's question failed", exc_info=error)
        words = str(error) if isinstance(error, ForgeError) else f"{type(error).__name__}: {error}"
        self.send({"kind": "answer", "id": asked, "error": words})


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop, or None where none runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
