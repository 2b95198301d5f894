"""Files and folders as a model reads them: numbered lines, listings, media as data URLs.

Everything is bounded: a huge file gives its beginning and says so. Nothing here decides who may
read what; `inside` tells whether a path leaves a folder, links resolved.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import TYPE_CHECKING, TextIO
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
    "is_there",
    "media_url",
    "no_file",
    "parse_data_url",
    "settled_mime",
    "sniff_mime",
]

MAX_LINES = 2_000  # lines of a file that a model gets at once (opencode)
MAX_BYTES = 50 * 1024  # and bytes (opencode)
MAX_LINE_CHARS = 2_000  # a longer line is cut (opencode)
MAX_ENTRIES = 1_000  # names of a listing
MAX_MEDIA_BYTES = 5 * 1024 * 1024
"""Size of an image or a PDF that can be sent (opencode: 5 MiB)."""

MAX_COUNTED_BYTES = 64 * 1024 * 1024
"""A larger file is not walked to its end only to count its lines."""

_SNIFF_BYTES = 4_096
_CHUNK_CHARS = 65_536
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
_SIGNED = frozenset({"image/webp", *(mime for _, mime in _SIGNATURES)})


def inside(root: Path, path: Path) -> bool:
    """Return whether a path stays below a folder once every link is followed."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError):  # a NUL in the name, a link to itself
        return False


def is_there(root: Path, name: str) -> bool:
    """Return whether a folder has a file or a folder of this name, links resolved."""
    path = root / name
    try:
        return inside(root, path) and (path.is_file() or path.is_dir())
    except OSError:  # a name that is too long, a folder that may not be entered
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


def settled_mime(head: bytes, stated: str | None) -> str:
    r"""Return what bytes are when somebody has said what they are: the bytes are believed.

    Raises
    ------
    UsageError
        When they are said to be an image or a PDF that they are not: a model's provider would
        refuse it in every later call too.

    Examples
    --------
    >>> settled_mime(b"\xff\xd8\xff\xe0", "image/png"), settled_mime(b"a,b", "text/csv")
    ('image/jpeg', 'text/plain')
    """
    found = sniff_mime(head)
    if stated is None or found in _SIGNED:
        return found
    if stated in _SIGNED:
        msg = f"what is said to be {stated} is {found}; give the file as it is, or no mime"
        raise UsageError(msg, mime=found, stated=stated)
    if found != "application/octet-stream":
        return found
    if stated.startswith("text/"):
        return "text/plain"  # in another encoding, or damaged
    return stated if is_media(stated) else found


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
    _check_size(len(data), mime)
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"


def media_url(path: Path, mime: str) -> str:
    """Return a file as a data URL; one that is too large is not read.

    Raises
    ------
    UsageError
        As for `data_url`.
    """
    _check_size(path.stat().st_size, mime)
    with path.open("rb") as file:
        return data_url(file.read(MAX_MEDIA_BYTES + 1), mime)  # it may have grown meanwhile


def _check_size(size: int, mime: str) -> None:
    if size > MAX_MEDIA_BYTES:
        msg = f"{size:,} bytes of {mime} are too many; at most {MAX_MEDIA_BYTES:,} can be sent"
        raise UsageError(msg, size=size)


def parse_data_url(url: str) -> bytes | None:
    """Return the bytes of a ``data:`` URL; None when it is broken, or another kind of URL.

    Examples
    --------
    >>> parse_data_url("data:text/plain;base64,aGk="), parse_data_url("data:nothing")
    (b'hi', None)
    """
    head, comma, body = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(unquote_to_bytes(body), validate=True)
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
        raise no_file(path)
    with path.open("rb") as file:
        mime = sniff_mime(file.read(_SNIFF_BYTES))
    if mime != "text/plain":
        msg = f"{path} holds {mime}, which cannot be read as text"
        raise UsageError(msg, path=str(path), mime=mime)
    content = _content(path, start, count)
    return f"<path>{path}</path>\n<type>file</type>\n<content>\n{content}\n</content>"


def no_file(path: Path) -> UsageError:
    """Return the error for a path that leads to nothing, or to a pipe or a device."""
    msg = f"File not found: {path}"
    if path.exists():
        msg = f"{path} is neither a file nor a folder"
    return UsageError(msg, path=str(path))


def _content(path: Path, start: int, count: int) -> str:
    numbered: list[str] = []
    size, total = 0, 0
    wanted = min(count, MAX_LINES)
    is_cut = False
    is_counted = path.stat().st_size <= MAX_COUNTED_BYTES
    for number, line in enumerate(_lines(path), 1):
        total = number
        if number < start or is_cut:
            continue
        written = f"{number}: {_short(line)}"
        size += len(written.encode("utf-8", "replace")) + 1
        is_cut = len(numbered) >= wanted or size > MAX_BYTES
        if not is_cut:
            numbered.append(written)
        elif not is_counted:
            break
    if start > max(total, 1):
        msg = f"line {start} is behind the end of {path}, which has {total} lines"
        raise UsageError(msg, path=str(path))
    last = start + len(numbered) - 1
    note = f"(End of file - total {total} lines)"
    if is_cut:
        of_all = f" of {total}" if is_counted else ", more follow"
        note = f"(Lines {start} to {last}{of_all}; go on at line {last + 1})"
    return "\n".join([*numbered, "", note])


def _lines(path: Path) -> Iterator[str]:
    """Yield the beginnings of a file's lines: however long one is, little of it is held."""
    with path.open(encoding="utf-8", errors="replace", newline=None) as file:
        while line := file.readline(MAX_LINE_CHARS + 2):
            yield line.rstrip("\n")
            if not line.endswith("\n"):
                _skip_line(path, file)


def _skip_line(path: Path, file: TextIO) -> None:
    for _ in range(MAX_COUNTED_BYTES // _CHUNK_CHARS):
        rest = file.readline(_CHUNK_CHARS)
        if not rest or rest.endswith("\n"):
            return
    msg = f"a line of {path} has more than {MAX_COUNTED_BYTES:,} characters; it is no text to read"
    raise UsageError(msg, path=str(path))


def _short(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}..."


def _listing(path: Path, start: int) -> str:
    names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir())
    shown = list(itertools.islice(names, start - 1, start - 1 + MAX_ENTRIES))
    rest = len(names) - (start - 1) - len(shown)
    note = f"({len(names)} entries)" if rest <= 0 else f"({len(names)} entries, {rest} not shown)"
    entries = "\n".join([*shown, "", note])
    return f"<path>{path}</path>\n<type>directory</type>\n<entries>\n{entries}\n</entries>"
