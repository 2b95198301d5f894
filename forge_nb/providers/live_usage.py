"""From a provider's usage report to five disjoint kinds of tokens, the unreported ones None.

Providers count inclusively: input with cache traffic, output with reasoning. pydantic-ai adds them
up for every protocol alike but writes 0 where nothing was said; whether something was said is
read from the report itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_nb.messages.usage import NO_TOKENS, CacheTokens, TokenUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.usage import RequestUsage

__all__ = ["to_token_usage"]

_READ = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
    ("cache_read_input_tokens",),
)
_WRITE = (
    ("prompt_tokens_details", "cache_write_tokens"),
    ("input_tokens_details", "cache_write_tokens"),
    ("cache_creation_input_tokens",),
)
_REASONING = (
    ("completion_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
    ("output_tokens_details", "thinking_tokens"),
)


def to_token_usage(used: RequestUsage, reports: Sequence[Any]) -> TokenUsage:
    """Return what a call used.

    Parameters
    ----------
    used
        pydantic-ai's sums.
    reports
        The usage objects of the wire, oldest first.
    """
    if used.unmeasured_requests or not (used.input_tokens or used.output_tokens):
        return NO_TOKENS
    read, write = used.cache_read_tokens, used.cache_write_tokens
    reasoning = used.output_reasoning_tokens
    return TokenUsage(
        input=max(used.input_tokens - read - write, 0),
        output=max(used.output_tokens - reasoning, 0),
        reasoning=_said(reasoning, reports, _REASONING),
        cache=CacheTokens(read=_said(read, reports, _READ), write=_said(write, reports, _WRITE)),
        total=_total(reports),
    )


def _said(count: int, reports: Sequence[Any], paths: Sequence[tuple[str, ...]]) -> int | None:
    """Return a count; None for a 0 that nobody reported."""
    if count or any(_at(report, path) is not None for report in reports for path in paths):
        return count
    return None


def _total(reports: Sequence[Any]) -> int | None:
    """Return the provider's own total, of the last report that has one."""
    totals = [_at(report, ("total_tokens",)) for report in reports]
    return next((total for total in reversed(totals) if isinstance(total, int)), None)


def _at(report: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        report = getattr(report, name, None)
    return report
