"""Two processes on one file: every prompt is answered, one process at a time runs a session."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forge_nb.errors import SessionBusyError
from forge_nb.messages.message import AssistantMessage, UserMessage
from forge_nb.messages.parts import TextPart, is_open
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Generator

    from forge_nb.conversation import Conversation
    from forge_nb.messages.message import MessageWithParts

ROOT = Path(__file__).parent.parent
SPAWN = multiprocessing.get_context("spawn")
PROMPTS = 5

SLOW = """
import asyncio, os, sys
from forge_nb.events import PartDelta
from forge_nb.workbench import Workbench

async def main():
    with Workbench(sys.argv[1], model="scripted:slow") as wb:
        subscription = wb.bus.subscribe()
        run = asyncio.ensure_future(wb.session(sys.argv[2]).prompt("slowly, please"))
        async for event in subscription:
            if isinstance(event, PartDelta):
                print(os.getpid(), flush=True)
                await run

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forge.db"


@pytest.fixture(scope="module")
def pool() -> Generator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as made:
        yield made


def ask(path: str, session_id: str, name: str) -> list[tuple[str, str]]:
    """Prompt a session some times; return outcomes and answers."""

    async def main() -> list[tuple[str, str]]:
        with Workbench(path, model="scripted:echo") as wb:
            talk = wb.session(session_id)
            results = [await talk.prompt(f"{name} {number}") for number in range(PROMPTS)]
            return [(result.outcome, result.text) for result in results]

    return asyncio.run(main())


def words_of(item: MessageWithParts) -> str:
    return "".join(part.text for part in item.parts if isinstance(part, TextPart))


def is_whole(wb: Workbench, talk: Conversation) -> None:
    """Nobody waits, nothing is open, and no answer began before the one before it had ended."""
    assert [one for one in wb.verify() if one.level == "failure"] == []
    assert wb.store.prompts(talk.id, "waiting", "taken", "cancelled") == []
    items = talk.messages()
    assert [part for item in items for part in item.parts if is_open(part)] == []
    times = [item.message.time for item in items if isinstance(item.message, AssistantMessage)]
    for before, after in pairwise(times):
        assert before.completed is not None
        assert before.completed <= after.created


def asked_in(talk: Conversation) -> list[str]:
    return [words_of(item) for item in talk.messages() if isinstance(item.message, UserMessage)]


def test_two_processes_that_prompt_one_session_are_both_answered_and_take_turns(
    path: Path, pool: ProcessPoolExecutor
) -> None:
    with Workbench(path, model="scripted:echo") as wb:
        talk = wb.session("shared")
        runs = [pool.submit(ask, str(path), talk.id, name) for name in ("left", "right")]
        results = [result for run in runs for result in run.result(timeout=60)]
        assert {outcome for outcome, _ in results} == {"completed"}
        assert all(answer for _, answer in results)
        expected = {f"{name} {number}" for name in ("left", "right") for number in range(PROMPTS)}
        asked = asked_in(talk)
        assert set(asked) == expected
        assert len(asked) == len(expected)
        for name in ("left", "right"):
            own = [words for words in asked if words.startswith(name)]
            assert own == sorted(own)
        assert len(wb.store.prompts(talk.id, "answered")) == len(expected)
        is_whole(wb, talk)


def test_two_processes_that_prompt_a_session_each_do_not_hinder_each_other(
    path: Path, pool: ProcessPoolExecutor
) -> None:
    with Workbench(path, model="scripted:echo") as wb:
        talks = [wb.session(name) for name in ("left", "right")]
        runs = [pool.submit(ask, str(path), talk.id, talk.title) for talk in talks]
        for talk, run in zip(talks, runs, strict=True):
            answers = [f"{talk.title} {number}" for number in range(PROMPTS)]
            assert run.result(timeout=60) == [("completed", answer) for answer in answers]
            assert asked_in(talk) == answers
            is_whole(wb, talk)
        assert wb.steps()["cost_usd"].sum() == pytest.approx(wb.sessions()["cost_usd"].sum())


def test_who_will_not_wait_is_told_who_runs_the_session_and_nothing_is_stored(path: Path) -> None:
    with Workbench(path, model="scripted:hello") as wb:
        talk = wb.session("shared")
        command = [sys.executable, "-c", SLOW, str(path), talk.id]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as runner:
            assert runner.stdout is not None
            pid = int(runner.stdout.readline())
            refuses_to_wait(talk, pid)
            assert asked_in(talk) == ["slowly, please"]
            assert asyncio.run(wb.session("another").prompt("hi", wait=False)).text
            runner.kill()


def refuses_to_wait(talk: Conversation, pid: int) -> None:
    for impatient in (talk.prompt("now!", wait=False), talk.resume(wait=False)):
        with pytest.raises(SessionBusyError, match=str(pid)) as caught:
            asyncio.run(impatient)
        assert f":{pid}:" in caught.value.owner
