"""Built-in pictures as SVG strings: small, deterministic, readable without a kernel."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

__all__ = ["Chart", "context_chart", "context_svg"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 52, 40  # margins, pixels
_BARS_MAX = 400  # more steps than this share bars
_TICKS = 4
_KINDS = (
    ("tokens_cache_read", "cache read", "#5b8fd9"),
    ("tokens_cache_write", "cache write", "#d98f3c"),
    ("tokens_input", "input", "#8f7fd0"),
)
_STYLE = (
    ".fg{font:12px system-ui,sans-serif;fill:#6b7885}.ax{stroke:#9aa5b1;stroke-width:1}"
    ".gr{stroke:#9aa5b1;stroke-opacity:.25}.cut{stroke:#c0453b;stroke-width:1.5}"
    ".bd{stroke:#c0453b;stroke-width:1.5;stroke-dasharray:4 3}.us{stroke:#2f855a;stroke-width:1.5;"
    "stroke-dasharray:7 4}.hd{font-weight:600;font-size:14px}"
)


class _Bar(msgspec.Struct):
    """One step, or several that share a bar: the largest of them."""

    first: int
    last: int
    values: tuple[int, ...]
    is_cut: bool

    @property
    def total(self) -> int:
        return sum(self.values)


class _Plot(msgspec.Struct):
    """Scales of a picture."""

    width: int
    height: int
    count: int
    top: int

    def x(self, place: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * place / max(self.count, 1)

    def y(self, tokens: float) -> float:
        return self.height - _BOTTOM - (self.height - _TOP - _BOTTOM) * tokens / self.top


class Chart:
    """A picture that shows itself in a notebook, with a plain twin elsewhere.

    Parameters
    ----------
    svg, text
        The picture, and what it says in words.
    """

    def __init__(self, svg: str, text: str) -> None:
        self.svg = svg
        self.text = text

    def __repr__(self) -> str:
        """Say in words what the picture shows."""
        return self.text

    def _repr_svg_(self) -> str:
        return self.svg


def context_chart(
    steps: pd.DataFrame,
    compactions: pd.DataFrame,
    *,
    usable: int | None = None,
    title: str = "Context per step",
) -> Chart:
    """Return the picture of `context_svg` with its words.

    Parameters
    ----------
    steps, compactions
        One session's rows of the frames.
    usable
        Tokens of context that may be used; drawn as a line.
    title
        Heading.
    """
    known = steps["context_tokens"].dropna()
    done = compactions[compactions["outcome"] == "done"]
    peak = f"peak {int(known.max()):,} tokens" if len(known) else "no usage reported"
    text = f"{title}: {len(steps)} steps, {peak}, {len(done)} compactions"
    gains = [
        f"  boundary {row.number}: {_tokens(row.context_before)} → {_tokens(row.context_after)}"
        for row in done.itertuples()
    ]
    svg = context_svg(steps, compactions, usable=usable, title=title)
    return Chart(svg, "\n".join([text, *gains]))


def _tokens(value: Any) -> str:
    return "?" if _is_missing(value) else f"{int(value):,}"


def _is_missing(value: Any) -> bool:
    """Return whether a cell holds nothing: None, NaN or pandas' NA."""
    return value is None or str(value) in {"<NA>", "nan"}


def context_svg(
    steps: pd.DataFrame,
    compactions: pd.DataFrame,
    *,
    usable: int | None = None,
    title: str = "Context per step",
    width: int = 860,
    height: int = 280,
) -> str:
    """Return context tokens per step as stacked bars, boundaries and cut calls marked.

    Parameters
    ----------
    steps, compactions
        One session's rows of the frames, in order.
    usable
        Tokens of context that may be used; drawn as a line when known.
    title
        Heading; escaped.
    width, height
        Of the picture, pixels.

    Returns
    -------
    str
        A self-contained SVG without scripts.
    """
    bars = _bars(steps)
    highest = max([bar.total for bar in bars] + [usable or 0, 1])
    plot = _Plot(width=width, height=height, count=len(bars), top=_round_up(highest))
    pieces = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'width="100%" style="max-width:{width}px" aria-label="{escape(title)}">'
        ),
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="fg hd" x="{_LEFT}" y="18">{escape(title)}</text>',
        *_legend(usable),
        *_grid(plot),
        *_drawn(bars, plot),
        *_boundaries(compactions, steps, bars, plot),
        *_limit(usable, plot),
        *_labels(bars, plot),
        "</svg>",
    ]
    return "".join(pieces)


def _bars(steps: pd.DataFrame) -> list[_Bar]:
    numbered = steps[steps["step"].notna()]
    size = -(-len(numbered) // _BARS_MAX) or 1
    columns = [numbered[name].fillna(0).astype("int64").tolist() for name, _, _ in _KINDS]
    numbers = numbered["step"].astype("int64").tolist()
    cut = numbered["context_tokens"].isna().tolist()
    rows = list(zip(numbers, zip(*columns, strict=True), cut, strict=True))
    bars = []
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        values = max((row[1] for row in group), key=sum)
        bars.append(_Bar(group[0][0], group[-1][0], values, any(row[2] for row in group)))
    return bars


def _round_up(value: int) -> int:
    """Return a round number of at least this size, so that the ticks are round too."""
    unit: int = 10 ** max(len(str(value)) - 2, 0)
    step = unit * _TICKS
    return -(-value // step) * step


def _legend(usable: int | None) -> list[str]:
    pieces, x = [], _LEFT
    for _, name, color in _KINDS:
        pieces.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{color}"/>')
        pieces.append(f'<text class="fg" x="{x + 15}" y="37">{name}</text>')
        x += 100
    pieces.append(f'<line class="bd" x1="{x}" x2="{x + 22}" y1="33" y2="33"/>')
    pieces.append(f'<text class="fg" x="{x + 28}" y="37">compaction</text>')
    x += 118
    pieces.append(_cross(x + 5, 33))
    pieces.append(f'<text class="fg" x="{x + 15}" y="37">no usage reported</text>')
    if usable is not None:
        x += 135
        pieces.append(f'<line class="us" x1="{x}" x2="{x + 22}" y1="33" y2="33"/>')
        pieces.append(f'<text class="fg" x="{x + 28}" y="37">usable window</text>')
    return pieces


def _grid(plot: _Plot) -> list[str]:
    pieces = []
    right = plot.width - _RIGHT
    for tick in range(_TICKS + 1):
        tokens = plot.top * tick // _TICKS
        y = plot.y(tokens)
        css = "ax" if tick == 0 else "gr"
        pieces.append(f'<line class="{css}" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        place = f'x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end"'
        pieces.append(f'<text class="fg" {place}>{_short(tokens)}</text>')
    return pieces


def _short(tokens: int) -> str:
    """Return a token count as people say it.

    Examples
    --------
    >>> _short(950), _short(24000), _short(1500)
    ('950', '24k', '1.5k')
    """
    return f"{tokens / 1_000:g}k" if tokens >= 1_000 else str(tokens)  # noqa: PLR2004  a kilo


def _drawn(bars: Sequence[_Bar], plot: _Plot) -> list[str]:
    pieces = []
    gap = 0.15 if plot.count < _BARS_MAX // 2 else 0.0
    for place, bar in enumerate(bars):
        x, right = plot.x(place + gap / 2), plot.x(place + 1 - gap / 2)
        below = 0
        for value, (_, name, color) in zip(bar.values, _KINDS, strict=True):
            if value:
                y, y0 = plot.y(below + value), plot.y(below)
                pieces.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" '
                    f'height="{y0 - y:.1f}" fill="{color}"><title>step {_steps(bar)}: {value:,} '
                    f"{name}, {bar.total:,} in context</title></rect>"
                )
            below += value
        if bar.is_cut:
            pieces.append(_cross((x + right) / 2, plot.y(0) - 8))
    return pieces


def _steps(bar: _Bar) -> str:
    return str(bar.first) if bar.first == bar.last else f"{bar.first}-{bar.last}"


def _cross(x: float, y: float) -> str:
    return f'<path class="cut" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'


def _boundaries(
    compactions: pd.DataFrame, steps: pd.DataFrame, bars: Sequence[_Bar], plot: _Plot
) -> list[str]:
    """Draw a line behind the step of each successful summary."""
    numbers = dict(zip(steps["message_id"], steps["step"], strict=True))
    pieces = []
    for row in compactions[compactions["outcome"] == "done"].itertuples():
        step: Any = numbers.get(row.summary_id)
        if _is_missing(step):
            continue
        place = next((n for n, bar in enumerate(bars) if bar.last >= int(step)), len(bars) - 1)
        x = plot.x(place + 1)
        gain = f"{_tokens(row.context_before)} → {_tokens(row.context_after)} tokens"
        pieces.append(
            f'<line class="bd" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{plot.y(0):.1f}">'
            f"<title>compaction {row.number}, {escape(str(row.trigger))}: {gain}</title></line>"
        )
        pieces.append(f'<text class="fg" x="{x + 4:.1f}" y="{_TOP + 10}">{row.number}</text>')
    return pieces


def _limit(usable: int | None, plot: _Plot) -> list[str]:
    if usable is None:
        return []
    y = plot.y(usable)
    right = plot.width - _RIGHT
    return [f'<line class="us" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>']


def _labels(bars: Sequence[_Bar], plot: _Plot) -> list[str]:
    """Return numbers for about ten steps, below the axis."""
    every = max(1, -(-len(bars) // 10))
    y = plot.height - _BOTTOM + 16
    pieces = [
        f'<text class="fg" x="{plot.x(place + 0.5):.1f}" y="{y}" text-anchor="middle">{bar.first}'
        "</text>"
        for place, bar in enumerate(bars)
        if place % every == 0
    ]
    middle = (plot.width + _LEFT) / 2
    pieces.append(
        f'<text class="fg" x="{middle:.0f}" y="{y + 18}" text-anchor="middle">step</text>'
    )
    return pieces
