"""Pandas frames and DuckDB views over parts, tokens and costs."""

__all__: list[str] = []
