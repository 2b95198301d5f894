"""What is read from a store: frames by name, and SQL over the same names.

Nothing heavy is imported before the first read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from forge_nb.analysis.mirror import Mirror
    from forge_nb.store.base import Store

__all__ = ["Reads"]


class Reads:
    """Frames and SQL over one store; a workbench is one of these."""

    store: Store
    _mirror: Mirror | None = None

    @property
    def mirror(self) -> Mirror:
        """The in-memory DuckDB copy that frames and SQL read, brought up to date."""
        from forge_nb.analysis.mirror import Mirror  # noqa: PLC0415  heavy

        if self._mirror is None:
            self._mirror = Mirror(self.store)
        self._mirror.refresh()
        return self._mirror

    def sql(
        self, query: str, params: Sequence[object] | Mapping[str, object] | None = None
    ) -> pd.DataFrame:
        """Run a read-only query over the views; shut off from files and network.

        Parameters
        ----------
        query
            One SELECT in DuckDB's SQL; ``?`` or ``$name`` stands for a parameter.
        params
            Values of the parameters: in order, or by name.
        """
        from forge_nb.analysis.query import run_sql  # noqa: PLC0415  heavy

        return run_sql(self.mirror, query, params)

    def _frame(self, name: str) -> pd.DataFrame:
        from forge_nb.analysis import frames  # noqa: PLC0415  heavy

        frame: pd.DataFrame = getattr(frames, name)(self.mirror)
        return frame

    def sessions(self) -> pd.DataFrame:
        """Return one row per session."""
        return self._frame("sessions")

    def messages(self) -> pd.DataFrame:
        """Return one row per message."""
        return self._frame("messages")

    def parts(self) -> pd.DataFrame:
        """Return one row per part, without its text."""
        return self._frame("parts")

    def steps(self) -> pd.DataFrame:
        """Return one row per model call."""
        return self._frame("steps")

    def tools(self) -> pd.DataFrame:
        """Return one row per tool call."""
        return self._frame("tools")

    def compactions(self) -> pd.DataFrame:
        """Return one row per compaction request."""
        return self._frame("compactions")

    def close_mirror(self) -> None:
        """Let the copy go; the next read makes a new one."""
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None
