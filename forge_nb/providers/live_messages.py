"""From what a model reads of stored messages to the messages of pydantic-ai.

Every tool call goes out together with its result, so no call dangles. Neighbours of one role become
one message. What is stored may come from anybody's file: nothing named by it is opened or
fetched; a file travels when its bytes are in the store, or as an address that the provider reads.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec

from forge_nb.providers.live_metadata import CHAT_FIELD, from_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai import messages as pai

    from forge_nb.messages.render import ModelMessage, ModelPart
    from forge_nb.providers.base import ModelRequest

__all__ = ["to_wire_messages"]

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")  # what OpenAI and Anthropic refuse in ids and names
_NAME_CHARS = 64  # the longest that both take
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.ASCII)


def to_wire_messages(request: ModelRequest, *, protocol: str) -> list[pai.ModelMessage]:
    """Return a request's messages as pydantic-ai takes them.

    Parameters
    ----------
    request
        System prompts and messages.
    protocol
        chat, responses or anthropic; they differ in which reasoning they take back.
    """
    from pydantic_ai import messages as pai

    request = _encodable(request)
    wire: list[pai.ModelMessage] = []
    system = [pai.SystemPromptPart(content=text) for text in request.system]
    if system:
        wire.append(pai.ModelRequest(parts=system))
    for role, run in _runs(request.messages):
        if role == "user":
            _ask(wire, [_user_prompt(run)])
        else:
            for place, part in enumerate(run):
                _answer(wire, part, protocol, is_first=place == 0)
    return wire


def _encodable(request: ModelRequest) -> ModelRequest:
    """Return a request that UTF-8 can hold: half a character becomes a question mark."""
    try:
        msgspec.json.encode(request)
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(request), ensure_ascii=False)
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=type(request))
    return request


def _runs(messages: Sequence[ModelMessage]) -> list[tuple[str, list[ModelPart]]]:
    """Return the parts of neighbouring messages of the user as one list.

    Answers stay apart: between the calls of two steps stood the results of the first.
    """
    runs: list[tuple[str, list[ModelPart]]] = []
    for message in messages:
        if message.role == "user" and runs and runs[-1][0] == "user":
            runs[-1][1].extend(message.parts)
        else:
            runs.append((message.role, list(message.parts)))
    return [(role, parts) for role, parts in runs if parts]


def _ask(wire: list[pai.ModelMessage], parts: Sequence[pai.ModelRequestPart]) -> None:
    """Add to the request at the end, or begin one."""
    from pydantic_ai import messages as pai

    if wire and isinstance(wire[-1], pai.ModelRequest):
        parts = [*wire.pop().parts, *parts]
    wire.append(pai.ModelRequest(parts=parts))


def _answer(
    wire: list[pai.ModelMessage], part: ModelPart, protocol: str, *, is_first: bool
) -> None:
    """Add a part to the answer at the end, or begin one; a call's result follows its answer.

    Words after a call begin a new answer: a message of several steps (old recordings) had its
    results in between. So does a call that is the first part of its message.
    """
    from pydantic_ai import messages as pai

    said = _answer_part(part, protocol)
    if said is None:
        return
    goes_on = part.kind == "tool" and not is_first
    result = wire.pop() if goes_on and wire and _is_results(wire[-1]) else None
    if wire and isinstance(wire[-1], pai.ModelResponse):
        last = wire.pop()
        wire.append(pai.ModelResponse(parts=[*last.parts, said]))
    else:
        wire.append(pai.ModelResponse(parts=[said]))
    if part.kind == "tool":
        earlier = [] if result is None else result.parts
        wire.append(pai.ModelRequest(parts=[*earlier, _result(part)]))


def _is_results(message: pai.ModelMessage) -> bool:
    from pydantic_ai import messages as pai

    return isinstance(message, pai.ModelRequest) and all(
        isinstance(part, pai.ToolReturnPart) for part in message.parts
    )


def _answer_part(part: ModelPart, protocol: str) -> pai.ModelResponsePart | None:
    from pydantic_ai import messages as pai

    match part.kind:
        case "reasoning":
            meta = _reasoning_meta(part, protocol)
            return None if meta is None else pai.ThinkingPart(content=part.text, **meta)
        case "tool":
            given = part.input if isinstance(part.input, dict) else {"value": part.input}
            return pai.ToolCallPart(
                tool_name=_name(part.tool or "unknown"),
                args=given,
                tool_call_id=_call_id(part),
                **_unsigned(part.metadata),
            )
        case _ if part.text:
            return pai.TextPart(content=part.text, **_unsigned(part.metadata))
        case _:
            return None


def _result(part: ModelPart) -> pai.ToolReturnPart[Any]:
    from pydantic_ai import messages as pai

    return pai.ToolReturnPart(
        tool_name=_name(part.tool or "unknown"),
        content=part.text,
        tool_call_id=_call_id(part),
        outcome="failed" if part.is_error else "success",
    )


def _name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text)[:_NAME_CHARS] or "_"


def _call_id(part: ModelPart) -> str:
    return _name(part.call_id or part.id)


def _reasoning_meta(part: ModelPart, protocol: str) -> dict[str, Any] | None:
    """Return what makes reasoning acceptable to the model that wrote it; None to leave it out.

    Reasoning that was cut before its signature arrived would go back as words between tags, which
    teaches a model to write such tags.
    """
    meta = from_stored(part.metadata)
    if protocol == "chat":
        meta.setdefault("id", CHAT_FIELD)
        meta.setdefault("provider_name", "openai")
        return meta if part.text else None
    if protocol == "responses":
        return meta if meta.get("id") else None
    return meta if meta.get("signature") else None


def _unsigned(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Return the facts that go back with a text or a call."""
    return {name: value for name, value in from_stored(metadata).items() if name != "signature"}


# --------------------------------------------------------------------------------- what users say


def _user_prompt(parts: Sequence[ModelPart]) -> pai.UserPromptPart:
    """Return one prompt: plain text if there is only text, since some servers take no lists."""
    from pydantic_ai import messages as pai

    content = [_file(part) if part.kind == "file" else part.text for part in parts]
    texts = [item for item in content if isinstance(item, str)]
    if len(texts) == len(content):
        return pai.UserPromptPart(content="\n\n".join(texts))
    return pai.UserPromptPart(content=content)


def _file(part: ModelPart) -> str | pai.BinaryContent | pai.ImageUrl:
    """Return a file as the provider can take it; else a line that says what it is."""
    from pydantic_ai import messages as pai

    mime, url = part.mime or "", part.url or ""
    is_image = mime.startswith("image/")
    if is_image and url.startswith(("http://", "https://")):
        return pai.ImageUrl(url=url, media_type=mime)
    data = _bytes_of(url)
    if data is not None and (is_image or mime == "application/pdf"):
        return pai.BinaryContent(data=data, media_type=mime)
    if data is not None and mime.startswith("text/"):
        return data.decode("utf-8", "replace")
    return f"[Attached {mime}: {part.text or 'file'}]"


def _bytes_of(url: str) -> bytes | None:
    """Return what a data: URL holds; None for any other, or a damaged one."""
    head = _DATA_URL.match(url)
    if head is None:
        return None
    data = unquote_to_bytes(url[head.end() :])
    if head.group(3) is None:
        return data
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
