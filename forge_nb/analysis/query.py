"""SQL over the views: reads only, one statement, no files, no network, a time limit.

The kind of a statement does not tell whether it writes: `EXPLAIN ANALYZE DELETE …` is an EXPLAIN,
`WITH gone AS (DELETE …) SELECT …` a SELECT. A query therefore runs in a read-only transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forge_nb.analysis.frames import to_pandas
from forge_nb.analysis.views import FRAME_ORDER
from forge_nb.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    import pandas as pd

    from forge_nb.analysis.mirror import Mirror

__all__ = ["run_sql"]

_AGAIN_S = 0.05  # between two interrupts
_READS = frozenset({"SELECT", "EXPLAIN"})
_WRITE_REFUSED = "transaction is launched in read-only mode"  # DuckDB has no class for it


def run_sql(
    mirror: Mirror,
    query: str,
    params: Sequence[object] | Mapping[str, object] | None = None,
    *,
    timeout_s: float = 60.0,
) -> pd.DataFrame:
    """Run one query and return its rows.

    Parameters
    ----------
    mirror
        What is queried.
    query
        One SELECT in DuckDB's SQL; ``?`` or ``$name`` stands for a parameter.
    params
        Values of the parameters: in order, or by name.
    timeout_s
        Seconds after which the query is interrupted.

    Raises
    ------
    UsageError
        When the query is empty, wrong, writes, asks for a file, or takes too long.
    """
    import duckdb

    cursor = mirror.cursor()
    done = threading.Event()
    watch = threading.Thread(target=_interrupt, args=(cursor, done, timeout_s), daemon=True)
    try:
        _check(cursor.extract_statements(query), query)
        watch.start()
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        relation = cursor.sql(query, params=_values(params))
        return to_pandas(relation.to_arrow_table())
    except duckdb.InterruptException as error:
        msg = f"the query took more than {timeout_s:g} s and was stopped; ask for less"
        raise UsageError(msg, query=query) from error
    except duckdb.Error as error:
        raise UsageError(_reason(error), query=query) from error
    finally:
        done.set()
        if watch.is_alive():
            watch.join()
        cursor.close()


def _interrupt(cursor: Any, done: threading.Event, timeout_s: float) -> None:
    """Interrupt a query at its time limit, and again: DuckDB forgets one that comes too early."""
    wait_s = timeout_s
    while not done.wait(wait_s):
        cursor.interrupt()
        wait_s = _AGAIN_S


def _values(params: Sequence[object] | Mapping[str, object] | None) -> Any:
    return dict(params) if isinstance(params, Mapping) else list(params or ())


def _check(statements: list[duckdb.Statement], query: str) -> None:
    if len(statements) != 1:
        msg = f"one query at a time; got {len(statements)} in {query[:80]!r}"
        raise UsageError(msg, query=query)
    kind = statements[0].type.name
    if kind == "MULTI":
        msg = "a PIVOT without values is several statements; name them: ON model IN ('a', 'b')"
        raise UsageError(msg, query=query)
    if kind not in _READS:
        msg = f"the views are read-only; a {kind} statement is not run, write a SELECT"
        raise UsageError(msg, query=query)


def _reason(error: Exception) -> str:
    line = str(error).strip().splitlines()[0]
    if _WRITE_REFUSED in line:
        return "the views are read-only; nothing was changed, write a SELECT"
    return f"the query does not run: {line}. Views: {', '.join(FRAME_ORDER)}"
