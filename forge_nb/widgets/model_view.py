"""What the model saw, for people: a view that shows itself as a table and as text.

Everything in it is text from a model, a tool or a file, and is escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.render import to_model_messages
from forge_nb.widgets.items import printable
from forge_nb.widgets.markup import note, sheet, tag

if TYPE_CHECKING:
    import pandas as pd

    from forge_nb.history import View
    from forge_nb.messages.render import ModelMessage, ModelPart
    from forge_nb.widgets.markup import Html

__all__ = ["ModelView"]

_PREVIEW_CHARS = 160
_WHOLE_CHARS = 4_000  # of each text, where it is opened
_HTML_CHARS = 200_000  # of all texts that can be opened: a notebook stays small


class ModelView:
    """The model-facing view before a step.

    Parameters
    ----------
    view
        Messages in the order in which the model gets them, and a label for every stored part.
    at
        The step or message id that was asked for; None for the next call.

    Attributes
    ----------
    messages : list of ModelMessage
        What the model reads, in order.
    labels : dict
        Part id to label: visible, dropped by boundary k, cleared, or not there yet.
    """

    def __init__(self, view: View, *, at: int | str | None = None) -> None:
        self._view = view
        self.at = at
        self.rule = view.rule
        self.labels = view.labels
        self.messages: list[ModelMessage] = to_model_messages(view.messages)

    def __repr__(self) -> str:
        """Say what is in it in one line."""
        when = "for the next call" if self.at is None else f"before {self._place()}"
        return (
            f"<model view {when}: {len(self.messages)} messages, "
            f"about {self.estimated_tokens:,} tokens, rule {self.rule}>"
        )

    def _place(self) -> str:
        return f"step {self.at}" if isinstance(self.at, int) else str(self.at)

    @property
    def estimated_tokens(self) -> int:
        """Estimated tokens of the text, characters / 4; system prompt and tools not included."""
        return sum(_tokens(part) for message in self.messages for part in message.parts)

    def counts(self) -> dict[str, int]:
        """Return how many stored parts are visible, dropped, cleared, or not there yet."""
        found = dict.fromkeys(("visible", "dropped", "cleared", "future"), 0)
        for label in self.labels.values():
            found[label.state] += 1
        return found

    def frame(self) -> pd.DataFrame:
        """Return one row per part that the model reads, in order.

        Columns: message_id, role, part_id, kind, tokens_estimated, text.
        """
        import pandas as pd  # noqa: PLC0415  heavy

        rows = [
            (message.id, message.role, part.id, part.kind, _tokens(part), part.text)
            for message in self.messages
            for part in message.parts
        ]
        columns = ["message_id", "role", "part_id", "kind", "tokens_estimated", "text"]
        return pd.DataFrame(rows, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Return messages as plain data: id, role, and parts with id, kind and text."""
        return {
            "at": self.at,
            "rule": self.rule,
            "messages": [
                {
                    "id": message.id,
                    "role": message.role,
                    "parts": [
                        {"id": part.id, "kind": part.kind, "text": part.text}
                        for part in message.parts
                    ],
                }
                for message in self.messages
            ],
        }

    def __str__(self) -> str:
        """Return the view as text, one line per part."""
        lines = [repr(self)[1:-1]]
        for message in self.messages:
            for part in message.parts:
                text = " ".join(_preview(part).split())
                lines.append(
                    f"{message.role:9} {part.kind:9} {_tokens(part):>7,}  {printable(text)}"
                )
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001  IPython's own
        """Show all lines where there is no HTML: in a terminal."""
        printer.text(repr(self) if cycle else str(self))

    def _repr_html_(self) -> str:
        """Return a table, one row per part; long texts open; every text is escaped."""
        counts = ", ".join(f"{count} {state}" for state, count in self.counts().items() if count)
        caption = f"{self!r}"[1:-1] + f" · stored parts: {counts}"
        heads = (("role", "role"), ("kind", "kind"), ("size", "≈ tokens"), ("text", "text"))
        names = [tag("th", f"fnb-view-{css}", name, scope="col") for css, name in heads]
        body, room = [tag("tr", "", *names)], _HTML_CHARS
        for message in self.messages:
            for part in message.parts:
                row = _row(message.role, part, room=room)
                room -= len(row)
                body.append(row)
        return tag(
            "div",
            "fnb fnb-view",
            sheet("model_view"),
            tag("div", "fnb-view-caption", caption),
            tag("table", "fnb-view-rows", *body),
        )


def _row(role: str, part: ModelPart, *, room: int) -> Html:
    return tag(
        "tr",
        "",
        tag("td", "fnb-view-role", role),
        tag("td", "fnb-view-kind", part.kind),
        tag("td", "fnb-view-size", f"{_tokens(part):,}"),
        tag("td", "fnb-view-text", _text(part, room=room)),
    )


def _text(part: ModelPart, *, room: int) -> str:
    """Return a text, or its beginning with the rest of it behind a fold."""
    text, preview = part.text.strip(), _preview(part)
    if text == preview or room <= 0:
        return preview
    whole = tag("div", "fnb-view-whole", text[:_WHOLE_CHARS])
    cut = len(text) - _WHOLE_CHARS
    left = (note(f"{cut:,} more characters"),) if cut > 0 else ()
    return tag("details", "", tag("summary", "", preview), whole, *left)


def _tokens(part: ModelPart) -> int:
    return estimate_tokens(part.text)


def _preview(part: ModelPart) -> str:
    text = part.text.strip()
    return text if len(text) <= _PREVIEW_CHARS else f"{text[:_PREVIEW_CHARS]}…"
