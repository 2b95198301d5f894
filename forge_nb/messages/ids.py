"""Ids in the shape that the opencode family uses; opaque to everything else.

Shape: prefix, underscore, 12 hex digits of the low 48 bits of `ms * 4096 + counter`, 14 base-62
characters. Sessions count down, so that the newest sorts first as a string. The 36-bit
millisecond clock wraps about every 795 days (last on 2026-08-14), therefore ids are never
compared: order is the integer `seq` that the store assigns.

Pure: the time and the random numbers are arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["IdSource", "Prefix", "make_id"]

Prefix = Literal["ses", "msg", "prt", "evt", "per", "usg", "run", "call"]

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MASK_48 = (1 << 48) - 1
_COUNTER_SPAN = 4096  # counter values per millisecond, as in the family's id format


def make_id(prefix: Prefix, *, at_ms: int, counter: int, random: Random) -> str:
    """Return one id; descending for sessions, ascending for the rest.

    Parameters
    ----------
    prefix
        Kind of thing the id names.
    at_ms
        Milliseconds UTC.
    counter
        Distinguishes ids of the same millisecond; starts at 1.
    random
        Source of the 14 trailing characters.

    Examples
    --------
    >>> from random import Random
    >>> make_id("msg", at_ms=1700000000000, counter=1, random=Random(0))[:16]
    'msg_bcfe56800001'
    """
    value = (at_ms * _COUNTER_SPAN + counter) & _MASK_48
    if prefix == "ses":
        value ^= _MASK_48
    tail = "".join(random.choices(_ALPHABET, k=14))
    return f"{prefix}_{value:012x}{tail}"


class IdSource:
    """Makes ids from a clock and a source of random numbers.

    Parameters
    ----------
    clock
        Returns milliseconds UTC.
    random
        A `random.Random`; seeded in tests and notebooks.
    """

    def __init__(self, clock: Callable[[], int], random: Random) -> None:
        self._clock = clock
        self._random = random
        self._last_ms = -1
        self._counter = 0

    def __call__(self, prefix: Prefix) -> str:
        """Return a new id of this kind."""
        now = self._clock()
        self._counter = self._counter + 1 if now == self._last_ms else 1
        self._last_ms = now
        return make_id(prefix, at_ms=now, counter=self._counter, random=self._random)
