"""What the model reads of stored rows: placeholders, repairs, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from forge_nb.messages.parts import (
    AgentPart,
    FilePart,
    ModelRef,
    PatchPart,
    ReasoningPart,
    Span,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolRunning,
    ToolSpan,
    UnknownPart,
)
from forge_nb.messages.render import MediaSupport, input_text, to_model_messages
from tests.histories import S, answer, discarded, having, read_file, request, said, user

if TYPE_CHECKING:
    from forge_nb.messages.message import MessageWithParts
    from forge_nb.messages.parts import Part, ToolState
    from forge_nb.messages.render import ModelPart

OWN = ModelRef(provider_id="maker", model_id="model")
OTHER = ModelRef(provider_id="maker", model_id="other")
SPAN = ToolSpan(start=1, end=2)
IMAGE = {"id": "f1", "mime": "image/png", "url": "data:image/png;base64,AA", "filename": "dot.png"}


def base(name: str) -> dict[str, Any]:
    return {"id": name, "session_id": S, "message_id": "m"}


def file(mime: str, filename: str | None = "f") -> FilePart:
    return FilePart(**base("f"), mime=mime, url="data:x", filename=filename)


def thought(text: str = "hm", signature: str = "sig") -> ReasoningPart:
    metadata = {"anthropic": {"signature": signature}}
    return ReasoningPart(**base("r"), text=text, metadata=metadata)


def tool(state: ToolState, metadata: dict[str, Any] | None = None) -> ToolPart:
    return ToolPart(**base("t"), call_id="c", tool="bash", state=state, metadata=metadata)


def asked(*parts: Part) -> MessageWithParts:
    return having(user("u"), *parts)


def answered(*parts: Part, error: str | None = None) -> MessageWithParts:
    return having(answer("a", "u", error=error), *parts)


def read(*messages: MessageWithParts, **options: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return who says what: role, then kind and text of every part."""
    return [
        (message.role, [(part.kind, part.text) for part in message.parts])
        for message in to_model_messages(messages, **options)
    ]


def only(*messages: MessageWithParts, **options: Any) -> ModelPart:
    """Return the one part of the one message."""
    [message] = to_model_messages(messages, **options)
    [part] = message.parts
    return part


# --------------------------------------------------------------------------------- what is asked


def test_a_turn_keeps_its_order_and_its_ids() -> None:
    rendered = to_model_messages([user("u1"), answer("a1", "u1")])
    assert [(one.id, one.role) for one in rendered] == [("u1", "user"), ("a1", "assistant")]
    assert [part.id for one in rendered for part in one.parts] == ["p_u1", "p_a1"]


def test_requests_and_work_orders_read_as_fixed_words() -> None:
    order = SubtaskPart(**base("s"), prompt="p", description="d", agent="general")
    assert read(request("uC"), asked(order)) == [
        ("user", [("compaction", "What did we do so far?")]),
        ("user", [("subtask", "The following tool was executed by the user")]),
    ]


@pytest.mark.parametrize(
    "part",
    [
        said("u", ""),
        msgspec.structs.replace(said("u"), ignored=True),
        discarded(said("u")),
        file("text/plain"),
        file("application/x-directory"),
        AgentPart(**base("g"), name="general"),
        UnknownPart(**base("x"), kind="hologram"),
    ],
    ids=["empty", "ignored", "discarded", "text file", "directory", "agent", "unknown kind"],
)
def test_a_question_that_reads_as_nothing_is_left_out(part: Part) -> None:
    assert read(asked(part)) == []
    assert read(asked(part, said("u"))) == [("user", [("text", "u")])]


def test_a_message_without_parts_is_left_out() -> None:
    assert read(asked(), answered()) == []


def test_synthetic_text_is_sent() -> None:
    part = msgspec.structs.replace(said("u"), synthetic=True)
    assert read(asked(part)) == [("user", [("text", "u")])]


def test_files_go_as_files_and_media_as_a_line_where_they_are_stripped() -> None:
    image = only(asked(file("image/png", "dot.png")))
    assert (image.kind, image.text, image.mime, image.url) == (
        "file",
        "dot.png",
        "image/png",
        "data:x",
    )
    stripped = read(
        asked(file("image/png", "dot.png"), file("application/pdf", None), file("audio/wav")),
        strip_media=True,
    )
    assert stripped == [
        (
            "user",
            [
                ("text", "[Attached image/png: dot.png]"),
                ("text", "[Attached application/pdf: file]"),
                ("file", "f"),
            ],
        )
    ]


# -------------------------------------------------------------------------------- what was said


def test_rows_that_are_no_words_are_left_out() -> None:
    rows: list[Part] = [
        StepStartPart(**base("b")),
        PatchPart(**base("p"), hash="h"),
        StepFinishPart(**base("e"), reason="stop"),
        file("image/png"),
    ]
    assert read(answered(*rows)) == []
    assert read(answered(rows[0], said("a"), *rows[1:])) == [("assistant", [("text", "a")])]


@pytest.mark.parametrize(
    ("state", "text", "is_error"),
    [
        (ToolCompleted(input={}, output="words", time=SPAN), "words", False),
        (
            ToolCompleted(input={}, output="words", time=ToolSpan(start=1, end=2, compacted=3)),
            "[Old tool result content cleared]",
            False,
        ),
        (ToolFailed(input={}, error="no such file", time=SPAN), "no such file", True),
        (
            ToolFailed(
                input={}, error="cut", time=SPAN, metadata={"interrupted": True, "output": "half"}
            ),
            "half",
            False,
        ),
        (
            ToolFailed(
                input={}, error="cut", time=SPAN, metadata={"interrupted": True, "output": 7}
            ),
            "cut",
            True,
        ),
        (ToolFailed(input={}, error="bad", time=SPAN, metadata={"output": "half"}), "bad", True),
        (ToolPending(input={}, raw=""), "[Tool execution was interrupted]", True),
        (
            ToolRunning(input={}, time=Span(start=1)),
            "[Tool execution was interrupted]",
            True,
        ),
    ],
    ids=[
        "completed",
        "cleared",
        "failed",
        "interrupted with output",
        "interrupted without words",
        "failed with output",
        "pending",
        "running",
    ],
)
def test_every_call_has_a_result(state: ToolState, text: str, is_error: bool) -> None:  # noqa: FBT001
    part = only(answered(tool(state)))
    assert (part.kind, part.call_id, part.tool) == ("tool", "c", "bash")
    assert (part.text, part.is_error) == (text, is_error)


def test_a_call_keeps_the_words_of_its_input() -> None:
    part = only(answered(read_file("a")))
    assert part.input == {"path": "a.py"}
    assert input_text(part) == '{"path": "a.py"}'
    assert not input_text(only(user("u")))


def test_a_long_output_is_cut_only_where_asked() -> None:
    call = read_file("a", output="x" * 12)
    assert only(answered(call)).text == "x" * 12
    assert only(answered(call), tool_output_max_chars=12).text == "x" * 12
    cut = "xxxxxxxxxx\n[Tool output truncated for compaction: omitted 2 chars]"
    assert only(answered(call), tool_output_max_chars=10).text == cut
    metadata = {"interrupted": True, "output": "x" * 12}
    for state in (
        ToolFailed(input={}, error="x" * 12, time=SPAN),
        ToolFailed(input={}, error="cut", time=SPAN, metadata=metadata),
    ):
        assert only(answered(tool(state)), tool_output_max_chars=10).text == cut


def test_parts_of_a_failed_attempt_are_never_read() -> None:
    attempts: list[Part] = [
        discarded(said("half")),
        discarded(tool(ToolPending(input={}))),
        said("a"),
    ]
    assert read(answered(*attempts)) == [("assistant", [("text", "a")])]
    assert read(answered(*attempts[:2])) == []


# ------------------------------------------------------------------------- media of tool results


def seen_image(*, compacted: int | None = None) -> ToolPart:
    span = ToolSpan(start=1, end=2, compacted=compacted)
    text = {"id": "f2", "mime": "text/plain", "url": "data:text/plain,"}
    return tool(ToolCompleted(input={}, output="seen", time=span, attachments=[IMAGE, text]))


def test_media_of_a_result_follow_in_a_message_of_the_user() -> None:
    call, media = to_model_messages([answered(seen_image())])
    assert call.role == "assistant"
    assert (media.role, media.id) == ("user", "a")
    assert [(part.kind, part.text) for part in media.parts] == [
        ("text", "Attached media from tool result:"),
        ("file", "dot.png"),
    ]
    assert (media.parts[1].mime, media.parts[1].url) == (IMAGE["mime"], IMAGE["url"])


@pytest.mark.parametrize(
    ("part", "options"),
    [
        (seen_image(compacted=3), {}),
        (discarded(seen_image()), {}),
        (seen_image(), {"strip_media": True}),
    ],
    ids=["cleared", "failed attempt", "stripped"],
)
def test_media_that_nobody_may_see_are_not_sent(part: Part, options: dict[str, bool]) -> None:
    assert [role for role, _ in read(answered(part, said("a")), **options)] == ["assistant"]


def test_media_go_where_the_target_takes_them() -> None:
    images_in_results = MediaSupport(asked=("image/png",), results=("image/*",))
    [call] = to_model_messages([answered(seen_image())], media=images_in_results)
    [inside] = call.parts[0].files
    assert (inside.kind, inside.mime, inside.url) == ("file", IMAGE["mime"], IMAGE["url"])
    assert read(asked(file("image/gif", "a.gif"), file("image/png")), media=images_in_results) == [
        ("user", [("text", "[Attached image/gif: a.gif]"), ("file", "f")])
    ]


def test_a_model_that_takes_no_media_gets_their_names() -> None:
    nothing = MediaSupport(asked=())
    assert read(asked(file("image/png", None)), answered(seen_image()), media=nothing) == [
        ("user", [("text", "[Attached image/png: file]")]),
        ("assistant", [("tool", "seen")]),
        (
            "user",
            [
                ("text", "Attached media from tool result:"),
                ("text", "[Attached image/png: dot.png]"),
            ],
        ),
    ]


def test_only_data_stands_inside_a_result() -> None:
    away = {**IMAGE, "url": "https://example.org/dot.png"}
    part = tool(ToolCompleted(input={}, output="seen", time=SPAN, attachments=[IMAGE, away]))
    support = MediaSupport(results=("*",))
    call, media = to_model_messages([answered(part)], media=support)
    assert [one.url for one in call.parts[0].files] == [IMAGE["url"]]
    assert [one.url for one in media.parts[1:]] == [away["url"]]
    assert (
        to_model_messages([answered(part)], media=support, strip_media=True)[0].parts[0].files == ()
    )


def test_as_data_every_file_is_there_and_none_goes_on_its_own() -> None:
    question, call = to_model_messages(
        [asked(file("text/plain"), file("image/png")), answered(seen_image())],
        as_data=True,
        media=MediaSupport(asked=()),
    )
    assert [(part.kind, part.mime) for part in question.parts] == [
        ("file", "text/plain"),
        ("file", "image/png"),
    ]
    assert [part.mime for part in call.parts[0].files] == ["image/png", "text/plain"]
    [cleared] = to_model_messages([answered(seen_image(compacted=3))], as_data=True)
    assert cleared.parts[0].files == ()


# --------------------------------------------------------------- compactions that came to nothing


def summary(name: str, to: str, **how: Any) -> MessageWithParts:
    return answer(name, to, summary=True, **how)


def sent(*messages: MessageWithParts, parity: bool = False) -> list[str]:
    return [message.id for message in to_model_messages(messages, parity=parity)]


@pytest.mark.parametrize(
    ("made", "in_parity"),
    [
        (summary("s", "c", error="APIError"), ["u", "c"]),
        (summary("s", "c", error="MessageAbortedError", text="half"), ["u", "c", "s"]),
        (summary("s", "c", finish=None, text="half"), ["u", "c", "s"]),
        (summary("s", "c", text=" "), ["u", "c", "s"]),
    ],
    ids=["failed", "aborted", "cut", "blank"],
)
def test_a_request_whose_summary_came_to_nothing_is_not_sent(
    made: MessageWithParts, in_parity: list[str]
) -> None:
    messages = [user("u"), request("c"), made, user("v")]
    assert sent(*messages) == ["u", "v"]
    assert sent(*messages, parity=True) == [*in_parity, "v"]


def test_a_request_that_was_answered_well_or_not_yet_is_sent() -> None:
    failed, good = summary("s", "c", error="APIError"), summary("t", "c")
    assert sent(request("c"), failed, good) == ["c", "t"]
    assert sent(request("c"), good, failed) == ["c", "t"]
    assert sent(user("u"), request("c")) == ["u", "c"]


def test_a_question_that_a_stray_summary_names_is_still_sent() -> None:
    """The family once made a summary out of the next question."""
    assert sent(user("u"), summary("s", "u", error="APIError")) == ["u"]


# --------------------------------------------------------------------------- errors and aborts


@pytest.mark.parametrize("name", ["APIError", "ContextOverflowError", "SomethingNew"])
def test_an_answer_that_failed_is_left_out(name: str) -> None:
    assert read(answered(said("a"), read_file("a"), error=name)) == []


@pytest.mark.parametrize(
    ("parts", "sent", "sent_in_parity"),
    [
        ([], 0, 0),
        ([StepStartPart(**base("b"))], 0, 0),
        ([StepStartPart(**base("b")), thought()], 0, 0),
        ([StepStartPart(**base("b")), said("a", "hi")], 1, 1),
        ([thought(), tool(ToolFailed(input={}, error="aborted", time=SPAN))], 1, 1),
        ([said("a", "")], 0, 1),
        ([thought(), said("a", "")], 0, 1),
        ([thought(), said("a", " \n")], 0, 1),
        ([thought(), PatchPart(**base("p"), hash="h")], 0, 1),
        ([thought(), discarded(said("a", "hi"))], 0, 0),
    ],
    ids=[
        "nothing",
        "began",
        "thought",
        "spoke",
        "called",
        "empty text",
        "thought, empty text",
        "thought, blank text",
        "thought, patch",
        "spoke in a failed attempt",
    ],
)
def test_an_aborted_answer_is_sent_if_it_said_something(
    parts: list[Part], sent: int, sent_in_parity: int
) -> None:
    aborted = answered(*parts, error="MessageAbortedError")
    assert len(read(aborted)) == sent
    assert len(read(aborted, parity=True)) == sent_in_parity


# --------------------------------------------------------------------------------- other models


def test_the_model_that_wrote_it_gets_its_signatures_back() -> None:
    stamp = {"openai": {"itemId": "i"}}
    parts: list[Part] = [
        thought(),
        TextPart(**base("x"), text="so", metadata=stamp),
        tool(ToolCompleted(input={}, output="o", time=SPAN), stamp),
    ]
    for target in (None, OWN):
        [message] = to_model_messages([answered(*parts)], target=target)
        assert [part.kind for part in message.parts] == ["reasoning", "text", "tool"]
        assert [part.metadata for part in message.parts] == [thought().metadata, stamp, stamp]


def test_another_model_gets_thoughts_as_text_and_no_signature() -> None:
    parts: list[Part] = [
        thought(),
        thought(" \n"),
        TextPart(**base("x"), text="so", metadata={"openai": {"itemId": "i"}}),
        tool(ToolCompleted(input={}, output="o", time=SPAN), {"openai": {}}),
    ]
    [message] = to_model_messages([answered(*parts)], target=OTHER)
    assert [(part.kind, part.text) for part in message.parts] == [
        ("text", "hm"),
        ("text", "so"),
        ("tool", "o"),
    ]
    assert [part.metadata for part in message.parts] == [None, None, None]


def test_an_empty_text_is_left_out_and_in_parity_stands_as_a_blank_beside_signed_thoughts() -> None:
    signed = answered(thought(), said("a", ""))
    plain = answered(ReasoningPart(**base("r"), text="hm"), said("a", ""))
    assert read(signed) == read(plain) == [("assistant", [("reasoning", "hm")])]
    assert read(signed, parity=True)[0][1][1] == ("text", " ")
    assert read(plain, parity=True)[0][1][1] == ("text", "")
    assert read(signed, parity=True, target=OTHER)[0][1][1] == ("text", "")


def test_reading_twice_gives_the_same_and_changes_nothing() -> None:
    messages = [user("u"), answered(thought(), read_file("a"), said("a"))]
    before = msgspec.json.encode(messages)
    assert to_model_messages(messages) == to_model_messages(iter(messages))
    assert msgspec.json.encode(messages) == before
