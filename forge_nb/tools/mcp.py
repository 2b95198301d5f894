"""Tools of a server that speaks the Model Context Protocol; needs the extra ``mcp``.

The connection lives in a task of its own: the protocol's library wants to close it in the task that
opened it, and a notebook runs each cell in another. Calls may come from any task of the loop.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ToolError, UsageError
from forge_nb.messages.render import ToolSpec
from forge_nb.tools.registry import Tool, ToolOutput

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from mcp import Client
    from mcp.types import CallToolResult

__all__ = ["McpServer"]

CONNECT_S = 30.0
"""How long a server may take to start and to tell its tools."""

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")  # what providers refuse in a tool's name


class McpServer:
    """A server and its tools.

    Parameters
    ----------
    target
        A command line that starts the server, spoken to over its standard streams; an address of a
        server that runs (``http://HOST/mcp``); or a server object of the `mcp` package.
    name
        What the names of its tools begin with: ``name_tool``. A call needs leave under that name.
    call_s
        How long a call may take; None for as long as it likes.

    Examples
    --------
    In a notebook::

        async with McpServer("python server.py", name="docs") as server:
            wb = forge.open(
                tools=server.tools, settings=Settings(rules=(Rule("docs_*", "*", "allow"),))
            )
            await wb.session("with tools", model="openai:gpt-5").prompt("What do the docs say?")
    """

    def __init__(self, target: Any, *, name: str, call_s: float | None = None) -> None:
        self.name = name
        self.tools: list[Tool] = []
        """What it offers, once connected."""
        self._target = target
        self._call_s = call_s
        self._client: Client | None = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self.close()

    async def connect(self) -> None:
        """Connect and read what tools there are.

        Raises
        ------
        UsageError
            When the server cannot be started or reached, or is silent for `CONNECT_S`.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._live(ready))
        try:
            await asyncio.wait_for(asyncio.shield(ready), CONNECT_S)
        except TimeoutError as error:
            await self.close()
            msg = f"{self._target!r} said nothing for {CONNECT_S:.0f} s; is it an MCP server?"
            raise UsageError(msg) from error

    async def close(self) -> None:
        """Close the connection; a server that was started here ends."""
        task, self._task = self._task, None
        self._closing.set()
        if task is not None:
            _, late = await asyncio.wait({task}, timeout=CONNECT_S)
            for one in late:
                one.cancel()
            await asyncio.wait({task})

    async def _live(self, ready: asyncio.Future[None]) -> None:
        """Hold the connection until it is to be closed."""
        self._closing.clear()
        try:
            async with _client(self._target) as client:
                self.tools = [self._tool(each) for each in await _offered(client)]
                self._client = client
                ready.set_result(None)
                await self._closing.wait()
        except ImportError as error:
            if not ready.done():
                ready.set_exception(error)
        except Exception as error:  # noqa: BLE001  a foreign process; whoever connects is told
            if not ready.done():
                cause = _innermost(error)
                msg = f"cannot connect to {self._target!r}: {type(cause).__name__}: {cause}"
                refused = UsageError(msg)
                refused.__cause__ = error
                ready.set_exception(refused)
        finally:
            self._client = None

    def _tool(self, offered: Any) -> Tool:
        """Return one of its tools as one of ours."""

        async def call(**arguments: Any) -> ToolOutput:
            return await self._call(offered.name, arguments)

        name = _NOT_IN_A_NAME.sub("_", f"{self.name}_{offered.name}")
        return _McpTool(
            call,
            spec=ToolSpec(
                name=name, description=offered.description or "", schema=offered.input_schema
            ),
        )

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        if self._client is None:
            msg = f"the server {self.name!r} is not connected; connect it again, or do without"
            raise ToolError(msg, tool=name)
        result = await self._client.call_tool(name, arguments, self._call_s)
        return _output(result, name)


class _McpTool(Tool):
    """A tool whose schema is the server's, which also checks the arguments."""

    def __init__(self, function: Any, *, spec: ToolSpec) -> None:
        super().__init__(
            function, name=spec.name, description=spec.description, permission=spec.name
        )
        self._spec = spec

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        return dict(given)


def _client(target: Any) -> Client:
    try:
        from mcp import Client, StdioServerParameters
    except ImportError as error:
        msg = "an MCP server needs the extra: pip install 'forge-nb[mcp]'"
        raise ImportError(msg) from error
    if isinstance(target, str) and not re.match(r"https?://", target):
        command, *arguments = shlex.split(target) or [""]
        return Client(StdioServerParameters(command=command, args=arguments))
    return Client(target)


async def _offered(client: Client) -> list[Any]:
    page = await client.list_tools()
    offered = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        offered += page.tools
    return offered


def _output(result: CallToolResult, name: str) -> ToolOutput:
    """Return texts joined, and pictures and sounds as attachments.

    Raises
    ------
    ToolError
        When the server says that the call failed.
    """
    texts: list[str] = []
    attachments: list[dict[str, Any]] = []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type in {"image", "audio"}:
            url = f"data:{block.mime_type};base64,{block.data}"
            attachments.append({"type": "file", "mime": block.mime_type, "url": url})
        else:
            texts.append(block.model_dump_json(exclude_none=True))
    said = "\n\n".join(texts)
    if result.is_error:
        raise ToolError(said or "the server gave no reason", tool=name)
    return ToolOutput(output=said, attachments=attachments or None)


def _innermost(error: BaseException) -> BaseException:
    """Return what went wrong first; task groups wrap it."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
