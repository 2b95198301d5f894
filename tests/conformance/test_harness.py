"""The harness itself: it sees what was planted, and nothing where there is nothing to see."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.parts import StepFinishPart, TextPart, ToolCompleted, ToolPart
from forge_nb.messages.usage import TokenUsage
from tests.conformance.comparison import compared
from tests.conformance.course import Course, marks_of
from tests.conformance.driver import UnsupportedRequestError
from tests.conformance.look_alike import LookAlike
from tests.conformance.normal import difference, event_row, normal_request
from tests.conformance.normal_rows import normal_rows
from tests.conformance.recording import Live, Recording, Request, read_recording
from tests.conformance.replay import Replayed, replay
from tests.live import set_keys

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forge_nb.messages.parts import Part

pytest.importorskip("pydantic_ai", reason="the extra `models` is not installed")


def recording_at(folder: Path, look_alike: LookAlike) -> Recording:
    return read_recording(look_alike.write(folder / "look-alike"), folder)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    scratch = tmp_path_factory.mktemp("replayed")
    with pytest.MonkeyPatch.context() as environment:
        set_keys(environment)
        return asyncio.run(replay(recording_at(scratch, LookAlike()), scratch))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recording_at(tmp_path_factory.mktemp("original"), LookAlike())


@pytest.fixture
def recording(original: Recording) -> Recording:
    """A copy that a test may change."""
    return copy.deepcopy(original)


# ------------------------------------------------------------------------- nothing to be seen


def test_a_replay_of_a_recording_is_like_it(recording: Recording, replayed: Replayed) -> None:
    assert compared(recording, replayed) == []


def test_ids_clocks_paths_and_hashes_make_no_difference(tmp_path: Path, replayed: Replayed) -> None:
    elsewhere = LookAlike(mark="zz", root="/home/other/place", start_s=1_900_000_000.5)
    assert compared(recording_at(tmp_path, elsewhere), replayed) == []


def test_pauses_of_a_reply_cost_no_time(recording: Recording) -> None:
    assert all(call.reply["delay"] == 5.0 for call in recording.calls)


def test_a_question_that_came_while_one_was_answered_has_an_answer_of_its_own(
    replayed: Replayed,
) -> None:
    roles = [[piece["role"] for piece in one.messages] for one in replayed.requests]
    assert roles[0] == ["user"]
    assert roles[1] == ["user", "assistant", "user"]
    kinds = [(kind, data.get("info", {}).get("role")) for kind, data in replayed.events[0]]
    messages = [role for kind, role in kinds if kind == "message.updated"]
    assert messages[:3] == ["user", "assistant", "user"]


def test_tool_calls_end_in_the_recorded_order(replayed: Replayed) -> None:
    ended = [
        data["part"]["callID"]
        for kind, data in replayed.events[0]
        if kind == "message.part.updated" and data["part"]["type"] == "tool"
        if data["part"]["state"]["status"] == "completed"
    ]
    assert ended == ["call_b", "call_a"]


def test_an_abort_comes_after_the_recorded_words(replayed: Replayed) -> None:
    assert replayed.deltas[0][-1] == "do"


async def test_a_kill_comes_after_the_recorded_words_and_is_mended_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch)
    recording = recording_at(tmp_path, LookAlike(is_killed=True))
    replayed = await replay(recording, tmp_path)
    assert replayed.deltas[0] == ["Hello!", "do", "yes"]
    assert compared(recording, replayed) == [  # opencode leaves open what a crash left open
        "rows.0.messages.4.completed: false became true",
        "rows.0.messages.4.parts.1.closed: false became true",
    ]


# --------------------------------------------------------------------------- planted differences


def change_message(recording: Recording, place: int, **facts: Any) -> None:
    items = recording.sessions[0].messages
    changed = msgspec.structs.replace(items[place].message, **facts)
    items[place] = msgspec.structs.replace(items[place], message=changed)


def change_part(recording: Recording, kind: type[Part], change: Callable[[Any], Any]) -> None:
    """Change the first part of a kind."""
    for place, item in enumerate(recording.sessions[0].messages):
        for number, part in enumerate(item.parts):
            if isinstance(part, kind):
                parts = (*item.parts[:number], change(part), *item.parts[number + 1 :])
                items = recording.sessions[0].messages
                items[place] = msgspec.structs.replace(item, parts=parts)
                return
    pytest.fail(f"the look-alike has no {kind.__name__}")


def set_text(recording: Recording) -> None:
    change_part(recording, TextPart, lambda part: msgspec.structs.replace(part, text="else"))


def set_output(recording: Recording) -> None:
    def change(part: ToolPart) -> ToolPart:
        assert isinstance(part.state, ToolCompleted)
        state = msgspec.structs.replace(part.state, output="else")
        return msgspec.structs.replace(part, state=state)

    change_part(recording, ToolPart, change)


def set_usage(recording: Recording) -> None:
    used = TokenUsage(input=1, output=10)
    change_part(recording, StepFinishPart, lambda part: msgspec.structs.replace(part, tokens=used))


def swap_parts(recording: Recording) -> None:
    items = recording.sessions[0].messages
    items[-2] = msgspec.structs.replace(items[-2], parts=items[-2].parts[::-1])


def set_error(recording: Recording) -> None:
    last = recording.sessions[0].messages[-1].message
    assert isinstance(last, AssistantMessage)
    assert last.error is not None
    change_message(recording, -1, error=msgspec.structs.replace(last.error, name="APIError"))


def durable(recording: Recording) -> list[tuple[str, dict[str, Any]]]:
    return next(iter(recording.events.values()))


def place_of(recording: Recording, kind: str, status: str = "") -> int:
    return next(
        place
        for place, (_, data) in enumerate(durable(recording))
        if data.get("part", {}).get("type") == kind
        if data["part"].get("state", {}).get("status", "") == status
    )


def drop_event(recording: Recording) -> None:
    del durable(recording)[place_of(recording, "tool", "pending")]


def move_event(recording: Recording) -> None:
    events = durable(recording)
    events.append(events.pop(place_of(recording, "step-finish")))


def note_changes(recording: Recording) -> None:
    kind, data = next(one for one in durable(recording) if one[0] == "message.updated")
    durable(recording).append((kind, {"info": {**data["info"], "summary": {"diffs": []}}}))


def set_delta(recording: Recording) -> None:
    found = next(live for live in recording.live if live.kind == "message.part.delta")
    found.facts["delta"] += "?"


def told_to_wait(recording: Recording) -> None:
    status = {"type": "retry", "attempt": 1, "message": "later"}
    facts = {"sessionID": recording.sessions[0].info.id, "status": status}
    recording.live.append(Live(time_s=0, kind="session.status", facts=facts))


def set_request(recording: Recording) -> None:
    recording.calls[1].messages[0]["content"] = "another question"


def set_arguments(recording: Recording) -> None:
    asked = next(one for one in recording.calls[2].messages if one.get("tool_calls"))
    asked["tool_calls"][0]["function"]["arguments"] = '{"path": "else"}'


def swap_messages(recording: Recording) -> None:
    recording.calls[1].messages.reverse()


def ask_for_a_title(recording: Recording) -> None:
    call = recording.calls[0]
    recording.calls.append(msgspec.structs.replace(call, purpose="title"))


def forget_a_call(recording: Recording) -> None:
    recording.calls.pop()


def make_summary(recording: Recording) -> None:
    said = "<conversation>\n[User]: one\n\n[Assistant]: Hello!\n</conversation>"
    recording.calls[1].messages[:] = [{"role": "user", "content": said}]


def set_rules(recording: Recording) -> None:
    rules = [{"permission": "bash", "pattern": "*", "action": "deny"}]
    session = recording.sessions[0]
    session.info = msgspec.structs.replace(session.info, permission=rules)


def lose_a_message(recording: Recording) -> None:
    recording.sessions[0].messages.pop()


def open_child(recording: Recording) -> None:
    recording.sessions.append(recording.sessions[0])


def set_bill(recording: Recording) -> None:
    recording.sessions[0].cost_usd = 9.0


PLANTED: list[tuple[Callable[[Recording], None], str]] = [
    (set_text, 'rows.0.messages.0.parts.0.text: "else" became "one"'),
    (set_output, 'rows.0.messages.3.parts.1.output: "else" became "file a"'),
    (set_usage, "rows.0.messages.1.parts.2.tokens.0: 1 became 100"),
    (swap_parts, "rows.0.messages.3.parts.0.kind: "),
    (set_error, 'rows.0.messages.4.error.name: "APIError" became "MessageAbortedError"'),
    (lambda one: change_message(one, 1, finish="length"), "rows.0.messages.1.finish: "),
    (lambda one: change_message(one, 1, parent_id=None), "rows.0.messages.1.answers: null"),
    (lambda one: change_message(one, 2, system="be brief"), "rows.0.messages.2.system: "),
    (lose_a_message, "rows.0.messages.4 is too much: "),
    (open_child, "rows.1 is missing: "),
    (set_rules, "rows.0.permission.0 is missing: "),
    (set_bill, "rows.0.cost: 9.0 became 0.0009"),
    (drop_event, 'events.0: too much "part 3 tool pending"'),
    (move_event, "events.0: moved 'part 1 step-finish '"),
    (note_changes, 'floating.0: missing "changes noted in 0"'),
    (set_delta, 'deltas.0: missing "Hel?lo!"'),
    (told_to_wait, 'waits.0: missing "attempt 1: later"'),
    (set_request, 'requests.1.messages.0.text: "another question" became "one"'),
    (set_arguments, 'requests.2.messages.3.input.path: "else" became "/a.txt"'),
    (swap_messages, 'requests.1.messages.0.text: "two" became "one"'),
    (make_summary, 'requests.1.summary of: ["User", "Assistant"] became null'),
    (forget_a_call, "requests.2 is too much: "),
    (ask_for_a_title, "titles.0 is missing: "),
]


@pytest.mark.parametrize(("plant", "line"), PLANTED, ids=[line for _, line in PLANTED])
def test_a_planted_difference_is_told(
    recording: Recording, replayed: Replayed, plant: Callable[[Recording], None], line: str
) -> None:
    plant(recording)
    found = compared(recording, replayed)
    assert any(one.startswith(line) for one in found), found
    areas = {re.split("[.:]", one)[0] for one in found}
    assert areas == {line.partition(".")[0]} or plant is open_child


# ------------------------------------------------------------------------------- the normal form


def test_both_protocols_say_the_same_in_normal_form() -> None:
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "well",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"error": "no"}'},
    ]
    anthropic: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "well"},
                {"type": "tool_use", "id": "x9", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "x9", "content": "no"}],
        },
    ]
    said = normal_request(chat)
    assert said == normal_request(anthropic)
    assert [piece["what"] for piece in said] == ["text", "reasoning", "text", "call", "result"]
    assert said[0]["text"] == "one\ntwo"


def test_a_difference_names_its_place() -> None:
    assert difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "x") == ["x.a.1.b: 2 became 3"]
    assert difference(["p", "q"], ["q", "p"], "x") == ["x: moved 'q'"]
    assert difference({"a": 1}, {}, "x") == ["x.a: 1 became null"]
    assert difference([1], [1, 2], "x") == ["x.1 is too much: 2"]


def test_a_question_that_is_stored_again_is_no_ordered_event() -> None:
    places: dict[str, int] = {}
    asked = {"info": {"id": "m1", "role": "user", "time": {}}}
    assert event_row("message.updated", asked, places) == ("message", "0", "user", "new")
    assert event_row("message.updated", asked, places) is None


@pytest.mark.parametrize(
    ("chunk", "marks"),
    [
        ({"choices": [{"delta": {"content": "a"}}]}, ["delta"]),
        ({"choices": [{"delta": {"reasoning_content": "a"}}]}, ["delta"]),
        ({"choices": [{"delta": {"content": ""}}]}, []),
        ({"choices": [{"delta": {"tool_calls": [{"id": "c", "index": 0}]}}]}, ["tool"]),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, []),
        ({"choices": [], "usage": {}}, []),
        (["content_block_start", {"content_block": {"type": "tool_use"}}], ["tool"]),
        (["content_block_delta", {"delta": {"type": "text_delta", "text": "a"}}], ["delta"]),
        (["content_block_delta", {"delta": {"type": "input_json_delta"}}], []),
        ("data: [DONE]\n\n", []),
    ],
)
def test_a_chunk_shows_what_a_watcher_would_see(chunk: Any, marks: list[str]) -> None:
    assert marks_of(chunk) == marks


# ------------------------------------------------------------------------------------ the course


def test_a_reply_is_held_where_the_next_question_came(recording: Recording) -> None:
    course = Course(recording)
    second = [request.path.rpartition("/")[2] for request in recording.requests].index("abort") - 1
    holds, hang_after = course.pauses_of(recording.calls[0])
    assert holds == [(2, course.done[second])]
    assert hang_after is None
    assert course.is_busy_at(recording.requests[second].time_s)
    assert course.calls_before(recording.requests[second].time_s) == 1


def test_a_reply_that_was_cut_hangs_where_it_was_cut(recording: Recording) -> None:
    assert Course(recording).pauses_of(recording.calls[2]) == ([], 1)


def test_a_reply_that_says_itself_how_it_ends_is_left_alone(recording: Recording) -> None:
    for name in ("hang_after", "drop_after"):
        call = msgspec.structs.replace(recording.calls[2], reply={"kind": "openai", name: 0})
        assert Course(recording).pauses_of(call) == ([], None)


def test_a_tool_is_held_while_it_was_asked_for_more(recording: Recording) -> None:
    part = recording.sessions[0].messages[3].parts[1]
    assert isinstance(part, ToolPart)
    assert isinstance(part.state, ToolCompleted)
    at_s = (part.state.time.start + part.state.time.end) / 2000
    path = f"/session/{recording.sessions[0].info.id}"
    for what, is_stopped in (("prompt_async", False), ("abort", True)):
        request = Request(time_s=at_s, method="POST", path=f"{path}/{what}", body={})
        changed = msgspec.structs.replace(recording, requests=[request])
        waits, stopped = Course(changed).pause_of(part.call_id)
        assert stopped is is_stopped
        assert len(waits) == (not is_stopped)


# ----------------------------------------------------------------------------------- what it reads


def test_a_recording_is_read_as_it_was_written(recording: Recording) -> None:
    rows = normal_rows(recording.sessions)[0]
    assert [one["role"] for one in rows["messages"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "assistant",
    ]
    assert rows["tokens"] == [200, 20, 0, 0, 0]
    assert [call.sent_all for call in recording.calls] == [True, True, False]
    assert json.loads(json.dumps(rows)) == rows


async def test_a_request_without_a_counterpart_is_refused(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch)
    recording.requests[1:] = [Request(time_s=0, method="DELETE", path="/session/x", body=None)]
    with pytest.raises(UnsupportedRequestError, match="DELETE /session/x"):
        await replay(recording, tmp_path)
