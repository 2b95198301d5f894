"""Durable rows: sessions, messages, parts, usage, and the log of what happened."""

__all__: list[str] = []
