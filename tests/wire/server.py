"""A server on loopback that speaks three protocols of model providers, as a test scripts it.

::

    async with WireServer([Answer(blocks=(Words(("Hel", "lo")),)), Refusal(status=429)]) as server:
        …  # point a client to server.base_url
    assert server.requests[0].body["model"] == "m"

The n-th request gets the n-th reply, the last reply repeats; a function from a request to its reply
serves where that is not enough. `Raw` sends chunks word for word, `recorded` makes one of a
recorded call. One connection carries one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.wire.protocols import chunks_of, protocol_of
from tests.wire.replies import Raw, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from tests.wire.replies import Delivery, Reply

__all__ = ["WireRequest", "WireServer"]


@dataclass(kw_only=True)
class WireRequest:
    """One request as it came in, and how far it was answered."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: Any
    """Parsed JSON."""
    protocol: str | None
    """chat, responses, anthropic; None for a path that is none of theirs."""
    sent: int = 0
    """Chunks that were sent."""
    sent_all: bool = False
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client closed the connection before it was answered whole."""


class WireServer:
    """Answers HTTP requests on a free port of 127.0.0.1 while in its `async with` block.

    Parameters
    ----------
    replies
        One for each request in turn, the last one for all further ones; or a function.
    """

    def __init__(self, replies: Sequence[Reply] | Callable[[WireRequest], Reply]) -> None:
        self.requests: list[WireRequest] = []
        """In the order of arrival."""
        self.base_url = ""
        """For OpenAI's and Anthropic's SDKs alike: a path is known by its end."""
        self._replies = replies
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reply(self, request: WireRequest) -> Reply:
        if callable(self._replies):
            return self._replies(request)
        return self._replies[min(len(self.requests), len(self._replies)) - 1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                request = await _read(reader)
                self.requests.append(request)
                gone = asyncio.ensure_future(reader.read(1))
                try:
                    await _Sending(request, writer, gone).reply(self._reply(request))
                finally:
                    gone.cancel()
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> WireRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return WireRequest(
        method=method,
        path=path,
        headers=headers,
        body=json.loads(body) if body else None,
        protocol=protocol_of(path),
    )


class _HungUpError(Exception):
    """The client went away."""


class _Sending:
    """Sends one reply and watches for the client to hang up."""

    def __init__(
        self, request: WireRequest, writer: asyncio.StreamWriter, gone: asyncio.Future[bytes]
    ) -> None:
        self._request = request
        self._writer = writer
        self._gone = gone

    async def reply(self, reply: Reply) -> None:
        try:
            await self._wait(reply.wait_s)
            if isinstance(reply, Refusal):
                await self._refuse(reply)
            else:
                await self._stream(reply, self._chunks(reply))
        except (_HungUpError, ConnectionError):
            self._request.hung_up.set()

    def _chunks(self, reply: Reply) -> Sequence[str]:
        if isinstance(reply, Raw):
            return reply.chunks
        if isinstance(reply, Refusal) or self._request.protocol is None:
            return ()
        body = self._request.body or {}
        return chunks_of(reply, self._request.protocol, str(body.get("model", "m")))

    async def _refuse(self, reply: Refusal) -> None:
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        body = b"" if reply.body is None else text.encode()
        kind = "text/plain" if isinstance(reply.body, str) else "application/json"
        self._head(reply.status, {"content-type": kind, **reply.headers}, length=len(body))
        await self._send(body)
        self._request.sent_all = True

    async def _stream(self, how: Delivery, chunks: Sequence[str]) -> None:
        self._head(200, {"content-type": "text/event-stream", **how.headers}, length=None)
        await self._send(b"")
        for place, chunk in enumerate(chunks):
            await self._hold(how, place)
            if place == how.drop_after:
                return
            if place == how.hang_after:
                await self._wait(None)
            await self._wait(how.delay_s)
            data = chunk.encode()
            await self._send(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self._request.sent += 1
        if how.drop_after is None:
            await self._send(b"0\r\n\r\n")
            self._request.sent_all = True

    async def _hold(self, how: Delivery, place: int) -> None:
        for after, until in how.holds:
            if after == place:
                waiting = asyncio.ensure_future(until.wait())
                either: set[asyncio.Future[Any]] = {self._gone, waiting}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                self._check()

    def _head(self, status: int, headers: dict[str, str], *, length: int | None) -> None:
        size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        lines = [f"HTTP/1.1 {status} Scripted", size, "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def _send(self, data: bytes) -> None:
        self._check()
        self._writer.write(data)
        await self._writer.drain()

    async def _wait(self, seconds: float | None) -> None:
        """Wait, for ever where no time is given, unless the client hangs up."""
        if seconds is None or seconds > 0:
            await asyncio.wait({self._gone}, timeout=seconds)
        self._check()

    def _check(self) -> None:
        if self._gone.done():
            raise _HungUpError
