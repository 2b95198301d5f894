"""A transcript that needs no kernel: a safe HTML fragment, and its twin in plain text.

Drawn from the same items as the live view and with the same style sheet. Everything a person, a
model or a tool wrote goes through `tag`, which escapes whatever is not its own output; there is no
script in the fragment, and no address is loaded by showing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_nb.widgets.feed import TranscriptState
from forge_nb.widgets.items import (
    TOKEN_LABELS,
    Item,
    cost_text,
    seconds_text,
)
from forge_nb.widgets.markup import Html, icon, join, note, sheet, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forge_nb.history import Label
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.widgets.markdown import Node

__all__ = ["MAX_HTML_CHARS", "transcript_html", "transcript_text"]

MAX_HTML_CHARS = 240_000
"""Messages beyond this are left out, oldest first, so that a notebook stays small."""

MAX_PARTS = 1_500
TEXT_CHARS = 20_000  # of each text
OUTPUT_CHARS = 2_000  # of each tool output
TEXT_LINES = 6  # of a tool output in the plain twin
ICONS = {"file": "▤", "agent": "@", "subtask": "↳", "patch": "±"}
TOOL_STATES = {
    "pending": ("○", "waiting"),
    "running": ("●", "running"),
    "completed": ("✓", "done"),
    "error": ("✕", "failed"),
    "aborted": ("⊘", "aborted"),
}
SPEAKERS = {"user": "You", "assistant": "Assistant", "summary": "Summary"}
MARKERS = {"pending": "Compacting", "failed": "Compaction failed", "done": "Compacted"}


def transcript_html(
    messages: Sequence[MessageWithParts],
    *,
    title: str | None = None,
    usable: int | None = None,
    labels: Mapping[str, Label] | None = None,
    before: Sequence[MessageWithParts] = (),
    max_parts: int = MAX_PARTS,
) -> str:
    """Return a session as a self-contained HTML fragment.

    Parameters
    ----------
    messages
        The history, oldest first.
    title
        Shown on top.
    usable
        Tokens of context that the session may use.
    labels
        What a model call saw, by part id; each part that it did not see says so.
    before
        History that is not shown, only counted: steps go on from it.
    max_parts
        Older messages are left out when there are more parts.

    Returns
    -------
    str
        One ``<div>`` with its style, without script; light or dark with the page.
    """
    state = _state_of(messages, before, max_parts)
    snap = state.snapshot()
    shown: list[Html] = []
    room, left_out = MAX_HTML_CHARS, state.older
    for message in reversed(snap["messages"]):
        drawn = _message(message, labels or {})
        room -= len(drawn)
        if room < 0 and shown:
            left_out += len(message["parts"])
        else:
            shown.append(drawn)
    told = note(f"{left_out:,} earlier parts are not shown") if left_out else ""
    log = tag("div", "fnb-log", told, *reversed(shown))
    return tag("div", "fnb fnb-static", sheet("transcript"), _header(state, title, usable), log)


def _state_of(
    messages: Iterable[MessageWithParts], before: Iterable[MessageWithParts], max_parts: int
) -> TranscriptState:
    state = TranscriptState(
        keep_chars=TEXT_CHARS,
        output_chars=OUTPUT_CHARS,
        max_parts=max_parts,
        before=before,
        now=lambda: 0.0,
    )
    state.load(messages)
    return state


def _build(nodes: Iterable[Node]) -> Html:
    """Return a markdown tree as HTML: tags from the tree's own list, text escaped."""
    return join([_built(node) for node in nodes])


def _built(node: Node) -> str:
    if isinstance(node, str):
        return node
    name, children, *extra = node if len(node) > 1 else [*node, []]
    if name == "pre":
        return tag("pre", "fnb-code", tag("code", "", *children))
    if name == "a":
        return tag("a", "", _build(children), href=extra[0], rel="noopener noreferrer")
    return tag(name, "", _build(children))


# ------------------------------------------------------------------------------------- drawing


def _header(state: TranscriptState, title: str | None, usable: int | None) -> Html:
    facts = tag("span", "fnb-sums", _sums(state.counters()))
    gauge: tuple[str, ...] = ()
    if state.context is not None and usable:
        share = state.context / usable
        level = "over" if share >= 1 else "near" if share >= 0.8 else "fine"  # noqa: PLR2004
        fill = tag("span", "fnb-meter-fill", style=f"width:{min(100, 100 * share):.1f}%")
        gauge = (tag("span", "fnb-meter", fill, data_level=level, aria_hidden="true"),)
    reading = tag("span", "fnb-reading", _gauge_text(state.context, usable))
    return tag(
        "div",
        "fnb-head",
        tag("div", "fnb-head-line", tag("span", "fnb-title", title or "Transcript")),
        tag("div", "fnb-head-line fnb-facts", *gauge, reading, facts),
    )


def _gauge_text(used: int | None, usable: int | None) -> str:
    text = f"context {_count(used)}"
    if usable is None:
        return f"{text} tokens"
    share = "" if used is None else f" · {100 * used / usable:.0f} %"
    return f"{text} of {usable:,}{share}"


def _sums(counters: Mapping[str, Any]) -> str:
    unpriced = counters["unpriced"] if counters["cost"] is not None else 0
    more = f" + {unpriced} unpriced" if unpriced else ""
    steps, tools = counters["steps"], counters["tools"]
    return (
        f"{steps} step{'' if steps == 1 else 's'} · {tools} tool call{'' if tools == 1 else 's'}"
        f" · cost {cost_text(counters['cost'])}{more}"
    )


def _message(item: Item, labels: Mapping[str, Label]) -> Html:
    who = [tag("span", "fnb-name", SPEAKERS.get(item["face"], ""))]
    if item.get("model"):
        who.append(tag("span", "fnb-quiet", item["model"]))
    head = () if item["face"] == "marker" else (tag("div", "fnb-who", *who),)
    parts = [_part(part, labels.get(part["id"])) for part in item["parts"]]
    body = tag("div", "fnb-parts", *parts)
    return tag("section", "fnb-message", *head, body, *_error(item), data_face=item["face"])


def _error(item: Item) -> tuple[Html, ...]:
    text = _error_text(item)
    if not text:
        return ()
    stopped = text == "Stopped"
    css = "fnb-error fnb-aborted" if stopped else "fnb-error"
    return (tag("div", css, icon("⊘" if stopped else "✕"), text),)


def _error_text(item: Item) -> str:
    error = item.get("error")
    if not error:
        return ""
    if error["name"] == "MessageAbortedError":
        return "Stopped"
    return f"{error['name']}: {error['message']}" if error["message"] else str(error["name"])


def _part(item: Item, label: Label | None) -> Html:
    draw = {
        "text": _text,
        "reasoning": _reasoning,
        "tool": _tool,
        "step": _step,
        "compaction": _marker,
        "chip": _chip,
    }[item["kind"]]
    css = f"fnb-part fnb-{item['kind']}"
    extra: list[str] = []
    if label is not None and label.state != "visible":
        css += " fnb-unseen"
        extra.append(tag("div", "fnb-label-view", _label_text(label)))
    if item.get("discarded"):
        css += " fnb-discarded"
        extra.append(note(f"attempt {item['discarded']}, given up"))
    data = {"data-state": str(item.get("status") or item.get("state") or "")}
    return tag("div", css, *extra, *draw(item), **{k: v for k, v in data.items() if v})


def _label_text(label: Label) -> str:
    match label.state:
        case "dropped":
            return f"dropped by boundary {label.boundary}" if label.boundary else "dropped"
        case "cleared":
            return "output cleared"
        case _:
            return "not yet there"


def _text(item: Item) -> tuple[str, ...]:
    if item.get("nodes") is not None:
        return (tag("div", "fnb-md", _build(item["nodes"])),)
    if item.get("synthetic"):
        summary = tag("summary", "fnb-quiet", "added by the program")
        return (tag("details", "", summary, *_plain(item)),)
    return _plain(item)


def _plain(item: Item) -> tuple[str, ...]:
    cut = item.get("off", 0)
    told = (note(f"{cut:,} earlier characters are not shown"),) if cut else ()
    return (*told, tag("div", "fnb-pre", item["text"]))


def _reasoning(item: Item) -> tuple[str, ...]:
    summary = tag("summary", "", icon("✳"), _thought(item))
    return (tag("details", "", summary, tag("div", "fnb-fold", *_plain(item))),)


def _thought(item: Item) -> str:
    if item["open"]:
        return "Thinking (left open)"
    return "Thought" if item["ms"] is None else f"Thought for {seconds_text(item['ms'])}"


def _tool(item: Item) -> tuple[str, ...]:
    glyph, word = TOOL_STATES.get(item["status"], ("?", item["status"]))
    summary = tag(
        "summary",
        "",
        icon(glyph),
        tag("span", "fnb-tool-name", item["tool"]),
        tag("span", "fnb-brief", item["brief"]),
        tag("span", "fnb-state", word),
        tag("span", "fnb-time", seconds_text(item["ms"]) if "ms" in item else ""),
    )
    body: list[str] = []
    if item["input"]:
        body += [tag("div", "fnb-label", "input"), tag("pre", "fnb-box", item["input"])]
        if item["input_cut"]:
            body.append(note(f"{item['input_cut']:,} more characters"))
    for key, css in (("output", "fnb-box"), ("error", "fnb-box fnb-bad")):
        if key in item:
            cut = item.get("output_cut", 0)
            told = (note(f"{cut:,} earlier characters are not shown"),) if cut else ()
            text = item[key] or "(empty)"
            body += [tag("div", "fnb-label", key), *told, tag("pre", css, text)]
    if item.get("attachments"):
        body.append(note(f"{item['attachments']} attachment(s)"))
    if item.get("cleared"):
        body.append(note("no longer sent to the model"))
    is_open = item["status"] == "error"
    return (tag("details", "", summary, tag("div", "fnb-fold", *body), open=is_open),)


def _step(item: Item) -> tuple[str, ...]:
    number = f"Step {item['step']}" if item.get("step") else "Step"
    pairs = [
        tag("span", "fnb-kind", f"{name} ", tag("b", "", _count(n)))
        for name, n in zip(TOKEN_LABELS, item["tokens"], strict=True)
    ]
    price = tag("span", "fnb-kind fnb-cost", "cost ", tag("b", "", cost_text(item["cost"])))
    return (tag("span", "fnb-step-name", number), *pairs, price)


def _count(n: int | None) -> str:
    return "—" if n is None else f"{n:,}"


def _marker(item: Item) -> tuple[str, ...]:
    return (
        tag("span", "fnb-marker-name", MARKERS[item["state"]]),
        tag("span", "fnb-gain", _gain(item)),
        tag("span", "fnb-quiet", _why(item)),
    )


def _gain(item: Item) -> str:
    after = _count(item.get("after")) if item["state"] == "done" else "…"
    return f"{_count(item.get('before'))} → {after} tokens"


def _why(item: Item) -> str:
    why = "the window was full" if item["auto"] else "asked for"
    why = "the request was too long" if item["overflow"] else why
    return why + (", recent messages kept" if item["tail"] else "")


def _chip(item: Item) -> tuple[str, ...]:
    detail = (tag("span", "fnb-quiet", item["detail"]),) if item["detail"] else ()
    return (
        tag("span", "fnb-chip-body", icon(ICONS.get(item["icon"], "?")), item["label"], *detail),
    )


# -------------------------------------------------------------------------------- the text twin


def transcript_text(
    messages: Sequence[MessageWithParts],
    *,
    title: str | None = None,
    usable: int | None = None,
    before: Sequence[MessageWithParts] = (),
    max_parts: int = MAX_PARTS,
) -> str:
    """Return a session as plain text, for terminals and as the twin of the HTML.

    The parameters are those of `transcript_html`. No time, no duration and no id is in it, so that
    the same session gives the same text.
    """
    state = _state_of(messages, before, max_parts)
    lines = [title] if title else []
    lines.append(f"{_gauge_text(state.context, usable)} · {_sums(state.counters())}")
    if state.older:
        lines.append(f"({state.older:,} earlier parts are not shown)")
    for item in state.snapshot()["messages"]:
        if item["face"] != "marker":
            lines += ["", SPEAKERS[item["face"]] + ":"]
        for part in item["parts"]:
            lines += _part_lines(part, state.text(part["id"]))
        if error := _error_text(item):
            lines.append(f"  ✕ {error}")
    return "\n".join(lines)


def _part_lines(item: Item, text: str) -> list[str]:
    match item["kind"]:
        case "text":
            text = "(added by the program) " + text if item.get("synthetic") else text
            return [f"  {line}".rstrip() for line in text.strip().splitlines()]
        case "reasoning":
            return ["  ✳ Thought"]
        case "tool":
            return _tool_lines(item)
        case "step":
            kinds = zip(TOKEN_LABELS, item["tokens"], strict=True)
            number = f"Step {item['step']}" if item.get("step") else "Step"
            pairs = " · ".join(f"{name} {_count(n)}" for name, n in kinds)
            return [f"  {number} · {pairs} · cost {cost_text(item['cost'])}"]
        case "compaction":
            return ["", f"-- {MARKERS[item['state']]}: {_gain(item)} ({_why(item)}) --"]
        case _:
            detail = f" ({item['detail']})" if item["detail"] else ""
            return [f"  [{item['label']}{detail}]"]


def _tool_lines(item: Item) -> list[str]:
    glyph, word = TOOL_STATES.get(item["status"], ("?", item["status"]))
    lines = [f"  {glyph} {item['tool']} {item['brief']} · {word}".replace("  ·", " ·")]
    shown = str(item.get("error") or item.get("output") or "").rstrip().splitlines()
    if len(shown) > TEXT_LINES or item.get("output_cut"):
        lines.append("      …")
    return lines + [f"      {line}".rstrip() for line in shown[-TEXT_LINES:]]
