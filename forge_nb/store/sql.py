"""The store on a SQL database: writing by one thread, reading on any."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from forge_nb.errors import ForgeError, NotFoundError, StoreError, StoreLockedError, UsageError
from forge_nb.store import schema
from forge_nb.store.base import Lease, Page
from forge_nb.store.cursor import decode_cursor, encode_cursor
from forge_nb.store.rows import session_of_row, usage_of, with_parts
from forge_nb.store.transaction import Transaction
from forge_nb.store.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from forge_nb.clock import Clock
    from forge_nb.events import Committed, PromptState, SyncEvent, UsageRecord
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.store.base import StoredSession

__all__ = ["LEASE_DEAD_MS", "PAGE_MAX", "SqlStore"]

PAGE_MAX = 500
LEASE_DEAD_MS = 15_000  # a lease without a heartbeat for so long is taken over


class SqlStore:
    """Sessions of one tenant in a database; see `forge_nb.store.base.Store`.

    Parameters
    ----------
    engine
        Its write transactions begin IMMEDIATE, those with ``forge_readonly`` do not.
    url
        How people name the store.
    tenant
        Whose rows.
    clock
        Time of log entries.
    event_log
        ``slim``, ``full`` or ``off``.
    path
        The database file, for readers that open it themselves.
    on_close
        Called at the end of `close`.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        url: str,
        tenant: str,
        clock: Clock,
        event_log: str,
        path: str,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.url = url
        self.tenant = tenant
        self.path = path
        self.event_log = event_log
        self.engine = engine
        self._readers = engine.execution_options(forge_readonly=True)
        self._clock = clock
        self._writer = Writer(engine, self._translate)
        self._on_close = on_close
        self._is_closed = False
        self._pid = os.getpid()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        """Use the store in a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Finish what is queued and close; safe to call twice."""
        if self._is_closed or os.getpid() != self._pid:
            return  # a forked child leaves its parent's file alone
        self._is_closed = True
        atexit.unregister(self.close)
        self._writer.close()
        self.engine.dispose()
        self._on_close()

    def _translate(self, error: BaseException) -> BaseException:
        """Turn a database error into one of ours that names the store."""
        if isinstance(error, ForgeError):
            return error
        if isinstance(error, sa.exc.OperationalError) and "locked" in str(error.orig):
            msg = f"{self.url}: another program holds the database; close it and try again"
            return StoreLockedError(msg, path=self.url)
        if isinstance(error, sa.exc.SQLAlchemyError):
            cause = getattr(error, "orig", None) or error
            return StoreError(f"{self.url}: nothing was written: {cause}", path=self.url)
        if isinstance(error, UnicodeEncodeError):
            msg = f"{self.url}: nothing was written: a text holds half a character ({error})"
            return StoreError(msg, path=self.url)
        return error

    # ------------------------------------------------------------------------------ writing

    def apply(self, events: Iterable[SyncEvent]) -> Future[tuple[Committed, ...]]:
        """Append the events and project them, in one transaction; see `Store.apply`."""
        is_list = isinstance(events, Sequence)
        taken = tuple(events) if is_list else events  # the caller may go on changing a list
        now_ms = self._clock()  # here, so that a fixed clock gives the same times every run

        def work(connection: sa.Connection) -> tuple[Committed, ...]:
            transaction = Transaction(
                connection, self.tenant, now_ms=now_ms, event_log=self.event_log
            )
            return transaction.apply(taken)

        return self._writer.submit(work, alone=not is_list)

    def acquire_lease(self, session_id: str, owner: str, *, now_ms: int) -> Lease:
        """Take or renew a lease; returns the one that holds afterwards."""
        table = schema.lease

        def work(connection: sa.Connection) -> Lease:
            statement = insert(table).values(
                tenant_id=self.tenant, session_id=session_id, owner=owner, heartbeat_ms=now_ms
            )
            is_free = sa.or_(table.c.owner == owner, table.c.heartbeat_ms < now_ms - LEASE_DEAD_MS)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["tenant_id", "session_id"],
                    set_={"owner": owner, "heartbeat_ms": now_ms},
                    where=is_free,
                )
            )
            row = connection.execute(
                sa.select(table).where(*self._mine(table), table.c.session_id == session_id)
            ).one()
            return Lease(session_id=session_id, owner=row.owner, heartbeat_ms=row.heartbeat_ms)

        lease: Lease = self._writer.submit(work).result()
        return lease

    def release_lease(self, session_id: str, owner: str) -> None:
        """Give a lease back."""
        table = schema.lease
        where = (*self._mine(table), table.c.session_id == session_id, table.c.owner == owner)
        self._writer.submit(lambda c: c.execute(table.delete().where(*where)).rowcount).result()

    # ------------------------------------------------------------------------------ reading

    def _mine(self, table: sa.Table) -> tuple[sa.ColumnElement[bool]]:
        return (table.c.tenant_id == self.tenant,)

    def _rows(self, *statements: sa.Select[Any]) -> list[list[sa.Row[Any]]]:
        """Run statements inside one read transaction, so that they see one state."""
        try:
            with self._readers.connect() as connection, connection.begin():
                return [list(connection.execute(statement)) for statement in statements]
        except sa.exc.SQLAlchemyError as error:
            raise self._translate(error) from error

    def session(self, session_id: str) -> StoredSession:
        """Return a session row; raises NotFoundError."""
        table = schema.session
        [rows] = self._rows(sa.select(table).where(*self._mine(table), table.c.id == session_id))
        if not rows:
            msg = f"there is no session {session_id!r} in {self.url}; list them with sessions()"
            raise NotFoundError(msg, session_id=session_id)
        return session_of_row(rows[0])

    def sessions(self) -> list[StoredSession]:
        """Return all sessions, newest first."""
        table = schema.session
        order = (table.c.time_created.desc(), table.c.id)
        [rows] = self._rows(sa.select(table).where(*self._mine(table)).order_by(*order))
        return [session_of_row(row) for row in rows]

    def page(self, session_id: str, *, limit: int = 50, before: str | None = None) -> Page:
        """Return one page, newest first; see `Store.page`."""
        if not 1 <= limit <= PAGE_MAX:
            msg = f"a page has 1 to {PAGE_MAX} messages, not {limit}"
            raise UsageError(msg, limit=limit)
        table = schema.message
        where = [*self._mine(table), table.c.session_id == session_id]
        if before is not None:
            where.append(table.c.seq < decode_cursor(session_id, before))
        [rows] = self._rows(
            sa.select(table).where(*where).order_by(table.c.seq.desc()).limit(limit + 1)
        )
        if not rows and before is None:
            self.session(session_id)
        messages = self._with_parts(session_id, rows[:limit])
        more = len(rows) > limit
        cursor = encode_cursor(session_id, rows[limit - 1].seq) if more else None
        return Page(messages=tuple(messages), next_cursor=cursor)

    def _with_parts(self, session_id: str, rows: Sequence[sa.Row[Any]]) -> list[MessageWithParts]:
        table = schema.part
        [found] = self._rows(
            sa.select(table)
            .where(
                *self._mine(table),
                table.c.session_id == session_id,
                table.c.message_id.in_([row.id for row in rows]),
            )
            .order_by(table.c.seq)
        )
        return list(with_parts(rows, found))

    def messages(self, session_id: str, *, page_size: int = 50) -> Iterator[MessageWithParts]:
        """Yield messages newest first, page by page as they are taken."""
        cursor: str | None = None
        while True:
            page = self.page(session_id, limit=page_size, before=cursor)
            yield from page.messages
            cursor = page.next_cursor
            if cursor is None:
                return

    def message(self, session_id: str, message_id: str) -> MessageWithParts:
        """Return one message with its parts; raises NotFoundError."""
        table = schema.message
        where = (*self._mine(table), table.c.session_id == session_id, table.c.id == message_id)
        [rows] = self._rows(sa.select(table).where(*where))
        if not rows:
            msg = f"session {session_id!r} has no message {message_id!r}"
            raise NotFoundError(msg, session_id=session_id, message_id=message_id)
        return self._with_parts(session_id, rows)[0]

    def unfinished(self, session_id: str) -> list[MessageWithParts]:
        """Return the local answers that are not closed, oldest first."""
        table, part = schema.message, schema.part
        is_open = sa.or_(
            part.c.status.in_(("pending", "running")),
            sa.and_(
                part.c.type.in_(("text", "reasoning")),
                part.c.time_start.is_not(None),
                part.c.time_end.is_(None),
            ),
        )
        has_open = sa.exists().where(
            *self._mine(part),
            part.c.session_id == table.c.session_id,
            part.c.message_id == table.c.id,
            is_open,
        )
        where = (
            *self._mine(table),
            table.c.session_id == session_id,
            table.c.role == "assistant",
            table.c.origin_format.is_(None),
            sa.or_(table.c.time_completed.is_(None), has_open),
        )
        [rows] = self._rows(sa.select(table).where(*where).order_by(table.c.seq))
        return self._with_parts(session_id, rows) if rows else []

    def prompts(self, session_id: str, *states: PromptState) -> list[MessageWithParts]:
        """Return the local user messages in these states, oldest first."""
        table = schema.message
        where = (
            *self._mine(table),
            table.c.session_id == session_id,
            table.c.prompt_state.in_(states),
        )
        [rows] = self._rows(sa.select(table).where(*where).order_by(table.c.seq))
        return self._with_parts(session_id, rows) if rows else []

    def usage(self, session_id: str) -> list[UsageRecord]:
        """Return the session's usage records in the order in which they were written."""
        table = schema.usage
        where = (*self._mine(table), table.c.session_id == session_id)
        [rows] = self._rows(sa.select(table).where(*where).order_by(table.c.seq))
        return [usage_of(row) for row in rows]

    def imported_ids(self, session_id: str) -> frozenset[str]:
        """Return ids of the messages and parts of a session that were imported."""
        statements = [
            sa.select(table.c.id).where(
                *self._mine(table),
                table.c.session_id == session_id,
                table.c.origin_format.is_not(None),
            )
            for table in (schema.message, schema.part)
        ]
        return frozenset(row.id for rows in self._rows(*statements) for row in rows)

    def imported_info(self, session_id: str) -> dict[str, Any] | None:
        """Return an imported session's metadata as it came, when it was changed here since."""
        table = schema.session
        where = (*self._mine(table), table.c.id == session_id)
        [rows] = self._rows(sa.select(table.c.data_imported).where(*where))
        return rows[0].data_imported if rows else None

    def leases(self) -> list[Lease]:
        """Return all leases, dead ones included."""
        table = schema.lease
        [rows] = self._rows(sa.select(table).where(*self._mine(table)))
        return [
            Lease(session_id=row.session_id, owner=row.owner, heartbeat_ms=row.heartbeat_ms)
            for row in rows
        ]
