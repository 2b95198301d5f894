"""The message model: frozen values, and the pure functions over them."""

__all__: list[str] = []
