"""Cut a tool's long output before it is stored; the whole text can be kept in a file.

Limits are opencode's: 2000 lines and 50 KiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_BYTES", "MAX_LINES", "truncate"]

MAX_LINES = 2_000
MAX_BYTES = 50 * 1024


def truncate(text: str, *, keep_at: Path | None = None) -> tuple[str, bool]:
    """Return the text as it is to be stored, and whether it was cut.

    Parameters
    ----------
    text
        A tool's output.
    keep_at
        File that gets the whole text when it is cut.

    Examples
    --------
    >>> truncate("short")
    ('short', False)
    """
    lines = text.split("\n")
    head = "\n".join(lines[:MAX_LINES])
    raw = head.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        head = raw[:MAX_BYTES].decode("utf-8", "ignore")
    if len(head) == len(text):
        return text, False
    hint = f"[output cut: {len(text) - len(head):,} of {len(text):,} characters left out"
    if keep_at is not None:
        keep_at.parent.mkdir(parents=True, exist_ok=True)
        keep_at.write_text(text, "utf-8", errors="surrogatepass")
        hint += f"; all of it is in {keep_at}"
    return f"{head}\n{hint}]", True
