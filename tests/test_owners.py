from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from forge_nb.messages.parts import is_open
from forge_nb.owners import is_gone, owner_name
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from pathlib import Path

CRASH = """
import asyncio, os, sys
from forge_nb.messages.stream import StepStart, TextDelta, TextStart
from forge_nb.messages.usage import ModelLimits
from forge_nb.providers.registry import register_provider
from forge_nb.workbench import Workbench

class Doomed:
    id = "doomed"
    def limits(self, model_id): return ModelLimits()
    def prices(self, model_id): return None
    async def stream(self, request):
        yield StepStart()
        yield TextStart()
        yield TextDelta(text="These words")
        await asyncio.sleep(0)
        os._exit(9)

register_provider("doomed", lambda model: Doomed())
asyncio.run(Workbench(sys.argv[1], model="doomed:m").session("crash").prompt("Speak."))
"""


def test_this_process_is_not_gone() -> None:
    assert not is_gone(owner_name("a"))


def test_a_process_that_ended_is_gone() -> None:
    code = "from forge_nb.owners import owner_name; print(owner_name('x'))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert is_gone(ended.stdout.strip())


@pytest.mark.parametrize(
    "owner",
    [
        f"elsewhere-12345678:{os.getpid()}:x",
        "elsewhere-12345678:1:x",
        "",
        "junk",
        "a:b:c",
        "x:999:",
    ],
)
def test_nobody_of_another_machine_is_said_to_be_gone(owner: str) -> None:
    assert not is_gone(owner)


def test_a_session_whose_process_crashed_is_mended_as_soon_as_the_store_is_opened(
    tmp_path: Path,
) -> None:
    """No wait for the lease to run out: a restarted kernel finds its sessions in order."""
    db = tmp_path / "crash.db"
    subprocess.run([sys.executable, "-c", CRASH, db], check=False)

    with Workbench(db) as wb:
        s = wb.session("crash")
        _, answer = s.messages()
        outcomes = list(s.steps()["outcome"])

    assert not any(is_open(part) for part in answer.parts)
    assert outcomes == ["interrupted"]
