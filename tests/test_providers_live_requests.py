"""What is sent to real providers, and what is refused before anything is sent."""

from __future__ import annotations

import base64
import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.errors import UsageError
from forge_nb.events import Origin, SessionUpdated
from forge_nb.messages.message import SessionInfo, SessionModel, SessionTime
from forge_nb.messages.parts import ModelRef
from forge_nb.messages.render import ModelMessage, ModelPart, ToolSpec
from forge_nb.messages.stream import StepFinish, StreamError
from forge_nb.providers.base import ModelRequest
from forge_nb.providers.live_errors import BODY_CHARS
from forge_nb.providers.registry import resolve_model
from forge_nb.testing import memory_workbench
from tests.contracts.provider_contract import asked, drain
from tests.live import PROTOCOLS, provider_at, set_keys
from tests.wire.replies import Answer, Call, Refusal, Words
from tests.wire.server import WireServer

if TYPE_CHECKING:
    from pathlib import Path

HELLO = Answer(blocks=(Words(("Hel", "lo")),))
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for every provider."""
    set_keys(monkeypatch)


def part(kind: Any, text: str = "", **fields: Any) -> ModelPart:
    return ModelPart(id=f"prt_{text[:4]}", kind=kind, text=text, **fields)


def user(*parts: ModelPart) -> ModelMessage:
    return ModelMessage(id="m", role="user", parts=parts)


def assistant(*parts: ModelPart) -> ModelMessage:
    return ModelMessage(id="m", role="assistant", parts=parts)


async def body_of(
    protocol: str,
    *messages: ModelMessage,
    system: list[str] | None = None,
    tools: list[ToolSpec] | None = None,
) -> Any:
    """Return the body of the request that these messages make."""
    request = ModelRequest(
        model=ModelRef(provider_id="any", model_id="any"),
        system=system or [],
        messages=list(messages),
        tools=tools or [],
        purpose="turn",
    )
    async with WireServer([HELLO]) as server:
        events = await drain(provider_at(server, protocol), request)
        assert isinstance(events[-1], StepFinish), events
        return server.requests[0].body


def rows(body: Any) -> list[Any]:
    found: list[Any] = body.get("messages") or body["input"]
    return found


# ------------------------------------------------------------------------------------- messages


@each_protocol
async def test_neighbours_of_one_role_become_one_message(protocol: str) -> None:
    body = await body_of(
        protocol,
        user(part("text", "one")),
        user(part("compaction", "two")),
        assistant(part("text", "three")),
        assistant(part("text", "four")),
        user(part("text", "five")),
    )
    roles = [row["role"] for row in rows(body)]
    # A Responses item holds one text each; its roles need not take turns.
    assert [role for n, role in enumerate(roles) if role != roles[n - 1] or n == 0] == [
        "user",
        "assistant",
        "user",
    ]
    assert protocol == "responses" or len(roles) == 3
    text = json.dumps(body)
    assert all(word in text for word in ("one", "two", "three", "four", "five"))


@each_protocol
async def test_system_prompts_and_tools_go_out_as_they_are(protocol: str) -> None:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "Where"}},
        "required": ["path"],
    }
    spec = ToolSpec(name="read", description="Read a file.", schema=schema)
    body = await body_of(protocol, user(part("text", "Hi")), system=["Be kind."], tools=[spec])
    assert "Be kind." in json.dumps(body)
    tool = body["tools"][0]
    sent = tool.get("input_schema") or tool.get("function", tool).get("parameters")
    assert sent["properties"]["path"] == {"type": "string", "description": "Where"}
    assert sent["required"] == ["path"]


@each_protocol
async def test_words_after_a_call_follow_its_result(protocol: str) -> None:
    call = part("tool", "done", call_id="call:1", tool="a.b", input={"x": 1})
    body = await body_of(
        protocol,
        user(part("text", "Go.")),
        assistant(part("text", "first"), call, part("text", "second")),
        user(part("text", "And?")),
    )
    text = json.dumps(body)
    places = [text.index(word) for word in ("first", '"a_b"', "done", "second", "And?")]
    assert places == sorted(places)
    assert "call:1" not in text  # neither vendor takes such ids
    assert text.count("call_1") == 2


async def test_calls_of_two_steps_keep_the_first_one_s_result_between_them() -> None:
    calls = [
        assistant(part("tool", f"done {n}", call_id=f"call_{n}", tool="look", input={}))
        for n in (1, 2)
    ]
    body = await body_of("chat", user(part("text", "Go.")), *calls)
    roles = [row["role"] for row in rows(body)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


async def test_a_call_without_an_id_or_an_object_for_input_is_sent_whole() -> None:
    call = part("tool", "done", tool=None, input="x")
    body = await body_of("chat", user(part("text", "Go.")), assistant(call))
    sent = next(row for row in rows(body) if row["role"] == "assistant")["tool_calls"][0]
    assert json.loads(sent["function"]["arguments"]) == {"value": "x"}
    assert sent["id"] == "prt_done"


@each_protocol
async def test_reasoning_that_cannot_go_back_as_reasoning_is_left_out(protocol: str) -> None:
    thought = part("reasoning", "half a thought")
    body = await body_of(
        protocol,
        user(part("text", "Go.")),
        assistant(thought, part("text", "So.")),
        user(part("text", "?")),
    )
    assert ("half a thought" in json.dumps(body)) == (protocol == "chat")
    assert "<think" not in json.dumps(body)


@pytest.mark.parametrize(
    ("protocol", "metadata", "sent"),
    [
        ("anthropic", {"anthropic": {"signature": "sig-abc"}}, '"signature": "sig-abc"'),
        (
            "responses",
            {"openai": {"itemId": "rs_7", "reasoningEncryptedContent": "ENC"}},
            '"encrypted_content": "ENC"',
        ),
    ],
)
async def test_reasoning_of_an_imported_session_goes_back_too(
    protocol: str, metadata: dict[str, Any], sent: str
) -> None:
    thought = part("reasoning", "hm", metadata=metadata)
    body = await body_of(
        protocol, user(part("text", "Go.")), assistant(thought, part("text", "So."))
    )
    assert sent in json.dumps(body)


async def test_metadata_of_the_wrong_type_is_ignored() -> None:
    odd = {"id": 7, "signature": ["x"], "provider_details": "y", "provider_name": None}
    said = part("text", "So.", metadata=odd)
    thought = part("reasoning", "hm", metadata={**odd, "anthropic": {"signature": 3}})
    body = await body_of("anthropic", user(part("text", "Go.")), assistant(thought, said))
    assert "hm" not in json.dumps(body)


@each_protocol
async def test_half_a_character_becomes_a_question_mark(protocol: str) -> None:
    call = part("tool", "out\ud800", call_id="c", tool="t", input={"k\ud800": ["\udfff", 1]})
    body = await body_of(protocol, user(part("text", "Go\ud83d.")), assistant(call))
    text = json.dumps(body)
    assert "Go?." in text
    assert "out?" in text
    assert "k?" in text


async def test_anthropic_is_told_the_output_limit_of_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.toml").write_text(
        "[anthropic.models.claude-sonnet-4-5]\nlimit.output = 123\n"
    )
    body = await body_of("anthropic", user(part("text", "Hi")))
    assert body["max_tokens"] == 123
    assert body["cache_control"]["type"] == "ephemeral"


# ---------------------------------------------------------------------------------------- files


@each_protocol
async def test_pictures_and_pdfs_travel_with_their_bytes(protocol: str) -> None:
    pdf = base64.b64encode(b"%PDF-1.4").decode()
    body = await body_of(
        protocol,
        user(
            part("text", "Look."),
            part("file", "a.png", mime="image/png", url=f"data:image/png;base64,{PIXEL}"),
            part("file", "b.pdf", mime="application/pdf", url=f"data:application/pdf;base64,{pdf}"),
            part("file", "c.csv", mime="text/csv", url="data:text/csv;charset=utf-8,a%2Cb"),
        ),
    )
    text = json.dumps(body)
    assert PIXEL in text
    assert pdf in text
    assert "a,b" in text


@each_protocol
async def test_no_file_of_this_machine_is_read_and_no_page_is_fetched(
    protocol: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.png"
    secret.write_text("top secret")
    async with WireServer([HELLO]) as other:
        body = await body_of(
            protocol,
            user(
                part("file", "s.png", mime="image/png", url=secret.as_uri()),
                part("file", "d.pdf", mime="application/pdf", url=f"{other.base_url}/d.pdf"),
                part("file", "bad.png", mime="image/png", url="data:image/png;base64,***"),
                part(
                    "file", "t.zip", mime="application/zip", url="data:application/zip;base64,AA=="
                ),
            ),
        )
        assert other.requests == []
    text = json.dumps(body)
    assert base64.b64encode(b"top secret").decode() not in text
    for name in ("s.png", "d.pdf", "bad.png", "t.zip"):
        assert f": {name}]" in text


@pytest.mark.parametrize("protocol", ["chat", "anthropic"])
async def test_a_picture_on_the_web_is_named_to_the_provider(protocol: str) -> None:
    url = "https://example.org/a.png"
    body = await body_of(protocol, user(part("file", "a.png", mime="image/png", url=url)))
    assert url in json.dumps(body)


# --------------------------------------------------------------------------------------- errors


STATUSES = {
    400: "rejected",
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not-found",
    408: "timeout",
    413: "overflow",
    418: "rejected",
    422: "rejected",
    429: "rate-limit",
    500: "server",
    502: "server",
    503: "overloaded",
    529: "overloaded",
}


@each_protocol
@pytest.mark.parametrize("status", sorted(STATUSES))
async def test_the_status_tells_the_kind_of_an_error(protocol: str, status: int) -> None:
    async with WireServer([Refusal(status=status, body={"error": {"message": "no"}})]) as server:
        events = await drain(provider_at(server, protocol), asked("Hi"))
        assert [getattr(event, "kind", None) for event in events] == [STATUSES[status]]


async def test_words_of_the_body_do_not_outweigh_the_status() -> None:
    body = {"error": {"message": "rate limit: too many tokens for your context window"}}
    async with WireServer([Refusal(status=429, body=body)]) as server:
        events = await drain(provider_at(server, "chat"), asked("Hi"))
        assert isinstance(events[0], StreamError)
        assert events[0].kind == "rate-limit"


@pytest.mark.parametrize("body", ["<html>" + "x" * 20_000, {"error": "y" * 20_000}, [1], None])
async def test_a_body_of_any_shape_is_cut(body: object) -> None:
    async with WireServer([Refusal(status=500, body=body)]) as server:
        events = await drain(provider_at(server, "chat"), asked("Hi"))
        assert isinstance(events[0], StreamError)
        assert events[0].kind == "server"
        assert len((events[0].body or "").encode()) <= BODY_CHARS
        assert len(events[0].message) <= BODY_CHARS


# ------------------------------------------------------------------------------ names of models


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai", "OPENAI_API_KEY"),
        ("openai-responses", "OPENAI_API_KEY"),
        ("anthropic", "ANTHROPIC_API_KEY"),
    ],
)
def test_a_missing_key_is_named(name: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, " ")
    with pytest.raises(UsageError, match=variable):
        resolve_model(f"{name}:m")


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"forge-nb\[models\]"):
        resolve_model("openai:m")


@pytest.mark.parametrize(
    "spec",
    [
        "openai-compatible:m",
        "openai-compatible:m?base_url=ftp://x",
        "openai-compatible:m?base_url=http://",
        "openai:m?base_url=http://me:word@host/v1",
        "openai:m?temperature=1",
        "openai:?base_url=http://host",
    ],
)
def test_an_address_that_cannot_be_right_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match=r"base_url") as raised:
        resolve_model(spec)
    assert "word@" not in str(raised.value)


async def test_a_server_of_ones_own_needs_no_key_and_gets_nobody_elses() -> None:
    async with WireServer([Answer(blocks=(Call("c", "look"),), finish="tool-calls")]) as server:
        spec = f"openai-compatible:llama?base_url={server.base_url}"
        provider, ref = resolve_model(spec)
        assert provider.id == ref.provider_id == "openai-compatible"
        assert isinstance((await drain(provider, asked("Hi")))[-1], StepFinish)
        assert server.requests[0].body["model"] == "llama"
        assert "sk-test" not in json.dumps(server.requests[0].headers)
        assert provider.prices("llama") is None


async def test_an_imported_session_does_not_choose_where_keys_are_sent() -> None:
    async with WireServer([HELLO]) as server:
        model = SessionModel(provider_id="openai", id=f"gpt-5?base_url={server.base_url}")
        info = SessionInfo(id="ses_x", title="t", time=SessionTime(created=1), model=model)
        with memory_workbench() as wb:
            wb.model = None
            origin = Origin(format="opencode", source_hash="x", source_id="ses_x")
            wb.store.apply([SessionUpdated(info=info, origin=origin)]).result()
            with pytest.raises(UsageError, match="no model"):
                await wb.session("ses_x").prompt("Hi")
        assert server.requests == []
