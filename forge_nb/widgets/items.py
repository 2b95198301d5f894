"""What a view shows of a message and of a part, as plain values that can be sent as JSON.

The live view, the static transcript and its text twin are all drawn from these items, so that they
agree. Nothing here is HTML; sizes are bounded.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import (
    AgentPart,
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    Span,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolRunning,
    UnknownPart,
    is_open,
)
from forge_nb.messages.wire import INTERRUPTED_KEY, TOOL_ABORTED, TOOL_INTERRUPTED

if TYPE_CHECKING:
    from forge_nb.messages.message import Message
    from forge_nb.messages.parts import Part

__all__ = [
    "TOKEN_LABELS",
    "Item",
    "cost_text",
    "message_item",
    "part_item",
    "printable",
    "seconds_text",
    "tail_of",
    "units",
    "whole_text",
]

Item = dict[str, Any]
"""A view item; `kind` says which fields it has."""

TOKEN_LABELS = ("input", "output", "reasoning", "cache read", "cache write")
"""The five kinds as they are labelled, in the order of `TOKEN_KINDS`."""

INPUT_CHARS = 4_000  # of a tool's input, from its start
OUTPUT_CHARS = 4_000  # of a tool's output, from its end
BRIEF_CHARS = 120  # of what stands beside a tool's name
CHIP_CHARS = 200
CENT_USD = 0.01
MINUTE_MS = 60_000

_SURROGATES = re.compile("[\ud800-\udfff]")


def units(text: str) -> int:
    """Return the length of a text in UTF-16 units, which is how browsers count.

    Examples
    --------
    >>> units("aé"), units("🙂")
    (2, 2)
    """
    if text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def printable(text: str) -> str:
    """Return the text with lone surrogates replaced, which no encoder takes; same length."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def tail_of(text: str, limit: int) -> tuple[str, int]:
    """Return the last `limit` characters and how many UTF-16 units stand before them."""
    if len(text) <= limit:
        return text, 0
    return text[-limit:], units(text[:-limit])


def seconds_text(ms: int | None) -> str:
    """Return a duration for people: ``0.4 s``, ``12 s``, ``2 min 05 s``.

    Examples
    --------
    >>> seconds_text(410), seconds_text(12_300), seconds_text(125_000), seconds_text(None)
    ('0.4 s', '12 s', '2 min 05 s', '—')
    """
    if ms is None:
        return "—"
    if ms < MINUTE_MS / 6:
        return f"{max(ms, 0) / 1000:.1f} s"
    if ms < MINUTE_MS:
        return f"{ms // 1000} s"
    return f"{ms // MINUTE_MS} min {ms % MINUTE_MS // 1000:02d} s"


def cost_text(usd: float | None) -> str:
    """Return a cost for people; an unknown one is a dash, never 0.

    Examples
    --------
    >>> cost_text(None), cost_text(0.0), cost_text(0.00123), cost_text(1.5)
    ('—', '$0', '$0.0012', '$1.50')
    """
    if usd is None:
        return "—"
    if usd == 0:
        return "$0"
    return f"${usd:.2f}" if usd >= CENT_USD * 10 else f"${usd:.4f}"


def whole_text(part: Part) -> str:
    """Return what a part says in full: its text, or a tool's output or error; else nothing."""
    match part:
        case TextPart() | ReasoningPart():
            return part.text
        case ToolPart(state=ToolCompleted(output=said) | ToolFailed(error=said)):
            return said
        case _:
            return ""


def message_item(message: Message) -> Item:
    """Return what a view shows of a message itself."""
    item: Item = {"id": message.id, "role": "user", "face": "user"}
    if not isinstance(message, AssistantMessage):
        return item
    names = [name for name in (message.provider_id, message.model_id) if name]
    item |= {
        "role": "assistant",
        "face": "summary" if message.is_summary else "assistant",
        "model": printable("/".join(names)),
        "agent": printable(message.agent or ""),
        "open": message.time.completed is None and message.finish is None,
        "finish": message.finish,
    }
    if message.error is not None:
        said = message.error.data.message or ""
        item["error"] = {"name": printable(message.error.name), "message": printable(said)}
    return item


def part_item(part: Part, *, output_chars: int = OUTPUT_CHARS) -> Item | None:
    """Return what a view shows of a part, or None when it shows nothing.

    Parameters
    ----------
    part
        Any part.
    output_chars
        How much of a tool's output to keep, from its end.
    """
    item = _item(part, output_chars)
    if item is None:
        return None
    item["id"] = part.id
    item["open"] = is_open(part)
    if part.discarded:
        item["discarded"] = part.attempt
    return item


def _item(part: Part, output_chars: int) -> Item | None:
    item: Item | None
    match part:
        case TextPart():
            flags = {"synthetic": bool(part.synthetic), "ignored": bool(part.ignored)}
            item = {"kind": "text", "text": part.text, **flags}
        case ReasoningPart():
            item = {"kind": "reasoning", "text": part.text, "ms": _duration(part.time)}
        case ToolPart():
            item = _tool_item(part, output_chars)
        case StepStartPart():
            item = None
        case StepFinishPart():
            item = _step_item(part)
        case CompactionPart():
            flags = {"auto": part.auto, "overflow": bool(part.overflow)}
            keeps_tail = part.tail_start_id is not None
            item = {"kind": "compaction", "state": "pending", "tail": keeps_tail, **flags}
        case _:
            item = _chip_item(part)
    return item


def _duration(time: Span | None) -> int | None:
    return None if time is None or time.end is None else max(time.end - time.start, 0)


def _tool_item(part: ToolPart, output_chars: int) -> Item:
    state = part.state
    given = _pretty(state.input)
    item: Item = {
        "kind": "tool",
        "tool": printable(part.tool),
        "status": part.status,
        "brief": _brief(part.tool, getattr(state, "title", None), state.input),
        "input": printable(given[:INPUT_CHARS]),
        "input_cut": max(len(given) - INPUT_CHARS, 0),
    }
    if isinstance(state, ToolCompleted):
        tail, before = tail_of(state.output, output_chars)
        item |= {"output": printable(tail), "output_cut": before}
        item["attachments"] = len(state.attachments or ())
    elif isinstance(state, ToolFailed):
        tail, before = tail_of(state.error, output_chars)
        item |= {"error": printable(tail), "output_cut": before}
        if _is_aborted(state):
            item["status"] = "aborted"
    if isinstance(state, ToolCompleted | ToolFailed):
        item["ms"] = max(state.time.end - state.time.start, 0)
        item["cleared"] = state.time.compacted is not None
    elif isinstance(state, ToolRunning) and state.metadata:
        note = state.metadata.get("output") or state.metadata.get("note")
        if isinstance(note, str):
            item["output"] = printable(note[-output_chars:])
    return item


def _is_aborted(state: ToolFailed) -> bool:
    words = {TOOL_ABORTED, TOOL_INTERRUPTED}
    return state.error in words or bool((state.metadata or {}).get(INTERRUPTED_KEY))


def _pretty(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or value == {}:
        return ""
    return json.dumps(value, indent=2, ensure_ascii=False, default=repr)


def _brief(tool: str, title: str | None, given: Any) -> str:
    """Return one line that tells this call from another of the same tool."""
    if title and title != tool:
        line = title
    elif isinstance(given, dict):
        line = next((str(v) for v in given.values() if isinstance(v, str | int | float)), "")
    else:
        line = "" if given is None else str(given)
    line = " ".join(printable(line).split())
    return line if len(line) <= BRIEF_CHARS else line[: BRIEF_CHARS - 1] + "…"


def _step_item(part: StepFinishPart) -> Item:
    cost = part.cost
    if not cost and part.cost_source != "computed" and part.tokens.is_reported:
        cost = None  # a recorded 0 is what a missing price looks like
    if not part.tokens.is_reported and not cost:
        cost = None
    kinds = part.tokens.kinds if part.tokens.is_reported else (None,) * len(TOKEN_LABELS)
    return {
        "kind": "step",
        "reason": printable(part.reason),
        "tokens": list(kinds),
        "context": part.tokens.context if part.tokens.is_reported else None,
        "cost": cost,
    }


def _chip_item(part: Part) -> Item:
    match part:
        case FilePart():
            embedded = part.url.startswith("data:")
            name = part.filename or ("embedded file" if embedded else part.url)
            label, icon, detail = name, "file", part.mime
        case AgentPart():
            label, icon, detail = f"@{part.name}", "agent", "agent"
        case SubtaskPart():
            label, icon, detail = part.description or part.prompt, "subtask", f"@{part.agent}"
        case PatchPart():
            count = len(part.files)
            label = f"{count} file{'' if count == 1 else 's'} changed"
            icon, detail = "patch", ", ".join(part.files)
        case UnknownPart():
            label, icon, detail = part.kind, "unknown", "part of a kind this version does not know"
        case _:
            label, icon, detail = type(part).__name__, "unknown", ""
    cut = {"label": printable(label)[:CHIP_CHARS], "detail": printable(detail)[:CHIP_CHARS]}
    return {"kind": "chip", "icon": icon, **cut}
