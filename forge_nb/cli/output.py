"""What the command line prints: plain text, tables, errors of one line.

Text from a session may hold terminal escapes; it is shown, not obeyed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fail", "say", "table", "visible"]

_KEPT = frozenset("\n\t")


def visible(text: str) -> str:
    r"""Return a text whose control characters are spelled out.

    Examples
    --------
    >>> visible("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(
        char if char.isprintable() or char in _KEPT else char.encode("unicode_escape").decode()
        for char in text
    )


def say(text: str) -> None:
    """Print a line of text."""
    sys.stdout.write(visible(text) + "\n")


def fail(message: object, code: int = 2) -> NoReturn:
    """Print one line on standard error and end with this exit code."""
    line = " ".join(visible(str(message)).split())
    sys.stderr.write(f"forge-nb: {line}\n")
    raise SystemExit(code)


def table(frame: pd.DataFrame, style: str) -> str:
    """Return a frame as ``table``, ``csv`` or ``json`` text."""
    if style == "csv":
        return frame.to_csv(index=False).rstrip("\n")
    if style == "json":
        return frame.to_json(orient="records", date_format="iso", force_ascii=False)
    import pandas as pd  # noqa: PLC0415  only where rows are printed

    with pd.option_context("display.width", 0, "display.max_colwidth", 80):
        return frame.to_string(index=False, na_rep="-")
