"""Our model messages in pydantic-ai's words: text, files, reasoning, calls and their results.

Reasoning keeps what its provider needs to take it back. The metadata of a reasoning part is the
family's: the provider's name, and below it ``signature`` and ``redactedData`` (Anthropic),
``itemId`` and ``reasoningEncryptedContent`` (OpenAI Responses), or ``field`` (chat completions,
where the reasoning came in a field of that name).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_nb.files import parse_data_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge_nb.messages.render import ModelMessage, ModelPart, ToolSpec

__all__ = ["reasoning_metadata", "tool_definitions", "wire_messages"]

_REASONING_FIELD = "reasoning_content"  # where chat completions carry reasoning, by custom


def wire_messages(
    system: Sequence[str], messages: Sequence[ModelMessage], *, provider_name: str
) -> list[Any]:
    """Return pydantic-ai's messages for a request.

    Every call is followed by its result, so that no call is left dangling.

    Parameters
    ----------
    system
        System prompts, in order.
    messages
        What the model reads.
    provider_name
        The name under which the model's class knows its own reasoning.
    """
    from pydantic_ai.messages import ModelRequest, ModelResponse, SystemPromptPart, UserPromptPart

    wired: list[Any] = []
    pending: list[Any] = [SystemPromptPart(content=text) for text in system]
    for message in messages:
        if message.role == "user":
            pending.append(UserPromptPart(content=_user_content(message.parts)))
            continue
        if pending:
            wired.append(ModelRequest(parts=pending))
            pending = []
        wired.append(ModelResponse(parts=_response_parts(message.parts, provider_name)))
        pending = [_result(part) for part in message.parts if part.kind == "tool"]
    if pending:
        wired.append(ModelRequest(parts=pending))
    return wired


def _user_content(parts: Iterable[ModelPart]) -> Any:
    contents = [_file(part) if part.kind == "file" else part.text for part in parts]
    return contents[0] if len(contents) == 1 and isinstance(contents[0], str) else contents


def _file(part: ModelPart) -> Any:
    """Return a file's bytes; where it is no data URL or broken, a line that says so."""
    from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl

    url, mime = part.url or "", part.mime or "application/octet-stream"
    if url.startswith("data:"):
        data = parse_data_url(url)
        if data is None:
            return f"[Attached {mime}: {part.text or 'file'}, which could not be read]"
        return BinaryContent(data=data, media_type=mime)
    if url.startswith("https://"):
        return ImageUrl(url=url) if mime.startswith("image/") else DocumentUrl(url=url)
    return f"[Attached {mime}: {part.text or 'file'}]"


def _response_parts(parts: Iterable[ModelPart], provider_name: str) -> list[Any]:
    from pydantic_ai.messages import TextPart, ToolCallPart

    wired: list[Any] = []
    for part in parts:
        if part.kind == "reasoning":
            wired.append(_thinking(part, provider_name))
        elif part.kind == "tool":
            wired.append(
                ToolCallPart(
                    tool_name=part.tool or "unknown",
                    args=part.input if isinstance(part.input, dict) else {},
                    tool_call_id=part.call_id or part.id,
                )
            )
        elif part.text:
            wired.append(TextPart(content=part.text))
    return wired or [TextPart(content="")]


def _result(part: ModelPart) -> Any:
    from pydantic_ai.messages import ToolReturnPart

    return ToolReturnPart(
        tool_name=part.tool or "unknown",
        content=part.text,
        tool_call_id=part.call_id or part.id,
        outcome="failed" if part.is_error else "success",
    )


def _thinking(part: ModelPart, provider_name: str) -> Any:
    from pydantic_ai.messages import ThinkingPart

    known = next((one for one in (part.metadata or {}).values() if isinstance(one, dict)), {})
    signature = known.get("signature") or known.get("reasoningEncryptedContent")
    redacted = known.get("redactedData")
    return ThinkingPart(
        content=part.text,
        id="redacted_thinking" if redacted else _thinking_id(known, signature),
        signature=redacted or signature,
        provider_name=provider_name,
        provider_details=known.get("details"),
    )


def _thinking_id(known: dict[str, Any], signature: object) -> str | None:
    """Return a reasoning's id; without one or a signature it came in a chat completion's field."""
    found = known.get("itemId") or known.get("field")
    if found is None and signature is None:
        return _REASONING_FIELD
    return None if found is None else str(found)


def reasoning_metadata(part: Any) -> dict[str, Any] | None:
    """Return what has to be stored with a thinking part of pydantic-ai; None for nothing."""
    known: dict[str, Any] = {}
    if part.id == "redacted_thinking":
        known["redactedData"] = part.signature
    elif str(part.id or "").startswith("rs_"):
        known["itemId"] = part.id
        known["reasoningEncryptedContent"] = part.signature
    else:
        known["field"] = part.id
        known["signature"] = part.signature
    known["details"] = part.provider_details
    known = {name: value for name, value in known.items() if value is not None}
    if known == {"field": _REASONING_FIELD} or not known:
        return None
    return {part.provider_name or "provider": known}


def tool_definitions(specs: Iterable[ToolSpec]) -> list[Any]:
    """Return pydantic-ai's definitions of the tools."""
    from pydantic_ai.tools import ToolDefinition

    return [
        ToolDefinition(
            name=spec.name, description=spec.description, parameters_json_schema=spec.schema
        )
        for spec in specs
    ]
