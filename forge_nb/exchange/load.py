"""Bring sessions in: read, check, compare with what is stored, write all or nothing.

Each file is one transaction. What it holds is stored as it was recorded, open parts included. The
same content again changes nothing; content that has grown updates its own rows and leaves those
that were written here alone.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import ConflictError, ExchangeError, ForgeError, NotFoundError
from forge_nb.events import (
    MessageRemoved,
    MessageUpdated,
    Origin,
    PartRemoved,
    PartUpdated,
    SessionUpdated,
    SyncEvent,
)
from forge_nb.exchange.opencode_db import SQLITE_MAGIC, opened_database
from forge_nb.exchange.opencode_json import opened_export
from forge_nb.exchange.report import ImportReport, Oddity, Skipped
from forge_nb.exchange.review import review, usage_of
from forge_nb.messages.codec import (
    message_from_dict,
    message_to_dict,
    part_from_dict,
    part_to_dict,
    session_from_dict,
    session_to_dict,
)
from forge_nb.messages.message import MessageWithParts, SessionInfo
from forge_nb.projection import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from forge_nb.exchange.base import ForeignSession, Source
    from forge_nb.exchange.report import ImportedSession
    from forge_nb.messages.message import Message
    from forge_nb.messages.parts import Part
    from forge_nb.store.base import Store, StoredSession

__all__ = ["Checked", "load", "opened"]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose JSON has been read into values."""

    info: SessionInfo
    messages: list[MessageWithParts]
    origin: Origin
    oddities: tuple[Oddity, ...] = ()


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    """What the store lacks of a session that comes in."""

    name: str
    """new, grown, unchanged, or older."""
    leave: AbstractSet[str] = frozenset()
    """Ids of rows that are as they should be."""
    gone: tuple[SyncEvent, ...] = ()
    oddities: tuple[Oddity, ...] = ()


class _Meter:
    """Counts bytes of the files, a message at a time."""

    def __init__(self, paths: Sequence[Path], progress: Callable[[int, int], None]) -> None:
        self._sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
        self._progress = progress
        self._done = 0.0
        self._before = 0

    def tick(self, share: float) -> None:
        """Move on by a share of the file."""
        self._done += share * self._sizes[0]
        self._progress(self._before + int(self._done), self._before + sum(self._sizes))

    def next_file(self) -> None:
        """Take the file as done, whatever became of it."""
        self._before += self._sizes.pop(0)
        self._done = 0.0
        self._progress(self._before, self._before + sum(self._sizes))


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
        Called with how many bytes of the files are done and how many there are; on any thread.

    Returns
    -------
    ImportReport
        One entry per session that is in the store now, one per path that was skipped and why.
        Nothing of a skipped path was written.
    """
    asked = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [Path(path).expanduser() for path in asked]
    sessions: list[ImportedSession] = []
    skipped: list[Skipped] = []
    meter = _Meter(files, progress)
    for path, file in zip(asked, files, strict=True):
        try:
            sessions += _load_one(store, file, meter)
        except (ForgeError, OSError) as error:
            skipped.append(Skipped(path=str(path), reason=_reason(path, error)))
        meter.next_file()
    return ImportReport(sessions=tuple(sessions), skipped=tuple(skipped))


def _reason(path: str | Path, error: ForgeError | OSError) -> str:
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return text if str(path) in text else f"{path}: {text}"


def opened(path: Path) -> AbstractContextManager[Source]:
    """Open a file of any known format, told by its content, never by its name.

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
    if not path.is_file():
        raise ExchangeError(f"{path}: not a regular file; copy it to one first", path=str(path))
    if path.stat().st_size == 0:
        msg = f"{path}: the file is empty; export the session again, to a file"
        raise ExchangeError(msg, path=str(path))
    with path.open("rb") as file:
        is_database = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    return opened_database(path) if is_database else opened_export(path)


def _load_one(store: Store, path: Path, meter: _Meter) -> list[ImportedSession]:
    """Write a file's sessions in one transaction; a file that brings nothing new needs none."""
    reports: list[ImportedSession] = []
    with opened(path) as source:
        events = _incoming(store, source, path, reports=reports, meter=meter)
        first = next(events, None)
        if first is not None:
            store.apply(itertools.chain([first], events)).result()
    return reports


def _incoming(
    store: Store, source: Source, path: Path, *, reports: list[ImportedSession], meter: _Meter
) -> Iterator[SyncEvent]:
    """Yield what the store lacks, session by session; appends a report for each."""
    known = {*source.ids, *(row.info.id for row in store.sessions())}
    for foreign in source.sessions:
        one = _checked(foreign, path)
        change = _changed(store, one, path)
        share = 1 / len(source.ids) / (len(one.messages) or 1)
        if change.name in {"new", "grown"}:
            yield SessionUpdated(info=one.info, origin=one.origin)
            yield from change.gone
            for item in one.messages:
                meter.tick(share)
                yield from _events(item, one.origin, change.leave)
        oddities = one.oddities + change.oddities
        reports.append(
            review(one.info, one.messages, known=known, change=change.name, oddities=oddities)
        )


def _checked(foreign: ForeignSession, path: Path) -> Checked:
    """Read a session's JSON into values; says where it is wrong."""
    content = json_text([foreign.info, foreign.messages])
    digest = hashlib.sha256(content.encode()).hexdigest()
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
    dropped = tuple(
        Oddity(code="dropped", detail=f"{place} belongs to no row of a session and is left out")
        for place in foreign.dropped
    )
    return Checked(info=info, messages=messages, origin=origin, oddities=dropped)


def _value(path: Path, where: str, read: Callable[[dict[str, Any]], Any], raw: Any) -> Any:
    try:
        return read(raw)
    except (ExchangeError, UnicodeEncodeError) as error:  # half a character in a key or a kind
        fields = getattr(error, "fields", {})
        place = where + str(fields.get("place", "$")).removeprefix("$")
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


def _changed(store: Store, one: Checked, path: Path) -> _Change:
    """Compare a session with what is stored of it."""
    try:
        stored = store.session(one.info.id)
    except NotFoundError:
        return _Change(name="new")
    if stored.origin.format is None:
        msg = f"{path}: session {one.info.id!r} was made in this store; export it from here instead"
        raise ConflictError(msg, path=str(path), session_id=one.info.id)
    if stored.origin.source_hash == one.origin.source_hash:
        return _Change(name="unchanged")
    if _is_older(store, stored, one):
        detail = "the file is from before what is stored, which is kept; nothing was changed"
        return _Change(name="older", oddities=(Oddity(code="older_source", detail=detail),))
    return _grown(store, stored, one)


def _is_older(store: Store, stored: StoredSession, one: Checked) -> bool:
    had = store.imported_info(one.info.id) or session_to_dict(stored.info)
    before, now = had["time"].get("updated"), one.info.time.updated
    return before is not None and now is not None and now < before


def _grown(store: Store, stored: StoredSession, one: Checked) -> _Change:
    """Find rows to leave, because they are the same or were written here, and those to remove.

    The source may have taken messages back. They go, unless the session went on here, where later
    rows may rest on them.
    """
    session_id, imported = one.info.id, store.imported_ids(one.info.id)
    coming: dict[str, dict[str, Any]] = {}
    for item in one.messages:
        coming[item.message.id] = message_to_dict(item.message)
        coming |= {part.id: part_to_dict(part) for part in item.parts}
    leave: set[str] = set()
    gone: list[SyncEvent] = []
    for item in store.messages(session_id):
        message_id = item.message.id
        had = {part.id: part_to_dict(part) for part in item.parts}
        had[message_id] = message_to_dict(item.message)
        leave |= {row for row in had if row not in imported or coming.get(row) == had[row]}
        lost = [row for row in had if row in imported and row not in coming]
        if message_id in lost:
            gone.append(MessageRemoved(session_id=session_id, message_id=message_id))
        else:
            gone += (
                PartRemoved(session_id=session_id, message_id=message_id, part_id=row)
                for row in lost
            )
    if gone and stored.has_local_rows:
        detail = f"{len(gone)} rows that the source took back are kept: the session went on here"
        kept = Oddity(code="taken_back", detail=detail)
        return _Change(name="grown", leave=leave, oddities=(kept,))
    return _Change(name="grown", leave=leave, gone=tuple(gone))


def _events(item: MessageWithParts, origin: Origin, leave: AbstractSet[str]) -> Iterator[SyncEvent]:
    """Yield a message's rows as events, but for those to leave."""
    is_new = item.message.id not in leave
    if is_new:
        yield MessageUpdated(message=item.message, origin=origin)
    for part in item.parts:
        if part.id not in leave:
            yield PartUpdated(part=part, origin=origin)
        if is_new or part.id not in leave:
            yield from usage_of(item.message, part)
