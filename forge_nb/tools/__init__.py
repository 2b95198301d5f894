"""What a model may call."""

__all__: list[str] = []
