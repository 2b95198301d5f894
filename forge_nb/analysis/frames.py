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
    """Return one row per model call, cut calls and titles included."""
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

    Sums of whole numbers, which DuckDB gives as 128-bit decimals, become ``Int64``.
    """
    import pandas as pd
    import pyarrow as pa

    fields = [
        pa.field(field.name, pa.int64()) if _is_huge(field.type) else field
        for field in table.schema
    ]
    types: dict[Any, Any] = {
        pa.int64(): pd.Int64Dtype(),
        pa.int32(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    frame: pd.DataFrame = table.cast(pa.schema(fields)).to_pandas(types_mapper=types.get)
    return frame


def _is_huge(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_decimal(kind) and kind.scale == 0)
