"""Has to type-check as it stands: what may be written, and what must be a type error.

mypy reports an ignore that is not needed, so each one here proves that the line is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.events import PartDelta, PartUpdated

if TYPE_CHECKING:
    from forge_nb.messages.parts import TextPart
    from forge_nb.store.base import Store


def store_a_part(store: Store, part: TextPart) -> None:
    """Whole parts are stored."""
    store.apply([PartUpdated(part=part)])


def store_a_delta(store: Store, delta: PartDelta) -> None:
    """Deltas are not: they travel on the bus only."""
    store.apply([delta])  # type: ignore[list-item]


def change_a_part(part: TextPart) -> None:
    """Values are frozen."""
    part.text = "other"  # type: ignore[misc]
