"""Runs that are killed at any moment: what was stored stays, and the run goes on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec
import pytest

from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import is_open
from forge_nb.store.open import open_store
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Generator

    from forge_nb.events import PromptState

ROOT = Path(__file__).parent.parent
SEED = 20260814
LAST_ROW = 260  # of a child's rows; by then it has been compacted several times
ALL_STATES: tuple[PromptState, ...] = ("waiting", "taken", "answered", "cancelled")


class Killed(msgspec.Struct):
    """What a child had said before it was killed."""

    rows: dict[str, set[str]]
    """Ids by kind."""
    closed: set[str]
    """Parts that it had heard to be closed."""


class Forker:
    """Starts children and kills them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in: IO[str] = process.stdin
        self._out: IO[str] = process.stdout

    def kill(self, path: Path, rng: random.Random) -> Killed:
        """Run a child on a store and kill it after a random number of rows."""
        last = rng.randint(1, LAST_ROW)
        self._in.write(f"{path} {rng.randrange(10**6)}\n")
        self._in.flush()
        child = int(self._out.readline().removeprefix("pid "))
        killed = Killed({"user": set(), "message": set(), "part": set(), "usage": set()}, set())
        heard = 0
        for line in self._out:
            if line == "dead\n":
                break
            heard += 1
            if heard == last:
                os.kill(child, signal.SIGKILL)
            kind, name, state = line.split()
            killed.rows.setdefault(kind, set()).add(name)
            if state == "closed":
                killed.closed.add(name)
        assert heard >= last, "the child ended by itself"
        return killed


@pytest.fixture(scope="module")
def forker() -> Generator[Forker]:
    """One interpreter for all children."""
    command = [sys.executable, "-m", "tests.faults.forker"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Forker(process)
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def test_a_killed_run_keeps_what_was_stored_and_goes_on(
    forker: Forker, tmp_path: Path, kill_count: int
) -> None:
    rng = random.Random(SEED)
    for number in range(kill_count):
        path = tmp_path / f"{number}.db"
        killed = forker.kill(path, rng)
        free_leases_of_the_dead(path)
        with Workbench(path, model="scripted:hello") as wb:
            keeps_every_row(wb, killed)
            is_closed_and_clean(wb)
            if killed.rows["user"]:
                goes_on(wb)
            is_closed_and_clean(wb)


def free_leases_of_the_dead(path: Path) -> None:
    """End the leases that would otherwise live for some seconds."""
    with open_store(path) as store:
        for lease in store.leases():
            store.release_lease(lease.session_id, lease.owner)


def keeps_every_row(wb: Workbench, killed: Killed) -> None:
    talks = wb.conversations()
    items = [item for talk in talks for item in talk.messages()]
    parts = {part.id: part for item in items for part in item.parts}
    messages = {item.message.id for item in items}
    usage = {record.id for talk in talks for record in wb.store.usage(talk.id)}
    assert killed.rows["user"] | killed.rows["message"] <= messages
    assert killed.rows["part"] <= set(parts)
    assert killed.rows["usage"] <= usage


def is_closed_and_clean(wb: Workbench) -> None:
    assert [one for one in wb.verify() if one.level == "failure"] == []
    for talk in wb.conversations():
        for item in talk.messages():
            assert [part for part in item.parts if is_open(part)] == []
            if isinstance(item.message, AssistantMessage):
                assert item.message.time.completed is not None


def goes_on(wb: Workbench) -> None:
    """The session ends when it is resumed, and whoever waited has an answer."""
    [talk] = wb.conversations()
    result = asyncio.run(talk.resume())
    assert result.outcome == "completed"
    assert wb.store.prompts(talk.id, "waiting", "taken") == []
    asked = wb.store.prompts(talk.id, *ALL_STATES)
    assert len(asked) == len(wb.store.prompts(talk.id, "answered"))
    assert asyncio.run(talk.prompt("One more thing")).text.startswith("Hello")
