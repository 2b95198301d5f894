"""The one writer of HTML: whatever is not its own output is escaped.

Static twins are made of nothing else, so text of a person, a model, a tool or a file cannot become
markup. Addresses are written only where a caller checked them (`markdown.safe_href`).
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from forge_nb.widgets.items import printable
from forge_nb.widgets.sources import style

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Html", "icon", "join", "note", "sheet", "tag"]


class Html(str):
    """Text that is HTML already; only this module makes it."""

    __slots__ = ()


def tag(name: str, css: str, *children: str, **attributes: str | bool) -> Html:
    """Return an element; children that are not HTML of ours, and all attributes, are escaped.

    Parameters
    ----------
    name
        Of the element.
    css
        Its classes.
    children
        Texts and elements.
    attributes
        ``data_state="done"`` becomes ``data-state="done"``; True writes the bare name, False
        nothing.

    Examples
    --------
    >>> tag("b", "x", "<i>", title='"')
    '<b class="x" title="&quot;">&lt;i&gt;</b>'
    """
    pairs: dict[str, str | bool] = {"class": css or False, **attributes}
    written = ""
    for key, value in pairs.items():
        if value is True:
            written += f" {key}"
        elif value is not False:
            written += f' {key.replace("_", "-")}="{html.escape(printable(str(value)))}"'
    inner = "" if name in {"br", "hr"} else f"{join(children)}</{name}>"
    return Html(f"<{name}{written}>{inner}")


def join(children: Iterable[str]) -> Html:
    """Return texts and elements one after another."""
    return Html("".join(c if isinstance(c, Html) else html.escape(printable(c)) for c in children))


def icon(glyph: str) -> Html:
    """Return a sign that stands beside a word, and is not read out."""
    return tag("span", "fnb-icon", glyph, aria_hidden="true")


def note(text: str) -> Html:
    """Return a remark of ours."""
    return tag("div", "fnb-note", text)


def sheet(*names: str) -> Html:
    """Return the style element for these files of `assets`."""
    return Html(f"<style>{style(*names)}</style>")
