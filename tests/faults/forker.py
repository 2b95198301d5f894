"""A process that imports everything once and forks a child for each run that is to be killed.

It reads lines ``path seed`` and answers, for each, with the child's lines: ``pid``, then a line for
every row that the child has heard to be committed, and ``dead`` when the child is no more.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from forge_nb.events import Committed, MessageUpdated, PartUpdated, UsageRecorded
from forge_nb.messages.message import UserMessage
from forge_nb.messages.parts import is_open
from forge_nb.providers import scripted, scripts
from forge_nb.settings import Settings
from forge_nb.workbench import Workbench

LOADED = (scripted, scripts)  # before the fork, or every child loads them anew


def main() -> None:
    """Fork a child for each line that comes in."""
    for line in sys.stdin:
        path, seed = line.split()
        child = os.fork()
        if child == 0:
            run_until_killed(path, int(seed))
        os.waitpid(child, 0)
        say("dead")


def run_until_killed(path: str, seed: int) -> None:
    """Prompt one session again and again, two prompts at a time."""
    say(f"pid {os.getpid()}")
    rng = random.Random(seed)
    own = Settings(checkpoint_s=rng.choice([None, 0.001]), keep_tail=rng.random() < 0.5)

    async def endless() -> None:
        with Workbench(path, model="scripted:tour", settings=own) as wb:
            talk = wb.session()
            telling = asyncio.ensure_future(tell(wb))
            while not telling.done():
                first = asyncio.ensure_future(talk.prompt("Why does it fail?"))
                await asyncio.sleep(rng.random() / 20)
                await talk.prompt("And what is to be done?")
                await first

    try:
        asyncio.run(endless())
    finally:
        os._exit(1)


async def tell(wb: Workbench) -> None:
    """Say of every row that it is stored, once the store has said so."""
    with wb.bus.subscribe() as heard:
        async for event in heard:
            if isinstance(event, Committed):
                say(row_of(event))


def row_of(event: Committed) -> str:
    """Return the kind of a row, its id, and whether it is as it will stay."""
    match event.event:
        case MessageUpdated(message=UserMessage() as message):
            return f"user {message.id} {event.event.prompt_state or '-'}"
        case MessageUpdated(message=message):
            return f"message {message.id} -"
        case PartUpdated(part=part):
            return f"part {part.id} {'open' if is_open(part) else 'closed'}"
        case UsageRecorded(usage=usage):
            return f"usage {usage.id} -"
        case other:
            return f"{type(other).__name__} {event.session_id} -"


def say(line: str) -> None:
    """Write a line at once and whole."""
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main()
