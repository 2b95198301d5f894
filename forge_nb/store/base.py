"""What a store promises; `tests/contracts/store_contract.py` is the proof for every backend.

One write entry, `apply`: the events of one call and the rows that follow from them are one
transaction. Reading is synchronous and opens a connection of the calling thread's own. Order is
`seq`, an integer per session that messages, parts and log entries share; `rev` is one counter per
tenant that every changed row carries, so that a reader can ask for what is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from forge_nb.events import Origin
from forge_nb.messages.message import MessageWithParts, SessionInfo
from forge_nb.messages.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from forge_nb.events import Committed, PromptState, SyncEvent, UsageRecord

__all__ = ["Lease", "Page", "Store", "StoredSession"]


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session row."""

    info: SessionInfo
    origin: Origin
    seq: int
    """Last sequence number given out in this session."""
    rev: int
    tokens: TokenUsage
    """Sum over the session's usage records."""
    cost_usd: float | None
    """Sum of our best costs; None when no call has a known price."""
    has_local_rows: bool
    """Whether anything was written here: an imported session that was continued, or our own."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a session, newest message first."""

    messages: tuple[MessageWithParts, ...]
    next_cursor: str | None
    """Opaque; pass it as `before` to read the next older page. None on the last page."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs a session."""

    session_id: str
    owner: str
    """Names the process: host, pid, and a random word."""
    heartbeat_ms: int


class Store(Protocol):
    """Durable sessions, messages, parts, usage and the event log of one tenant."""

    url: str
    tenant: str
    path: str
    """The database file, for readers that open it themselves."""

    def apply(self, events: Iterable[SyncEvent]) -> Future[tuple[Committed, ...]]:
        """Append the events and project them into rows, in one transaction.

        Parameters
        ----------
        events
            In order. A generator is consumed on the writer's thread inside the transaction, so
            that an import streams; when it raises, nothing is written.

        Returns
        -------
        Future
            Done after the commit. Holds one `Committed` per event.
        """
        ...

    def session(self, session_id: str) -> StoredSession:
        """Return a session row; raises NotFoundError."""
        ...

    def sessions(self) -> list[StoredSession]:
        """Return all session rows, newest first by creation time, then id."""
        ...

    def page(self, session_id: str, *, limit: int = 50, before: str | None = None) -> Page:
        """Return up to `limit` messages with their parts, newest first.

        Raises
        ------
        CursorError
            When `before` is not a cursor of this session.
        UsageError
            When `limit` is not between 1 and 500.
        """
        ...

    def messages(self, session_id: str, *, page_size: int = 50) -> Iterator[MessageWithParts]:
        """Yield the session's messages newest first, reading page by page as they are taken."""
        ...

    def message(self, session_id: str, message_id: str) -> MessageWithParts:
        """Return one message with its parts; raises NotFoundError."""
        ...

    def unfinished(self, session_id: str) -> list[MessageWithParts]:
        """Return the answers written here that are not closed, oldest first.

        An answer without a time of completion, or with a part that is still open.
        """
        ...

    def prompts(self, session_id: str, *states: PromptState) -> list[MessageWithParts]:
        """Return the local user messages in these states, oldest first."""
        ...

    def usage(self, session_id: str) -> list[UsageRecord]:
        """Return the session's usage records in the order in which they were written."""
        ...

    def imported_ids(self, session_id: str) -> frozenset[str]:
        """Return ids of the messages and parts of a session that were imported."""
        ...

    def imported_info(self, session_id: str) -> dict[str, Any] | None:
        """Return an imported session's metadata as it came, when it was changed here since."""
        ...

    def acquire_lease(self, session_id: str, owner: str, *, now_ms: int) -> Lease:
        """Take or renew the lease; returns the lease that holds afterwards, perhaps another's.

        A lease whose heartbeat is older than 15 seconds is dead and is taken over.
        """
        ...

    def release_lease(self, session_id: str, owner: str) -> None:
        """Give the lease back; does nothing when somebody else holds it."""
        ...

    def leases(self) -> list[Lease]:
        """Return all leases, dead ones included."""
        ...

    def close(self) -> None:
        """Finish what is queued and close; safe to call twice."""
        ...

    def __enter__(self) -> Self:
        """Use the store in a with block."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...
