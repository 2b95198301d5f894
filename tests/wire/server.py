"""A model server on loopback that says exactly what a test wants, over real HTTP.

It speaks server-sent events as the three protocols do: a reply is the list of its JSON chunks, with
waits, an early hang-up, or an error answer instead. `chat`, `responses` and `anthropic` build the
chunks of a plain answer; a recording's chunks are served as they are.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

_CRLF = b"\r\n"


class Reply(msgspec.Struct, kw_only=True):
    """What one request gets."""

    chunks: list[dict[str, Any]] = []
    named: bool = False
    """Whether each chunk's ``type`` is sent as the event's name too (Anthropic, Responses)."""
    done: bool = True
    """Whether a chat completion's closing ``[DONE]`` is sent."""
    status: int = 200
    headers: dict[str, str] = {}
    body: str = ""
    """Sent instead of chunks when the status is no 200."""
    drop_after: int | None = None
    """Close the socket after so many chunks, in the middle of the answer."""
    hold_after: int | None = None
    """Wait after so many chunks until the client hangs up."""


class Served(msgspec.Struct, kw_only=True):
    """A request that came in."""

    path: str
    headers: dict[str, str]
    json: Any
    hung_up: bool = False
    """Whether the client left before the answer was complete."""
    holding: bool = False
    """Whether the server waits for the client to hang up."""


class WireServer:
    """Answers requests with replies, in order; the last one repeats.

    Parameters
    ----------
    replies
        In the order of the requests, or a function from a request to its reply.
    """

    def __init__(self, replies: Sequence[Reply] | Callable[[Served], Reply]) -> None:
        self.requests: list[Served] = []
        self._replies = replies
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        """Where it listens, as OpenAI's clients want it: with ``/v1``."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """Where it listens, as Anthropic's client wants it."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        await asyncio.wait({task})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            served = await _read(reader)
            self.requests.append(served)
            await self._answer(served, self._reply(served), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    def _reply(self, served: Served) -> Reply:
        if callable(self._replies):
            return self._replies(served)
        return self._replies[min(len(self.requests), len(self._replies)) - 1]

    async def _answer(
        self,
        served: Served,
        reply: Reply,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if reply.status != 200:
            writer.write(_error_response(reply))
            await writer.drain()
            return
        if reply.hold_after == 0:
            await _hold(served, reader)
            return
        writer.write(_head(reply))
        for place, chunk in enumerate(reply.chunks):
            if place == reply.drop_after:
                writer.transport.abort()
                return
            if place == reply.hold_after:
                await writer.drain()
                await _hold(served, reader)
                return
            writer.write(_chunk(_event(chunk, named=reply.named)))
        if reply.done:
            writer.write(_chunk(b"data: [DONE]\n\n"))
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _hold(served: Served, reader: asyncio.StreamReader) -> None:
    served.holding = True
    await reader.read()  # returns when the client hangs up
    served.hung_up = True


async def _read(reader: asyncio.StreamReader) -> Served:
    head = (await reader.readuntil(_CRLF * 2)).decode("latin-1").split("\r\n")
    path = head[0].split(" ")[1]
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Served(path=path, headers=headers, json=json.loads(body or b"null"))


def _head(reply: Reply) -> bytes:
    lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode()


def _error_response(reply: Reply) -> bytes:
    body = reply.body.encode()
    lines = [f"HTTP/1.1 {reply.status} Error", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines += [f"content-length: {len(body)}", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def _event(chunk: dict[str, Any], *, named: bool) -> bytes:
    name = f"event: {chunk['type']}\n" if named else ""
    return f"{name}data: {json.dumps(chunk)}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}".encode() + _CRLF + data + _CRLF


# ------------------------------------------------------------------------ answers by protocol


class Said(msgspec.Struct, kw_only=True):
    """An answer, whatever the protocol."""

    text: str = ""
    reasoning: str = ""
    signature: str = "SIG=="
    calls: list[tuple[str, str, str]] = []
    """Calls as (id, tool, JSON of the input), sent side by side in pieces."""
    finish: str | None = None
    usage: bool = True


def chat(said: Said) -> Reply:
    """Return an answer in the chat completions protocol."""
    chunks = [_choice({"role": "assistant", "content": ""})]
    chunks += [_choice({"reasoning_content": piece}) for piece in _pieces(said.reasoning)]
    chunks += [_choice({"content": piece}) for piece in _pieces(said.text)]
    for index, (call_id, tool, _) in enumerate(said.calls):
        head = {"index": index, "id": call_id, "type": "function"}
        chunks.append(
            _choice({"tool_calls": [head | {"function": {"name": tool, "arguments": ""}}]})
        )
    for index, piece in _interleaved(said.calls):
        part = {"index": index, "function": {"arguments": piece}}
        chunks.append(_choice({"tool_calls": [part]}))
    finish = said.finish or ("tool_calls" if said.calls else "stop")
    chunks.append(_choice({}, finish))
    if said.usage:
        usage = {
            "prompt_tokens": 1000,
            "completion_tokens": 50,
            "total_tokens": 1050,
            "prompt_tokens_details": {"cached_tokens": 800},
            "completion_tokens_details": {"reasoning_tokens": 20},
        }
        chunks.append({**_choice({}), "choices": [], "usage": usage})
    return Reply(chunks=chunks)


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [choice],
    }


def anthropic(said: Said) -> Reply:
    """Return an answer in Anthropic's messages protocol."""
    usage = {
        "input_tokens": 120,
        "output_tokens": 1,
        "cache_read_input_tokens": 800,
        "cache_creation_input_tokens": 80,
    }
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    chunks: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if said.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": p} for p in _pieces(said.reasoning)]
        deltas.append({"type": "signature_delta", "signature": said.signature})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if said.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(said.text)]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for call_id, tool, given in said.calls:
        deltas = [{"type": "input_json_delta", "partial_json": p} for p in _pieces(given)]
        blocks.append(({"type": "tool_use", "id": call_id, "name": tool, "input": {}}, deltas))
    for index, (start, deltas) in enumerate(blocks):
        chunks.append({"type": "content_block_start", "index": index, "content_block": start})
        chunks += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        chunks.append({"type": "content_block_stop", "index": index})
    finish = said.finish or ("tool_use" if said.calls else "end_turn")
    delta = {"stop_reason": finish, "stop_sequence": None}
    chunks.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 50}})
    chunks.append({"type": "message_stop"})
    return Reply(chunks=chunks, named=True, done=False)


def responses(said: Said) -> Reply:
    """Return an answer in the Responses protocol."""
    base = {"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "model": "m"}
    fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    open_response = {**base, **fixed, "status": "in_progress", "output": []}
    chunks: list[dict[str, Any]] = [{"type": "response.created", "response": open_response}]
    output: list[dict[str, Any]] = []
    for item, deltas in _items(said):
        place = len(output)
        started = {**item, "status": "in_progress"}
        for empty in ("content", "summary"):
            if empty in started:
                started[empty] = []
        if "arguments" in started:
            started["arguments"] = ""
        chunks.append(
            {"type": "response.output_item.added", "output_index": place, "item": started}
        )
        chunks += [{**d, "item_id": item["id"], "output_index": place} for d in deltas]
        chunks.append({"type": "response.output_item.done", "output_index": place, "item": item})
        output.append(item)
    usage = {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 800},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 20},
        "total_tokens": 1050,
    }
    done = {**base, **fixed, "status": "completed", "output": output, "usage": usage}
    chunks.append({"type": "response.completed", "response": done})
    for number, chunk in enumerate(chunks):
        chunk["sequence_number"] = number
    return Reply(chunks=chunks, named=True, done=False)


def _items(said: Said) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    items: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if said.reasoning:
        part = {"type": "summary_text", "text": said.reasoning}
        item = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [part],
            "encrypted_content": said.signature,
        }
        kind = "response.reasoning_summary"
        deltas: list[dict[str, Any]] = [
            {"type": f"{kind}_part.added", "summary_index": 0, "part": {**part, "text": ""}}
        ]
        deltas += [
            {"type": f"{kind}_text.delta", "summary_index": 0, "delta": piece}
            for piece in _pieces(said.reasoning)
        ]
        items.append((item, deltas))
    if said.text:
        content = {"type": "output_text", "text": said.text, "annotations": []}
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [content],
        }
        deltas = [
            {
                "type": "response.content_part.added",
                "content_index": 0,
                "part": {**content, "text": ""},
            }
        ]
        deltas += [
            {
                "type": "response.output_text.delta",
                "content_index": 0,
                "delta": piece,
                "logprobs": [],
            }
            for piece in _pieces(said.text)
        ]
        items.append((item, deltas))
    for call_id, tool, given in said.calls:
        item = {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": tool,
            "arguments": given,
            "status": "completed",
        }
        kind = "response.function_call_arguments"
        deltas = [{"type": f"{kind}.delta", "delta": piece} for piece in _pieces(given)]
        items.append((item, deltas))
    return items


def _pieces(text: str, size: int = 4) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _interleaved(calls: list[tuple[str, str, str]]) -> list[tuple[int, str]]:
    """Return the calls' inputs in pieces, one of each call in turn."""
    queues = [_pieces(given) for _, _, given in calls]
    longest = max(map(len, queues), default=0)
    return [
        (index, queue[place])
        for place in range(longest)
        for index, queue in enumerate(queues)
        if place < len(queue)
    ]
