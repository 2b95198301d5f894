"""The one place that reads the wall clock and draws random ids.

Everything else takes a `Clock` and an `IdSource` as arguments, so that tests and notebooks can
run on a fixed clock and seeded ids and give the same rows every time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

__all__ = ["Clock", "FixedClock", "random_source", "system_clock"]

Clock = Callable[[], int]
"""Returns milliseconds since the epoch, UTC."""


def system_clock() -> int:
    """Return the wall clock in integer milliseconds UTC."""
    return time.time_ns() // 1_000_000


class FixedClock:
    """A clock that only moves when it is read or told to.

    Parameters
    ----------
    start_ms
        First reading, milliseconds UTC.
    step_ms
        How far each reading moves it.

    Examples
    --------
    >>> clock = FixedClock(1_000, step_ms=5)
    >>> clock(), clock()
    (1000, 1005)
    """

    def __init__(self, start_ms: int = 1_767_225_600_000, *, step_ms: int = 7) -> None:
        self._next_ms = start_ms
        self._step_ms = step_ms

    def __call__(self) -> int:
        """Return the current reading and move on by one step."""
        now = self._next_ms
        self._next_ms += self._step_ms
        return now

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` milliseconds pass."""
        self._next_ms += by_ms


def random_source(seed: int | None = None) -> random.Random:
    """Return a source of random numbers for ids; seeded when `seed` is given."""
    return random.Random(seed)  # noqa: S311  ids need to be unlikely to collide, not secret
