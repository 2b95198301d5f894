"""An MCP server for tests: started as a process, or held in this one."""

from __future__ import annotations

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shelf")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    msg = "the shelf is empty"
    raise ToolError(msg)


@server.tool(name="cover.png")
def cover() -> Image:
    """Return a picture."""
    return Image(data=b"\x89PNG\r\n", format="png")


if __name__ == "__main__":
    server.run("stdio")
