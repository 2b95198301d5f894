"""Read what ``opencode export`` printed: one session as JSON, perhaps compressed."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import ExchangeError
from forge_nb.exchange.base import ForeignSession

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMAT", "read_export"]

FORMAT = "opencode-export"
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_BANNER = b"Exporting session:"
_HEAD_BYTES = 4_096
_MAX_BYTES = 2 << 30  # a compressed file may not unpack to more


class _Item(msgspec.Struct):
    info: dict[str, Any]
    parts: list[dict[str, Any]]


class _Export(msgspec.Struct):
    info: dict[str, Any]
    messages: list[_Item]


def read_export(path: Path) -> list[ForeignSession]:
    """Return the one session of an export.

    Raises
    ------
    ExchangeError
        When the file is empty, is cut off, or is something else; names the file and the place.
    """
    raw = _unpacked(path)
    try:
        export = msgspec.json.decode(raw, type=_Export)
    except msgspec.ValidationError as error:
        msg = f"{path}: JSON, but not an opencode export: {error}"
        raise ExchangeError(msg, path=str(path)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"{path}: damaged or cut-off JSON ({error}); export the session again, to a file"
        raise ExchangeError(msg, path=str(path)) from error
    messages = [(item.info, item.parts) for item in export.messages]
    return [ForeignSession(info=export.info, messages=messages, format=FORMAT, place="$")]


def _unpacked(path: Path) -> bytes:
    """Return the file's JSON bytes; refuses junk by its first bytes, without reading the rest."""
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    opener = gzip.open if is_packed else open
    try:
        with opener(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
            body = _without_banner(head)
            if not body.lstrip().startswith(b"{"):
                msg = f"{path}: neither an opencode export (JSON) nor an opencode database"
                raise ExchangeError(msg, path=str(path))
            rest = file.read(_MAX_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        msg = f"{path}: the compressed file is damaged or cut off ({error}); fetch it again"
        raise ExchangeError(msg, path=str(path)) from error
    if len(rest) == _MAX_BYTES:
        msg = f"{path}: more than {_MAX_BYTES >> 30} GiB of JSON; export single sessions"
        raise ExchangeError(msg, path=str(path))
    return bytes(body + rest)


def _without_banner(head: bytes) -> bytes:
    """Drop a byte-order mark and the line that the program prints before the JSON."""
    body = head.removeprefix(_BOM).lstrip()
    if body.startswith(_BANNER):
        _, _, body = body.partition(b"\n")
    return body
