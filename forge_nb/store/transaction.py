"""One write transaction: events in, rows and log entries out.

Numbers are given out here. A session's `seq` counts its events, a row keeps the number of the
event that made it; `rev` counts the tenant's events, and every changed row carries the number of
its last one. Rows wait in a buffer and are written many at a time; of a row that changes twice in
one transaction only the last form is written.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from forge_nb.errors import ConflictError, NotFoundError
from forge_nb.events import Committed, SessionRemoved
from forge_nb.projection import Upsert, entity_of, payload, project, session_of, state_of
from forge_nb.store import schema
from forge_nb.store.sessions import ORIGIN, SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge_nb.events import SyncEvent
    from forge_nb.projection import Delete

__all__ = ["Transaction", "upsert_into"]

_BUFFER_MAX = 500  # rows of one table that wait for one executemany
_TABLES = {"message": schema.message, "part": schema.part, "usage": schema.usage}
_OWNER = {"message": "role", "part": "message_id", "usage": "id"}
"""Column that an id keeps for good."""


class _Known(NamedTuple):
    """What a stored row keeps when it changes."""

    seq: int
    owner: str
    origin: tuple[str | None, ...] = (None, None, None)
    prompt_state: str | None = None


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
        self._sessions: dict[str, SessionState] = {}
        self._known: dict[tuple[str, str, str], _Known | None] = {}
        self._rows: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self._log: list[dict[str, Any]] = []

    def apply(self, events: Iterable[SyncEvent]) -> tuple[Committed, ...]:
        """Write the events' rows and log entries; return where each one stands."""
        committed = tuple(self._apply(event) for event in events)
        self._flush()
        for state in self._sessions.values():
            state.save(self._connection)
        update = upsert_into(schema.tenant)
        self._connection.execute(update, {"tenant_id": self._tenant, "rev": self._rev})
        return committed

    def _lock_rev(self) -> int:
        table = schema.tenant
        query = sa.select(table.c.rev).where(table.c.tenant_id == self._tenant).with_for_update()
        return self._connection.scalar(query) or 0

    def _apply(self, event: SyncEvent) -> Committed:
        session_id = session_of(event)
        change = project(event)
        state = self._session(session_id, change)
        self._rev += 1
        state.advance(self._rev)
        if isinstance(change, Upsert):
            self._upsert(change, state)
        else:
            self._delete(change)
        if not isinstance(event, SessionRemoved):
            self._note(event, state)
        return Committed(event=event, session_id=session_id, seq=state.seq, rev=self._rev)

    def _session(self, session_id: str, change: Upsert | Delete) -> SessionState:
        state = self._sessions.get(session_id)
        if state is None:
            state = SessionState.load(self._connection, self._tenant, session_id)
        if state is None and change.table == "session" and isinstance(change, Upsert):
            state = SessionState(self._tenant, session_id)
        if state is None:
            msg = f"there is no session {session_id!r}; write it before what belongs to it"
            raise NotFoundError(msg, session_id=session_id)
        self._sessions[session_id] = state
        return state

    # ------------------------------------------------------------------------------- changes

    def _upsert(self, change: Upsert, state: SessionState) -> None:
        if change.table == "session":
            state.update(self._connection, change.values)
            return
        if change.table == "part":
            self._need_message(change)
        values = change.values | {"tenant_id": self._tenant, "seq": state.seq, "rev": self._rev}
        known = self._find(change.table, change.session_id, change.id, state)
        if known is not None:
            self._keep(change, values, known)
        if change.table == "usage":
            state.bill(values, is_new=known is None)
        elif change.values["origin_format"] is None:
            state.has_local_rows = True
        key = (change.table, change.session_id, change.id)
        self._known[key] = _known_of(change.table, values)
        self._buffer(change.table, key[1:], values)

    def _keep(self, change: Upsert, values: dict[str, Any], known: _Known) -> None:
        """Let a row keep its place, its origin, and the state of its prompt."""
        values["seq"] = known.seq
        if known.owner != values[_OWNER[change.table]]:
            word = {"message": "role", "part": "message"}[change.table]
            msg = (
                f"{change.table} {change.id!r} is stored with {word} {known.owner!r}, so it cannot "
                f"have {word} {values[_OWNER[change.table]]!r}; give the new one another id"
            )
            raise ConflictError(msg, id=change.id, session_id=change.session_id)
        if change.table == "usage":
            return
        if values["origin_format"] is None:
            values |= zip(ORIGIN, known.origin, strict=True)
        elif known.origin[0] is None:
            msg = (
                f"{change.table} {change.id!r} was written here; an import cannot replace it. "
                "Import into another store"
            )
            raise ConflictError(msg, id=change.id, session_id=change.session_id)
        if change.table == "message" and values["prompt_state"] is None:
            values["prompt_state"] = known.prompt_state

    def _need_message(self, change: Upsert) -> None:
        message_id = change.values["message_id"]
        state = self._sessions[change.session_id]
        if self._find("message", change.session_id, message_id, state) is None:
            msg = (
                f"part {change.id!r} belongs to message {message_id!r}, which is not stored; "
                "write the message first"
            )
            raise NotFoundError(msg, session_id=change.session_id, message_id=message_id)

    def _find(self, table: str, session_id: str, key: str, state: SessionState) -> _Known | None:
        """Return what is known of a row, from this transaction or from the database."""
        place = (table, session_id, key)
        if place not in self._known:
            found = None if state.is_fresh else self._look_up(table, session_id, key)
            self._known[place] = found
        return self._known[place]

    def _look_up(self, table: str, session_id: str, key: str) -> _Known | None:
        row = self._connection.execute(
            _look_up_in(table), {"tenant": self._tenant, "session": session_id, "id": key}
        ).first()
        return None if row is None else _known_of(table, dict(row._mapping))  # noqa: SLF001  public

    def _delete(self, change: Delete) -> None:
        self._flush()
        self._known.clear()
        self._sessions[change.session_id].is_fresh = False  # what was known has to be looked up
        if change.table == "session":
            for name in _TABLES:
                self._remove(name, change.session_id)
            for table in (schema.event, schema.lease):
                self._connection.execute(table.delete().where(*self._mine(table, change)))
            self._sessions.pop(change.session_id).remove(self._connection)
            row = {"kind": "session", "session_id": change.session_id, "id": change.id}
            self._bury([row])
            return
        if change.table == "message":
            self._remove("part", change.session_id, schema.part.c.message_id == change.id)
        self._remove(change.table, change.session_id, _TABLES[change.table].c.id == change.id)

    def _mine(self, table: sa.Table, change: Delete) -> tuple[sa.ColumnElement[bool], ...]:
        return (table.c.tenant_id == self._tenant, table.c.session_id == change.session_id)

    def _remove(self, name: str, session_id: str, *where: sa.ColumnElement[bool]) -> None:
        """Delete rows of a session and leave a tombstone for each."""
        table = _TABLES[name]
        mine = (table.c.tenant_id == self._tenant, table.c.session_id == session_id, *where)
        ids = self._connection.scalars(sa.select(table.c.id).where(*mine)).all()
        self._connection.execute(table.delete().where(*mine))
        self._bury([{"kind": name, "session_id": session_id, "id": gone} for gone in ids])

    def _bury(self, gone: list[dict[str, Any]]) -> None:
        if gone:
            rows = [row | {"tenant_id": self._tenant, "rev": self._rev} for row in gone]
            self._connection.execute(upsert_into(schema.tombstone), rows)

    # ------------------------------------------------------------------------------- writing

    def _note(self, event: SyncEvent, state: SessionState) -> None:
        if self._event_log == "off":
            return
        self._log.append(
            {
                "tenant_id": self._tenant,
                "session_id": state.id,
                "seq": state.seq,
                "rev": self._rev,
                "type": type(event).__name__,
                "entity_id": entity_of(event),
                "state": state_of(event),
                "time_ms": self._now_ms,
                "data": payload(event) if self._event_log == "full" else None,
            }
        )

    def _buffer(self, table: str, key: tuple[str, ...], values: dict[str, Any]) -> None:
        rows = self._rows.setdefault(table, {})
        rows[key[0], key[1]] = values
        if len(rows) >= _BUFFER_MAX:
            self._flush()

    def _flush(self) -> None:
        for name, rows in self._rows.items():
            if rows:
                self._connection.execute(upsert_into(_TABLES[name]), list(rows.values()))
                rows.clear()
        if self._log:
            self._connection.execute(schema.event.insert(), self._log)
            self._log.clear()


def _known_of(table: str, values: dict[str, Any]) -> _Known:
    if table == "usage":
        return _Known(values["seq"], values["id"])
    origin = tuple(values[name] for name in ORIGIN)
    return _Known(values["seq"], values[_OWNER[table]], origin, values.get("prompt_state"))


@cache
def _look_up_in(name: str) -> sa.Select[Any]:
    table = _TABLES[name]
    columns = ["seq", _OWNER[name]]
    columns += [] if name == "usage" else ORIGIN
    columns += ["prompt_state"] if name == "message" else []
    return sa.select(*(table.c[column] for column in columns)).where(
        table.c.tenant_id == sa.bindparam("tenant"),
        table.c.session_id == sa.bindparam("session"),
        table.c.id == sa.bindparam("id"),
    )


@cache
def upsert_into(table: sa.Table) -> sqlite.Insert:
    """Return the statement that writes whole rows of a table, new or known."""
    keys = [column.name for column in table.primary_key]
    statement = sqlite.insert(table)
    update = {
        name: statement.excluded[name]
        for name in (column.name for column in table.c)
        if name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=update)
