"""Properties of the bus: however far a subscriber lags, it can rebuild every text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from forge_nb.bus import Bus
from forge_nb.events import BusEvent, Committed, PartDelta, SessionRemoved

if TYPE_CHECKING:
    from collections.abc import Callable

step = st.one_of(
    st.tuples(st.sampled_from(["p", "q"]), st.text(min_size=1, max_size=4)), st.just(None)
)


@given(st.lists(step, max_size=60), st.integers(1, 6))
def test_a_lagging_subscriber_gets_every_sync_event_and_every_character(
    steps: list[tuple[str, str] | None], limit: int
) -> None:
    bus = Bus()
    slow = bus.subscribe("s", max_queue=limit)
    fast = bus.subscribe("s", max_queue=10_000)
    lengths = {"p": 0, "q": 0}
    for number, one in enumerate(steps):
        event: BusEvent
        if one is None:
            removed = SessionRemoved(session_id="s")
            event = Committed(event=removed, session_id="s", seq=number, rev=number)
        else:
            part, text = one
            event = PartDelta(
                session_id="s",
                message_id="m",
                part_id=part,
                field="text",
                delta=text,
                offset=lengths[part],
            )
            lengths[part] += len(text)
        bus.publish(event)
    assert _story(slow.get_nowait) == _story(fast.get_nowait)


def _story(take: Callable[[], BusEvent | None]) -> list[object]:
    """Return sync events in order, with each part's text as it stood before each of them."""
    texts = {"p": "", "q": ""}
    story: list[object] = []
    while (event := take()) is not None:
        if isinstance(event, PartDelta):
            assert event.offset == len(texts[event.part_id])
            texts[event.part_id] += event.delta
        else:
            story.append((event, dict(texts)))
    story.append(dict(texts))
    return story
