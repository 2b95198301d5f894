"""Figures of the engine: memory and bytes of a long turn, pace of a long session, live models.

Where the peer is opencode 1.18.34, its figure was recorded on two shared cores of another machine:
read the ratio as an order of magnitude. The other peers are measured here, in the same run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import forge_nb
from forge_nb.messages.stream import StepFinish, StepStart, StreamEvent, ToolCall
from forge_nb.messages.usage import ModelLimits
from forge_nb.providers.registry import register_provider, resolve_model
from forge_nb.workbench import Workbench
from tests.contracts.provider_contract import asked
from tests.helpers import USED, Saying, text
from tests.wire.replies import Answer, Words
from tests.wire.server import WireServer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Measured", "live_delta_us", "peak_mb", "session_steps_s", "turn_kb"]

DELTAS = 20_000
LIVE_DELTAS = 5_000
TURNS = 100
OPENCODE = "opencode 1.18.34, recorded elsewhere"
OPENCODE_PEAK_MB = 859.0  # resident after 20,000 deltas
OPENCODE_TURN_KB = 680.0  # WAL growth of such a turn
OPENCODE_STEPS_S = 165 / 85.6  # 150 turns with 165 calls


class Measured(NamedTuple):
    """A figure and what it is held against."""

    value: float
    unit: str
    peer: str
    peer_value: float


_FLOOD = """
import asyncio, resource, sys
from forge_nb.workbench import Workbench
with Workbench(sys.argv[1], model="scripted:flood?n=%d") as wb:
    asyncio.run(wb.session("flood").prompt("go", show=False))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak_mb(folder: Path) -> Measured:
    """Peak memory of a process that runs one turn of 20,000 deltas."""
    command = [sys.executable, "-c", _FLOOD % DELTAS, str(folder / "peak.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(float(done.stdout), "MB", OPENCODE, OPENCODE_PEAK_MB)


def turn_kb(folder: Path) -> Measured:
    """Bytes that a turn of 20,000 deltas adds to the store, its text included."""
    path = folder / "turn.db"
    with Workbench(path, model=f"scripted:flood?n={DELTAS}") as wb:
        conversation = wb.session("flood")
        before = _size(path)
        asyncio.run(conversation.prompt("go", show=False))
        return Measured((_size(path) - before) / 1024, "KB", OPENCODE, OPENCODE_TURN_KB)


def _size(path: Path) -> int:
    files = [path, path.with_name(f"{path.name}-wal")]
    return sum(file.stat().st_size for file in files if file.exists())


def session_steps_s(folder: Path) -> Measured:
    """Steps a second of a session that grows to 400 messages, a tool call in every turn."""

    @forge_nb.tool
    def look(n: int) -> str:
        """Look at something."""
        return f"line {n}\n" * 20

    answers: list[list[StreamEvent]] = []
    for n in range(TURNS):
        call = ToolCall(call_id=f"c{n}", tool="look", input={"n": n})
        answers += [
            [StepStart(), call, StepFinish(reason="tool-calls", usage=USED)],
            text("an answer of some words"),
        ]
    provider = Saying(*answers, limits=ModelLimits())
    register_provider("saying", lambda _model: provider)
    with Workbench(folder / "long.db", model="saying:m", tools=[look]) as wb:
        conversation = wb.session("long")

        async def main() -> float:
            before = time.perf_counter()
            for n in range(TURNS):
                await conversation.prompt(f"question {n}", show=False)
            return time.perf_counter() - before

        seconds = asyncio.run(main())
    return Measured(2 * TURNS / seconds, "steps/s", OPENCODE, OPENCODE_STEPS_S)


def live_delta_us(folder: Path) -> Measured:
    """CPU per delta of a real provider over HTTP on loopback, beside the vendor's bare SDK."""
    del folder
    os.environ.setdefault("OPENAI_API_KEY", "none")
    mine, bare = [], []
    for _ in range(3):
        ours, theirs = asyncio.run(_live())
        mine.append(ours)
        bare.append(theirs)
    return Measured(
        statistics.median(mine), "μs", "openai SDK alone, same server", statistics.median(bare)
    )


async def _live() -> tuple[float, float]:
    import openai  # noqa: PLC0415  only this figure needs it

    answer = Answer(blocks=(Words(("word ",) * LIVE_DELTAS),))
    async with WireServer([answer]) as server:
        provider, _ = resolve_model(f"openai:gpt-5?base_url={server.base_url}")
        before, seen = time.process_time(), 0
        async for _event in provider.stream(asked("Hi")):
            seen += 1
        ours = time.process_time() - before
        if seen < LIVE_DELTAS:
            msg = f"{seen} events of {LIVE_DELTAS} deltas"
            raise RuntimeError(msg)
        before = time.process_time()
        async with openai.AsyncOpenAI(api_key="none", base_url=server.base_url) as client:
            stream = await client.chat.completions.create(
                model="gpt-5", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            async for _chunk in stream:
                pass
        theirs = time.process_time() - before
    return ours / LIVE_DELTAS * 1e6, theirs / LIVE_DELTAS * 1e6
