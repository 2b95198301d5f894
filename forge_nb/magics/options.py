"""What stands behind a magic's name: words and options; and what may stand there next.

One table says which options there are and what their values may be; reading a line and completing
it both go by the table.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forge_nb.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forge_nb.workbench import Workbench

__all__ = ["OPTIONS", "Given", "completions", "parse"]

MAX_OFFERED = 50


@dataclass(frozen=True)
class Option:
    """An option: what it is for, and what its value may be."""

    about: str
    offers: Callable[[Workbench, str], Sequence[str]] | None = None
    """Values that begin as typed; None for an option without a value."""
    several: bool = False
    """Whether it may be given more than once."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a line says."""

    words: list[str] = []
    options: dict[str, str] = {}
    """The last value of each option; an empty text where it has none."""
    files: list[str] = []


def parse(line: str) -> Given:
    """Split a line into words and options.

    Raises
    ------
    UsageError
        When an option is unknown or lacks its value, or a quotation is left open.

    Examples
    --------
    >>> parse('use "my talk" --model scripted:echo').words
    ['use', 'my talk']
    """
    words: list[str] = []
    options: dict[str, str] = {}
    files: list[str] = []
    tokens = iter(_tokens(line))
    for token in tokens:
        if not token.startswith("--"):
            words.append(token)
            continue
        name, has_value, value = token.partition("=")
        if name not in OPTIONS:
            msg = f"unknown option {token!r}; there are {list(OPTIONS)}"
            raise UsageError(msg)
        if OPTIONS[name].offers is not None and not has_value:
            value = next(tokens, "")
            if not value or value.startswith("--"):
                msg = f"{name} lacks its value: {OPTIONS[name].about}"
                raise UsageError(msg)
        if OPTIONS[name].several:
            files.append(value)
        else:
            options[name[2:]] = value
    return Given(words=words, options=options, files=files)


def _tokens(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        msg = f"{line!r} cannot be read ({error}); close the quotation"
        raise UsageError(msg) from error


def completions(
    typed: str, token: str, commands: Mapping[str, Any], workbench: Callable[[], Workbench]
) -> list[str]:
    """Return what may come next on a line of ``%forge`` or ``%%forge``.

    Parameters
    ----------
    typed
        The line up to the cursor.
    token
        The word under the cursor.
    commands
        Words that may follow ``%forge``; none for ``%%forge``.
    workbench
        Opens the one in use; called only where values of a store are asked for.
    """
    if token.startswith("-"):
        return [name for name in OPTIONS if name.startswith(token)]
    before = typed[: len(typed) - len(token)].split()
    last = before[-1] if before else ""
    option = OPTIONS.get(last)
    if option is not None and option.offers is not None:
        return _quoted(option.offers(workbench(), token))
    if len(before) == 1:
        return [name for name in commands if name.startswith(token)]
    if last in {"use", "show"}:
        return _quoted(_sessions(workbench(), token))
    return []


def _quoted(values: Sequence[str]) -> list[str]:
    return [shlex.quote(value) for value in values[:MAX_OFFERED]]


def _sessions(workbench: Workbench, token: str) -> list[str]:
    typed = token.strip("'\"")
    rows = [row.info for row in workbench.store.sessions()]
    titles = [info.title for info in rows if info.title.startswith(typed)]
    ids = [info.id for info in rows if typed.startswith("ses") and info.id.startswith(typed)]
    return list(dict.fromkeys([*titles, *ids]))


def _models(workbench: Workbench, token: str) -> list[str]:
    from forge_nb.providers.registry import provider_names
    from forge_nb.providers.scripts import SCRIPTS

    known = [f"scripted:{name}" for name in SCRIPTS]
    used = [f"{info.model.provider_id}:{info.model.id}" for info in _infos(workbench) if info.model]
    providers = [f"{name}:" for name in sorted(provider_names()) if name != "scripted"]
    mine = [workbench.model] if workbench.model else []
    every = dict.fromkeys([*mine, *known, *used, *providers])
    return [name for name in every if name.startswith(token)]


def _infos(workbench: Workbench) -> list[Any]:
    return [row.info for row in workbench.store.sessions()]


def _agents(workbench: Workbench, token: str) -> list[str]:
    return [name for name in sorted(workbench.agents) if name.startswith(token)]


def _strategies(_workbench: Workbench, token: str) -> list[str]:
    from forge_nb.compaction.strategies import strategies

    return [name for name in strategies() if name.startswith(token)]


def _paths(_workbench: Workbench, token: str) -> list[str]:
    """Return files and folders that begin as typed; hidden ones only when a dot was typed."""
    typed = token.strip("'\"")
    folder, _, start = typed.rpartition("/")
    place = Path(f"{folder}/" if folder or typed.startswith("/") else ".").expanduser()
    if not place.is_dir():
        return []
    found = sorted(entry for entry in place.iterdir() if entry.name.startswith(start))
    shown = [entry for entry in found if start.startswith(".") or not entry.name.startswith(".")]
    prefix = f"{folder}/" if folder or typed.startswith("/") else ""
    return [f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}" for entry in shown]


def _stores(workbench: Workbench, token: str) -> list[str]:
    found = _paths(workbench, token)
    return [path for path in found if path.endswith((".db", "/"))]


def _nothing(_workbench: Workbench, _token: str) -> list[str]:
    return []


OPTIONS: dict[str, Option] = {
    "--session": Option("a title or an id", _sessions),
    "--model": Option("who answers, as PROVIDER:MODEL", _models),
    "--agent": Option("which of the workbench's agents answers", _agents),
    "--strategy": Option("how it compacts", _strategies),
    "--file": Option(
        "a file or folder to read with the prompt; may be repeated", _paths, several=True
    ),
    "--system": Option("a further system prompt for this question", _nothing),
    "--db": Option("the store, a file", _stores),
    "--no-show": Option("show no live view"),
}
"""Name to meaning, in the order in which help lists them."""
