"""From what a provider's library raises to a `StreamError` event.

The class of the error and its HTTP status decide what kind it is. Words of the body are read for
one question only: whether the request was too long, which many servers say in no other way.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from forge_nb.messages.stream import StreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge_nb.messages.stream import ErrorKind

__all__ = ["to_stream_error"]

BODY_CHARS = 4_096
_SECRET_HEADERS = re.compile(r"auth|cookie|token|secret|api-?key", re.IGNORECASE)
_TOKENS_LEFT = re.compile(r"ratelimit", re.IGNORECASE)  # such headers speak of tokens, openly
_TOO_LARGE = 413  # "content too large": the one size that is sent is the prompt's
_STATUS_KINDS: Mapping[int, ErrorKind] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not-found",
    408: "timeout",
    429: "rate-limit",
    503: "overloaded",
    529: "overloaded",
}
_STATUS_CLASSES: Mapping[int, ErrorKind] = {4: "rejected", 5: "server"}
_OVERFLOW_STATUSES = frozenset({400, 422})
_OVERFLOW = re.compile(
    r"context[ _]?(?:length|window|size)"
    r"|(?:prompt|input|request) is too (?:long|large)"
    r"|input token count"
    r"|maximum prompt length"
    r"|reduce the length"
    r"|too many (?:input )?tokens"
    r"|exceeded? (?:the )?model(?:'s)? (?:maximum )?(?:token|context) limit",
    re.IGNORECASE,
)


def to_stream_error(error: Exception) -> StreamError:
    """Return the event for something that was raised while a call was made or read."""
    status = getattr(error, "status_code", None)
    headers = getattr(error, "headers", None)
    return StreamError(
        message=_message(error),
        kind=_kind(error, status),
        status=status,
        retry_after_s=getattr(error, "retry_after", None),
        headers=None if headers is None else _public(headers),
        body=_body(_whole(error) or getattr(error, "body", None)),
    )


def _whole(error: BaseException) -> str | None:
    """Return the answer of a failed call word for word, where the SDK still has it."""
    response = getattr(error.__cause__, "response", None)
    try:
        text = getattr(response, "text", None)
    except RuntimeError:  # httpx: the answer was streamed, and nothing of it is kept
        return None
    return text if isinstance(text, str) and text else None


def _kind(error: Exception, status: int | None) -> ErrorKind:
    from pydantic_ai import exceptions as raised

    by_class: tuple[tuple[type[Exception], ErrorKind], ...] = (
        (raised.ModelContextWindowExceededError, "overflow"),
        (raised.ModelRateLimitError, "rate-limit"),
        (raised.ModelQuotaExceededError, "quota"),
        (raised.ModelAuthenticationError, "auth"),
        (raised.ModelNotFoundError, "not-found"),
        (raised.ModelUnavailableError, "overloaded"),
        (raised.ModelTimeoutError, "timeout"),
        (raised.ModelRequestTimeout, "timeout"),
        (raised.ModelConnectionError, "connection"),
    )
    if status == _TOO_LARGE or (status in _OVERFLOW_STATUSES and _OVERFLOW.search(_words(error))):
        return "overflow"
    for kind_of_error, kind in by_class:
        if isinstance(error, kind_of_error):
            return kind
    if status is not None:
        return _of_status(status)
    if isinstance(error, raised.ModelServerError):
        return "server"
    if isinstance(error, raised.ModelRequestRejectedError):
        return "overflow" if _OVERFLOW.search(_words(error)) else "rejected"
    if isinstance(error, raised.ContentFilterError | raised.UserError):
        return "rejected"
    return "api" if isinstance(error, raised.AgentRunError) else "unknown"


def _of_status(status: int) -> ErrorKind:
    known = _STATUS_KINDS.get(status)
    if known is not None:
        return known
    return _STATUS_CLASSES.get(status // 100, "api")


def _words(error: Exception) -> str:
    return f"{_body(getattr(error, 'body', None)) or ''} {error}"


def _message(error: Exception) -> str:
    """Return what the provider said, in its own words where the body has them."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else inner
    if isinstance(said, str) and said:
        return said[:BODY_CHARS]
    text = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
    return str(text)[:BODY_CHARS]


def _body(body: Any) -> str | None:
    """Return a body's text, cut."""
    if body is None:
        return None
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace")[:BODY_CHARS].decode("utf-8", "ignore")


def _public(headers: Mapping[str, str]) -> dict[str, str]:
    """Leave out what may hold a secret: cookies, keys, authorization."""
    return {
        name: value
        for name, value in headers.items()
        if _TOKENS_LEFT.search(name) or not _SECRET_HEADERS.search(name)
    }
