"""The tool ``bash``: a command in a process group of its own, which never outlives the call.

It runs with the rights of whoever runs it, in the working folder, without the secrets of the
environment. Cancelled or too slow it is asked to end, and a second later made to, its children too.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from forge_nb.errors import ToolError
from forge_nb.tools.permissions import commands_in
from forge_nb.tools.registry import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["bash_tool"]

_TIMEOUT_MS = 120_000  # opencode's default
_TIMEOUT_MAX_MS = 600_000
_KEPT_BYTES = 1_000_000  # of the output; the registry cuts what a model reads much earlier
_SHOWN_CHARS = 4_000  # of the output while it runs
_SHOW_EVERY_S = 0.2
_GRACE_S = 1.0  # between being asked to end and being made to
_DRAIN_S = 0.3  # for the last of the output, when a child still holds the pipe
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|cookie|session", re.IGNORECASE)


def bash_tool(root: Path) -> Tool:
    """Return the tool for a working folder."""

    async def bash(
        *,
        command: str,
        context: ToolContext,
        description: str = "",
        timeout: int = _TIMEOUT_MS,  # noqa: ASYNC109  the model's own word for it
    ) -> ToolOutput:
        patterns = commands_in(command) or [command]
        always = [f"{one.split(' ')[0]} *" for one in patterns if commands_in(command)]
        await context.ask("bash", patterns, always=always, metadata={"command": command})
        limit_ms = min(max(timeout, 1), _TIMEOUT_MAX_MS)
        return await _Command(command, root, context).run(description or command, limit_ms)

    about = (
        "Run a command with bash in the working folder.\n\n"
        "Parameters\n----------\ncommand\n    What to run.\ndescription\n    What it does, in a "
        "few words.\ntimeout\n    Milliseconds after which it is stopped."
    )
    bash.__doc__ = about
    return Tool(bash, description=about.split("\n\n", maxsplit=1)[0])


def environment() -> dict[str, str]:
    """Return the environment of a command: ours without what looks like a secret."""
    kept = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return kept | {"PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb"}


class _Command:
    def __init__(self, command: str, root: Path, context: ToolContext) -> None:
        self._command = command
        self._root = root
        self._context = context
        self._output = bytearray()
        self._size = 0
        self._shown_at = 0.0

    async def run(self, title: str, limit_ms: int) -> ToolOutput:
        program = shutil.which("bash")
        if program is None or "\0" in self._command:
            msg = "bash is not installed here" if program is None else "a command holds no NUL"
            raise ToolError(msg)
        ours, theirs = os.pipe()  # of our own: asyncio would wait until every child has closed it
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                "-c",
                self._command,
                cwd=self._root,
                env=environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # its own group, and no interrupt that was meant for us
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        is_late = False
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._follow(process, ours)
        except TimeoutError:
            is_late = True
        finally:
            await asyncio.shield(asyncio.ensure_future(_end(process)))
        return self._result(process.returncode, title, limit_ms, is_late=is_late)

    async def _follow(self, process: asyncio.subprocess.Process, pipe: int) -> None:
        """Read until the command ends; a child that keeps the pipe open is not waited for."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        file = os.fdopen(pipe, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        reading = asyncio.ensure_future(self._read(reader))
        try:
            await process.wait()
            await asyncio.wait({reading}, timeout=_DRAIN_S)
        finally:
            reading.cancel()
            transport.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(8192):
            self._size += len(data)
            self._output.extend(data[: max(0, _KEPT_BYTES - len(self._output))])
            if time.monotonic() - self._shown_at >= _SHOW_EVERY_S:
                self._shown_at = time.monotonic()
                self._context.progress(metadata={"output": self._text()[-_SHOWN_CHARS:]})

    def _text(self) -> str:
        return self._output.decode("utf-8", "replace")

    def _result(self, code: int | None, title: str, limit_ms: int, *, is_late: bool) -> ToolOutput:
        text = self._text()
        if self._size > len(self._output):
            text += f"\n[{self._size - len(self._output):,} bytes more were not kept]"
        if is_late:
            text += f"\n[stopped after {limit_ms:,} ms; give it a longer timeout if it needs one]"
        metadata = {"output": text[-_SHOWN_CHARS:], "exit": None if is_late else code}
        return ToolOutput(output=text or "(no output)", title=title, metadata=metadata)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command and everything it started."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
    _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
