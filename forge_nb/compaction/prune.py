"""Clear old tool outputs from the view: the rows keep them, the model reads a placeholder.

The newest outputs are protected. Clearing breaks the provider's prompt cache from the first cleared
output on, so it is done only where enough would go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from forge_nb.events import PartUpdated
from forge_nb.messages.estimate import estimate_tokens
from forge_nb.messages.message import UserMessage
from forge_nb.messages.parts import ToolCompleted, ToolPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from forge_nb.messages.message import MessageWithParts
    from forge_nb.session import Session
    from forge_nb.settings import Settings

__all__ = ["PROTECTED_TOOLS", "clear_outputs", "prunable", "prune"]

PROTECTED_TOOLS = frozenset({"skill"})  # opencode never clears these
PROTECTED_TURNS = 2  # newest user messages whose answers are left alone (opencode)


def prunable(
    newest_first: Iterable[MessageWithParts], *, protect_tokens: int, minimum_tokens: int
) -> list[ToolPart]:
    """Return the tool parts whose outputs may be cleared; pure, and reads no further than needed.

    From the newest output backwards: those of the last two turns are skipped, the next
    `protect_tokens` are kept, and what is older is cleared if together it is more than
    `minimum_tokens`. A summary and an output that is cleared already end the search.

    Parameters
    ----------
    newest_first
        Messages of one session, newest first.
    protect_tokens, minimum_tokens
        Estimated tokens (opencode: 40,000 and 20,000).
    """
    kept = cleared = 0
    found: list[ToolPart] = []
    for part in _outputs(newest_first):
        state = part.state
        if part.tool in PROTECTED_TOOLS:
            continue
        if not isinstance(state, ToolCompleted):
            continue
        if state.time.compacted is not None:
            break
        weight = estimate_tokens(state.output)
        kept += weight
        if kept > protect_tokens:
            cleared += weight
            found.append(part)
    return found if cleared > minimum_tokens else []


def _outputs(newest_first: Iterable[MessageWithParts]) -> Iterator[ToolPart]:
    turns = 0
    for item in newest_first:
        if isinstance(item.message, UserMessage):
            turns += 1
        elif item.message.is_summary:
            return
        elif turns >= PROTECTED_TURNS:
            tools = (part for part in reversed(item.parts) if isinstance(part, ToolPart))
            yield from (part for part in tools if not part.discarded)


async def prune(session: Session, settings: Settings) -> int:
    """Clear what may be cleared; return how many outputs were."""
    found = prunable(
        session.store.messages(session.id),
        protect_tokens=settings.prune_protect,
        minimum_tokens=settings.prune_minimum,
    )
    await clear_outputs(session, found)
    return len(found)


async def clear_outputs(session: Session, parts: Sequence[ToolPart]) -> None:
    """Hide outputs from the model, all in one write; the rows keep them."""
    now = session.clock()
    events = []
    for part in parts:
        if isinstance(part.state, ToolCompleted):
            time = msgspec.structs.replace(part.state.time, compacted=now)
            state = msgspec.structs.replace(part.state, time=time)
            events.append(PartUpdated(part=msgspec.structs.replace(part, state=state)))
    if events:
        await session.write(events)
