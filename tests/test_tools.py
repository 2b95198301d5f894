"""Tools: schema and validation, one way to run them, and nothing of theirs that stops a run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pytest

from forge_nb.errors import ToolError, ToolRejectedError, UsageError
from forge_nb.messages.stream import StepFinish, StepStart, ToolCall, ToolInputStart
from forge_nb.tools.registry import Tool, ToolContext, ToolOutput, ToolRegistry, tool
from forge_nb.tools.schema import parameter_texts
from forge_nb.tools.truncate import MAX_BYTES, MAX_LINES, truncate
from tests.helpers import REF, Saying, text, workbench

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge_nb.messages.stream import StreamEvent


async def allow_all(*_: Any, **__: Any) -> None:
    """Give leave for everything."""


def context(call_id: str = "call_1") -> ToolContext:
    return ToolContext(
        session_id="ses",
        message_id="msg",
        call_id=call_id,
        abort=asyncio.Event(),
        progress=lambda **_: None,
        ask=allow_all,
    )


async def run(function: Callable[..., Any], **given: Any) -> ToolOutput:
    """Run a function as the only tool; what hangs fails."""
    registry = ToolRegistry([Tool(function, name="t")])
    async with asyncio.timeout(5):
        return await registry.run("t", given, context())


class Place(pydantic.BaseModel):
    line: int


def search(
    pattern: str,
    mode: Literal["text", "regex"] = "text",
    limit: Annotated[int, pydantic.Field(ge=1)] = 10,
    at: Place | None = None,
) -> str:
    """Search the project.

    Parameters
    ----------
    pattern
        What to look for,
        on one line.
    limit : int
        Most hits.
    """
    return f"{pattern} {mode} {limit} {at}"


class TestSchema:
    def test_types_come_from_the_hints_and_words_from_the_docstring(self) -> None:
        spec = Tool(search).spec
        properties = spec.schema["properties"]
        assert (spec.name, spec.schema["required"]) == ("search", ["pattern"])
        assert spec.description.startswith("Search the project.")
        assert properties["pattern"]["description"] == "What to look for, on one line."
        assert properties["mode"]["enum"] == ["text", "regex"]
        assert properties["limit"]["minimum"] == 1
        assert properties["limit"]["description"] == "Most hits."
        assert "line" in spec.schema["$defs"]["Place"]["properties"]

    def test_a_docstring_without_parameters_describes_none(self) -> None:
        assert parameter_texts("Do it.") == {}
        assert parameter_texts(
            "Parameters\n----------\na\n    X.\n\nReturns\n-------\nb\n    Y."
        ) == {"a": "X."}

    async def test_an_argument_may_have_a_name_that_pydantic_keeps_for_itself(self) -> None:
        def odd(schema: str, json: int, _id: int = 3, model_config: str = "c") -> str:
            return f"{schema} {json} {_id} {model_config}"

        assert list(Tool(odd).spec.schema["properties"]) == [
            "schema",
            "json",
            "_id",
            "model_config",
        ]
        assert (await run(odd, schema="s", json=1, _id=4)).output == "s 1 4 c"

    @pytest.mark.parametrize(
        "function", [lambda *rest: rest, lambda **rest: rest, lambda a, /: a], ids=repr
    )
    def test_a_parameter_without_a_name_is_refused(self, function: Callable[..., Any]) -> None:
        with pytest.raises(UsageError, match="parameters with a name"):
            _ = Tool(function, name="t").spec

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({}, "pattern: Field required"),
            ({"pattern": "x", "limit": 0}, "limit: .*greater than or equal to 1"),
            ({"pattern": "x", "mode": "no"}, "mode: .*'text' or 'regex'"),
            ({"pattern": "x", "at": {"line": "b"}}, r"at\.line: .*integer"),
        ],
    )
    async def test_a_wrong_argument_is_told_with_its_place(
        self, given: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ToolError, match=said):
            await run(search, **given)

    async def test_arguments_are_converted(self) -> None:
        made = await run(search, pattern="x", limit="3", at={"line": 2})
        assert made.output == "x text 3 line=2"


class TestContext:
    async def test_a_tool_that_asks_gets_its_context_and_the_model_hears_nothing_of_it(
        self,
    ) -> None:
        def asks(a: int, context: ToolContext) -> str:
            return f"{a} {context.call_id}"

        assert list(Tool(asks).spec.schema["properties"]) == ["a"]
        assert (await run(asks, a=1)).output == "1 call_1"

    async def test_a_parameter_of_another_type_is_an_argument(self) -> None:
        def grep(pattern: str, context: int = 2) -> str:
            return f"{pattern} {context}"

        assert (await run(grep, pattern="x", context=5)).output == "x 5"
        assert "context" in Tool(grep).spec.schema["properties"]


class TestRegistry:
    def test_tools_are_listed_by_name(self) -> None:
        registry = ToolRegistry([Tool(search, name=name) for name in ("b", "c", "a")])
        assert [spec.name for spec in registry.specs()] == ["a", "b", "c"]

    def test_a_name_is_taken_as_written_before_its_case_is_repaired(self) -> None:
        registry = ToolRegistry([Tool(search, name="Read"), Tool(search, name="read")])
        assert (registry.get("Read").name, registry.get("read").name) == ("Read", "read")
        assert ToolRegistry([Tool(search, name="Read")]).get("READ").name == "Read"

    async def test_an_unknown_tool_is_told_what_there_is(self) -> None:
        with pytest.raises(ToolError, match=r"no tool 'x'; there are \['t'\]"):
            await ToolRegistry([Tool(search, name="t")]).run("x", {}, context())

    def test_the_decorator_takes_a_name_or_nothing(self) -> None:
        @tool(name="other", description="Says it.")
        def one() -> str:
            return "1"

        assert (one.name, one.spec.description, one()) == ("other", "Says it.", "1")
        assert repr(tool(one.function)) == "<tool one>"


class TestRun:
    async def test_a_plain_function_runs_beside_the_loop(self) -> None:
        made = await run(lambda: threading.current_thread() is threading.main_thread())
        assert made.output == "false"

    async def test_a_coroutine_function_runs_on_the_loop(self) -> None:
        async def here() -> bool:
            await asyncio.sleep(0)
            return threading.current_thread() is threading.main_thread()

        assert (await run(here)).output == "true"

    async def test_an_object_that_is_called_and_awaited_is_awaited(self) -> None:
        class Later:
            async def __call__(self) -> str:
                await asyncio.sleep(0)
                return "awaited"

        assert (await run(Later())).output == "awaited"

    @pytest.mark.parametrize(
        ("value", "output"),
        [
            ("text", "text"),
            ({"output": "text"}, "text"),
            ({"a": [1, None]}, '{"a": [1, null]}'),
            ({"output": 3}, '{"output": 3}'),
            ({"output": "x", "metadata": "no"}, '{"output": "x", "metadata": "no"}'),
            ({(1, 2): 3}, "{(1, 2): 3}"),
            ("ä", "ä"),
            (None, "null"),
        ],
    )
    async def test_a_result_becomes_text(self, value: Any, output: str) -> None:
        assert (await run(lambda: value)).output == output

    async def test_a_result_that_holds_itself_becomes_text(self) -> None:
        circle: list[Any] = []
        circle.append(circle)
        assert (await run(lambda: circle)).output == "[[...]]"

    async def test_a_result_may_have_title_metadata_and_attachments(self) -> None:
        made = await run(
            lambda: {"output": "o", "title": "T", "metadata": {"n": 1}, "attachments": [{}]}
        )
        assert (made.title, made.attachments) == ("T", [{}])
        assert made.metadata == {"n": 1, "truncated": False}


def stops() -> None:
    next(iter([]))


def leaves() -> None:
    sys.exit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


def gives_up() -> None:
    raise asyncio.CancelledError


def loses_a_future() -> None:
    raise concurrent.futures.CancelledError


class Unspeakable:
    def __str__(self) -> str:
        msg = "no words"
        raise ValueError(msg)

    __repr__ = __str__


class TestErrors:
    """Whatever a tool does, the model hears of it and the run goes on."""

    @pytest.mark.parametrize(
        ("function", "said"),
        [
            (stops, "StopIteration"),
            (leaves, "SystemExit: 3"),
            (interrupts, "KeyboardInterrupt"),
            (gives_up, "CancelledError"),
            (loses_a_future, "CancelledError"),
            (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
            (Unspeakable, "ValueError: no words"),
        ],
    )
    async def test_what_a_function_raises_is_an_error_text(
        self, function: Callable[..., Any], said: str
    ) -> None:
        with pytest.raises(ToolError, match=said) as caught:
            await run(function)
        assert "Traceback" not in str(caught.value)

    @pytest.mark.parametrize("function", [leaves, gives_up])
    async def test_what_a_coroutine_raises_is_an_error_text(
        self, function: Callable[[], None]
    ) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            function()

        with pytest.raises(ToolError):
            await run(later)

    async def test_a_refusal_stays_a_refusal(self) -> None:
        def refuses() -> None:
            msg = "not allowed"
            raise ToolRejectedError(msg)

        with pytest.raises(ToolRejectedError, match="not allowed"):
            await run(refuses)

    async def test_a_stop_by_the_user_is_no_error_of_the_tool(self) -> None:
        started = asyncio.Event()

        async def waits() -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(run(waits))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @pytest.mark.parametrize("function", [stops, leaves, interrupts, gives_up])
    async def test_a_run_goes_on_after_it(self, function: Callable[..., Any]) -> None:
        asks: list[StreamEvent] = [
            StepStart(),
            ToolInputStart(call_id="c", tool="t"),
            ToolCall(call_id="c", tool="t", input={}),
            StepFinish(reason="tool-calls"),
        ]
        with workbench(Saying(asks, text("done")), tools=[Tool(function, name="t")]) as wb:
            async with asyncio.timeout(10):
                result = await wb.session("s", model=f"{REF.provider_id}:m").prompt(
                    "go", show=False
                )
            assert (result.outcome, result.text) == ("completed", "done")
            assert list(wb.tools()["status"]) == ["error"]


def first_letter(path: str) -> str:
    return Path(path).read_text("utf-8")[0]


def parent_of(path: str) -> Path:
    return Path(path).resolve().parent


class TestTruncate:
    @pytest.mark.parametrize(
        "whole",
        ["x" * (MAX_BYTES + 1), "ä" * MAX_BYTES, "\n".join("x" * (MAX_LINES + 1)), "\n" * 9999],
    )
    def test_long_output_is_cut_at_a_whole_character_and_says_what_is_missing(
        self, whole: str
    ) -> None:
        cut, was_cut = truncate(whole)
        shown, _, hint = cut.rpartition("\n[output cut: ")
        assert was_cut
        assert whole.startswith(shown)
        assert len(shown.encode()) <= MAX_BYTES
        assert shown.count("\n") < MAX_LINES
        assert f"{len(whole) - len(shown):,} of {len(whole):,}" in hint

    @pytest.mark.parametrize("whole", ["", "x" * MAX_BYTES, "\n" * (MAX_LINES - 1), "\udc80"])
    def test_output_within_the_limits_is_left_alone(self, whole: str) -> None:
        assert truncate(whole) == (whole, False)

    def test_half_a_character_does_not_stop_the_cut(self, tmp_path: Path) -> None:
        kept = tmp_path / "kept.txt"
        _, was_cut = truncate("\udc80" * MAX_BYTES, keep_at=kept)
        assert was_cut
        assert kept.stat().st_size == 3 * MAX_BYTES

    async def test_whole_outputs_of_two_calls_are_kept_apart(self, tmp_path: Path) -> None:
        tools = [Tool(lambda c=c: c * MAX_BYTES * 2, name=c) for c in "ab"]
        registry = ToolRegistry(tools, keep_outputs=tmp_path)
        texts = set()
        for name, call_id in (("a", "../../outside"), ("b", "call_2")):
            made = await registry.run(name, {"c": name}, context(call_id))
            assert made.metadata == {"truncated": True}
            texts.add(made.output.rpartition(" is in ")[2].rstrip("]"))
        assert sorted(map(first_letter, texts)) == ["a", "b"]
        assert set(map(parent_of, texts)) == {parent_of(f"{tmp_path}/any")}

    async def test_a_folder_that_cannot_be_written_does_not_lose_the_output(
        self, tmp_path: Path
    ) -> None:
        blocked = tmp_path / "file"
        blocked.touch()
        registry = ToolRegistry(
            [Tool(lambda: "x" * MAX_BYTES * 2, name="t")], keep_outputs=blocked / "below"
        )
        made = await registry.run("t", {}, context())
        assert made.output.startswith("xxx")
        assert "all of it is in" not in made.output


async def test_a_hint_that_cannot_be_checked_is_an_error_for_the_model() -> None:
    class Odd(Tool):
        def validate(self, given: dict[str, Any]) -> dict[str, Any]:
            raise RecursionError(str(given))

    with pytest.raises(ToolError, match="RecursionError"):
        await ToolRegistry([Odd(lambda: "x", name="odd")]).run("odd", {}, context())
