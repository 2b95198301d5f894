"""From ``provider:model`` to a provider that answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

from forge_nb.errors import UsageError
from forge_nb.messages.parts import ModelRef
from forge_nb.providers.live import ENDPOINTS, LiveProvider
from forge_nb.providers.recorder import Recorder
from forge_nb.providers.scripted import ScriptedProvider
from forge_nb.providers.scripts import make_script
from forge_nb.providers.tape import TapeProvider
from forge_nb.providers.tape_specs import recording_of, replay_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge_nb.providers.base import Provider

__all__ = ["provider_names", "register_provider", "resolve_model"]


def _scripted(model: str) -> Provider:
    name, _, query = model.partition("?")
    return ScriptedProvider(make_script(name, dict(parse_qsl(query))))


def _tape(model: str) -> Provider:
    path, options = replay_of(model)
    given = msgspec.structs.asdict(options)
    then = given.pop("then")
    return TapeProvider(path, **given, then=None if then is None else resolve_model(then))


def _record(model: str) -> Provider:
    path, of = recording_of(model)
    provider, ref = resolve_model(of)
    return Recorder(provider, path, ref=ref)


_FACTORIES: dict[str, Callable[[str], Provider]] = {
    "scripted": _scripted,
    "tape": _tape,
    "record": _record,
    **{name: partial(LiveProvider, name) for name in ENDPOINTS},
}


def provider_names() -> frozenset[str]:
    """Return what may stand before the colon."""
    return frozenset(_FACTORIES)


def register_provider(name: str, factory: Callable[[str], Provider]) -> None:
    """Make ``name:model`` mean what the factory makes of the model.

    Parameters
    ----------
    name
        What stands before the colon.
    factory
        Takes what stands behind it.
    """
    _FACTORIES[name] = factory


def resolve_model(spec: str) -> tuple[Provider, ModelRef]:
    """Return the provider and the model that a text like ``scripted:tour`` means.

    Raises
    ------
    UsageError
        When there is no such provider or model, or its key or library is missing.

    Examples
    --------
    >>> resolve_model("scripted:hello")[1].model_id
    'hello'
    """
    name, colon, model = spec.partition(":")
    if not colon or not model or name not in _FACTORIES:
        msg = f"{spec!r} is no model; write PROVIDER:MODEL with one of {sorted(_FACTORIES)}"
        raise UsageError(msg, spec=spec)
    # A server's address is no part of a model's name; a script's options are what tells it apart.
    known = model.partition("?")[0] if name in ENDPOINTS else model
    provider = _FACTORIES[name](model)
    recorded: ModelRef | None = getattr(provider, "ref", None)
    return provider, recorded or ModelRef(provider_id=name, model_id=known)
