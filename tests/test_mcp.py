"""Tools of a Model Context Protocol server, over its standard streams and in this process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from forge_nb.errors import ToolError, UsageError
from forge_nb.messages.parts import ToolCompleted, ToolFailed, ToolPart
from forge_nb.messages.stream import StepFinish, StepStart, ToolCall
from forge_nb.settings import Settings
from forge_nb.tools.mcp import McpServer
from forge_nb.tools.permissions import Rule
from forge_nb.tools.registry import ToolRegistry
from tests.helpers import Saying, text, workbench
from tests.mcp_server import server as shelf
from tests.test_tools import context

if TYPE_CHECKING:
    from forge_nb.messages.stream import StreamEvent

PROGRAM = f"{sys.executable} {Path(__file__).parent / 'mcp_server.py'}"


@pytest.mark.parametrize("target", [PROGRAM, shelf], ids=["process", "in process"])
async def test_its_tools_are_called_by_their_own_schema(target: object) -> None:
    async with McpServer(target, name="shelf") as server:
        registry = ToolRegistry(server.tools)
        specs = {spec.name: spec for spec in registry.specs()}
        result = await registry.run("shelf_add", {"a": 2, "b": 3}, context())

    assert sorted(specs) == ["shelf_add", "shelf_cover_png", "shelf_fail"]
    assert set(specs["shelf_add"].schema["properties"]) == {"a", "b"}
    assert result.output == "5"


async def test_a_failure_and_wrong_arguments_reach_the_model_in_words() -> None:
    async with McpServer(shelf, name="shelf") as server:
        registry = ToolRegistry(server.tools)
        with pytest.raises(ToolError, match="the shelf is empty"):
            await registry.run("shelf_fail", {}, context())
        with pytest.raises(ToolError, match="a"):
            await registry.run("shelf_add", {"a": "much"}, context())


async def test_a_picture_becomes_an_attachment() -> None:
    async with McpServer(shelf, name="shelf") as server:
        result = await ToolRegistry(server.tools).run("shelf_cover_png", {}, context())

    assert result.attachments is not None
    assert result.attachments[0]["url"].startswith("data:image/png;base64,")


async def test_it_is_closed_from_another_task_and_its_tools_say_so() -> None:
    server = McpServer(PROGRAM, name="shelf")
    await asyncio.ensure_future(server.connect())
    await asyncio.ensure_future(server.close())

    with pytest.raises(ToolError, match="not connected"):
        await ToolRegistry(server.tools).run("shelf_add", {"a": 2, "b": 3}, context())


@pytest.mark.parametrize("target", ["no-such-program --x", f"{sys.executable} -c pass"])
async def test_what_is_no_server_is_refused_in_words(target: str) -> None:
    server = McpServer(target, name="shelf")

    with pytest.raises(UsageError, match="cannot connect"):
        await server.connect()


async def test_a_run_asks_leave_under_the_tools_name() -> None:
    calls: list[list[StreamEvent]] = [
        [
            StepStart(),
            ToolCall(call_id="c1", tool="shelf_add", input={"a": 2, "b": 3}),
            StepFinish(reason="tool-calls"),
        ],
        text("done"),
    ]
    states = []
    async with McpServer(shelf, name="shelf") as server:
        for rules in ((Rule("shelf_*", "*", "allow"),), (Rule("shelf_*", "*", "deny"),)):
            wb = workbench(Saying(*calls), tools=server.tools, settings=Settings(rules=rules))
            s = wb.session("with a server")
            await s.prompt("add")
            parts = [part for message in s.messages() for part in message.parts]
            states += [part.state for part in parts if isinstance(part, ToolPart)]
            wb.close()

    done, denied = states
    assert isinstance(done, ToolCompleted)
    assert done.output == "5"
    assert isinstance(denied, ToolFailed)
