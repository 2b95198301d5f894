"""The bus delivers in order, never waits, and tells when it is closed."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from forge_nb.bus import Bus, merge_deltas
from forge_nb.errors import SubscriptionClosedError
from forge_nb.events import BusEvent, PartDelta, RunStatus


def delta(offset: int, text: str, *, part: str = "p") -> PartDelta:
    return PartDelta(
        session_id="s", message_id="m", part_id=part, field="text", delta=text, offset=offset
    )


def test_a_subscriber_of_one_session_does_not_hear_of_another() -> None:
    bus = Bus()
    mine, every = bus.subscribe("other"), bus.subscribe()
    bus.publish(delta(0, "a"))
    assert mine.get_nowait() is None
    assert every.get_nowait() == delta(0, "a")


def test_deltas_merge_when_the_subscriber_lags_and_the_queue_stays_bounded() -> None:
    bus = Bus()
    slow = bus.subscribe("s", max_queue=8)
    for place in range(10_000):
        bus.publish(delta(place, "x"))
    first = slow.get_nowait()
    assert isinstance(first, PartDelta)
    assert first.offset == 0
    assert slow.merged > 9_900
    rest = 0
    while (event := slow.get_nowait()) is not None:
        assert isinstance(event, PartDelta)
        rest += len(event.delta)
    assert len(first.delta) + rest == 10_000


def test_a_status_is_never_crossed_by_a_merged_delta() -> None:
    idle = RunStatus(session_id="s", state="idle")
    queue: deque[BusEvent] = deque(
        [delta(0, "a"), idle, delta(1, "b"), delta(2, "c"), delta(3, "d")]
    )
    assert merge_deltas(queue) == [delta(0, "a"), idle, delta(1, "bcd")]


def test_iterating_ends_when_the_subscription_is_closed() -> None:
    async def listen() -> list[object]:
        bus = Bus()
        subscription = bus.subscribe("s")
        bus.publish(delta(0, "a"))
        asyncio.get_running_loop().call_soon(subscription.close)
        return [event async for event in subscription]

    assert asyncio.run(listen()) == [delta(0, "a")]


def test_waiting_on_a_closed_subscription_says_what_to_do() -> None:
    async def wait() -> None:
        subscription = Bus().subscribe("s")
        subscription.close()
        await subscription.wait()

    with pytest.raises(SubscriptionClosedError, match="subscribe again"):
        asyncio.run(wait())
