"""Where stream events come from: one file per kind of provider."""

__all__: list[str] = []
