"""What a user may set, with defaults, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["PARITY", "Settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is run.

    The defaults follow the rules of this package. `PARITY` turns every improvement off and
    behaves as opencode 1.18.34 was recorded to do.
    """

    trim: bool = True
    """Cut blanks at the end of a text when its block ends; off as in opencode since 1.4.3."""
    text_end_hooks: tuple[Callable[[str], str], ...] = ()
    """Functions that may rewrite a text when its block ends, in order."""
    system: tuple[str, ...] = ()
    """System prompts of a turn."""
    agent: str = "build"
    """Name that is stored with messages."""
    max_steps: int = 50
    """Model calls for one prompt, summaries not counted."""
    max_unknown_finishes: int = 3
    """Calls in a row that may end with an unknown finish before the turn stops."""
    doom_loop: int = 3
    """Identical tool calls in a row at which a person is asked (opencode: 3)."""
    rules: tuple[Any, ...] = ()
    """What tools may do: `forge_nb.tools.permissions.Rule`, after the defaults."""
    asks: bool = False
    """Whether somebody answers when a rule says ``ask``, through `Conversation.permissions`.

    False: asking means no, so that a run without a person never hangs."""
    snapshots: bool | None = None
    """Look with git which files a step changed; None where a tool may change any."""
    title: bool = True
    """Ask the model for a title where the session has none."""
    small_model: str | None = None
    """``provider:model`` that is asked for titles; None for the session's own."""
    checkpoint_s: float | None = None
    """Store the text of an open block this often, in seconds; None leaves it to the block's end."""

    retries: int = 5
    """Further attempts after a failure that may go away by itself (opencode 1.18: 5)."""
    retry_base_s: float = 2.0
    """First wait; it doubles with every attempt (opencode)."""
    retry_max_s: float = 30.0
    """Longest single wait that is not the provider's own wish (opencode)."""
    retry_jitter: float = 0.25
    """Share of a wait that is added at random (opencode 1.18)."""
    retry_total_s: float = 300.0
    """All waits of one call together; a longer wish of the provider ends the attempts."""

    auto_compact: bool = True
    """Compact when the context reaches the usable window."""
    strategy: str = "summary"
    """Name of the compaction strategy."""
    reserved: int | None = None
    """Tokens of the window to keep free; None for what the answer may need."""
    max_compactions: int = 2
    """Compactions in a row without a real step between them."""
    keep_tail: bool = True
    """Keep the newest turns verbatim after a summary, as far as they fit the tail's budget."""
    tail_share: float = 0.25
    """The tail's budget as a share of the usable window (opencode: a quarter)."""
    tail_tokens_min: int = 2_000
    """Lower bound of that budget in estimated tokens (opencode)."""
    tail_tokens_max: int = 15_000
    """Upper bound of that budget in estimated tokens (opencode 1.18)."""
    tail_tokens: int | None = None
    """The budget itself, instead of the share (opencode: preserve_recent_tokens)."""
    tail_turns: int | None = None
    """Most turns in the tail; None for as many as fit (opencode 1.18)."""
    summary_tool_chars: int = 2_000
    """Characters of a tool output that the summary's input keeps (opencode)."""
    pinned: tuple[str, ...] = ()
    """Sentences that every summary repeats word for word: constraints that must not be lost."""
    prune: bool = False
    """Clear old tool outputs from the view after a run (opencode: off since 1.14.18)."""
    prune_protect: int = 40_000
    """Estimated tokens of the newest tool outputs that are never cleared (opencode)."""
    prune_minimum: int = 20_000
    """Clear only if more than this many estimated tokens would go (opencode)."""

    compact_before_sending: bool = True
    """Compact before a call whose estimate is over the window; opencode looks after it only."""
    check_summary: bool = True
    """Let only a summary that has text and is shorter become a boundary."""
    finish_on_abort: bool = True
    """Give an aborted message the finish ``error`` and the usage that was reported."""
    close_failed_attempts: bool = True
    """Close and discard the parts of an attempt that is retried."""
    retry_truncated: bool = True
    """Take a stream that ends without a finish as a lost connection."""
    doom_loop_across_steps: bool = True
    """Look for identical calls in the whole turn, not only in one message."""
    parity: bool = False
    """Read the history as opencode does, its faults included."""


PARITY = Settings(
    trim=False,
    doom_loop_across_steps=False,
    compact_before_sending=False,
    check_summary=False,
    finish_on_abort=False,
    close_failed_attempts=False,
    retry_truncated=False,
    parity=True,
)
"""Every improvement off: what the recorded engine does, for comparisons with it."""
