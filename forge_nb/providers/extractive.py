"""A summariser without a model: sentences of the session itself, put under headings.

Deterministic, and every fact in it is real, because nothing is invented. It shows the mechanics of
compaction; the quality of a model's summary is another question.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.messages.render import ModelMessage

__all__ = ["HEADINGS", "summarise"]

HEADINGS = ("Objective", "Important Details", "Work State", "Next Move", "Relevant Files")

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_CONSTRAINT = re.compile(r"\b(must|never|always|do not|don't|only|without)\b", re.IGNORECASE)
_FINDING = re.compile(
    r"\b(fail|pass|error|because|cause|found|fixed|\d+ (tests?|passed|failed))", re.IGNORECASE
)
_CONVERSATION = re.compile(r"<conversation>\n(.*)\n</conversation>", re.DOTALL)
_PRIOR = re.compile(r"<prior-summary>\n(.*)\n</prior-summary>", re.DOTALL)
_SPEAKER = re.compile(
    r"^\[(User|Assistant|Assistant reasoning|Assistant tool call|Tool result|Tool error)\]: ",
    re.MULTILINE,
)
_WORD = re.compile(r"[\w./-]+")
_PATH = re.compile(r"/?(?:[\w.-]+/)+[\w.-]+\.\w{1,5}|[\w-]+\.(?:py|toml|md|json|ts)")
_PATH_CHARS = 200  # a longer word is no path; a bound, so that the search takes linear time
_SHARE = 0.6  # of the source's length, at most
_LINE_CHARS = 220


def summarise(messages: Sequence[ModelMessage]) -> str:
    """Return a summary of model messages; shorter than they are, empty where that cannot be.

    Parameters
    ----------
    messages
        What the model would read; the last one is the request to summarise and is left out. A
        request that holds the conversation as a record is read instead.
    """
    texts = _record(messages[-1]) or [
        (message.role, part.kind, part.text) for message in messages[:-1] for part in message.parts
    ]
    earlier = [text for _, _, text in texts if text.startswith(f"## {HEADINGS[0]}")]
    said = [(role, line) for role, kind, text in texts if kind == "text" for line in _lines(text)]
    sections = {
        HEADINGS[0]: _section(earlier, HEADINGS[0]) or _first(said, "user"),
        HEADINGS[1]: _section(earlier, HEADINGS[1])
        + [line for role, line in said if role == "user" and _CONSTRAINT.search(line)],
        HEADINGS[2]: _section(earlier, HEADINGS[2])[-3:]
        + [line for role, line in said if role == "assistant" and _FINDING.search(line)][-6:],
        HEADINGS[3]: [line for role, line in said if role == "assistant"][-1:],
        HEADINGS[4]: _section(earlier, HEADINGS[4]) + _paths(text for _, _, text in texts),
    }
    size = sum(len(text) for _, _, text in texts)
    summary = _fitted(sections, int(size * _SHARE))
    return summary if len(summary) < size else ""


def _record(request: ModelMessage) -> list[tuple[str, str, str]]:
    """Return who said what in a request's record, the earlier summary first; empty for none."""
    text = "\n".join(part.text for part in request.parts)
    found = _CONVERSATION.search(text)
    if found is None:
        return []
    prior = _PRIOR.search(text)
    said = [("assistant", "text", prior.group(1))] if prior else []
    pieces = _SPEAKER.split(found.group(1))[1:]
    for speaker, words in zip(pieces[::2], pieces[1::2], strict=True):
        role = "user" if speaker == "User" else "assistant"
        kind = "text" if speaker in {"User", "Assistant"} else "tool"
        said.append((role, kind, words.strip()))
    return said


def _lines(text: str) -> list[str]:
    if text.startswith(f"## {HEADINGS[0]}"):
        return []
    lines = (line.strip(" -*#\t") for line in _SENTENCE.split(text))
    return [line[:_LINE_CHARS] for line in lines if line]


def _first(said: Iterable[tuple[str, str]], role: str) -> list[str]:
    return [line for who, line in said if who == role][:1]


def _paths(texts: Iterable[str]) -> list[str]:
    words = (word.rstrip(".-/") for text in texts for word in _WORD.findall(text))
    paths = (word for word in words if len(word) <= _PATH_CHARS and _PATH.fullmatch(word))
    return list(dict.fromkeys(paths))[:40]


def _section(earlier: Sequence[str], heading: str) -> list[str]:
    """Return the lines of a section of the newest earlier summary."""
    if not earlier:
        return []
    _, _, rest = earlier[-1].partition(f"## {heading}\n")
    body = rest.split("\n## ", 1)[0]
    lines = (line.removeprefix("- ").strip() for line in body.splitlines())
    return [line for line in lines if line and line != "(none)"]


def _fitted(sections: dict[str, list[str]], budget: int) -> str:
    """Write the sections, fewer lines of each until they fit."""
    text = ""
    for most in range(8, -1, -1):
        text = "\n\n".join(_written(name, lines, most) for name, lines in sections.items())
        if len(text) <= budget:
            break
    return text


def _written(name: str, lines: Sequence[str], most: int) -> str:
    kept = list(dict.fromkeys(lines))[:most]
    body = "\n".join(f"- {line}" for line in kept) or "(none)"
    return f"## {name}\n{body}"
