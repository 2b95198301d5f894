"""What the server for tests answers, apart from any protocol, or word for word as recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import Event
    from collections.abc import Mapping

__all__ = [
    "Answer",
    "Call",
    "Delivery",
    "Failure",
    "Raw",
    "Refusal",
    "Thought",
    "Used",
    "Words",
    "recorded",
]


@dataclass(frozen=True)
class Words:
    """A text block, one delta for each piece."""

    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Thought:
    """A reasoning block."""

    pieces: tuple[str, ...]
    signature: str = "SIG=="
    """Anthropic's signature; the encrypted content of a Responses item."""


@dataclass(frozen=True)
class Call:
    """A tool call; the pieces make up the JSON of its input."""

    id: str
    tool: str
    pieces: tuple[str, ...] = ("{}",)


@dataclass(frozen=True, kw_only=True)
class Used:
    """Tokens in five disjoint kinds."""

    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error that arrives inside a stream."""

    message: str
    kind: str = "server_error"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How an answer travels; a chunk is one server-sent event."""

    wait_s: float = 0.0
    """Before the status line."""
    delay_s: float = 0.0
    """Before each chunk."""
    drop_after: int | None = None
    """Cut the connection after this many chunks."""
    hang_after: int | None = None
    """Send no more after this many chunks, and keep the connection until the client hangs up."""
    holds: tuple[tuple[int, Event], ...] = ()
    """Wait after so many chunks until the event is set."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer(Delivery):
    """A stream in the protocol of the request."""

    blocks: tuple[Words | Thought | Call, ...] = ()
    finish: str | None = "stop"
    """stop, length, tool-calls, content-filter; None: the stream just ends."""
    used: Used | None = field(default_factory=lambda: Used(input=100, output=10))
    """None: the provider does not say."""
    is_interleaved: bool = False
    """Whether the blocks' deltas come in turn, all blocks open at once."""
    failure: Failure | None = None
    """Sent in place of the end."""


@dataclass(frozen=True, kw_only=True)
class Raw(Delivery):
    """Chunks word for word: each is what goes over the wire, blank line included."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Refusal(Delivery):
    """An answer with an error status and a body."""

    status: int
    body: Any = None
    """Text as it is; anything else as JSON."""


Reply = Answer | Raw | Refusal


def recorded(reply: Mapping[str, Any]) -> Raw | Refusal:
    """Return a reply as `calls.jsonl` of the recorded cases describes it."""
    if reply["kind"] == "error":
        return Refusal(
            status=int(reply["status"]),
            body=reply.get("body"),
            headers={name: str(value) for name, value in (reply.get("headers") or {}).items()},
        )
    write = _named if reply["kind"] == "anthropic" else _unnamed
    chunks = [write(chunk) for chunk in reply["chunks"]]
    if reply["kind"] == "openai":
        chunks.append("data: [DONE]\n\n")
    return Raw(
        chunks=tuple(chunks),
        delay_s=float(reply.get("delay", 0.0)),
        drop_after=reply.get("drop_after"),
        hang_after=reply.get("hang_after"),
    )


def _named(chunk: Any) -> str:
    if isinstance(chunk, str):
        return chunk
    name, data = chunk
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _unnamed(chunk: Any) -> str:
    return chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n"
