"""What the model saw, for people: a view that shows itself as a table and as text.

Everything in it is text from a model, a tool or a file, and is escaped.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.render import to_model_messages

if TYPE_CHECKING:
    import pandas as pd

    from forge_nb.history import View
    from forge_nb.messages.render import ModelMessage, ModelPart

__all__ = ["ModelView"]

_PREVIEW_CHARS = 160

_STYLE = """
.forge-view { border-collapse: collapse; width: 100%; font-size: 0.9em; }
.forge-view th, .forge-view td { text-align: left; vertical-align: top; padding: 0.3em 0.7em;
  border-bottom: 1px solid color-mix(in srgb, currentColor 15%, transparent); }
.forge-view td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.forge-view td.t { white-space: pre-wrap; overflow-wrap: anywhere; }
.forge-view caption { text-align: left; padding: 0.3em 0.7em; font-weight: 600; }
"""


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

    def _repr_html_(self) -> str:
        """Return a table, one row per part; every text is escaped."""
        rows = "".join(
            _row(message.role, part) for message in self.messages for part in message.parts
        )
        counts = ", ".join(f"{count} {state}" for state, count in self.counts().items() if count)
        caption = html.escape(f"{self!r}"[1:-1] + f" · stored parts: {counts}")
        head = "<tr><th>role</th><th>kind</th><th>≈ tokens</th><th>text</th></tr>"
        return (
            f"<style>{_STYLE}</style>"
            f'<table class="forge-view"><caption>{caption}</caption>{head}{rows}</table>'
        )


def _row(role: str, part: ModelPart) -> str:
    cells = f"<td>{html.escape(role)}</td><td>{html.escape(part.kind)}</td>"
    size = f'<td class="n">{_tokens(part):,}</td>'
    return f'<tr>{cells}{size}<td class="t">{html.escape(_preview(part))}</td></tr>'


def _tokens(part: ModelPart) -> int:
    return estimate_tokens(part.text)


def _preview(part: ModelPart) -> str:
    text = part.text.strip()
    return text if len(text) <= _PREVIEW_CHARS else f"{text[:_PREVIEW_CHARS]}…"
