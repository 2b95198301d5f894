"""The contract of providers, held by every one there is, recorded and replayed ones too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from forge_nb.providers.recorder import Recorder
from forge_nb.providers.scripted import ScriptedProvider
from forge_nb.providers.scripts import SCRIPTS
from forge_nb.providers.tape import TapeProvider
from tests.contracts.provider_contract import ProviderContract, asked, drain

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contracts.provider_contract import MakeProvider


def quick(name: str) -> ScriptedProvider:
    """Return a script without its waits."""
    return ScriptedProvider(msgspec.structs.replace(SCRIPTS[name], pace_s=0.0))


@pytest.fixture(params=sorted(SCRIPTS))
def name(request: pytest.FixtureRequest) -> str:
    """A script's name."""
    found: str = request.param
    return found


class TestScripted(ProviderContract):
    @pytest.fixture
    def make_provider(self, name: str) -> MakeProvider:
        return lambda: quick(name)


class TestRecorder(ProviderContract):
    @pytest.fixture
    def make_provider(self, name: str, tmp_path: Path) -> MakeProvider:
        return lambda: Recorder(quick(name), tmp_path / "tape.jsonl")


class TestTape(ProviderContract):
    @pytest.fixture
    def make_provider(self, name: str, tmp_path: Path) -> MakeProvider:
        path = tmp_path / "tape.jsonl"
        asyncio.run(drain(Recorder(quick(name), path), asked("why?")))
        return lambda: TapeProvider(path)
