"""What a user may set, with defaults, in one frozen value."""

from __future__ import annotations

import msgspec

__all__ = ["Settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is run.

    The defaults follow the rules of this package; `PARITY` in `tests` turns the improvements off
    to behave as the recorded engine does.
    """

    trim: bool = True
    """Cut blanks at the end of a text when its block ends; off as in opencode since 1.4.3."""
    auto_compact: bool = True
    """Compact when the context reaches the usable window."""
    max_steps: int = 50
    """Model calls for one prompt, summaries not counted."""
    max_compactions: int = 2
    """Compactions in a row without a real step between them."""
    keep_tail: bool = True
    """Keep the newest turns verbatim after a summary, as far as they fit the tail's budget."""
    tail_share: float = 0.25
    """The tail's budget as a share of the usable window (opencode: a quarter)."""
    tail_tokens_max: int = 15_000
    """Upper bound of that budget in estimated tokens (opencode 1.18)."""
    summary_tool_chars: int = 2_000
    """Characters of a tool output that the summary's input keeps (opencode)."""
    system: tuple[str, ...] = ()
    """System prompts of a turn."""
    agent: str = "build"
    """Name that is stored with messages."""
