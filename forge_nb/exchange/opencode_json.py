"""Read what ``opencode export`` printed: one session as JSON, perhaps compressed."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from forge_nb.errors import ExchangeError
from forge_nb.exchange.base import ForeignSession, Source, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FORMAT", "opened_export"]

FORMAT = "opencode-export"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # a redirection in Windows PowerShell writes UTF-16
_BANNER = "Exporting session:"
_HEAD_BYTES = 65_536
_MAX_BYTES = 2 << 30  # a compressed file may not unpack to more
_REMEDY = "name a file that `opencode export SESSION` wrote, or an opencode.db"


class _Item(msgspec.Struct):
    info: dict[str, Any]
    parts: list[dict[str, Any]]


class _Export(msgspec.Struct):
    info: dict[str, Any]
    messages: list[_Item]


@contextlib.contextmanager
def opened_export(path: Path) -> Iterator[Source]:
    """Read the one session of an export.

    Raises
    ------
    ExchangeError
        When the file is cut off, or is something else; names the file, the place, the remedy.
    """
    whole = read_json(_text(path), path, "$")
    try:
        export = msgspec.convert(whole, _Export)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # half a character in a key
        msg = f"{path}: JSON, but not an opencode export: {error}; {_REMEDY}"
        raise ExchangeError(msg, path=str(path)) from error
    session = ForeignSession(
        info=export.info,
        messages=[(item.info, item.parts) for item in export.messages],
        format=FORMAT,
        place="$",
        dropped=tuple(_beside(whole)),
    )
    yield Source(ids=(str(export.info.get("id")),), sessions=iter([session]))


def _beside(whole: dict[str, Any]) -> Iterator[str]:
    """Yield the places of keys that an export does not have."""
    for key in whole.keys() - {"info", "messages"}:
        yield f"$.{key}"
    for place, item in enumerate(whole["messages"]):
        for key in item.keys() - {"info", "parts"}:
            yield f"$.messages[{place}].{key}"


def _text(path: Path) -> str:
    """Return the file's JSON text; refuses junk by its beginning, without reading the rest."""
    try:
        with _unpacking(path) as file:
            head = file.read(_HEAD_BYTES)
            encoding = "utf-16" if head.startswith(_UTF16_MARKS) else "utf-8-sig"
            if not _is_export(head.decode(encoding, errors="replace")):
                msg = f"{path}: neither an opencode export nor an opencode database; {_REMEDY}"
                raise ExchangeError(msg, path=str(path))
            raw = head + file.read(_MAX_BYTES)
        text = raw.decode(encoding, errors="surrogatepass")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        msg = f"{path}: the compressed file is damaged or cut off ({error}); fetch it again"
        raise ExchangeError(msg, path=str(path)) from error
    except UnicodeDecodeError as error:
        msg = f"{path}: the text is damaged ({error}); export the session again"
        raise ExchangeError(msg, path=str(path)) from error
    if len(raw) > _MAX_BYTES:
        msg = f"{path}: more than {_MAX_BYTES >> 30} GiB of JSON; import the opencode.db instead"
        raise ExchangeError(msg, path=str(path))
    return _without_banner(text)


@contextlib.contextmanager
def _unpacking(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for its content, told by its first bytes whether it is compressed."""
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        if not is_packed:
            yield file
            return
        with gzip.open(file) as unpacked:
            yield cast("IO[bytes]", unpacked)


def _is_export(head: str) -> bool:
    """Tell by its beginning: an object whose first kilobytes name one of the two keys.

    A file that ends in the head may be a short or cut-off one; reading it says more.
    """
    body = _without_banner(head)
    is_whole = len(head) < _HEAD_BYTES // 2
    return body.startswith("{") and (is_whole or '"info"' in body or '"messages"' in body)


def _without_banner(text: str) -> str:
    """Drop the line that the program prints before the JSON."""
    body = text.lstrip()
    if body.startswith(_BANNER):
        _, _, body = body.partition("\n")
    return body.lstrip()
