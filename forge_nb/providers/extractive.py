"""A summariser without a model: sentences of the session itself, put under headings.

Deterministic, and every fact in it is real, because nothing is invented. It shows the mechanics of
compaction; the quality of a model's summary is another question.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forge_nb.messages.record import Said, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.messages.record import Speaker
    from forge_nb.messages.render import ModelMessage

__all__ = ["HEADINGS", "extract", "summarise"]

HEADINGS = ("Objective", "Important Details", "Work State", "Next Move", "Relevant Files")

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_CONSTRAINT = re.compile(r"\b(must|never|always|do not|don't|only|without)\b", re.IGNORECASE)
_FINDING = re.compile(
    r"\b(fail|pass|error|because|cause|found|fixed|\d+ (tests?|passed|failed))", re.IGNORECASE
)
_WORD = re.compile(r"[\w./-]+")
_PATH = re.compile(r"/?(?:[\w.-]+/)+[\w.-]+\.\w{1,5}|[\w-]+\.(?:py|toml|md|json|ts)")
_PATH_CHARS = 200  # a longer word is no path; a bound, so that the search takes linear time
_TITLE = f"## {HEADINGS[0]}"
_SPEAKERS: dict[tuple[str, str], Speaker] = {
    ("user", "text"): "User",
    ("assistant", "text"): "Assistant",
}
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
    said, prior = read_record("\n".join(part.text for part in messages[-1].parts))
    return extract(said or _said(messages[:-1]), prior)


def extract(said: Sequence[Said], prior: str | None) -> str:
    """Return a summary of what was said; shorter than it is, empty where that cannot be.

    Parameters
    ----------
    said
        Who said what, in order. What the assistant said under our headings is an earlier summary.
    prior
        The earlier summary; None for none.
    """
    texts = [one.text for one in said] if prior is None else [prior, *(one.text for one in said)]
    is_earlier = [one.speaker == "Assistant" and one.text.startswith(_TITLE) for one in said]
    earlier = [one.text for one, old in zip(said, is_earlier, strict=True) if old]
    earlier += [] if prior is None else [prior]
    words = [one for one, old in zip(said, is_earlier, strict=True) if not old]
    asked = [line for one in words if one.speaker == "User" for line in _lines(one.text)]
    answered = [line for one in words if one.speaker == "Assistant" for line in _lines(one.text)]
    loose = [] if prior is None or _TITLE in prior else _lines(prior)  # not under our headings
    sections = {
        HEADINGS[0]: _section(earlier, HEADINGS[0]) or asked[:1],
        HEADINGS[1]: [*_section(earlier, HEADINGS[1]), *loose]
        + [line for line in asked if _CONSTRAINT.search(line)],
        HEADINGS[2]: _section(earlier, HEADINGS[2])[-3:]
        + [line for line in answered if _FINDING.search(line)][-6:],
        HEADINGS[3]: answered[-1:],
        HEADINGS[4]: _section(earlier, HEADINGS[4]) + _paths(texts),
    }
    size = sum(map(len, texts))
    summary = _fitted(sections, int(size * _SHARE))
    return summary if len(summary) < size else ""


def _said(messages: Sequence[ModelMessage]) -> list[Said]:
    """Return what was said in messages that are no record; tools' words are nobody's."""
    return [
        Said(_SPEAKERS.get((message.role, part.kind), "Tool result"), part.text)
        for message in messages
        for part in message.parts
    ]


def _lines(text: str) -> list[str]:
    lines = (line.strip(" -*#\t") for line in _SENTENCE.split(text))
    return [line[:_LINE_CHARS] for line in lines if line]


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
