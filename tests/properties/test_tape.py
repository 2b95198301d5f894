"""Properties of tapes: whatever was heard is heard again, and asking the same finds it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_nb.messages.stream import (
    ReasoningDelta,
    ReasoningStart,
    StepFinish,
    StepStart,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputStart,
    Usage,
)
from forge_nb.messages.usage import CacheTokens, TokenUsage
from forge_nb.providers.recorder import Recorder
from forge_nb.providers.tape import TapeProvider
from forge_nb.providers.tape_requests import request_key
from tests.contracts.provider_contract import asked, drain
from tests.helpers import Saying

if TYPE_CHECKING:
    from forge_nb.messages.stream import StreamEvent

count = st.none() | st.integers(0, 2**53)
usage = st.builds(
    TokenUsage,
    input=count,
    output=count,
    reasoning=count,
    cache=st.builds(CacheTokens, read=count, write=count),
    total=count,
)
words = st.text(max_size=8)
value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
event: st.SearchStrategy[StreamEvent] = st.one_of(
    st.builds(StepStart, snapshot=st.none() | words),
    st.builds(TextStart, id=words, metadata=st.none() | st.dictionaries(words, value, max_size=2)),
    st.builds(TextDelta, text=words, id=words),
    st.builds(TextEnd, id=words),
    st.builds(ReasoningStart, id=words),
    st.builds(ReasoningDelta, text=words, id=words),
    st.builds(ToolInputStart, call_id=words, tool=words),
    st.builds(ToolInputDelta, call_id=words, text=words),
    st.builds(ToolCall, call_id=words, tool=words, input=value),
    st.builds(Usage, usage=usage),
    st.builds(StepFinish, reason=words, usage=usage),
    st.builds(StreamError, message=words, kind=st.sampled_from(["api", "overflow"])),
)
turns = st.lists(st.lists(event, max_size=12), min_size=1, max_size=4)


async def replay(answers: list[list[StreamEvent]], questions: list[str]) -> list[list[StreamEvent]]:
    """Record one answer a question, then ask again, last question first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tape.jsonl"
        recorder = Recorder(Saying(*answers), path)
        for question in questions:
            await drain(recorder, asked(question))
        played = TapeProvider(path, match="key")
        return [await drain(played, asked(question)) for question in reversed(questions)]


@given(turns)
@settings(max_examples=60)
def test_a_replay_gives_the_recorded_events_of_each_request(
    answers: list[list[StreamEvent]],
) -> None:
    questions = [f"question {n}" for n in range(len(answers))]
    assert asyncio.run(replay(answers, questions)) == answers[::-1]


@given(st.lists(words, min_size=1, max_size=4), st.text(min_size=1), st.text(min_size=1))
def test_the_key_depends_on_what_is_asked_and_on_no_id(
    texts: list[str], message_id: str, part_id: str
) -> None:
    request = asked(*texts)
    renamed = msgspec.structs.replace(
        request,
        messages=[
            msgspec.structs.replace(
                message,
                id=message_id,
                parts=tuple(msgspec.structs.replace(part, id=part_id) for part in message.parts),
            )
            for message in request.messages
        ],
    )
    assert request_key(renamed) == request_key(request)
    assert request_key(asked(*texts, "and more")) != request_key(request)
