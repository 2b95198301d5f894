"""One write transaction: events in, rows and log entries out.

Numbers are given out here. A session's `seq` counts its events, a row keeps the number of the
event that made it; `rev` counts the tenant's changes, and every changed row carries the number of
its last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from forge_nb.errors import ConflictError, NotFoundError
from forge_nb.events import Committed, MessageUpdated, PartUpdated, SessionUpdated, UsageRecorded
from forge_nb.projection import Upsert, entity_of, project, session_of, state_of
from forge_nb.store import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge_nb.events import SyncEvent
    from forge_nb.projection import Delete

__all__ = ["Transaction"]

_TABLES = {
    "session": schema.session,
    "message": schema.message,
    "part": schema.part,
    "usage": schema.usage,
}


class _Counter:
    """A session's state inside the transaction."""

    __slots__ = ("has_local_rows", "is_imported", "seq", "usage_changed")

    def __init__(self, *, seq: int, is_imported: bool, has_local_rows: bool) -> None:
        self.seq = seq
        self.is_imported = is_imported
        self.has_local_rows = has_local_rows
        self.usage_changed = False


class Transaction:
    """Applies events on a connection that is inside a write transaction.

    Parameters
    ----------
    connection
        Its transaction began IMMEDIATE.
    tenant
        Whose rows.
    now_ms
        Time of the log entries, milliseconds UTC.
    event_log
        ``slim`` without payloads, ``full`` with them, ``off`` for no log.
    """

    def __init__(
        self, connection: sa.Connection, tenant: str, *, now_ms: int, event_log: str
    ) -> None:
        self._connection = connection
        self._tenant = tenant
        self._now_ms = now_ms
        self._event_log = event_log
        self._rev = self._lock_rev()
        self._sessions: dict[str, _Counter] = {}
        self._messages: set[tuple[str, str]] = set()
        self._log: list[dict[str, Any]] = []

    def apply(self, events: Iterable[SyncEvent]) -> tuple[Committed, ...]:
        """Write the events' rows and log entries; return where each one stands."""
        committed = tuple(self._apply(event) for event in events)
        self._finish()
        return committed

    def _lock_rev(self) -> int:
        table = schema.tenant
        found = self._connection.scalar(
            sa.select(table.c.rev).where(table.c.tenant_id == self._tenant)
        )
        if found is None:
            self._connection.execute(table.insert(), {"tenant_id": self._tenant, "rev": 0})
        return found or 0

    def _apply(self, event: SyncEvent) -> Committed:
        session_id = session_of(event)
        counter = self._counter(session_id, event)
        counter.seq += 1
        self._rev += 1
        change = project(event)
        if isinstance(change, Upsert):
            self._upsert(event, change, counter)
        else:
            self._delete(session_id, change)
        self._note(event, session_id, counter.seq, change)
        return Committed(event=event, session_id=session_id, seq=counter.seq, rev=self._rev)

    def _counter(self, session_id: str, event: SyncEvent) -> _Counter:
        known = self._sessions.get(session_id)
        if known is not None:
            return known
        table = schema.session
        row = self._connection.execute(
            sa.select(table.c.seq, table.c.origin_format, table.c.has_local_rows).where(
                table.c.tenant_id == self._tenant, table.c.id == session_id
            )
        ).first()
        if row is not None:
            known = _Counter(
                seq=row.seq,
                is_imported=row.origin_format is not None,
                has_local_rows=bool(row.has_local_rows),
            )
        elif isinstance(event, SessionUpdated):
            is_imported = event.origin.format is not None
            known = _Counter(seq=0, is_imported=is_imported, has_local_rows=not is_imported)
        else:
            msg = f"there is no session {session_id!r}; create it first"
            raise NotFoundError(msg, session_id=session_id)
        self._sessions[session_id] = known
        return known

    def _upsert(self, event: SyncEvent, change: Upsert, counter: _Counter) -> None:
        values = change.values | {"tenant_id": self._tenant, "rev": self._rev, "seq": counter.seq}
        match event:
            case SessionUpdated():
                self._write_session(event, values, counter)
                return
            case PartUpdated():
                self._need_message(event)
            case UsageRecorded():
                counter.usage_changed = True
            case _:
                pass
        origin = getattr(event, "origin", None)
        if origin is not None and origin.format is None:
            counter.has_local_rows = True
        self._write(change.table, values)
        if isinstance(event, MessageUpdated):
            self._messages.add((event.message.session_id, event.message.id))

    def _write_session(
        self, event: SessionUpdated, values: dict[str, Any], counter: _Counter
    ) -> None:
        """Write the row; a local change of an imported session keeps what was imported."""
        table = schema.session
        is_local_change = counter.is_imported and event.origin.format is None
        values |= {"has_local_rows": int(counter.has_local_rows or is_local_change)}
        counter.has_local_rows = bool(values["has_local_rows"])
        statement = insert(table).values(values)
        kept = {"tenant_id", "id"}
        if is_local_change:
            kept |= {"origin_format", "origin_hash", "origin_id"}
        update: dict[str, Any] = {
            name: statement.excluded[name] for name in values if name not in kept
        }
        if is_local_change:
            update["data_imported"] = sa.func.coalesce(table.c.data_imported, table.c.data)
        self._connection.execute(
            statement.on_conflict_do_update(
                index_elements=[table.c.tenant_id, table.c.id], set_=update
            )
        )

    def _need_message(self, event: PartUpdated) -> None:
        key = (event.part.session_id, event.part.message_id)
        if key in self._messages:
            return
        table = schema.message
        found = self._connection.scalar(
            sa.select(table.c.id).where(
                table.c.tenant_id == self._tenant,
                table.c.session_id == key[0],
                table.c.id == key[1],
            )
        )
        if found is None:
            msg = f"part {event.part.id!r} belongs to message {key[1]!r}, which is not stored"
            raise NotFoundError(msg, session_id=key[0], message_id=key[1])
        self._messages.add(key)

    def _write(self, name: str, values: dict[str, Any]) -> None:
        table = _TABLES[name]
        result = self._connection.execute(_upsert_of(name), values)
        if result.rowcount == 0:
            msg = (
                f"{name} {values['id']!r} is stored already as something else "
                f"in session {values['session_id']!r}; ids must not be used twice"
            )
            raise ConflictError(msg, table=table.name, id=values["id"])

    def _delete(self, session_id: str, change: Delete) -> None:
        if change.table == "session":
            for name in ("part", "message", "usage"):
                self._remove(name, session_id)
            session = schema.session
            self._connection.execute(
                session.delete().where(
                    session.c.tenant_id == self._tenant, session.c.id == session_id
                )
            )
            self._bury("session", session_id, session_id)
            self._sessions.pop(session_id, None)
            return
        if change.table == "message":
            self._remove("part", session_id, schema.part.c.message_id == change.id)
            self._messages.discard((session_id, change.id))
        self._remove(change.table, session_id, _TABLES[change.table].c.id == change.id)

    def _remove(self, name: str, session_id: str, *where: sa.ColumnElement[bool]) -> None:
        """Delete rows of a session and leave a tombstone for each."""
        table = _TABLES[name]
        mine = (table.c.tenant_id == self._tenant, table.c.session_id == session_id, *where)
        ids = self._connection.scalars(sa.select(table.c.id).where(*mine)).all()
        self._connection.execute(table.delete().where(*mine))
        for gone in ids:
            self._bury(name, session_id, gone)

    def _bury(self, kind: str, session_id: str, gone: str) -> None:
        statement = insert(schema.tombstone).values(
            tenant_id=self._tenant, kind=kind, session_id=session_id, id=gone, rev=self._rev
        )
        self._connection.execute(
            statement.on_conflict_do_update(
                index_elements=["tenant_id", "kind", "session_id", "id"],
                set_={"rev": self._rev},
            )
        )

    def _note(self, event: SyncEvent, session_id: str, seq: int, change: Upsert | Delete) -> None:
        if self._event_log == "off":
            return
        payload = change.values.get("data") if isinstance(change, Upsert) else None
        self._log.append(
            {
                "tenant_id": self._tenant,
                "session_id": session_id,
                "seq": seq,
                "rev": self._rev,
                "type": type(event).__name__,
                "entity_id": entity_of(event),
                "state": state_of(event),
                "time_ms": self._now_ms,
                "data": payload if self._event_log == "full" else None,
            }
        )

    def _finish(self) -> None:
        """Write the log, the counters, and the sums of sessions whose usage changed."""
        if self._log:
            self._connection.execute(schema.event.insert(), self._log)
        for session_id, counter in self._sessions.items():
            self._close_session(session_id, counter)
        table = schema.tenant
        self._connection.execute(
            table.update().where(table.c.tenant_id == self._tenant).values(rev=self._rev)
        )

    def _close_session(self, session_id: str, counter: _Counter) -> None:
        table, usage = schema.session, schema.usage
        values: dict[str, Any] = {
            "seq": counter.seq,
            "rev": self._rev,
            "has_local_rows": int(counter.has_local_rows),
        }
        if counter.usage_changed:
            mine = (usage.c.tenant_id == self._tenant, usage.c.session_id == session_id)
            for name in (*schema.TYPED_TOKENS, "cost_usd", "cost_recorded_usd"):
                total = sa.select(sa.func.sum(usage.c[name])).where(*mine)
                values[name] = total.scalar_subquery()
        self._connection.execute(
            table.update()
            .where(table.c.tenant_id == self._tenant, table.c.id == session_id)
            .values(values)
        )


_UPSERTS: dict[str, Any] = {}


def _upsert_of(name: str) -> Any:
    """Return the table's upsert: a row keeps its place, and never becomes something else."""
    if name not in _UPSERTS:
        table = _TABLES[name]
        statement = insert(table)
        keys = [column.name for column in table.primary_key]
        update: dict[str, Any] = {
            column.name: statement.excluded[column.name]
            for column in table.columns
            if column.name not in {*keys, "seq"}
        }
        for column in ("origin_format", "origin_hash", "origin_id") if name != "usage" else ():
            update[column] = sa.func.coalesce(statement.excluded[column], table.c[column])
        same: sa.ColumnElement[bool] | None = None
        if name == "message":
            state = statement.excluded.prompt_state
            update["prompt_state"] = sa.func.coalesce(state, table.c.prompt_state)
            same = table.c.role == statement.excluded.role
        elif name == "part":
            same = table.c.message_id == statement.excluded.message_id
        _UPSERTS[name] = statement.on_conflict_do_update(
            index_elements=keys, set_=update, where=same
        )
    return _UPSERTS[name]
