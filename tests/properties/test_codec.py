"""Whatever else a JSON object holds, it survives reading and writing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forge_nb.messages.codec import (
    message_from_dict,
    message_to_dict,
    part_from_dict,
    part_to_dict,
)
from forge_nb.messages.value import merge, residue

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=5), trees, max_size=5)

IDS = {"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1"}
TAKEN = {"type", "text", "time", "synthetic", "ignored", "metadata", "role", "summary", *IDS}


@given(objects)
def test_unknown_fields_of_a_part_survive(more: dict[str, Any]) -> None:
    raw = {**{key: more[key] for key in more if key not in TAKEN}, **IDS}
    raw |= {"type": "text", "text": "x", "time": {"start": 1, "future": more}}
    assert part_to_dict(part_from_dict(raw)) == raw


@given(objects)
def test_unknown_kinds_survive(more: dict[str, Any]) -> None:
    raw = {**more, **IDS, "type": "hologram"}
    assert part_to_dict(part_from_dict(raw)) == raw


@given(objects)
def test_unknown_fields_of_a_message_survive(more: dict[str, Any]) -> None:
    raw = {"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1, "z": more}}
    raw["later"] = more
    assert message_to_dict(message_from_dict(raw)) == raw


@given(objects, objects)
def test_merging_the_residue_gives_every_key_back(
    raw: dict[str, Any], part: dict[str, Any]
) -> None:
    whole = merge(part, residue(raw, part))
    assert set(whole) == set(raw) | set(part)
