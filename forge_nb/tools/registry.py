"""Python functions as tools: a schema from their hints, validation, and one way to run them.

A plain function runs on a worker thread, a coroutine function on the loop. Whatever a tool raises
reaches the model as an error text; nothing of it stops the run.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from forge_nb.errors import ToolError
from forge_nb.messages.render import ToolSpec
from forge_nb.tools.schema import input_model
from forge_nb.tools.truncate import truncate

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Tool", "ToolContext", "ToolOutput", "ToolRegistry", "tool"]


_CONTEXT = "context"
_DIGEST_CHARS = 16


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may know of its call; passed to a parameter named ``context``.

    A parameter of that name with a hint of its own, ``context: int``, is an argument like others.
    """

    session_id: str
    message_id: str
    call_id: str
    abort: asyncio.Event
    """Set when the run is being stopped."""
    progress: Callable[..., None]
    """``progress(title=…, metadata=…)`` shows where the tool is."""
    ask: Callable[..., Awaitable[None]]
    """``await ask(permission, patterns, always=…, metadata=…)`` returns with leave, else raises."""
    workspace: Path | None = None
    """Folder that the session works in."""


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
    permission
        What a call needs leave for, ``edit`` or a name of your own; None for nothing.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str = "",
        permission: str | None = None,
    ) -> None:
        self.function = function
        self.permission = permission
        self.name = name or function.__name__
        self.description = description or inspect.getdoc(function) or ""
        self.takes_context = _takes_context(function)
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
            skip = frozenset({_CONTEXT} if self.takes_context else ())
            known = {"ToolContext": ToolContext}
            self._model = input_model(self.function, self.name, skip=skip, known=known)
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
        fields = type(made).model_fields.items()
        return {info.alias or field: getattr(made, field) for field, info in fields}


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, description: str = "", permission: str | None = None
) -> Callable[..., Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str = "",
    permission: str | None = None,
) -> Tool | Callable[..., Tool]:
    """Make a function a tool, bare or with a name, or with a permission that a call needs.

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
        return functools.partial(Tool, name=name, description=description, permission=permission)
    return Tool(function, name=name, description=description, permission=permission)


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

    def plus(self, *tools: Tool) -> ToolRegistry:
        """Return a registry with these tools too."""
        return ToolRegistry([*self._tools.values(), *tools], keep_outputs=self._keep_outputs)

    def only(self, names: Iterable[str] | None) -> ToolRegistry:
        """Return a registry with the tools of these names; with all for None."""
        if names is None:
            return self
        kept = [self.get(name) for name in names]
        return ToolRegistry(kept, keep_outputs=self._keep_outputs)

    def specs(self) -> list[ToolSpec]:
        """Return what the model is told, by name."""
        return [self._tools[name].spec for name in sorted(self._tools)]

    def get(self, name: str) -> Tool:
        """Return a tool; a name in the wrong case is repaired where no tool has it as written.

        Raises
        ------
        ToolError
            When there is no such tool; the text is for the model.
        """
        repaired = self.repaired(name)
        if repaired not in self._tools:
            msg = f"there is no tool {name!r}; there are {sorted(self._tools)}"
            raise ToolError(msg, tool=name)
        return self._tools[repaired]

    def repaired(self, name: str) -> str:
        """Return the name of the tool that a model meant: the same, whatever its case."""
        if name in self._tools:
            return name
        return {known.lower(): known for known in self._tools}.get(name.lower(), name)

    async def run(self, name: str, given: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run a tool and return what the model reads of it.

        Raises
        ------
        ToolError
            When the tool is unknown, its input is wrong, or it raised.
        """
        found = self.get(name)
        try:
            arguments = found.validate(given)
        except ToolError:
            raise
        except Exception as error:  # a type or a schema of the user's own
            raise _failed(error, name) from error
        if found.permission is not None:
            shown = json.dumps(given, ensure_ascii=False, default=str)
            pattern = f"{found.name} {shown}"
            await context.ask(found.permission, (pattern,), always=(f"{found.name} *",))
        if found.takes_context:
            arguments[_CONTEXT] = context
        try:
            value = await _call(found, arguments)
            result = _normalised(value, found.name)
        except ToolError:
            raise
        except (Exception, SystemExit) as error:  # foreign code, and the model has to hear of it
            raise _failed(error, name) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _failed(error, name) from error  # nobody stopped the run: the tool's own affair
        return self._cut(result, context)

    def _cut(self, result: ToolOutput, context: ToolContext) -> ToolOutput:
        keep_at = None
        if self._keep_outputs is not None:
            keep_at = self._keep_outputs / _file_name(context)
        try:
            text, was_cut = truncate(result.output, keep_at=keep_at)
        except OSError:  # a full disk must not lose what the tool did
            text, was_cut = truncate(result.output)
        metadata = {**(result.metadata or {}), "truncated": was_cut}
        return msgspec.structs.replace(result, output=text, metadata=metadata)


def _takes_context(function: Callable[..., Any]) -> bool:
    """Return whether the parameter ``context`` asks for a `ToolContext`."""
    parameter = inspect.signature(function).parameters.get(_CONTEXT)
    if parameter is None:
        return False
    hint = parameter.annotation
    return hint is parameter.empty or hint in (Any, "Any") or "ToolContext" in str(hint)


def _file_name(context: ToolContext) -> str:
    """Name a kept output; a call's id is the model's own word and no part of a path."""
    digest = hashlib.sha256(context.call_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{context.message_id}-{digest[:_DIGEST_CHARS]}.txt"


def _failed(error: BaseException, name: str) -> ToolError:
    return ToolError(f"{type(error).__name__}: {error}", tool=name)


async def _call(called: Tool, arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(called.function):
        return await called.function(**arguments)
    value = await asyncio.to_thread(_guarded, called, arguments)
    return await value if inspect.isawaitable(value) else value


def _guarded(called: Tool, arguments: dict[str, Any]) -> Any:
    """Call on a worker thread; whatever is raised there becomes an error that a future can carry.

    A StopIteration would leave its awaiter waiting for ever, a SystemExit would end the loop, and
    a CancelledError would look like the user's Stop.
    """
    try:
        return called.function(**arguments)
    except ToolError:
        raise
    except BaseException as error:
        raise _failed(error, called.name) from error


def _normalised(value: Any, name: str) -> ToolOutput:
    """Take a string, a dictionary with an ``output``, or anything that JSON can hold."""
    if isinstance(value, ToolOutput):
        return value
    if isinstance(value, str):
        return ToolOutput(output=value, title=name)
    if _is_result(value):
        return ToolOutput(
            output=value["output"],
            title=str(value.get("title") or name),
            metadata=value.get("metadata"),
            attachments=value.get("attachments"),
        )
    return ToolOutput(output=_as_text(value), title=name)


def _is_result(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("output"), str)
        and isinstance(value.get("metadata"), dict | None)
        and isinstance(value.get("attachments"), list | None)
    )


def _as_text(value: Any) -> str:
    """Write a value as JSON; as Python does where JSON cannot, for a tuple as a key, say."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _path(error: Any) -> str:
    return ".".join(map(str, error["loc"])) or "input"
