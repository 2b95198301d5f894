"""The command line: one file per group of commands, put together in `forge_nb.__main__`."""

__all__: list[str] = []
