"""When a session is compacted, and how."""

__all__: list[str] = []
