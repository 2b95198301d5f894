"""Pandas frames: the views, fetched, with the same dtypes whether they hold rows or not.

Text is ``str`` (missing as NaN), whole numbers ``Int64``, amounts ``Float64``, truth values
``boolean``, times ``datetime64[us, UTC]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_nb.analysis.views import FRAME_ORDER

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from forge_nb.analysis.mirror import Mirror

__all__ = ["compactions", "messages", "parts", "sessions", "steps", "to_pandas", "tools"]

_DAY_US = 86_400_000_000


def sessions(mirror: Mirror) -> pd.DataFrame:
    """Return one row per session, oldest first."""
    return _fetch(mirror, "sessions")


def messages(mirror: Mirror) -> pd.DataFrame:
    """Return one row per message, in order."""
    return _fetch(mirror, "messages")


def parts(mirror: Mirror) -> pd.DataFrame:
    """Return one row per part, in order, without its text."""
    return _fetch(mirror, "parts")


def steps(mirror: Mirror) -> pd.DataFrame:
    """Return one row per model call, cut calls and titles included.

    A fork repeats the calls of the history that it took over: `copy_of` names the first record of
    such a call, and is missing for a session's own. To count money, count rows without it.
    A call of a message that was taken back keeps its row, without a step.
    """
    return _fetch(mirror, "steps")


def tools(mirror: Mirror) -> pd.DataFrame:
    """Return one row per tool call."""
    return _fetch(mirror, "tools")


def compactions(mirror: Mirror) -> pd.DataFrame:
    """Return one row per compaction request, whatever became of it."""
    return _fetch(mirror, "compactions")


def _fetch(mirror: Mirror, name: str) -> pd.DataFrame:
    query = f"SELECT * FROM {name} ORDER BY {FRAME_ORDER[name]}"
    return to_pandas(mirror.cursor().sql(query).to_arrow_table())


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Return an Arrow table as a frame that keeps missing numbers apart from 0.

    Whole numbers of any width become ``Int64``, those beyond it and decimals ``Float64``, and a
    span of time ``timedelta64[us]`` unless it counts months.
    """
    import pandas as pd
    import pyarrow as pa

    columns = [_plain(column) for column in table.columns]
    types: dict[Any, Any] = {
        pa.int64(): pd.Int64Dtype(),
        pa.uint64(): pd.UInt64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    plain = pa.Table.from_arrays(columns, names=table.column_names)
    frame: pd.DataFrame = plain.to_pandas(types_mapper=types.get)
    return frame


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in the one width that the frames use for its kind."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_interval(kind):
        return _span(column)
    if pa.types.is_decimal(kind) and kind.scale == 0:  # also the sum of whole numbers
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            return column.cast(pa.float64())
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return column.cast(pa.int64())
    return column


def _span(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return intervals as microseconds, or as they are when one counts months."""
    import pyarrow as pa

    spans = column.to_pylist()
    if any(span is not None and span.months for span in spans):
        return column
    values = [
        None if span is None else span.days * _DAY_US + span.nanoseconds // 1_000 for span in spans
    ]
    return pa.chunked_array([pa.array(values, type=pa.duration("us"))])
