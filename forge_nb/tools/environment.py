"""What the tools of a call have around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

__all__ = ["Ask", "Environment", "Snapshots"]

Ask = Callable[..., Awaitable[None]]
"""``await ask(permission, patterns, always=…, metadata=…)`` returns with leave, else raises."""


class Snapshots(Protocol):
    """Which files a step changed."""

    def track(self) -> str | None:
        """Return an id of the files as they are; None when that cannot be told."""
        ...

    def changed(self, since: str) -> list[str]:
        """Return the absolute paths that differ from that state."""
        ...


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What the tools of one call have around them."""

    ask: Ask | None = None
    """Asks a person for leave; None where nobody can be asked."""
    workspace: Path | None = None
    """Folder that tools may work in."""
    snapshots: Snapshots | None = None
    """Tells which files a step changed; None where that cannot be told."""
    recent_calls: tuple[str, ...] = ()
    """Tool and input of the turn's earlier calls, oldest first, as `fingerprint` writes them."""
