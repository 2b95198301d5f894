"""Fan-out of events to whoever listens, inside one process and on one loop.

Each subscriber has a bounded queue. When it lags, deltas of the same part are merged into one
longer delta, so nothing of the text is lost and memory stays bounded by the text itself. Sync
events are never dropped and never merged. Publishing never waits for a subscriber.

Proved in `tests/test_bus.py` and `tests/properties/test_bus.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from forge_nb.errors import SubscriptionClosedError
from forge_nb.events import PartDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Self

    from forge_nb.events import BusEvent

__all__ = ["Bus", "Subscription", "merge_deltas"]

QUEUE_LIMIT = 4096  # events a subscriber may lag behind before its deltas are merged


class Bus:
    """Publishes events to the subscriptions that want them.

    Not thread-safe: publish and subscribe on the loop's thread.
    """

    def __init__(self) -> None:
        self._by_session: dict[str | None, list[Subscription]] = {}

    def publish(self, event: BusEvent) -> None:
        """Hand an event to every subscription of its session and to those of all sessions."""
        by_session = self._by_session
        for subscription in by_session.get(event.session_id, ()):
            subscription.put(event)
        for subscription in by_session.get(None, ()):
            subscription.put(event)

    def subscribe(
        self, session_id: str | None = None, *, max_queue: int = QUEUE_LIMIT
    ) -> Subscription:
        """Open a subscription; None means every session.

        Subscribe before you prompt: what was published earlier is in the store, not here.
        """
        subscription = Subscription(self, session_id, max_queue)
        self._by_session.setdefault(session_id, []).append(subscription)
        return subscription

    def drop(self, subscription: Subscription) -> None:
        """Forget a subscription; called when it is closed."""
        listeners = self._by_session.get(subscription.session_id, [])
        if subscription in listeners:
            listeners.remove(subscription)
        if not listeners:
            self._by_session.pop(subscription.session_id, None)


class Subscription:
    """One subscriber's queue; iterate it, or take events with `get_nowait`.

    Attributes
    ----------
    session_id
        The session it listens to, None for all.
    merged
        How many deltas were merged into an earlier one because the subscriber lagged.
    """

    def __init__(self, bus: Bus, session_id: str | None, max_queue: int) -> None:
        self.session_id = session_id
        self.merged = 0
        self._bus = bus
        self._max_queue = max_queue
        self._merge_at = max_queue
        self._queue: deque[BusEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, event: BusEvent) -> None:
        """Queue an event; called by the bus."""
        self._queue.append(event)
        if len(self._queue) > self._merge_at and isinstance(event, PartDelta):
            self._merge()
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _merge(self) -> None:
        """Join each part's deltas in the queue into runs; order across sync events is kept."""
        before = len(self._queue)
        self._queue = deque(merge_deltas(self._queue))
        self.merged += before - len(self._queue)
        self._merge_at = max(self._max_queue, 2 * len(self._queue))

    def get_nowait(self) -> BusEvent | None:
        """Return the next event, or None when there is none right now."""
        return self._queue.popleft() if self._queue else None

    async def wait(self) -> None:
        """Wait until there is an event.

        Raises
        ------
        SubscriptionClosedError
            When the subscription is closed and its queue is empty.
        """
        while not self._queue:
            if self._closed:
                msg = "the subscription is closed; subscribe again to go on"
                raise SubscriptionClosedError(msg)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def __aiter__(self) -> AsyncIterator[BusEvent]:
        """Yield events until the subscription is closed and drained."""
        while True:
            try:
                await self.wait()
            except SubscriptionClosedError:
                return
            while self._queue:
                yield self._queue.popleft()

    def close(self) -> None:
        """Stop listening; what is queued can still be read."""
        self._closed = True
        self._bus.drop(self)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __enter__(self) -> Self:
        """Use the subscription in a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def merge_deltas(events: deque[BusEvent]) -> list[BusEvent]:
    """Join deltas of one part that follow each other with only other deltas in between.

    A sync event or a status ends every run, so no delta moves across one.
    """
    merged: list[BusEvent] = []
    runs: dict[tuple[str, str], tuple[int, list[PartDelta]]] = {}
    for event in events:
        if not isinstance(event, PartDelta):
            _flush(merged, runs)
            merged.append(event)
            continue
        key = (event.part_id, event.field)
        if key in runs and _follows(runs[key][1][-1], event):
            runs[key][1].append(event)
        else:
            runs[key] = (len(merged), [event])
            merged.append(event)
    _flush(merged, runs)
    return merged


def _follows(last: PartDelta, event: PartDelta) -> bool:
    return last.offset + len(last.delta) == event.offset


def _flush(
    merged: list[BusEvent], runs: dict[tuple[str, str], tuple[int, list[PartDelta]]]
) -> None:
    for place, deltas in runs.values():
        if len(deltas) > 1:
            whole = "".join(delta.delta for delta in deltas)
            merged[place] = msgspec.structs.replace(deltas[0], delta=whole)
    runs.clear()
