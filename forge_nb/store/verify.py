"""Hold a store against its own rules, and say what is wrong and what is merely odd.

A rule that our own writing must keep gives a ``failure`` when it is broken. What an imported
recording brought along (a tool that never ended, a total that does not add up) is a ``note``: the
store keeps recordings as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import sqlalchemy as sa

from forge_nb.errors import ForgeError, UsageError
from forge_nb.messages.codec import session_from_dict
from forge_nb.messages.parts import is_open
from forge_nb.messages.usage import TOKEN_KINDS
from forge_nb.projection import message_columns, part_columns, session_columns
from forge_nb.store import schema
from forge_nb.store.rows import message_of, part_of
from forge_nb.store.sql import SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from forge_nb.store.base import Store

__all__ = ["Finding", "verify"]

_SUMS = (*schema.TYPED_TOKENS, "cost_usd", "cost_recorded_usd")
_TOKENS = schema.TYPED_TOKENS[:5]
_CLOSE = 1e-9  # relative: sums of the same numbers in another order


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong or odd."""

    level: Literal["failure", "note"]
    code: str
    """Which rule: seq, parent, orphan, open, sums, usage, removed, tokens, columns, unreadable,
    rollup, log."""
    session_id: str
    detail: str


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one session, each table in the order of `seq`."""

    session: Any
    messages: Sequence[Any]
    parts: Sequence[Any]
    usage: Sequence[Any]
    log: Sequence[int]
    """Numbers that have a log entry."""
    has_log: bool
    removed: frozenset[str]
    """Messages that were taken away."""

    def finding(self, code: str, detail: str, *, row: Any = None) -> Finding:
        """Return a failure, or a note when the row that it is about was imported."""
        is_imported = row is not None and row.origin_format is not None
        level: Literal["failure", "note"] = "note" if is_imported else "failure"
        return Finding(level=level, code=code, session_id=self.session.id, detail=detail)

    def note(self, code: str, detail: str) -> Finding:
        """Return a note: odd, and no rule is broken."""
        return Finding(level="note", code=code, session_id=self.session.id, detail=detail)


def verify(store: Store) -> list[Finding]:
    """Check every session of the store's tenant; an empty list means that all is well.

    Parameters
    ----------
    store
        An open store on a SQL database. Each session is read in one read-only transaction.

    Raises
    ------
    UsageError
        When the store is of another kind.
    """
    if not isinstance(store, SqlStore):
        msg = f"{store.url!r} is not on a SQL database, so its rows cannot be checked"
        raise UsageError(msg)
    table = schema.session
    readers = store.engine.execution_options(forge_readonly=True)
    with readers.connect() as connection, connection.begin():
        mine = sa.select(table.c.id).where(table.c.tenant_id == store.tenant).order_by(table.c.id)
        ids = connection.scalars(mine).all()
    findings: list[Finding] = []
    for session_id in ids:
        with readers.connect() as connection, connection.begin():
            rows = _read(connection, store, session_id)
        if rows is not None:
            findings += (finding for check in _CHECKS for finding in check(rows))
    return findings


def _read(connection: sa.Connection, store: SqlStore, session_id: str) -> _Rows | None:
    """Read a session; None when it was removed in the meantime."""

    def rows(table: sa.Table) -> Sequence[Any]:
        where = (table.c.tenant_id == store.tenant, table.c.session_id == session_id)
        return connection.execute(sa.select(table).where(*where).order_by(table.c.seq)).all()

    head, log = schema.session, schema.event
    session = connection.execute(
        sa.select(head).where(head.c.tenant_id == store.tenant, head.c.id == session_id)
    ).first()
    if session is None:
        return None
    numbers = sa.select(log.c.seq).where(
        log.c.tenant_id == store.tenant, log.c.session_id == session_id
    )
    return _Rows(
        session=session,
        messages=rows(schema.message),
        parts=rows(schema.part),
        usage=rows(schema.usage),
        log=connection.scalars(numbers.order_by(log.c.seq)).all(),
        has_log=store.event_log != "off",
        removed=_removed(connection, store, session_id),
    )


def _removed(connection: sa.Connection, store: SqlStore, session_id: str) -> frozenset[str]:
    table = schema.tombstone
    query = sa.select(table.c.id).where(
        table.c.tenant_id == store.tenant,
        table.c.session_id == session_id,
        table.c.kind == "message",
    )
    return frozenset(connection.scalars(query))


# ------------------------------------------------------------------------------------- order


def _check_order(rows: _Rows) -> Iterator[Finding]:
    taken: dict[int, str] = {}
    for kind, table in (("message", rows.messages), ("part", rows.parts), ("usage", rows.usage)):
        for row in table:
            name = f"{kind} {row.id!r}"
            if row.seq in taken:
                yield rows.finding("seq", f"{name} has seq {row.seq}, and so has {taken[row.seq]}")
            if not 1 <= row.seq <= rows.session.seq:
                last = rows.session.seq
                yield rows.finding("seq", f"{name} has seq {row.seq}, the session's last is {last}")
            taken[row.seq] = name


def _check_parents(rows: _Rows) -> Iterator[Finding]:
    seqs = {row.id: row.seq for row in rows.messages}
    for row in rows.messages:
        if row.parent_id is not None and row.parent_id not in seqs:
            detail = f"message {row.id!r} answers {row.parent_id!r}, which is not stored"
            yield rows.finding("parent", detail, row=row)
    for row in rows.parts:
        if row.message_id not in seqs:
            yield rows.finding("orphan", f"part {row.id!r} has no message {row.message_id!r}")
        elif row.seq < seqs[row.message_id]:
            yield rows.finding("seq", f"part {row.id!r} stands before its message")


def _check_closed(rows: _Rows) -> Iterator[Finding]:
    completed = {row.id for row in rows.messages if row.time_completed is not None}
    for row, part in _read_all(rows.parts, part_of):
        is_imported = row.origin_format is not None
        if is_open(part) and (is_imported or row.message_id in completed):
            state = "which has ended" if row.message_id in completed else "as it was recorded"
            detail = f"part {row.id!r} is open in message {row.message_id!r}, {state}"
            yield rows.finding("open", detail, row=row)


# ------------------------------------------------------------------------------------- usage


def _check_sums(rows: _Rows) -> Iterator[Finding]:
    for name in _SUMS:
        own = (row for row in rows.usage if row.origin_id is None)
        known = [value for row in own if (value := getattr(row, name)) is not None]
        total, stored = (sum(known) if known else None), getattr(rows.session, name)
        if not _equal(total, stored):
            detail = f"{name} is {stored!r} in the session's row, its usage adds up to {total!r}"
            yield rows.finding("sums", detail)


def _check_usage(rows: _Rows) -> Iterator[Finding]:
    billed = {row.id: row for row in rows.usage}
    for part in _step_finishes(rows):
        row = billed.get(part.id)
        if row is None:
            yield rows.finding("usage", f"step-finish {part.id!r} has no usage record", row=part)
        elif _tokens(row) != _tokens(part):
            detail = (
                f"step-finish {part.id!r} has tokens {_tokens(part)}, "
                f"its usage record has {_tokens(row)}"
            )
            yield rows.finding("usage", detail, row=part)


def _check_removed(rows: _Rows) -> Iterator[Finding]:
    """Explain by how much a session's sums exceed its messages: what was spent stays counted."""
    there = {row.id for row in rows.messages}
    gone = [row for row in rows.usage if row.message_id is not None and row.message_id not in there]
    paid = [row for row in gone if row.message_id in rows.removed]
    lost = [row for row in gone if row.message_id not in rows.removed]
    if paid:
        yield rows.note("removed", f"messages were removed; their {_bill(paid)} stay counted")
    if lost:
        yield rows.note("orphan", f"{_bill(lost)} are of messages that are not stored")


def _bill(usage: Sequence[Any]) -> str:
    tokens = sum(number or 0 for row in usage for number in _tokens(row))
    costs = [row.cost_usd for row in usage if row.cost_usd is not None]
    usd = f"${sum(costs):.6f}" if costs else "an unknown cost"
    calls = "1 call" if len(usage) == 1 else f"{len(usage)} calls"
    return f"{calls} with {tokens:,} tokens and {usd}"


def _check_tokens(rows: _Rows) -> Iterator[Finding]:
    last = {part.message_id: part for part in _step_finishes(rows) if not part.discarded}
    for row in rows.messages:
        part = last.get(row.id)
        if part is not None and row.finish is not None and _tokens(part) != _tokens(row):
            detail = (
                f"message {row.id!r} has tokens {_tokens(row)}, "
                f"its last step-finish has {_tokens(part)}"
            )
            yield rows.finding("tokens", detail, row=row)


def _check_rollup(rows: _Rows) -> Iterator[Finding]:
    """Compare what an imported session says of itself with what its records add up to."""
    said = rows.session.data
    if rows.session.origin_format is None or not isinstance(said, dict):
        return
    finishes = [part for part in _step_finishes(rows) if part.origin_format is not None]
    recorded = sum(part.cost_recorded_usd or 0 for part in finishes)
    if said.get("cost") is not None and not _equal(said["cost"], recorded):
        detail = f"the recording says it cost {said['cost']!r}, its steps add up to {recorded!r}"
        yield rows.finding("rollup", detail, row=rows.session)
    tokens = said.get("tokens") or {}
    flat = tokens | {f"cache_{kind}": n for kind, n in (tokens.get("cache") or {}).items()}
    for kind in TOKEN_KINDS:
        total = sum(getattr(part, f"tokens_{kind}") or 0 for part in finishes)
        if flat.get(kind) is not None and flat[kind] != total:
            detail = f"the recording says {flat[kind]} {kind} tokens, its steps have {total}"
            yield rows.finding("rollup", detail, row=rows.session)


# ------------------------------------------------------------------------------------ columns


def _check_columns(rows: _Rows) -> Iterator[Finding]:
    """Derive the typed columns of each row once more from its `data`."""
    derivations: tuple[tuple[str, Iterable[Any], Callable[[Any], dict[str, Any]]], ...] = (
        ("session", [rows.session], lambda row: session_columns(session_from_dict(row.data))),
        ("message", rows.messages, lambda row: message_columns(message_of(row))),
        ("part", rows.parts, lambda row: part_columns(part_of(row))),
    )
    for kind, table, derive in derivations:
        for row in table:
            try:
                derived = derive(row)
            except ForgeError as error:
                yield rows.finding("unreadable", f"{kind} {row.id!r}: {error}")
                continue
            yield from _compare(rows, f"{kind} {row.id!r}", row, derived)


def _compare(rows: _Rows, name: str, row: Any, derived: dict[str, Any]) -> Iterator[Finding]:
    for column, value in derived.items():
        stored = getattr(row, column)
        if stored != value:
            detail = f"{name}: column {column} is {stored!r}, data gives {value!r}"
            yield rows.finding("columns", detail)


def _check_log(rows: _Rows) -> Iterator[Finding]:
    if not rows.has_log:
        return
    logged = set(rows.log)
    for kind, table in (("message", rows.messages), ("part", rows.parts), ("usage", rows.usage)):
        for row in table:
            if row.seq not in logged:
                detail = f"{kind} {row.id!r} has seq {row.seq}, which the log does not know"
                yield rows.finding("log", detail)
    missing = rows.session.seq - len(logged)
    if missing:
        detail = f"{missing} of the session's {rows.session.seq} events are not in the log"
        yield rows.finding("log", detail)


# ------------------------------------------------------------------------------------ helpers


def _read_all(table: Iterable[Any], read: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """Yield rows with their values; the unreadable ones are told by `_check_columns`."""
    for row in table:
        try:
            value = read(row)
        except ForgeError:
            continue
        yield row, value


def _step_finishes(rows: _Rows) -> Iterator[Any]:
    return (row for row in rows.parts if row.type == "step-finish")


def _tokens(row: Any) -> tuple[int | None, ...]:
    return tuple(getattr(row, name) for name in _TOKENS)


def _equal(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=_CLOSE, abs_tol=_CLOSE)


_CHECKS: tuple[Callable[[_Rows], Iterator[Finding]], ...] = (
    _check_order,
    _check_parents,
    _check_closed,
    _check_sums,
    _check_usage,
    _check_removed,
    _check_tokens,
    _check_rollup,
    _check_columns,
    _check_log,
)
