"""The browser's side of the widgets, joined from the files in `assets`.

A front end takes one module per widget. Ours are written in several files without imports, so
joining them is all that building means: no bundler, no Node, nothing fetched from elsewhere.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["script", "style"]

ASSETS = Path(__file__).parent / "assets"


@cache
def script(*names: str) -> str:
    """Return one module made of ``base.js`` and these files, in order; the last one exports."""
    return "\n".join(_read(f"{name}.js") for name in ("base", *names))


@cache
def style(*names: str) -> str:
    """Return one sheet made of ``base.css`` and these files, without comments and indents.

    It is short because every static twin carries a copy.
    """
    whole = "\n".join(_read(f"{name}.css") for name in ("base", *names))
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", whole, flags=re.DOTALL)).strip()


def _read(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")
