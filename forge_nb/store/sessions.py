"""A session's row inside a write transaction: its counter, its sums, and what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from forge_nb.errors import ConflictError
from forge_nb.store import schema

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ORIGIN", "SUMS", "SessionState"]

ORIGIN = ("origin_format", "origin_hash", "origin_id")
"""Columns that say where a row comes from."""

SUMS = (*schema.TYPED_TOKENS, "cost_usd", "cost_recorded_usd")
"""Columns of a session that are sums over its usage, copies in a fork left out."""

_table = schema.session


class SessionState:
    """What a transaction knows of one session.

    Parameters
    ----------
    tenant
        Whose session.
    session_id
        Which session; a new one until `load` finds it.
    """

    def __init__(self, tenant: str, session_id: str) -> None:
        self.id = session_id
        self.seq = 0
        self.rev = 0
        self.is_fresh = True
        """Whether all rows of the session are known, because it began in this transaction."""
        self.has_local_rows = False
        self._tenant = tenant
        self._origin: tuple[str | None, ...] = (None, None, None)
        self._sums: dict[str, Any] = dict.fromkeys(SUMS)
        self._must_add_up = False
        self._is_stored = False
        self._has_imported_data = False
        self._row: dict[str, Any] = {}

    @classmethod
    def load(cls, connection: sa.Connection, tenant: str, session_id: str) -> Self | None:
        """Return the state of a stored session, or None."""
        row = connection.execute(_LOAD, {"tenant": tenant, "session": session_id}).first()
        if row is None:
            return None
        state = cls(tenant, session_id)
        state.is_fresh = False
        state.seq = row.seq
        state.has_local_rows = bool(row.has_local_rows)
        state._origin = tuple(getattr(row, name) for name in ORIGIN)
        state._sums = {name: getattr(row, name) for name in SUMS}
        state._is_stored = True
        state._has_imported_data = row.has_imported_data
        return state

    def advance(self, rev: int) -> None:
        """Take the next number."""
        self.seq += 1
        self.rev = rev

    def update(self, connection: sa.Connection, values: dict[str, Any]) -> None:
        """Take over a session's new metadata.

        A local change of an imported session keeps what was imported; once that has happened, a
        newer import changes only what is kept.
        """
        is_known = self._is_stored or bool(self._row)
        is_local = values["origin_format"] is None
        if not is_known:
            self._row = dict(values)
            self._origin = tuple(values[name] for name in ORIGIN)
            self.has_local_rows = is_local
            return
        if is_local:
            self._change_here(connection, values)
        else:
            self._import_again(values)

    def _change_here(self, connection: sa.Connection, values: dict[str, Any]) -> None:
        self.has_local_rows = True
        if self._origin[0] is not None and not self._has_imported_data:
            self._row["data_imported"] = self._row.get("data") or self._stored_data(connection)
            self._has_imported_data = True
        self._row |= values | dict(zip(ORIGIN, self._origin, strict=True))

    def _import_again(self, values: dict[str, Any]) -> None:
        if self._origin[0] is None:
            msg = (
                f"session {self.id!r} was written here; an import cannot replace it. "
                "Import into another store"
            )
            raise ConflictError(msg, session_id=self.id)
        self._origin = tuple(values[name] for name in ORIGIN)
        if self._has_imported_data:
            self._row |= {name: values[name] for name in ORIGIN}
            self._row["data_imported"] = values["data"]
        else:
            self._row |= values

    def _stored_data(self, connection: sa.Connection) -> Any:
        query = sa.select(_table.c.data).where(*self._mine())
        return connection.execute(query).scalar_one()

    def bill(self, values: dict[str, Any], *, is_new: bool) -> None:
        """Add a usage record to the sums; unknown stays unknown.

        A changed record has its old part taken out by adding up all records again, because a
        difference cannot tell 0 from unknown.
        """
        if not is_new:
            self._must_add_up = True
            return
        if values["origin_id"] is not None:
            return  # a fork's copy: the call is counted where it was made
        for name in SUMS:
            if values[name] is not None:
                self._sums[name] = (self._sums[name] or 0) + values[name]

    def save(self, connection: sa.Connection) -> None:
        """Write the row."""
        if self._must_add_up:
            usage = schema.usage
            sums = sa.select(*(sa.func.sum(usage.c[name]).label(name) for name in SUMS)).where(
                usage.c.tenant_id == self._tenant,
                usage.c.session_id == self.id,
                usage.c.origin_id.is_(None),
            )
            self._sums = dict(connection.execute(sums).mappings().one())
        values = {
            **self._row,
            **self._sums,
            "seq": self.seq,
            "rev": self.rev,
            "has_local_rows": int(self.has_local_rows),
        }
        if self._is_stored:
            connection.execute(_table.update().where(*self._mine()), values)
        else:
            row = {"data_imported": None, **values, "tenant_id": self._tenant}
            connection.execute(_table.insert(), row)

    def remove(self, connection: sa.Connection) -> None:
        """Delete the row."""
        connection.execute(_table.delete().where(*self._mine()))

    def _mine(self) -> tuple[sa.ColumnElement[bool], ...]:
        return (_table.c.tenant_id == self._tenant, _table.c.id == self.id)


_LOAD = sa.select(
    _table.c.seq,
    _table.c.has_local_rows,
    *(_table.c[name] for name in (*ORIGIN, *SUMS)),
    _table.c.data_imported.is_not(None).label("has_imported_data"),
).where(_table.c.tenant_id == sa.bindparam("tenant"), _table.c.id == sa.bindparam("session"))
