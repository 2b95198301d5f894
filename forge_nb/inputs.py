"""What a prompt may hold, and the parts that are stored of it.

A file is read when the prompt is given, so that the model sees what the person saw: a text file or
a folder becomes the record of a reading and its result, an image or a PDF travels as a data URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from forge_nb.errors import UsageError
from forge_nb.files import (
    data_url,
    file_text,
    is_media,
    is_there,
    media_url,
    no_file,
    parse_data_url,
    settled_mime,
)
from forge_nb.messages.ids import Prefix
from forge_nb.messages.parts import AgentPart, FilePart, ModelRef, SubtaskPart, TextPart
from forge_nb.tools.truncate import truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge_nb.messages.parts import Part

__all__ = ["File", "Input", "Mention", "PartSource", "Subtask", "Text", "resolve_inputs"]

_MENTION = re.compile(r"(?<![\w@])@([\w./~-]*[\w/])")
_DIRECTORY = "application/x-directory"
_TEXT = "text/plain"
_NUMBER = re.compile(r"[0-9]{1,9}")
_NAME_CHARS = 80
_END = 2**31 - 1  # a line behind every end
_SNIFF_BYTES = 4_096


class Text(msgspec.Struct, frozen=True):
    """Words, as they are."""

    text: str
    synthetic: bool = False
    """Not typed by the person: sent, but not shown as theirs."""
    ignored: bool = False
    """Shown, but not sent."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file: by its path, its bytes, or a ``file:`` or ``data:`` URL."""

    path: str | Path | None = None
    data: bytes | None = None
    url: str | None = None
    filename: str | None = None
    mime: str | None = None
    """What somebody says it is; its bytes are believed."""
    lines: tuple[int, int] | None = None
    """First and last line of a text, from 1; a ``file:`` URL may say them as ``?start=…&end=…``."""
    source: dict[str, Any] | None = None
    """Where in the prompt's text it was named."""


class Mention(msgspec.Struct, frozen=True):
    """An agent that is asked by name."""

    agent: str
    source: dict[str, Any] | None = None


class Subtask(msgspec.Struct, frozen=True, kw_only=True):
    """Work for an agent, carried out before the model is asked."""

    prompt: str
    agent: str = "general"
    description: str = "subtask"
    model: ModelRef | None = None
    command: str | None = None


Input = str | Path | Text | File | Mention | Subtask
"""A string may name files and agents with an ``@``; where there is one of that name it is added."""


class PartSource(msgspec.Struct, frozen=True, kw_only=True):
    """What making parts needs."""

    session_id: str
    message_id: str
    new_id: Callable[[Prefix], str]
    workspace: Path
    agents: frozenset[str] = frozenset()
    may_fail: bool = False
    """Whether a file that cannot be read becomes a line that says so; else it is an error."""


def resolve_inputs(inputs: Input | Sequence[Input], source: PartSource) -> list[Part]:
    """Return the parts of a prompt, in order.

    Raises
    ------
    UsageError
        When a file cannot be read or is too large, an agent is unknown, or nothing is asked.
    """
    several = [inputs] if isinstance(inputs, Input) else list(inputs)
    making = _Making(source)
    parts = [part for one in several for part in making.parts(one)]
    if not any(_asks(part) for part in parts):
        msg = f"the prompt is blank ({inputs!r}); write what the model is to do"
        raise UsageError(msg)
    return parts


def _asks(part: Part) -> bool:
    return not isinstance(part, TextPart) or bool(part.text.strip())


class _Making:
    def __init__(self, source: PartSource) -> None:
        self._source = source
        self._named: set[str] = set()

    def parts(self, given: Input) -> list[Part]:
        match given:
            case str():
                return [self._text(Text(given)), *self._mentioned(given)]
            case Text():
                return [self._text(given)]
            case Path():
                return self._file(File(path=given))
            case File():
                return self._file(given)
            case Mention():
                return self._agent(given)
            case Subtask():
                return [self._subtask(given)]

    def _base(self) -> dict[str, Any]:
        source = self._source
        ids = {"session_id": source.session_id, "message_id": source.message_id}
        return {"id": source.new_id("prt"), **ids}

    def _text(self, given: Text) -> TextPart:
        return TextPart(
            text=given.text,
            synthetic=given.synthetic or None,
            ignored=given.ignored or None,
            **self._base(),
        )

    def _said(self, text: str) -> TextPart:
        return self._text(Text(text, synthetic=True))

    # --------------------------------------------------------------------------------- agents

    def _agent(self, given: Mention) -> list[Part]:
        if given.agent not in self._source.agents:
            known = sorted(self._source.agents)
            msg = f"there is no agent {given.agent!r}; there are {known}"
            raise UsageError(msg, agent=given.agent)
        order = (
            " Use the above message and context to generate a prompt and call the task tool with "
            f"subagent: {given.agent}"
        )
        part = AgentPart(name=given.agent, source=given.source, **self._base())
        return [part, self._said(order)]

    def _subtask(self, given: Subtask) -> SubtaskPart:
        return SubtaskPart(
            prompt=given.prompt,
            description=given.description,
            agent=given.agent,
            model=given.model,
            command=given.command,
            **self._base(),
        )

    def _mentioned(self, text: str) -> list[Part]:
        """Return the parts of the files and agents that a text names with an ``@``."""
        parts: list[Part] = []
        for found in _MENTION.finditer(text):
            name = found.group(1)
            if name in self._named:
                continue
            self._named.add(name)
            place = {"value": found.group(), "start": found.start(), "end": found.end()}
            if name in self._source.agents:
                parts += self._agent(Mention(name, source=place))
            elif is_there(self._source.workspace, name):
                where = {"type": "file", "path": name, "text": place}
                path = self._source.workspace / name
                parts += self._file(File(path=path, filename=name, source=where))
        return parts

    # ---------------------------------------------------------------------------------- files

    def _file(self, given: File) -> list[Part]:
        try:
            return self._read(given)
        except (OSError, UsageError) as error:
            if not self._source.may_fail:
                if isinstance(error, UsageError):
                    raise
                msg = f"{_name(given)} cannot be read: {error}"
                raise UsageError(msg, path=_name(given)) from error
            name = _name(given)
            words = f"Read tool failed to read {name} with the following error: {error}"
            return [self._said(_called(name)), self._said(words)]

    def _read(self, given: File) -> list[Part]:
        path = _path(given)
        if path is not None:
            return self._from_path(given, path)
        data = given.data if given.data is not None else parse_data_url(given.url or "")
        if data is None:
            msg = f"{_name(given)} is no file: give a path, bytes, or a file: or data: URL"
            raise UsageError(msg)
        return self._from_bytes(given, data)

    def _from_path(self, given: File, path: Path) -> list[Part]:
        path = path if path.is_absolute() else self._source.workspace / path
        url, name = path.absolute().as_uri(), given.filename or path.name
        if path.is_dir():
            part = self._part(given, mime=_DIRECTORY, url=url, filename=name)
            return [self._said(_called(str(path))), self._said(file_text(path)), part]
        if not path.is_file():
            raise no_file(path)
        with path.open("rb") as file:
            mime = settled_mime(file.read(_SNIFF_BYTES), given.mime)
        if is_media(mime):
            part = self._part(given, mime=mime, url=media_url(path, mime), filename=name)
            return [self._said(_called(str(path))), part]
        lines = _lines(given)
        first, last = lines or (1, _END)
        text = file_text(path, start=first, count=last - first + 1)
        part = self._part(given, mime=_TEXT, url=url, filename=name)
        return [self._said(_called(str(path), lines)), self._said(text), part]

    def _from_bytes(self, given: File, data: bytes) -> list[Part]:
        said = _type_of(given.url)
        mime = settled_mime(data[:_SNIFF_BYTES], given.mime or said)
        name = given.filename or "inline"
        if mime != _TEXT and not is_media(mime):
            msg = f"{name} holds {mime}; a prompt takes text, images and PDFs"
            raise UsageError(msg, mime=mime)
        url = data_url(data, mime)
        if said == mime and given.url is not None:
            url = given.url  # as it came; one that names another type is written anew
        part = self._part(given, mime=mime, url=url, filename=name)
        if is_media(mime):
            return [part]
        text, _ = truncate(data.decode("utf-8", "replace"))
        return [self._said(_called(name)), self._said(text), part]

    def _part(self, given: File, *, mime: str, url: str, filename: str) -> FilePart:
        return FilePart(mime=mime, url=url, filename=filename, source=given.source, **self._base())


def _path(given: File) -> Path | None:
    if given.path is not None:
        return Path(given.path)
    url = _file_url(given)
    return None if url is None else Path(unquote(url.path, errors="surrogateescape"))


def _file_url(given: File) -> SplitResult | None:
    """Return a ``file:`` URL of this machine in its pieces; None for anything else."""
    try:
        url = urlsplit(given.url or "")
    except ValueError:
        return None
    return url if url.scheme == "file" and url.netloc in {"", "localhost"} else None


def _lines(given: File) -> tuple[int, int] | None:
    """Return the lines that are wanted, from 1; None for all."""
    lines = given.lines or _lines_of(_file_url(given))
    if lines is None:
        return None
    first, last = lines
    if not 1 <= first <= last:
        msg = f"lines {lines} of {_name(given)}: the first is 1, and the last not before the first"
        raise UsageError(msg, lines=lines)
    return first, last


def _lines_of(url: SplitResult | None) -> tuple[int, int] | None:
    """Return the lines that a ``file:`` URL's query names."""
    query = parse_qs(url.query) if url is not None else {}
    start, end = (query.get(name, [""])[0] for name in ("start", "end"))
    if not _NUMBER.fullmatch(start):
        return None
    return int(start), int(end) if _NUMBER.fullmatch(end) else _END


def _type_of(url: str | None) -> str | None:
    """Return the type that a ``data:`` URL names."""
    head = (url or "").partition(",")[0]
    return head.removeprefix("data:").partition(";")[0].lower() or None


def _name(given: File) -> str:
    path = _path(given)
    if path is not None:
        return str(path)
    return given.filename or (given.url or "the file")[:_NAME_CHARS]


def _called(name: str, lines: tuple[int, int] | None = None) -> str:
    call: dict[str, Any] = {"filePath": name}
    if lines is not None:
        first, last = lines
        call |= {"offset": first} | ({} if last == _END else {"limit": last - first + 1})
    text = json.dumps(call, ensure_ascii=False, separators=(",", ":"))
    return f"Called the Read tool with the following input: {text}"
