"""What a function takes, as a pydantic model: the schema that a model reads, and validation.

Types come from the hints, descriptions from a numpy ``Parameters`` section of the docstring.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any

from forge_nb.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["input_model", "parameter_texts"]

_SECTION = re.compile(
    r"^Parameters\n-{3,}\n(.*?)(?=\n\S[^\n]*\n-{3,}(?:\n|$)|\Z)", re.MULTILINE | re.DOTALL
)
_UNNAMED = {
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
}


def input_model(
    function: Callable[..., Any],
    name: str,
    *,
    skip: frozenset[str] = frozenset(),
    known: Mapping[str, Any] | None = None,
) -> Any:
    """Return the pydantic model of a function's arguments.

    Its fields are named by place and have the arguments' names as aliases, so that an argument
    may be called ``schema`` or ``_id``, names that pydantic keeps for itself.

    Parameters
    ----------
    function
        The function.
    name
        Of the tool; used in errors.
    skip
        Parameters that the model does not give.
    known
        Names that the function's hints may use although its module imports them for the type
        checker alone.

    Raises
    ------
    UsageError
        When an argument could not be passed by its name.
    """
    import pydantic

    hints = inspect.get_annotations(function, eval_str=True, locals=known)
    texts = parameter_texts(inspect.getdoc(function) or "")
    names: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for parameter in _named(function, name, skip):
        field = f"a{len(names)}"
        names[field] = parameter.name
        hint = hints.get(parameter.name, Any)
        if text := texts.get(parameter.name):
            hint = _described(hint, text)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[field] = (hint, default)
    config = pydantic.ConfigDict(alias_generator=names.__getitem__, protected_namespaces=())
    return pydantic.create_model(name, __config__=config, **fields)


def _named(
    function: Callable[..., Any], name: str, skip: frozenset[str]
) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _UNNAMED:
            msg = f"tool {name!r} takes {str(parameter)!r}; a tool needs parameters with a name"
            raise UsageError(msg)
        if parameter.name not in skip:
            yield parameter


def _described(hint: Any, text: str) -> Any:
    import pydantic

    return Annotated[hint, pydantic.Field(description=text)]


def parameter_texts(doc: str) -> dict[str, str]:
    r"""Return what a numpy docstring says of each parameter, in one line each.

    Examples
    --------
    >>> parameter_texts("Parameters\n----------\na, b : int\n    To be added.")
    {'a': 'To be added.', 'b': 'To be added.'}
    """
    found = _SECTION.search(doc)
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in found.group(1).splitlines() if found else ():
        if line and not line[0].isspace():
            names = [one.strip(" *") for one in line.split(":", 1)[0].split(",")]
        elif words := line.strip():
            texts |= {one: f"{texts.get(one, '')} {words}".strip() for one in names}
    return texts
