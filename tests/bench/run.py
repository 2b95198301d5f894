"""Figures of speed, each beside what people would use instead: ``python tests/bench/run.py``.

``run.py [NAME…] [--json]`` prints one line per figure; with ``--json`` one object per line: name,
value, unit, peer, peer_value, ratio. Machines are noisy: trust ratios taken in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))  # the script stands beside no package

from forge_nb.bus import Bus
from forge_nb.clock import FixedClock, random_source
from forge_nb.events import MessageUpdated, PartDelta, SessionUpdated
from forge_nb.exchange.load import load
from forge_nb.messages.assemble import PartAssembler
from forge_nb.messages.ids import IdSource
from forge_nb.messages.message import AssistantMessage, MessageTime, SessionInfo, SessionTime
from forge_nb.messages.parts import ModelRef
from forge_nb.messages.stream import (
    StepFinish,
    StepStart,
    StreamEvent,
    TextDelta,
    TextEnd,
    TextStart,
)
from forge_nb.messages.usage import ModelLimits, UnitPrices
from forge_nb.processor import Processor
from forge_nb.providers.base import ModelRequest
from forge_nb.session import Session
from forge_nb.settings import Settings
from forge_nb.store.open import open_store
from forge_nb.tools.registry import ToolRegistry
from tests.bench import engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

DELTAS = 20_000
REPEATS = 5
MEGABYTE = 1_000_000


class Figure(msgspec.Struct):
    """One measured value, and its peer's where there is one."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None


class Flood:
    """A provider that streams one text of many deltas and yields to the loop now and then."""

    id = "bench"

    def __init__(self, count: int) -> None:
        self._count = count

    def limits(self, model_id: str) -> ModelLimits:
        """Return no limits."""
        del model_id
        return ModelLimits()

    def prices(self, model_id: str) -> UnitPrices | None:
        """Return no prices."""
        del model_id
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Yield the deltas."""
        del request
        yield StepStart()
        yield TextStart()
        for place in range(self._count):
            yield TextDelta(text="word")
            if place % 64 == 0:
                await asyncio.sleep(0)
        yield TextEnd()
        yield StepFinish(reason="stop")


async def processor_turn(folder: Path, count: int) -> tuple[float, int, int]:
    """Return CPU seconds, characters that the subscriber saw, and rows written of one turn."""
    clock = FixedClock()
    new_id = IdSource(clock, random_source(1))
    store = open_store(folder / f"bench-{new_id('run')}.db", clock=clock)
    session = Session(store, Bus(), new_id("ses"), clock=clock, new_id=new_id)
    await session.write(
        [SessionUpdated(info=SessionInfo(id=session.id, time=SessionTime(created=1)))]
    )
    message = AssistantMessage(
        id=new_id("msg"), session_id=session.id, time=MessageTime(created=clock())
    )
    await session.write([MessageUpdated(message=message)])
    request = ModelRequest(
        model=ModelRef(provider_id="bench", model_id="flood"),
        system=[],
        messages=[],
        tools=[],
        purpose="turn",
    )
    subscription = session.bus.subscribe(session.id)
    seen, rows = 0, 0

    async def listen() -> None:
        nonlocal seen, rows
        async for event in subscription:
            if type(event) is PartDelta:
                seen += len(event.delta)
            else:
                rows += 1

    listener = asyncio.ensure_future(listen())
    processor = Processor(
        session, Flood(count), message, tools=ToolRegistry([]), settings=Settings()
    )
    before = time.process_time()
    await processor.process(request)
    used = time.process_time() - before
    subscription.close()
    await listener
    store.close()
    return used, seen, rows


async def bare_turn(count: int) -> float:
    """Return CPU seconds of generator → assembler → queue, with nothing around it."""
    clock = FixedClock()
    assembler = PartAssembler("s", "m", IdSource(clock, random_source(1)), clock)
    queue: asyncio.Queue[object] = asyncio.Queue()
    request = ModelRequest(
        model=ModelRef(provider_id="b", model_id="f"),
        system=[],
        messages=[],
        tools=[],
        purpose="turn",
    )
    before = time.process_time()
    async for event in Flood(count).stream(request):
        for change in assembler.feed(event):
            queue.put_nowait(change)
    return time.process_time() - before


def delta_cpu_us(folder: Path) -> Figure:
    """CPU per delta through Processor, bus, store and one subscriber."""
    whole, bare = [], []
    for _ in range(REPEATS):
        used, seen, _ = asyncio.run(processor_turn(folder, DELTAS))
        if seen != DELTAS * len("word"):
            msg = f"the subscriber saw {seen} characters of {DELTAS * 4}"
            raise RuntimeError(msg)
        whole.append(used / DELTAS * 1e6)
        bare.append(asyncio.run(bare_turn(DELTAS)) / DELTAS * 1e6)
    return compared(
        "delta_cpu_us",
        statistics.median(whole),
        "μs",
        peer="bare generator, assembler, queue",
        peer_value=statistics.median(bare),
    )


def turn_rows(folder: Path) -> Figure:
    """Sync events written in a turn of many deltas, beside a turn of ten."""
    many = asyncio.run(processor_turn(folder, DELTAS))[2]
    few = asyncio.run(processor_turn(folder, 10))[2]
    return compared("turn_rows", many, "rows", peer="turn of 10 deltas", peer_value=few)


def load_ext_ms(folder: Path) -> Figure:
    """Time of ``%load_ext forge_nb`` in a fresh IPython, beside ``import pandas``."""
    del folder
    code = (
        "import time; from IPython.core.interactiveshell import InteractiveShell as S; "
        "s = S.instance(); t = time.perf_counter(); {} ; print((time.perf_counter() - t) * 1e3)"
    )
    mine = best_of(code.format("s.run_line_magic('load_ext', 'forge_nb')"))
    return compared(
        "load_ext_ms",
        mine,
        "ms",
        peer="import pandas",
        peer_value=best_of(code.format("import pandas")),
    )


def best_of(code: str) -> float:
    """Return the smallest figure that a fresh Python prints in five runs."""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(REPEATS)
    ]
    return min(float(run.stdout.split()[-1]) for run in runs)


def import_mb_s(folder: Path) -> Figure:
    """Import of a 4 MB export, beside reading the same file with the standard library's json."""
    path = folder / "export.json"
    path.write_text(json.dumps(grown_export(4 * MEGABYTE)))
    size = path.stat().st_size / MEGABYTE
    mine, peer = [], []
    for place in range(REPEATS):
        started = time.perf_counter()
        json.loads(path.read_bytes())
        peer.append(size / (time.perf_counter() - started))
        with open_store(folder / f"import-{place}.db") as store:
            started = time.perf_counter()
            load(store, [path])
            mine.append(size / (time.perf_counter() - started))
    return compared(
        "import_mb_s",
        statistics.median(mine),
        "MB/s",
        peer="json.loads alone",
        peer_value=statistics.median(peer),
    )


def grown_export(size_bytes: int) -> dict[str, object]:
    """Return the tutorial's session, repeated with new ids until its JSON has this size."""
    data = Path(__file__).parents[2] / "notebooks" / "data"
    found = next(iter(sorted([*data.glob("*.json"), *data.glob("*.json.gz")])))
    raw = gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
    export = json.loads(raw)
    one = json.dumps(export["messages"])
    copies = -(-size_bytes // len(one))
    messages = []
    for place in range(copies):
        text = one.replace('"msg_', f'"msg_{place:03d}').replace('"prt_', f'"prt_{place:03d}')
        messages += json.loads(text)
    return {"info": export["info"], "messages": messages}


def compared(name: str, value: float, unit: str, *, peer: str, peer_value: float) -> Figure:
    """Return a figure beside its peer's."""
    return Figure(name, value, unit, peer, peer_value, value / peer_value)


def measured(name: str) -> Callable[[Path], Figure]:
    """Return a figure of `tests/bench/engine.py` as one of this table's."""

    def run(folder: Path) -> Figure:
        found: engine.Measured = getattr(engine, name)(folder)
        return compared(name, found.value, found.unit, peer=found.peer, peer_value=found.peer_value)

    return run


FIGURES: dict[str, Callable[[Path], Figure]] = {
    "delta_cpu_us": delta_cpu_us,
    "import_mb_s": import_mb_s,
    "live_delta_us": measured("live_delta_us"),
    "load_ext_ms": load_ext_ms,
    "peak_mb": measured("peak_mb"),
    "session_steps_s": measured("session_steps_s"),
    "turn_kb": measured("turn_kb"),
    "turn_rows": turn_rows,
}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(FIGURES))
    if unknown:
        parser.error(f"unknown figures {unknown}; there are {sorted(FIGURES)}")
    for name in asked.names or FIGURES:
        with tempfile.TemporaryDirectory(prefix="forge-bench-") as folder:
            figure = FIGURES[name](Path(folder))
        if asked.json:
            print(msgspec.json.encode(figure).decode())
        else:
            beside = f"  {figure.peer}: {figure.peer_value:.2f}, ratio {figure.ratio:.2f}"
            print(f"{figure.name:14} {figure.value:10.2f} {figure.unit:5}{beside}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
