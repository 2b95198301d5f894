"""Files and folders as a model reads them: numbered lines, listings, media as data URLs.

Everything is bounded: a huge file gives its beginning and says so. Nothing here decides who may
read what; `inside` tells whether a path leaves a folder, links resolved.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from forge_nb.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "MAX_MEDIA_BYTES",
    "data_url",
    "file_text",
    "inside",
    "is_media",
    "parse_data_url",
    "sniff_mime",
]

MAX_LINES = 2_000  # lines of a file that a model gets at once (opencode)
MAX_BYTES = 50 * 1024  # and bytes (opencode)
MAX_LINE_CHARS = 2_000  # a longer line is cut (opencode)
MAX_ENTRIES = 1_000  # names of a listing
MAX_MEDIA_BYTES = 5 * 1024 * 1024
"""Size of an image or a PDF that can be sent (opencode: 5 MiB)."""

_SNIFF_BYTES = 4_096
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def inside(root: Path, path: Path) -> bool:
    """Return whether a path stays below a folder once every link is followed."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError):  # a NUL in the name, a link to itself
        return False


def sniff_mime(head: bytes) -> str:
    r"""Return what bytes are, by their beginning and never by a name.

    Examples
    --------
    >>> sniff_mime(b"%PDF-1.7"), sniff_mime(b"plain"), sniff_mime(b"a\x00b")
    ('application/pdf', 'text/plain', 'application/octet-stream')
    """
    for signature, mime in _SIGNATURES:
        if head.startswith(signature):
            return mime
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if b"\x00" in head:
        return "application/octet-stream"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not merely a character cut at the end
            return "application/octet-stream"
    return "text/plain"


def is_media(mime: str) -> bool:
    """Return whether a model gets the bytes themselves: images and PDFs."""
    return mime.startswith("image/") or mime == "application/pdf"


def data_url(data: bytes, mime: str) -> str:
    """Return bytes as a data URL.

    Raises
    ------
    UsageError
        When there are more than `MAX_MEDIA_BYTES`.
    """
    if len(data) > MAX_MEDIA_BYTES:
        msg = f"{len(data):,} bytes of {mime} are too many; at most {MAX_MEDIA_BYTES:,} can be sent"
        raise UsageError(msg)
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def parse_data_url(url: str) -> bytes | None:
    """Return the bytes of a ``data:`` URL; None when it is broken.

    Examples
    --------
    >>> parse_data_url("data:text/plain;base64,aGk="), parse_data_url("data:nothing")
    (b'hi', None)
    """
    head, comma, body = url.partition(",")
    if not comma:
        return None
    if not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return None


def file_text(path: Path, *, start: int = 1, count: int = MAX_LINES) -> str:
    """Return what a model reads of a file or a folder.

    Parameters
    ----------
    path
        A text file, or a folder, whose names are listed.
    start
        First line or entry, from 1.
    count
        Most lines; never more than `MAX_LINES`.

    Raises
    ------
    UsageError
        When there is no such file, or it holds no text.
    """
    if path.is_dir():
        return _listing(path, start)
    if not path.is_file():
        msg = f"File not found: {path}"
        raise UsageError(msg, path=str(path))
    with path.open("rb") as file:
        mime = sniff_mime(file.read(_SNIFF_BYTES))
    if mime != "text/plain":
        msg = f"{path} holds {mime}, which cannot be read as text"
        raise UsageError(msg, path=str(path), mime=mime)
    content = _content(path, start, count)
    return f"<path>{path}</path>\n<type>file</type>\n<content>\n{content}\n</content>"


def _content(path: Path, start: int, count: int) -> str:
    numbered: list[str] = []
    size, total = 0, 0
    wanted = min(count, MAX_LINES)
    is_cut = False
    for number, line in enumerate(_lines(path), 1):
        total = number
        if number < start or is_cut:
            continue
        written = f"{number}: {_short(line)}"
        size += len(written.encode("utf-8", "replace")) + 1
        is_cut = len(numbered) >= wanted or size > MAX_BYTES
        if not is_cut:
            numbered.append(written)
    if start > max(total, 1):
        msg = f"line {start} is behind the end of {path}, which has {total} lines"
        raise UsageError(msg, path=str(path))
    last = start + len(numbered) - 1
    note = f"(End of file - total {total} lines)"
    if is_cut:
        note = f"(Lines {start} to {last} of {total}; go on at line {last + 1})"
    return "\n".join([*numbered, "", note])


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace", newline=None) as file:
        for line in file:
            yield line.rstrip("\n")


def _short(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}..."


def _listing(path: Path, start: int) -> str:
    names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir())
    shown = list(itertools.islice(names, start - 1, start - 1 + MAX_ENTRIES))
    rest = len(names) - (start - 1) - len(shown)
    note = f"({len(names)} entries)" if rest <= 0 else f"({len(names)} entries, {rest} not shown)"
    entries = "\n".join([*shown, "", note])
    return f"<path>{path}</path>\n<type>directory</type>\n<entries>\n{entries}\n</entries>"
