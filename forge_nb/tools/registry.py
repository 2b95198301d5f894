"""Python functions as tools: a schema from their hints, validation, and one way to run them.

A plain function runs on a worker thread, a coroutine function on the loop. Whatever a tool raises
reaches the model as an error text; nothing of it stops the run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import msgspec

from forge_nb.errors import ToolError, UsageError
from forge_nb.messages.render import ToolSpec
from forge_nb.tools.truncate import truncate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Tool", "ToolContext", "ToolOutput", "ToolRegistry", "tool"]


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may know of its call; passed to a parameter named ``context``."""

    session_id: str
    message_id: str
    call_id: str
    abort: asyncio.Event
    """Set when the run is being stopped."""
    progress: Callable[..., None]
    """``progress(title=…, metadata=…)`` shows where the tool is."""


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gave."""

    output: str
    """What the model reads."""
    title: str | None = None
    metadata: dict[str, Any] | None = None
    attachments: list[dict[str, Any]] | None = None


class Tool:
    """A named function that a model may call.

    Parameters
    ----------
    function
        The function; its hints give the input's schema.
    name, description
        As the model sees them; the function's own by default.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str = ""
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.description = description or inspect.getdoc(function) or ""
        self.takes_context = "context" in inspect.signature(function).parameters
        self._model: Any = None

    def __repr__(self) -> str:
        """Name it."""
        return f"<tool {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    @property
    def model(self) -> Any:
        """The pydantic model of the input, made at the first use."""
        if self._model is None:
            self._model = _input_model(self.function, self.name)
        return self._model

    @property
    def spec(self) -> ToolSpec:
        """What a model is told."""
        schema = self.model.model_json_schema()
        schema.pop("title", None)
        return ToolSpec(name=self.name, description=self.description, schema=schema)

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call.

        Raises
        ------
        ToolError
            When a field is missing or wrong; the text is for the model.
        """
        import pydantic

        try:
            made = self.model.model_validate(given)
        except pydantic.ValidationError as error:
            lines = [f"{_path(one)}: {one['msg']}" for one in error.errors()]
            msg = f"invalid arguments for {self.name}: {'; '.join(lines)}; call it again corrected"
            raise ToolError(msg, tool=self.name) from error
        return {field: getattr(made, field) for field in type(made).model_fields}


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(*, name: str | None = None, description: str = "") -> Callable[..., Tool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str = ""
) -> Tool | Callable[..., Tool]:
    """Make a function a tool, bare or with a name.

    Examples
    --------
    >>> @tool
    ... def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> add.name, add(1, 2)
    ('add', 3)
    """
    if function is None:
        return functools.partial(Tool, name=name, description=description)
    return Tool(function, name=name, description=description)


class ToolRegistry:
    """The tools of a run.

    Parameters
    ----------
    tools
        What the model may call; a later one replaces an earlier one of its name.
    keep_outputs
        Folder for whole texts of outputs that are cut; None keeps none.
    """

    def __init__(self, tools: Iterable[Tool], *, keep_outputs: Path | None = None) -> None:
        self._tools = {one.name: one for one in tools}
        self._keep_outputs = keep_outputs

    def specs(self) -> list[ToolSpec]:
        """Return what the model is told, by name."""
        return [self._tools[name].spec for name in sorted(self._tools)]

    def get(self, name: str) -> Tool:
        """Return a tool; a name in the wrong case is repaired.

        Raises
        ------
        ToolError
            When there is no such tool; the text is for the model.
        """
        repaired = {known.lower(): known for known in self._tools}.get(name.lower(), name)
        if repaired not in self._tools:
            msg = f"there is no tool {name!r}; there are {sorted(self._tools)}"
            raise ToolError(msg, tool=name)
        return self._tools[repaired]

    async def run(self, name: str, given: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run a tool and return what the model reads of it.

        Raises
        ------
        ToolError
            When the tool is unknown, its input is wrong, or it raised.
        """
        found = self.get(name)
        arguments = found.validate(given)
        if found.takes_context:
            arguments["context"] = context
        try:
            value = await _call(found.function, arguments)
        except ToolError:
            raise
        except Exception as error:  # a tool is foreign code, and the model has to hear of it
            msg = f"{type(error).__name__}: {error}"
            raise ToolError(msg, tool=name) from error
        return self._cut(_normalised(value, found.name), context)

    def _cut(self, result: ToolOutput, context: ToolContext) -> ToolOutput:
        keep_at = None
        if self._keep_outputs is not None:
            keep_at = self._keep_outputs / f"{context.message_id}-{len(result.output)}.txt"
        text, was_cut = truncate(result.output, keep_at=keep_at)
        metadata = {**(result.metadata or {}), "truncated": was_cut}
        return msgspec.structs.replace(result, output=text, metadata=metadata)


async def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return await asyncio.to_thread(function, **arguments)


def _normalised(value: Any, name: str) -> ToolOutput:
    """Take a string, a dictionary with an ``output``, or anything that JSON can hold."""
    if isinstance(value, ToolOutput):
        return value
    if isinstance(value, str):
        return ToolOutput(output=value, title=name)
    if isinstance(value, dict) and isinstance(value.get("output"), str):
        return ToolOutput(
            output=value["output"],
            title=str(value.get("title") or name),
            metadata=value.get("metadata"),
            attachments=value.get("attachments"),
        )
    return ToolOutput(output=json.dumps(value, ensure_ascii=False, default=str), title=name)


def _input_model(function: Callable[..., Any], name: str) -> Any:
    import pydantic

    fields: dict[str, Any] = {}
    hints = inspect.get_annotations(function, eval_str=True)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "context":
            continue
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            msg = f"tool {name!r} takes *{parameter.name}; a tool needs named parameters"
            raise UsageError(msg)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    return pydantic.create_model(name, **fields)


def _path(error: Any) -> str:
    return ".".join(str(place) for place in error["loc"]) or "input"
