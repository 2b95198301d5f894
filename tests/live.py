"""What tests of real providers share: a model of each protocol behind the server for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.clock import FixedClock
from forge_nb.providers.registry import resolve_model
from forge_nb.settings import Settings
from forge_nb.workbench import Workbench
from tests.wire.protocols import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from forge_nb.messages.parts import Part
    from forge_nb.providers.base import Provider
    from forge_nb.tools.registry import Tool
    from tests.wire.server import WireServer

__all__ = ["PROTOCOLS", "QUIET", "SPECS", "parts_of", "provider_at", "set_keys", "workbench_at"]

SPECS = {
    "chat": "openai:gpt-5",
    "responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-4-5",
}
QUIET = Settings(title=False, retries=0, auto_compact=False)
"""One call for one prompt."""


def set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every provider a key and no other setting of the machine."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-test")
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "FORGE_MODELS"):
        monkeypatch.delenv(name, raising=False)


def _spec(protocol: str, server: WireServer) -> str:
    return f"{SPECS[protocol]}?base_url={server.base_url}"


def provider_at(server: WireServer, protocol: str) -> Provider:
    """Return a provider that asks this server."""
    return resolve_model(_spec(protocol, server))[0]


def workbench_at(
    server: WireServer,
    protocol: str,
    *,
    tools: Sequence[Tool] = (),
    settings: Settings = QUIET,
) -> Workbench:
    """Return a workbench in memory whose model is behind this server."""
    spec = _spec(protocol, server)
    return Workbench(
        ":memory:", model=spec, tools=tools, settings=settings, clock=FixedClock(), seed=3
    )


def parts_of(wb: Workbench, session_id: str, *, message: int = -1) -> tuple[Part, ...]:
    """Return the parts of a session's n-th message, of the last one by default."""
    messages = wb.session(session_id).messages()
    return messages[message].parts if messages else ()
