"""What the command line prints: plain text, tables, errors of one line.

Text from a session may hold terminal escapes; it is shown, not obeyed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fail", "say", "show", "tell", "visible"]

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


def tell(message: object, code: int = 2) -> int:
    """Print one line on standard error; return the exit code."""
    line = " ".join(visible(str(message)).split())
    sys.stderr.write(f"forge-nb: {line}\n")
    return code


def fail(message: object, code: int = 2) -> NoReturn:
    """Print one line on standard error and end with this exit code."""
    raise SystemExit(tell(message, code))


def show(frame: pd.DataFrame, style: str) -> None:
    """Print a frame as ``table``, ``csv`` or ``json``.

    A file or another program gets csv as it is; only a terminal would obey what is in it.
    """
    if style == "json":
        text = frame.to_json(orient="records", date_format="iso")
    elif style == "csv":
        text = frame.to_csv(index=False).removesuffix("\n")
        text = visible(text) if sys.stdout.isatty() else text
    else:
        text = visible(_table(frame))
    sys.stdout.write(text + "\n")


def _table(frame: pd.DataFrame) -> str:
    import pandas as pd  # noqa: PLC0415  only where rows are printed

    with pd.option_context("display.width", 0, "display.max_colwidth", 80):
        return frame.to_string(index=False, na_rep="-")
