"""What a user may set, with defaults, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from forge_nb.errors import UsageError

__all__ = ["PARITY", "Settings", "changed"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is run.

    The defaults follow the rules of this package. `PARITY` turns every improvement off and
    behaves as opencode 1.18.34 was recorded to do.

    Parameters
    ----------
    trim
        Cut blanks at the end of a text when its block ends; off as in opencode since 1.4.3.
    text_end_hooks
        Functions that may rewrite a text when its block ends, in order.
    system
        System prompts of a turn.
    agent
        Name that is stored with messages.
    max_steps
        Model calls for one prompt, summaries not counted.
    max_unknown_finishes
        Calls in a row that may end with an unknown finish before the turn stops.
    doom_loop
        Identical tool calls in a row at which a person is asked (opencode: 3).
    rules
        What tools may do: `forge_nb.tools.permissions.Rule`, after the defaults.
    asks
        Whether somebody answers when a rule says ``ask``, through `Conversation.permissions`.
        False: asking means no, so that a run without a person never hangs.
    snapshots
        Look with git which files a step changed; None where a tool may change any.
    title
        Ask the model for a title where the session has none.
    small_model
        ``provider:model`` that is asked for titles; None for the session's own.
    checkpoint_s
        Store the text of an open block this often, in seconds; None leaves it to the block's
        end.
    retries
        Further attempts after a failure that may go away by itself (opencode 1.18: 5).
    retry_base_s
        First wait; it doubles with every attempt (opencode).
    retry_max_s
        Longest single wait that is not the provider's own wish (opencode).
    retry_jitter
        Share of a wait that is added at random (opencode 1.18).
    retry_total_s
        All waits of one call together; a longer wish of the provider ends the attempts.
    auto_compact
        Compact when the context reaches the usable window.
    strategy
        Name of the compaction strategy.
    reserved
        Tokens of the window to keep free; None for what the answer may need.
    max_compactions
        Compactions in a row without a real step between them.
    keep_tail
        Keep the newest turns verbatim after a summary, as far as they fit the tail's budget.
    tail_share
        The tail's budget as a share of the usable window (opencode: a quarter).
    tail_tokens_min
        Lower bound of that budget in estimated tokens (opencode).
    tail_tokens_max
        Upper bound of that budget in estimated tokens (opencode 1.18).
    tail_tokens
        The budget itself, instead of the share (opencode: preserve_recent_tokens).
    tail_turns
        Most turns in the tail; None for as many as fit (opencode 1.18).
    summary_tool_chars
        Characters of a tool output that the summary's input keeps (opencode).
    pinned
        Sentences that every summary repeats word for word: constraints that must not be lost.
    prune
        Clear old tool outputs from the view after a run (opencode: off since 1.14.18).
    prune_protect
        Estimated tokens of the newest tool outputs that are never cleared (opencode).
    prune_minimum
        Clear only if more than this many estimated tokens would go (opencode).
    compact_before_sending
        Compact before a call whose estimate is over the window; opencode looks after it only.
    check_summary
        Let only a summary that has text and is shorter become a boundary.
    finish_on_abort
        Give an aborted message the finish ``error`` and the usage that was reported.
    close_failed_attempts
        Close and discard the parts of an attempt that is retried.
    retry_truncated
        Take a stream that ends without a finish as a lost connection.
    doom_loop_across_steps
        Look for identical calls in the whole turn, not only in one message.
    parity
        Read the history as opencode does, its faults included.

    Raises
    ------
    UsageError
        When a value is of another kind than its default.

    Examples
    --------
    >>> Settings(retries="five")
    Traceback (most recent call last):
    forge_nb.errors.UsageError: Settings.retries is 'five'; it has to be int
    """

    trim: bool = True
    text_end_hooks: tuple[Callable[[str], str], ...] = ()
    system: tuple[str, ...] = ()
    agent: str = "build"
    max_steps: int = 50
    max_unknown_finishes: int = 3
    doom_loop: int = 3
    rules: tuple[Any, ...] = ()
    asks: bool = False
    snapshots: bool | None = None
    title: bool = True
    small_model: str | None = None
    checkpoint_s: float | None = None

    retries: int = 5
    retry_base_s: float = 2.0
    retry_max_s: float = 30.0
    retry_jitter: float = 0.25
    retry_total_s: float = 300.0

    auto_compact: bool = True
    strategy: str = "summary"
    reserved: int | None = None
    max_compactions: int = 2
    keep_tail: bool = True
    tail_share: float = 0.25
    tail_tokens_min: int = 2_000
    tail_tokens_max: int = 15_000
    tail_tokens: int | None = None
    tail_turns: int | None = None
    summary_tool_chars: int = 2_000
    pinned: tuple[str, ...] = ()
    prune: bool = False
    prune_protect: int = 40_000
    prune_minimum: int = 20_000

    compact_before_sending: bool = True
    check_summary: bool = True
    finish_on_abort: bool = True
    close_failed_attempts: bool = True
    retry_truncated: bool = True
    doom_loop_across_steps: bool = True
    parity: bool = False

    def __post_init__(self) -> None:
        """Refuse at once what would only fail in the middle of a run."""
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if not _fits(value, hint):
                told = str(hint) if get_origin(hint) else hint.__name__
                msg = f"Settings.{name} is {value!r}; it has to be {told}"
                raise UsageError(msg, setting=name)


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return settings with some of them changed.

    Raises
    ------
    UsageError
        When there is no such setting, or its value is of another kind.
    """
    unknown = sorted(set(changes) - set(Settings.__struct_fields__))
    if unknown:
        msg = f"there is no setting {unknown[0]!r}; there are {list(Settings.__struct_fields__)}"
        raise UsageError(msg, setting=unknown[0])
    return msgspec.structs.replace(settings, **changes)


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value suits one of the hints above; a whole number suits a float."""
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(one, inner) for one in value)
    if get_origin(hint) is UnionType:
        return any(_fits(value, one) for one in get_args(hint))
    if get_origin(hint) is Callable:
        return callable(value)
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


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
