"""Answers as server-sent events of the three protocols: chat, responses, anthropic."""

from __future__ import annotations

import json
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from tests.wire.replies import Call, Failure, Thought, Words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.wire.replies import Answer, Used

__all__ = ["PROTOCOLS", "chunks_of", "protocol_of"]

PROTOCOLS = ("chat", "responses", "anthropic")

_CHAT_FINISH = {"tool-calls": "tool_calls", "content-filter": "content_filter"}
_ANTHROPIC_FINISH = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool-calls": "tool_use",
    "content-filter": "refusal",
}
_INCOMPLETE = {"length": "max_output_tokens", "content-filter": "content_filter"}


def protocol_of(path: str) -> str | None:
    """Return which protocol a path speaks, whatever stands before it."""
    path = path.partition("?")[0]
    endings = {"/chat/completions": "chat", "/responses": "responses", "/messages": "anthropic"}
    return next((name for ending, name in endings.items() if path.endswith(ending)), None)


def chunks_of(answer: Answer, protocol: str, model: str) -> list[str]:
    """Return an answer's chunks."""
    write: _Writer = _WRITERS[protocol](model)
    rows = [write.block(place, block) for place, block in enumerate(answer.blocks)]
    frames = [*write.head(answer), *_ordered(rows, is_interleaved=answer.is_interleaved)]
    if answer.failure is not None:
        frames.append(write.failure(answer.failure))
    elif answer.finish is not None:
        frames += write.tail(answer, answer.finish)
    return frames


def _ordered(rows: Sequence[Sequence[str]], *, is_interleaved: bool) -> list[str]:
    if not is_interleaved:
        return list(chain.from_iterable(rows))
    return [frame for turn in zip_longest(*rows) for frame in turn if frame is not None]


def _event(data: dict[str, Any], name: str | None = None) -> str:
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n"


class _Writer(Protocol):
    """One protocol's way to say it."""

    def head(self, answer: Answer) -> list[str]: ...

    def block(self, place: int, block: Words | Thought | Call) -> list[str]: ...

    def tail(self, answer: Answer, finish: str) -> list[str]: ...

    def failure(self, failure: Failure) -> str: ...


class _Chat:
    """OpenAI's chat completions."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._calls = 0

    def _chunk(self, delta: dict[str, Any] | None, **fields: Any) -> str:
        finish = fields.pop("finish", None)
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1_700_000_000,
                "model": self._model,
                "choices": [] if delta is None else [choice],
                **fields,
            }
        )

    def head(self, answer: Answer) -> list[str]:
        del answer
        return [self._chunk({"role": "assistant", "content": ""})]

    def block(self, place: int, block: Words | Thought | Call) -> list[str]:
        del place
        if isinstance(block, Words):
            return [self._chunk({"content": piece}) for piece in block.pieces]
        if isinstance(block, Thought):
            return [self._chunk({"reasoning_content": piece}) for piece in block.pieces]
        index, self._calls = self._calls, self._calls + 1
        start = {
            "index": index,
            "id": block.id,
            "type": "function",
            "function": {"name": block.tool, "arguments": ""},
        }
        return [
            self._chunk({"tool_calls": [start]}),
            *(
                self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                for piece in block.pieces
            ),
        ]

    def tail(self, answer: Answer, finish: str) -> list[str]:
        ends = [self._chunk({}, finish=_CHAT_FINISH.get(finish, finish))]
        if answer.used is not None:
            ends.append(self._chunk(None, usage=_openai_usage(answer.used, "prompt", "completion")))
        return [*ends, "data: [DONE]\n\n"]

    def failure(self, failure: Failure) -> str:
        error = {"message": failure.message, "type": failure.kind, "code": failure.kind}
        return _event({"error": error})


def _openai_usage(used: Used, before: str, after: str) -> dict[str, Any]:
    asked = used.input + used.cache_read + used.cache_write
    said = used.output + used.reasoning
    return {
        f"{before}_tokens": asked,
        f"{after}_tokens": said,
        "total_tokens": asked + said,
        f"{before}_tokens_details": {"cached_tokens": used.cache_read},
        f"{after}_tokens_details": {"reasoning_tokens": used.reasoning},
    }


class _Responses:
    """OpenAI's responses."""

    def __init__(self, model: str) -> None:
        self._response = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000,
            "model": model,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        self._number = 0

    def _event(self, kind: str, **fields: Any) -> str:
        self._number += 1
        return _event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def head(self, answer: Answer) -> list[str]:
        del answer
        created = {**self._response, "status": "in_progress"}
        return [self._event("response.created", response=created)]

    def block(self, place: int, block: Words | Thought | Call) -> list[str]:
        match block:
            case Words():
                return self._words(place, block)
            case Thought():
                return self._thought(place, block)
            case Call():
                return self._call(place, block)

    def _item(self, end: str, place: int, item: dict[str, Any]) -> str:
        return self._event(f"response.output_item.{end}", output_index=place, item=item)

    def _words(self, place: int, block: Words) -> list[str]:
        item = {"type": "message", "id": f"msg_{place}", "role": "assistant", "content": []}
        where = {"item_id": item["id"], "output_index": place, "content_index": 0}
        text = {"type": "output_text", "text": "".join(block.pieces), "annotations": []}
        return [
            self._item("added", place, {**item, "status": "in_progress"}),
            self._event("response.content_part.added", part={**text, "text": ""}, **where),
            *(
                self._event("response.output_text.delta", delta=piece, logprobs=[], **where)
                for piece in block.pieces
            ),
            self._event("response.output_text.done", text=text["text"], logprobs=[], **where),
            self._event("response.content_part.done", part=text, **where),
            self._item("done", place, {**item, "status": "completed", "content": [text]}),
        ]

    def _thought(self, place: int, block: Thought) -> list[str]:
        item: dict[str, Any] = {"type": "reasoning", "id": f"rs_{place}", "summary": []}
        where = {"item_id": item["id"], "output_index": place, "summary_index": 0}
        text = {"type": "summary_text", "text": "".join(block.pieces)}
        name = "response.reasoning_summary"
        done = {**item, "summary": [text], "encrypted_content": block.signature}
        return [
            self._item("added", place, item),
            self._event(f"{name}_part.added", part={**text, "text": ""}, **where),
            *(self._event(f"{name}_text.delta", delta=piece, **where) for piece in block.pieces),
            self._event(f"{name}_text.done", text=text["text"], **where),
            self._event(f"{name}_part.done", part=text, **where),
            self._item("done", place, done),
        ]

    def _call(self, place: int, block: Call) -> list[str]:
        item = {
            "type": "function_call",
            "id": f"fc_{place}",
            "call_id": block.id,
            "name": block.tool,
            "arguments": "",
        }
        where = {"item_id": item["id"], "output_index": place}
        whole = "".join(block.pieces)
        name = "response.function_call_arguments"
        return [
            self._item("added", place, {**item, "status": "in_progress"}),
            *(self._event(f"{name}.delta", delta=piece, **where) for piece in block.pieces),
            self._event(f"{name}.done", arguments=whole, name=block.tool, **where),
            self._item("done", place, {**item, "status": "completed", "arguments": whole}),
        ]

    def tail(self, answer: Answer, finish: str) -> list[str]:
        reason = _INCOMPLETE.get(finish)
        status = "completed" if reason is None else "incomplete"
        ended: dict[str, Any] = {**self._response, "status": status}
        if reason is not None:
            ended["incomplete_details"] = {"reason": reason}
        if answer.used is not None:
            ended["usage"] = _openai_usage(answer.used, "input", "output")
        return [self._event(f"response.{status}", response=ended)]

    def failure(self, failure: Failure) -> str:
        error = {"code": failure.kind, "message": failure.message}
        failed = {**self._response, "status": "failed", "error": error}
        return self._event("response.failed", response=failed)


class _Anthropic:
    """Anthropic's messages."""

    def __init__(self, model: str) -> None:
        self._model = model

    def _event(self, kind: str, **fields: Any) -> str:
        return _event({"type": kind, **fields}, kind)

    def head(self, answer: Answer) -> list[str]:
        used = answer.used
        usage: dict[str, int] = {}
        if used is not None:
            usage = {
                "input_tokens": used.input,
                "cache_read_input_tokens": used.cache_read,
                "cache_creation_input_tokens": used.cache_write,
                "output_tokens": 1,
            }
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return [self._event("message_start", message=message)]

    def block(self, place: int, block: Words | Thought | Call) -> list[str]:
        start, deltas = _anthropic_block(block)
        return [
            self._event("content_block_start", index=place, content_block=start),
            *(self._event("content_block_delta", index=place, delta=delta) for delta in deltas),
            self._event("content_block_stop", index=place),
        ]

    def tail(self, answer: Answer, finish: str) -> list[str]:
        used = answer.used
        usage = {} if used is None else {"output_tokens": used.output + used.reasoning}
        delta = {"stop_reason": _ANTHROPIC_FINISH[finish], "stop_sequence": None}
        return [
            self._event("message_delta", delta=delta, usage=usage),
            self._event("message_stop"),
        ]

    def failure(self, failure: Failure) -> str:
        return self._event("error", error={"type": failure.kind, "message": failure.message})


def _anthropic_block(block: Words | Thought | Call) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what opens a block, and its deltas."""
    match block:
        case Words():
            deltas = [{"type": "text_delta", "text": piece} for piece in block.pieces]
            return {"type": "text", "text": ""}, deltas
        case Thought():
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in block.pieces]
            deltas.append({"type": "signature_delta", "signature": block.signature})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case Call():
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in block.pieces]
            return {"type": "tool_use", "id": block.id, "name": block.tool, "input": {}}, deltas


_WRITERS: dict[str, type[_Chat | _Responses | _Anthropic]] = {
    "chat": _Chat,
    "responses": _Responses,
    "anthropic": _Anthropic,
}
