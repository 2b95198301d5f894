"""An in-memory DuckDB copy of a store's rows, brought up to date by `rev`.

Rows come through Arrow, never with their JSON. All tables of one refresh are read inside one read
transaction, so that they show one state; a writer in another process is never blocked.

The file is read with the same SQLite library that writes it, never with a driver that brings a
SQLite of its own (DuckDB's scanner, ADBC): two copies in one process do not know of each other's
locks, and closing a file in one drops the locks of the other. Measured: crashes within seconds of
reading beside a writer (`tests/test_analysis.py`).
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_nb.analysis.views import VIEWS
from forge_nb.errors import StoreError
from forge_nb.store import schema

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import sqlalchemy as sa

    from forge_nb.store.base import Store

__all__ = ["Mirror"]

_TABLES = (schema.session, schema.message, schema.part, schema.usage)

_SHUT = """
SET GLOBAL TimeZone = 'UTC';
SET GLOBAL python_enable_replacements = false;
SET GLOBAL temp_directory = '';
SET GLOBAL enable_external_access = false;
SET GLOBAL lock_configuration = true;
"""
"""GLOBAL, because a cursor has settings of its own. Without a temporary folder a query that needs
more memory than there is fails; with one it would leave the rows in files."""

_SUMMARY_TEXT = """
SELECT p.session_id, p.message_id,
    CAST(max(trim(json_extract(p.data, '$.text'), ' ' || char(9, 10, 11, 12, 13)) <> '') AS INT)
FROM part p JOIN message m
    ON m.tenant_id = p.tenant_id AND m.session_id = p.session_id AND m.id = p.message_id
WHERE p.tenant_id = ? AND m.is_summary = 1 AND p.type = 'text'
GROUP BY p.session_id, p.message_id
"""


class Mirror:
    """A store's rows in DuckDB.

    Parameters
    ----------
    store
        Which store; its file is opened read-only for each refresh.
    """

    def __init__(self, store: Store) -> None:
        import duckdb

        self._path = store.path
        self._tenant = store.tenant
        self._rev = -1
        self._refreshing = threading.Lock()
        self._connection = duckdb.connect()
        self._setup()
        self.refresh()

    def _setup(self) -> None:
        """Make the tables and views, then shut the database off from files and network."""
        run = self._connection.execute
        for table in _TABLES:
            columns = ", ".join(f"{column.name} {_type(column)}" for column in _columns(table))
            run(f"CREATE TABLE {table.name}_row ({columns})")
        run("CREATE TABLE summary_text (session_id VARCHAR, message_id VARCHAR, has_text BOOLEAN)")
        for view in VIEWS:
            run(view)
        run(_SHUT)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection to the same tables for one query."""
        return self._connection.cursor()

    def refresh(self) -> int:
        """Take over what has changed; returns the number of rows.

        Raises
        ------
        StoreError
            When the store's file cannot be read.
        """
        with self._refreshing:
            try:
                return self._refresh()
            except sqlite3.Error as error:
                msg = f"{self._path!r} cannot be read: {error}; is the store still there and free?"
                raise StoreError(msg, path=self._path) from error

    def _refresh(self) -> int:
        uri = f"{Path(self._path).absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as source:
            source.execute("BEGIN")
            newest = self._newest(source)
            if newest == self._rev:
                return 0
            changes = [(table, self._changed(source, table)) for table in _TABLES]
            gone = self._gone(source)
            summaries = source.execute(_SUMMARY_TEXT, (self._tenant,)).fetchall()
        with closing(self.cursor()) as target:  # what is not committed goes with the cursor
            target.execute("BEGIN")
            for kind, session_id, gone_id in gone:
                self._delete(target, kind, session_id, gone_id)
            for table, rows in changes:
                self._take(target, table, rows)
            target.execute("DELETE FROM summary_text")
            if summaries:
                rows_of_text = [(one[0], one[1], bool(one[2])) for one in summaries]
                target.executemany("INSERT INTO summary_text VALUES (?, ?, ?)", rows_of_text)
            target.execute("COMMIT")
        self._rev = newest
        return sum(rows.num_rows for _, rows in changes)

    def _newest(self, source: sqlite3.Connection) -> int:
        query = "SELECT rev FROM tenant WHERE tenant_id = ?"
        row = source.execute(query, (self._tenant,)).fetchone()
        return int(row[0]) if row else -1

    def _changed(self, source: sqlite3.Connection, table: sa.Table) -> pa.Table:
        """Return the rows that changed as an Arrow table of the declared types."""
        import pyarrow as pa

        arrow = _arrow_schema(table)
        rows = source.execute(_select(table), (self._tenant, self._rev)).fetchall()
        columns = list(zip(*rows, strict=True)) or [()] * len(arrow)
        arrays = [
            pa.array(values, type=field.type) for values, field in zip(columns, arrow, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=arrow)

    def _gone(self, source: sqlite3.Connection) -> list[tuple[str, str, str]]:
        query = "SELECT kind, session_id, id FROM tombstone WHERE tenant_id = ? AND rev > ?"
        return source.execute(query, (self._tenant, self._rev)).fetchall()

    def _delete(self, target: Any, kind: str, session_id: str, gone_id: str) -> None:
        if kind == "session":
            target.execute("DELETE FROM session_row WHERE id = ?", [gone_id])
            return
        table = next(table for table in _TABLES if table.name == kind)
        target.execute(
            f"DELETE FROM {table.name}_row WHERE session_id = ? AND id = ?", [session_id, gone_id]
        )

    def _take(self, target: Any, table: sa.Table, rows: pa.Table) -> None:
        """Replace the rows that changed."""
        if not rows.num_rows:
            return
        name = f"{table.name}_row"
        target.register("incoming", rows)
        key = "id" if table is schema.session else "session_id, id"
        target.execute(f"DELETE FROM {name} WHERE ({key}) IN (SELECT {_key(key)} FROM incoming)")
        target.execute(f"INSERT INTO {name} SELECT * FROM incoming")
        target.unregister("incoming")

    def close(self) -> None:
        """Give the memory back."""
        self._connection.close()


def _key(key: str) -> str:
    return f"({key})" if "," in key else key


def _columns(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns that are mirrored: all but the tenant and the JSON."""
    return [
        column
        for column in table.columns
        if column.name not in {"tenant_id", "data", "data_imported", "prices"}
    ]


def _type(column: sa.Column[Any]) -> str:
    """Return DuckDB's type of a column."""
    return {"TEXT": "VARCHAR", "BIGINT": "BIGINT", "DOUBLE": "DOUBLE"}[str(column.type)]


def _arrow_schema(table: sa.Table) -> pa.Schema:
    import pyarrow as pa

    kinds = {"TEXT": pa.string(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
    return pa.schema([(column.name, kinds[str(column.type)]) for column in _columns(table)])


def _select(table: sa.Table) -> str:
    """Return the query for changed rows."""
    names = ", ".join(f'"{column.name}"' for column in _columns(table))
    return f'SELECT {names} FROM "{table.name}" WHERE tenant_id = ? AND rev > ?'
