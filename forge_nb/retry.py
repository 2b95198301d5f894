"""What a failed call means, whether it is tried again, and how long to wait first: pure.

The class of the failure and its status decide, never words in the body: what may go away by itself
is tried again, what cannot is not. A provider that says how long to wait is obeyed as long as that
fits the cap on all waits of the call.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from forge_nb.errors import ContextOverflowError, ProviderError, ProviderHTTPError
from forge_nb.messages.message import ErrorData, MessageError
from forge_nb.messages.stream import RETRYABLE_KINDS, StreamError
from forge_nb.messages.wire import ERROR_API, ERROR_AUTH, ERROR_OVERFLOW, ERROR_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge_nb.settings import Settings

__all__ = ["asked_wait_s", "failure_of", "is_retryable", "message_error", "retry_wait_s"]

_SERVER_ERRORS = 500  # HTTP statuses from here on are the server's own trouble
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_LASTING_STATUSES = frozenset({501, 505})  # not implemented, version not supported
_NO_STATUS_NEEDED = frozenset({"connection", "timeout", "truncated"})


def is_retryable(error: StreamError) -> bool:
    """Return whether a failure may go away by itself: by its status first, then by its kind.

    Examples
    --------
    >>> from forge_nb.messages.stream import StreamError
    >>> is_retryable(StreamError(message="slow down", kind="rate-limit", status=429))
    True
    >>> is_retryable(StreamError(message="try again later", kind="rejected", status=400))
    False
    """
    if error.kind in {"overflow", "quota", "auth"}:
        return False
    if error.status is None or error.kind in _NO_STATUS_NEEDED:
        return error.kind in RETRYABLE_KINDS
    if error.status in _PASSING_STATUSES:
        return True
    return error.status >= _SERVER_ERRORS and error.status not in _LASTING_STATUSES


def asked_wait_s(error: StreamError, *, now_ms: int) -> float | None:
    """Return how long the provider asks to wait, in seconds; None when it says nothing.

    The headers ``retry-after-ms`` (milliseconds) and ``retry-after`` (seconds or an HTTP date), in
    this order, else what the provider's adapter has read.

    Examples
    --------
    >>> from forge_nb.messages.stream import StreamError
    >>> asked_wait_s(StreamError(message="", headers={"Retry-After-Ms": "1500"}), now_ms=0)
    1.5
    """
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    milliseconds = _number(headers, "retry-after-ms")
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = _number(headers, "retry-after")
    if seconds is None:
        seconds = _until(headers.get("retry-after"), now_ms)
    if seconds is None:
        seconds = error.retry_after_s
    return None if seconds is None or not 0 <= seconds < float("inf") else seconds


def _number(headers: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(headers[name])
    except (KeyError, ValueError):
        return None
    return value if 0 <= value < float("inf") else None


def _until(date: str | None, now_ms: int) -> float | None:
    if date is None:
        return None
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now_ms / 1000)


def retry_wait_s(
    error: StreamError,
    settings: Settings,
    *,
    attempt: int,
    waited_s: float,
    jitter: float,
    now_ms: int,
) -> float | None:
    """Return the wait before the next attempt in seconds, or None when there is none.

    Without a wish of the provider: ``retry_base_s · 2^(attempt-1)``, plus up to
    ``retry_jitter`` of it at random, at most ``retry_max_s`` (opencode 1.18: 2 s, 25 %, 30 s).

    Parameters
    ----------
    error
        Why the attempt failed.
    settings
        The caps.
    attempt
        Which attempt failed, from 1.
    waited_s
        Waits of this call so far, together.
    jitter
        A random number from 0 to 1.
    now_ms
        Milliseconds UTC, for a wish that is a date.
    """
    if attempt > settings.retries or not is_retryable(error):
        return None
    wait = asked_wait_s(error, now_ms=now_ms)
    if wait is None:
        wait = settings.retry_base_s * 2 ** min(attempt - 1, 30)
        wait = min(wait * (1 + settings.retry_jitter * jitter), settings.retry_max_s)
    return None if waited_s + wait > settings.retry_total_s else wait


def message_error(failure: StreamError) -> MessageError:
    """Return the error that the failed message is stored with."""
    names = {"overflow": ERROR_OVERFLOW, "unknown": ERROR_UNKNOWN}
    if failure.kind == "auth" and failure.status is None:
        names["auth"] = ERROR_AUTH  # no key at all; a key that was refused is the API's answer
    data = ErrorData(
        message=failure.message,
        status_code=failure.status,
        is_retryable=is_retryable(failure),
        response_headers=None if failure.headers is None else dict(failure.headers),
        response_body=failure.body,
    )
    return MessageError(name=names.get(failure.kind, ERROR_API), data=data)


def failure_of(error: Exception) -> StreamError:
    """Return what a provider raised as the failure that it should have reported."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, ContextOverflowError):
        return StreamError(message=message, kind="overflow")
    if isinstance(error, ProviderHTTPError):
        fields = error.fields
        status, wait_s = fields.get("status"), fields.get("retry_after_s")
        return StreamError(message=message, kind="api", status=status, retry_after_s=wait_s)
    if isinstance(error, ProviderError):
        return StreamError(message=message, kind="api")
    return StreamError(message=message, kind="unknown")
