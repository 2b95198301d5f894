"""Other programs' sessions, in and out: one file per format."""

__all__: list[str] = []
