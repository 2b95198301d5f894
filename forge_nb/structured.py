"""An answer in a given shape: a tool whose input is the answer, checked against a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ToolError, UsageError
from forge_nb.messages.render import ToolSpec
from forge_nb.tools.registry import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge_nb.messages.message import UserMessage

__all__ = [
    "STRUCTURED_SYSTEM",
    "STRUCTURED_TOOL",
    "StructuredOutput",
    "answer_tool_of",
    "output_format",
]

STRUCTURED_TOOL = "StructuredOutput"
"""Name of the tool, as recordings know it."""

STRUCTURED_SYSTEM = (
    f"Give your final answer by calling the tool {STRUCTURED_TOOL} exactly once; its input is the "
    "answer. Do not write the answer as text."
)
_RETRIES = 2  # opencode's default; how often a missing answer is asked for again


def output_format(wanted: type | Mapping[str, Any]) -> dict[str, Any]:
    """Return a user message's `format` for a shape that an answer must have.

    Parameters
    ----------
    wanted
        A pydantic model, any type that pydantic can describe, or a JSON schema.

    Raises
    ------
    UsageError
        When the schema is none, or the type has none.
    """
    import jsonschema

    schema = dict(wanted) if isinstance(wanted, Mapping) else _schema_of(wanted)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        _check_references(schema)
        jsonschema.Draft202012Validator(schema).is_valid({})  # a reference to itself never ends
    except (jsonschema.SchemaError, RecursionError) as error:
        reason = getattr(error, "message", "it refers to itself without an end")
        msg = f"the output's schema is no JSON schema: {reason}; see json-schema.org"
        raise UsageError(msg) from error
    return {"type": "json_schema", "schema": schema, "retryCount": _RETRIES}


def _schema_of(wanted: type) -> dict[str, Any]:
    """Return a type's JSON schema.

    Raises
    ------
    UsageError
        When it is no type, or one that JSON cannot say.
    """
    import pydantic

    hint = "give a type (int, list[str], a pydantic model) or a JSON schema"
    if isinstance(wanted, str):
        msg = f"the output's shape is the text {wanted!r}; {hint}"
        raise UsageError(msg)
    try:
        schema: dict[str, Any] = pydantic.TypeAdapter(wanted).json_schema()
    except (pydantic.errors.PydanticUserError, NameError) as error:
        reason = str(error).partition("\n")[0]
        msg = f"the output's shape {wanted!r} has no JSON schema: {reason}; {hint}"
        raise UsageError(msg) from error
    return schema


def _check_references(schema: dict[str, Any]) -> None:
    """Refuse references that lead outside the schema or nowhere: nothing is fetched.

    Raises
    ------
    UsageError
        Naming the reference.
    """
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    whole = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", whole).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            msg = f"the output's schema refers to {reference!r}, which is not in it; write it out"
            raise UsageError(msg, reference=reference) from error


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


class StructuredOutput(Tool):
    """The tool that takes the answer.

    Parameters
    ----------
    schema
        What the answer must look like.
    retries
        How often a missing answer is asked for again.
    """

    def __init__(self, schema: dict[str, Any], *, retries: int = _RETRIES) -> None:
        super().__init__(
            self._take,
            name=STRUCTURED_TOOL,
            description="Give the final answer in the required structure.",
        )
        self._schema = schema
        self.retries = retries
        """How often a missing answer is asked for again."""
        self._is_object = schema.get("type", "object") == "object"
        self.captured: list[Any] = []
        """The answers that were given; the last one counts."""

    @property
    def spec(self) -> ToolSpec:
        """What a model is told; an answer that is no object is wrapped in one."""
        schema = self._schema
        if not self._is_object:
            schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
        return ToolSpec(name=self.name, description=self.description, schema=schema)

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the answer as the argument of `_take`.

        Raises
        ------
        ToolError
            When it does not have the shape; the text is for the model.
        """
        import jsonschema

        answer = given if self._is_object else given.get("value")
        validator = jsonschema.Draft202012Validator(self._schema)
        wrong = sorted(validator.iter_errors(answer), key=lambda error: list(error.path))
        if wrong:
            lines = "; ".join(f"{_path(error)}: {error.message}" for error in wrong[:5])
            msg = f"the answer does not fit the schema: {lines}; call {self.name} again corrected"
            raise ToolError(msg, tool=self.name)
        return {"answer": answer}

    async def _take(self, answer: Any) -> str:
        self.captured.append(json.loads(json.dumps(answer)))
        return "Structured output captured successfully."


def answer_tool_of(question: UserMessage) -> StructuredOutput | None:
    """Return the tool that takes a question's answer; None where any text will do."""
    wanted = question.format or {}
    schema = wanted.get("schema")
    if wanted.get("type") != "json_schema" or not isinstance(schema, dict):
        return None
    retries = wanted.get("retryCount", _RETRIES)
    return StructuredOutput(schema, retries=retries if isinstance(retries, int) else _RETRIES)


def _path(error: Any) -> str:
    return ".".join(str(step) for step in error.absolute_path) or "answer"
