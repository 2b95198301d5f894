"""Bring sessions in: read, check, compare with what is stored, write all or nothing.

Each file is one transaction. What it holds is stored as it was recorded, open parts included. The
same content again changes nothing; content that has grown updates its own rows and leaves those
that were written here alone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import ConflictError, ExchangeError, ForgeError, NotFoundError
from forge_nb.events import MessageUpdated, Origin, PartUpdated, SessionUpdated
from forge_nb.exchange.opencode_db import SQLITE_MAGIC, read_database
from forge_nb.exchange.opencode_json import read_export
from forge_nb.exchange.report import ImportReport, Skipped
from forge_nb.exchange.review import review, usage_of
from forge_nb.messages.codec import (
    message_from_dict,
    message_to_dict,
    part_from_dict,
    part_to_dict,
    session_from_dict,
)
from forge_nb.messages.message import MessageWithParts, SessionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from forge_nb.events import SyncEvent
    from forge_nb.exchange.base import ForeignSession
    from forge_nb.exchange.report import ImportedSession
    from forge_nb.messages.message import Message
    from forge_nb.messages.parts import Part
    from forge_nb.store.base import Store

__all__ = ["Checked", "load", "read_sessions"]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose JSON has been read into values."""

    info: SessionInfo
    messages: list[MessageWithParts]
    origin: Origin


def load(
    store: Store,
    paths: str | Path | Sequence[str | Path],
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> ImportReport:
    """Bring in every session of these files.

    Parameters
    ----------
    store
        Where they go.
    paths
        Exports (``.json``, compressed or not) and ``opencode.db`` files; one or many.
    progress
        Called with how many paths are done and how many there are.

    Returns
    -------
    ImportReport
        One entry per session that is in the store now, one per path that was skipped and why.
        Nothing of a skipped path was written.
    """
    asked = [paths] if isinstance(paths, str | Path) else list(paths)
    sessions: list[ImportedSession] = []
    skipped: list[Skipped] = []
    for done, path in enumerate(asked):
        progress(done, len(asked))
        try:
            sessions += _load_one(store, Path(path).expanduser())
        except (ForgeError, OSError) as error:
            skipped.append(Skipped(path=str(path), reason=_reason(path, error)))
    progress(len(asked), len(asked))
    return ImportReport(sessions=tuple(sessions), skipped=tuple(skipped))


def _reason(path: str | Path, error: ForgeError | OSError) -> str:
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return text if str(path) in text else f"{path}: {text}"


def read_sessions(path: Path) -> list[ForeignSession]:
    """Read a file of any known format, told by its content, never by its name.

    Raises
    ------
    ExchangeError
        When the file is none of them; names it and what to do.
    """
    if path.is_dir():
        msg = f"{path}: a folder; name the export or database in it"
        raise ExchangeError(msg, path=str(path))
    if not path.exists():
        raise ExchangeError(f"{path}: no such file; mend the path", path=str(path))
    if path.stat().st_size == 0:
        msg = f"{path}: the file is empty; export the session again, to a file"
        raise ExchangeError(msg, path=str(path))
    with path.open("rb") as file:
        is_database = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    return read_database(path) if is_database else read_export(path)


def _load_one(store: Store, path: Path) -> list[ImportedSession]:
    foreign = read_sessions(path)
    checked = [_checked(one, path) for one in foreign]
    known = {one.info.id for one in checked} | {row.info.id for row in store.sessions()}
    reports: list[ImportedSession] = []
    events: list[SyncEvent] = []
    for one in checked:
        changes, change = _changes(store, one, path)
        events += changes
        reports.append(review(one.info, one.messages, known=known, change=change))
    if events:
        store.apply(events).result()
    return reports


def _checked(foreign: ForeignSession, path: Path) -> Checked:
    """Read a session's JSON into values; says where it is wrong."""
    digest = hashlib.sha256(msgspec.json.encode([foreign.info, foreign.messages])).hexdigest()
    info = _value(path, f"{foreign.place}.info", session_from_dict, foreign.info)
    messages = []
    seen: set[str] = set()
    for place, (raw, parts) in enumerate(foreign.messages):
        where = f"{foreign.place}.messages[{place}]"
        message = _value(path, f"{where}.info", message_from_dict, raw)
        found = tuple(
            _value(path, f"{where}.parts[{n}]", part_from_dict, part)
            for n, part in enumerate(parts)
        )
        _check_ids(path, where, session_id=info.id, message=message, parts=found, seen=seen)
        messages.append(MessageWithParts(message=message, parts=found))
    origin = Origin(format=foreign.format, source_hash=digest, source_id=info.id)
    return Checked(info=info, messages=messages, origin=origin)


def _value(path: Path, where: str, read: Callable[[dict[str, Any]], Any], raw: Any) -> Any:
    try:
        return read(raw)
    except ExchangeError as error:
        place = where + str(error.fields.get("place", "$")).removeprefix("$")
        msg = f"{path}: {place}: {error}"
        raise ExchangeError(msg, path=str(path), place=place) from error


def _check_ids(
    path: Path,
    where: str,
    *,
    session_id: str,
    message: Message,
    parts: Iterable[Part],
    seen: set[str],
) -> None:
    """Refuse an id that is used twice, or a row that belongs elsewhere."""
    if message.session_id != session_id:
        msg = f"{path}: {where} belongs to session {message.session_id!r}, not {session_id!r}"
        raise ExchangeError(msg, path=str(path), place=where)
    for one in (message, *parts):
        if one.id in seen:
            msg = f"{path}: {where}: the id {one.id!r} is used twice; the file is damaged"
            raise ExchangeError(msg, path=str(path), place=where)
        seen.add(one.id)
    for part in parts:
        if (part.session_id, part.message_id) != (session_id, message.id):
            msg = f"{path}: {where}: part {part.id!r} belongs to message {part.message_id!r}"
            raise ExchangeError(msg, path=str(path), place=where)


def _changes(store: Store, one: Checked, path: Path) -> tuple[list[SyncEvent], str]:
    """Return the events that bring the store up to this session, and what that is called."""
    try:
        stored = store.session(one.info.id)
    except NotFoundError:
        return list(_events(one)), "new"
    if stored.origin.format is None:
        msg = f"{path}: session {one.info.id!r} was made in this store; export it from here instead"
        raise ConflictError(msg, path=str(path), session_id=one.info.id)
    if stored.origin.source_hash == one.origin.source_hash:
        return [], "unchanged"
    mine = store.imported_ids(one.info.id)
    local = _local_ids(store, one.info.id, mine)
    return list(_events(one, leave=_same_rows(store, one) | local)), "grown"


def _local_ids(store: Store, session_id: str, imported: frozenset[str]) -> set[str]:
    found: set[str] = set()
    for item in store.messages(session_id):
        found |= {item.message.id, *(part.id for part in item.parts)} - imported
    return found


def _same_rows(store: Store, one: Checked) -> set[str]:
    """Return ids of the rows whose JSON has not changed."""
    stored: dict[str, dict[str, Any]] = {}
    for item in store.messages(one.info.id):
        stored[item.message.id] = message_to_dict(item.message)
        stored |= {part.id: part_to_dict(part) for part in item.parts}
    same: set[str] = set()
    for item in one.messages:
        if stored.get(item.message.id) == message_to_dict(item.message):
            same.add(item.message.id)
        same |= {part.id for part in item.parts if stored.get(part.id) == part_to_dict(part)}
    return same


def _events(one: Checked, *, leave: AbstractSet[str] = frozenset()) -> Iterator[SyncEvent]:
    """Yield a session's rows as events, but for those to leave."""
    yield SessionUpdated(info=one.info, origin=one.origin)
    for item in one.messages:
        if item.message.id not in leave:
            yield MessageUpdated(message=item.message, origin=one.origin)
        for part in item.parts:
            if part.id not in leave:
                yield PartUpdated(part=part, origin=one.origin)
                yield from usage_of(item.message, part)
