"""The only way to write: store first, bus after the commit.

`Session` turns what the Processor, the run loop and recovery want to say into sync events, hands
them to the store, and publishes them once they are durable. Deltas take the other way: straight
to the bus, never to the store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forge_nb.events import MessageUpdated, PartDelta, PartUpdated, SessionUpdated
from forge_nb.history import filter_compacted, view_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge_nb.bus import Bus
    from forge_nb.clock import Clock
    from forge_nb.events import Committed, LiveEvent, PromptState, SyncEvent
    from forge_nb.history import View, ViewRule
    from forge_nb.messages.assemble import AppendDelta
    from forge_nb.messages.ids import Prefix
    from forge_nb.messages.message import Message, MessageWithParts, SessionInfo
    from forge_nb.messages.parts import Part
    from forge_nb.store.base import Store, StoredSession

__all__ = ["Session"]


class Session:
    """One session's write entry and its reads.

    Parameters
    ----------
    store, bus
        Where rows go, and who hears of them.
    session_id
        Which session.
    clock, new_id
        Time and ids.
    """

    def __init__(
        self,
        store: Store,
        bus: Bus,
        session_id: str,
        *,
        clock: Clock,
        new_id: Callable[[Prefix], str],
    ) -> None:
        self.store = store
        self.bus = bus
        self.id = session_id
        self.clock = clock
        self.new_id = new_id

    async def write(self, events: Sequence[SyncEvent]) -> tuple[Committed, ...]:
        """Store the events in one transaction, then publish them in order.

        A cancelled caller does not undo a write that is under way: the events are still published.
        """
        write = asyncio.ensure_future(self._write(events))
        return await asyncio.shield(write)

    async def _write(self, events: Sequence[SyncEvent]) -> tuple[Committed, ...]:
        committed = await asyncio.wrap_future(self.store.apply(events))
        for event in committed:
            self.bus.publish(event)
        return committed

    async def update_session(self, info: SessionInfo) -> None:
        """Create or change the session's metadata."""
        await self.write([SessionUpdated(info=info)])

    async def update_message(
        self, message: Message, *, prompt_state: PromptState | None = None
    ) -> None:
        """Create or change a message."""
        await self.write([MessageUpdated(message=message, prompt_state=prompt_state)])

    async def update_part(self, part: Part) -> None:
        """Create or change a part: the whole row."""
        await self.write([PartUpdated(part=part)])

    def update_part_delta(self, message_id: str, change: AppendDelta) -> None:
        """Send more text of an open part to the bus; nothing is stored."""
        self.bus.publish(
            PartDelta(
                session_id=self.id,
                message_id=message_id,
                part_id=change.part_id,
                field=change.field,
                delta=change.delta,
                offset=change.offset,
            )
        )

    def announce(self, event: LiveEvent) -> None:
        """Publish an event that is not stored."""
        self.bus.publish(event)

    def stored(self) -> StoredSession:
        """Return the session's row."""
        return self.store.session(self.id)

    def messages(self) -> list[MessageWithParts]:
        """Return the whole session, oldest first."""
        return list(self.store.messages(self.id))[::-1]

    def visible(self, *, parity: bool = False) -> list[MessageWithParts]:
        """Return what the next model call may see; reads only as far as the boundary.

        Parameters
        ----------
        parity
            Read the history as opencode does; see `filter_compacted`.
        """
        return filter_compacted(self.store.messages(self.id), parity=parity)

    def view(self, at: str | None = None, *, rule: ViewRule | None = None) -> View:
        """Return what the model saw before the assistant message `at`, every part labelled.

        Parameters
        ----------
        at
            Id of an assistant message; None for what the next call would get.
        rule
            ``classic`` or ``tail``; chosen from the data when None.
        """
        return view_at(self.messages(), at, rule=rule)
