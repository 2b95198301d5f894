"""Tools that work on the files of a folder: read, write, edit, glob, grep, todowrite.

Looking inside the folder is allowed, changing it is asked, and so is everything outside it; links
are followed before it is decided where a path leads. `forge_nb.tools.shell` adds ``bash``.
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ToolError, UsageError
from forge_nb.files import file_text, inside, is_media, media_url, sniff_mime
from forge_nb.tools.registry import Tool, ToolContext, ToolOutput
from forge_nb.tools.shell import bash_tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["workspace_tools"]

_MOST_NAMES = 100  # names or matches that one call gives (opencode)
_GREP_S = 20.0  # longest search
_LINE_CHARS = 500  # of a match; the rest of a longer line is left out
_GREP_ERROR = 2  # grep's exit code for a bad pattern or path
_SNIFF_BYTES = 4_096
_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv"})


def workspace_tools(root: str | Path = ".") -> list[Tool]:
    """Return the tools that work on a folder, to be given to a workbench.

    Parameters
    ----------
    root
        The folder.

    Raises
    ------
    UsageError
        When there is no such folder.

    Examples
    --------
    >>> sorted(tool.name for tool in workspace_tools("."))
    ['bash', 'edit', 'glob', 'grep', 'read', 'todowrite', 'write']
    """
    folder = Path(root).resolve()
    if not folder.is_dir():
        msg = f"{str(root)!r} is no folder; name the one that the tools may work in"
        raise UsageError(msg, path=str(root))
    space = _Workspace(folder)
    functions: list[Callable[..., Awaitable[Any]]] = [
        space.read,
        space.write,
        space.edit,
        space.glob,
        space.grep,
        todowrite,
    ]
    return [*map(Tool, functions), bash_tool(folder)]


class _Workspace:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def _leave(self, permission: str, given: str, context: ToolContext, **more: Any) -> Path:
        """Return where a path leads, once it may be used."""
        if "\0" in given:
            msg = f"{given!r} is no path"
            raise ToolError(msg)
        path = Path(given) if Path(given).is_absolute() else self._root / given
        if not inside(self._root, path):
            await context.ask("external_directory", (str(path),), always=(f"{path.parent}/*",))
        real = path.resolve()
        name = str(real.relative_to(self._root)) if inside(self._root, real) else str(real)
        await context.ask(permission, (name,), always=("*",), **more)
        return real

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root)) if inside(self._root, path) else str(path)

    async def read(
        self,
        *,
        filePath: str,
        context: ToolContext,
        offset: int = 1,
        limit: int = 2_000,
    ) -> ToolOutput:
        """Read a file with numbered lines, list a folder, or look at an image or a PDF.

        Parameters
        ----------
        filePath
            Path of the file, within the working folder.
        offset
            First line, from 1.
        limit
            Most lines.
        """
        path = await self._leave("read", filePath, context)
        return await asyncio.to_thread(self._read, path, offset, limit)

    def _read(self, path: Path, offset: int, limit: int) -> ToolOutput:
        try:
            if path.is_file():
                with path.open("rb") as file:
                    mime = sniff_mime(file.read(_SNIFF_BYTES))
                if is_media(mime):
                    url = media_url(path, mime)
                    attachment = {"type": "file", "mime": mime, "url": url, "filename": path.name}
                    kind = "Image" if mime.startswith("image/") else "PDF"
                    output = f"{kind} read successfully"
                    return ToolOutput(output=output, title=path.name, attachments=[attachment])
            text = file_text(path, start=max(1, offset), count=limit)
        except (OSError, UsageError) as error:
            raise ToolError(str(error)) from error
        return ToolOutput(output=text, title=self._name(path))

    async def write(self, *, filePath: str, content: str, context: ToolContext) -> ToolOutput:
        """Write a file whole; what it held before is replaced.

        Parameters
        ----------
        filePath
            Path of the file, within the working folder.
        content
            What it will hold.
        """
        known = self._root / filePath
        before = await asyncio.to_thread(_text_or_none, known)
        diff = _diff(before or "", content, filePath)
        path = await self._leave("edit", filePath, context, metadata={"diff": diff})
        await asyncio.to_thread(_replace, path, content)
        verb = "written" if before is None else "replaced"
        output = f"{self._name(path)} was {verb}: {len(content.splitlines())} lines."
        return ToolOutput(output=output, title=self._name(path), metadata={"diff": diff})

    async def edit(
        self,
        *,
        filePath: str,
        oldString: str,
        newString: str,
        context: ToolContext,
        replaceAll: bool = False,
    ) -> ToolOutput:
        """Replace a text in a file by another; it has to stand there exactly once.

        Parameters
        ----------
        filePath
            Path of the file, within the working folder.
        oldString
            What stands there now, word for word.
        newString
            What will stand there.
        replaceAll
            Whether every place is changed.
        """
        read = await self._leave("read", filePath, context)
        before = await asyncio.to_thread(_text_or_none, read)
        if before is None:
            msg = f"{self._name(read)} does not exist or holds no text; write it instead"
            raise ToolError(msg)
        after = _edited(before, oldString, newString, everywhere=replaceAll)
        diff = _diff(before, after, self._name(read))
        path = await self._leave("edit", filePath, context, metadata={"diff": diff})
        await asyncio.to_thread(_replace, path, after)
        output = "Edit applied successfully."
        return ToolOutput(output=output, title=self._name(path), metadata={"diff": diff})

    async def glob(self, *, pattern: str, context: ToolContext, path: str = ".") -> ToolOutput:
        """Find files by a pattern such as ``src/**/*.py``, the newest first.

        Parameters
        ----------
        pattern
            ``*`` stands for part of a name, ``**`` for folders.
        path
            Where to look, within the working folder.
        """
        folder = await self._leave("glob", path, context)
        found = await asyncio.to_thread(self._glob, folder, pattern)
        shown = [self._name(one) for one in found[:_MOST_NAMES]]
        if len(found) > _MOST_NAMES:
            shown.append(f"({len(found) - _MOST_NAMES} more; use a narrower pattern)")
        output = "\n".join(shown) or "No files found"
        return ToolOutput(output=output, title=pattern, metadata={"count": len(found)})

    def _glob(self, folder: Path, pattern: str) -> list[Path]:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            msg = f"{pattern!r} leaves the folder; use a pattern inside it, and `path`"
            raise ToolError(msg)
        try:
            matches = list(folder.glob(pattern))
        except (OSError, ValueError, NotImplementedError) as error:
            msg = f"{pattern!r} is no pattern: {error}"
            raise ToolError(msg) from error
        kept = [
            one
            for one in matches
            if one.is_file() and not _SKIPPED & set(one.relative_to(folder).parts)
            if inside(self._root, one) or not inside(self._root, folder)
        ]
        return sorted(kept, key=lambda one: (-one.stat().st_mtime_ns, str(one)))

    async def grep(
        self, *, pattern: str, context: ToolContext, path: str = ".", include: str | None = None
    ) -> ToolOutput:
        """Search the text of files for a regular expression (extended, as grep has it).

        Parameters
        ----------
        pattern
            What to look for.
        path
            File or folder to look in, within the working folder.
        include
            Only files whose name matches this, such as ``*.py``.
        """
        place = await self._leave("grep", path, context)
        lines = await asyncio.to_thread(_grep, pattern, place, include)
        shown = [line.replace(f"{self._root}/", "", 1) for line in lines[:_MOST_NAMES]]
        if len(lines) > _MOST_NAMES:
            shown.append("(more matches; use a narrower pattern)")
        output = "\n".join(shown) or "No matches found"
        matches = min(len(lines), _MOST_NAMES)
        return ToolOutput(output=output, title=pattern, metadata={"matches": matches})


def _text_or_none(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def _replace(path: Path, content: str) -> None:
    """Write a file in one step: a reader sees the old text or the new one, never half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(content)
            if path.exists():
                shutil.copymode(path, name)
            else:
                Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be written: {error}"
        raise ToolError(msg) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _edited(text: str, old: str, new: str, *, everywhere: bool) -> str:
    if old == new:
        msg = "oldString and newString are the same; there is nothing to change"
        raise ToolError(msg)
    if not old:
        msg = "oldString is empty; name the text to replace, or write the file"
        raise ToolError(msg)
    count = text.count(old)
    if count == 0:
        msg = "oldString is not in the file; read it again and copy the text word for word"
        raise ToolError(msg)
    if count > 1 and not everywhere:
        msg = f"oldString stands {count} times in the file; add lines around it, or set replaceAll"
        raise ToolError(msg)
    return text.replace(old, new)


def _diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, name
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _grep(pattern: str, place: Path, include: str | None) -> list[str]:
    """Search with grep, whose matching takes linear time, and no longer than it may."""
    program = shutil.which("grep")
    if program is None:
        msg = "grep is not installed here; read the files instead"
        raise ToolError(msg)
    options = ["-rnIE", "-m", str(_MOST_NAMES), *(f"--exclude-dir={name}" for name in _SKIPPED)]
    options += [] if include is None else [f"--include={include}"]
    command = [program, *options, "-e", pattern, "--", str(place)]
    with subprocess.Popen(  # noqa: S603  no shell, and the pattern stands behind -e
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        late = threading.Timer(_GREP_S, process.kill)
        late.start()
        try:
            found = itertools.islice(process.stdout or (), _MOST_NAMES + 1)
            lines = [line.decode("utf-8", "replace").rstrip("\n")[:_LINE_CHARS] for line in found]
            if len(lines) > _MOST_NAMES:
                process.kill()
            complaint = process.stderr.read() if process.stderr else b""
            process.wait()
        finally:
            late.cancel()
    if not lines and process.returncode == _GREP_ERROR:
        raise ToolError(complaint.decode("utf-8", "replace").strip()[:_LINE_CHARS])
    return lines


async def todowrite(*, todos: list[dict[str, str]]) -> ToolOutput:
    """Keep a list of what is to be done; each call replaces it.

    Parameters
    ----------
    todos
        The list: content, status (pending, in_progress, completed, cancelled) and priority.
    """
    open_ones = sum(one.get("status") not in {"completed", "cancelled"} for one in todos)
    return ToolOutput(
        output=json.dumps(todos, ensure_ascii=False, indent=2),
        title=f"{open_ones} todos",
        metadata={"todos": todos},
    )
