"""How an older store becomes a newer one: numbered steps, forward only.

A fresh file gets the tables of `schema` as they are now. An older one runs the steps that it
lacks, in order. A step is never edited once it was released: append another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.errors import ForeignStoreError, SchemaVersionError
from forge_nb.store import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

__all__ = ["APPLICATION_ID", "MIGRATIONS", "upgrade"]

APPLICATION_ID = 0x466F_6E62
"""Marks a SQLite file as a forge_nb store ("Fonb")."""

MIGRATIONS: Sequence[Callable[[sa.Connection], None]] = ()
"""The step at index 0 leads from version 1 to 2, and so on."""


def upgrade(
    connection: sa.Connection,
    name: str,
    *,
    steps: Sequence[Callable[[sa.Connection], None]] = MIGRATIONS,
) -> int:
    """Bring the tables to the newest version; return the version that was found.

    Parameters
    ----------
    connection
        Inside a transaction that holds the write lock, so that of two programs that open a fresh
        file one makes the tables and the other finds them.
    name
        Of the file, for messages.
    steps
        The migrations.

    Raises
    ------
    ForeignStoreError
        When the database belongs to another program.
    SchemaVersionError
        When it was written by a newer forge_nb.
    """
    found = _number(connection, "user_version")
    supported = 1 + len(steps)
    _refuse_foreign(connection, name)
    if found > supported:
        msg = (
            f"{name} has schema version {found}, this forge_nb reads up to {supported}; "
            "upgrade forge_nb to open it"
        )
        raise SchemaVersionError(msg, path=name, found=found, supported=supported)
    if found == supported:
        return found
    if found == 0:
        schema.metadata.create_all(connection)
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID:d}")
    for step in steps[found - 1 :] if found else ():
        step(connection)
    connection.exec_driver_sql(f"PRAGMA user_version = {supported:d}")
    return found


def _refuse_foreign(connection: sa.Connection, name: str) -> None:
    mark = _number(connection, "application_id")
    is_ours = mark == APPLICATION_ID
    tables = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
    if is_ours or (mark == 0 and not tables):
        return
    msg = (
        f"{name} is a SQLite database of another program, not a forge_nb store; open a path of "
        "its own, and import the database with load() if it holds sessions"
    )
    raise ForeignStoreError(msg, path=name, application_id=mark)


def _number(connection: sa.Connection, pragma: str) -> int:
    number: int = connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one()
    return number
