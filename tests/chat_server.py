"""A server that speaks chat completions over real HTTP: it gives prepared replies and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web


@dataclass(frozen=True)
class Reply:
    """One reply: a JSON body, or a stream of chunks when `chunks` is set.

    Args:
        status: HTTP status.
        body: JSON body of a reply that is no stream; a string is sent as it is.
        chunks: data objects of a stream; a string is sent as it is.
        headers: more response headers.
        cut: the connection is closed after the last chunk, without `[DONE]` and without an end of the body.
        delay_s: wait before the reply begins.
        pause_s: wait before each chunk.
    """

    status: int = 200
    body: Any = None
    chunks: Sequence[Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    delay_s: float = 0
    pause_s: float = 0


def completion(message: Mapping[str, Any], *, finish: str | None = "stop", usage: Any = None) -> dict[str, Any]:
    """The body of a whole answer."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "served",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
    }
    return body if usage is None else body | {"usage": usage}


def chunk(delta: Mapping[str, Any] | None = None, *, finish: str | None = None, usage: Any = None) -> dict[str, Any]:
    """One chunk of a stream; without a delta and a finish it has no choices, as a last chunk with the usage."""
    none = delta is None and finish is None
    choices = [] if none else [{"index": 0, "delta": dict(delta or {}), "finish_reason": finish}]
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": choices}
    return data if usage is None else data | {"usage": usage}


def text_stream(*texts: str, usage: Any = None) -> Reply:
    """A streamed answer of plain text."""
    chunks = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": text}) for text in texts),
        chunk(finish="stop"),
    ]
    return Reply(chunks=[*chunks, chunk(usage=usage)] if usage else chunks)


def call_delta(
    index: int, arguments: str | None = None, *, id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """A delta with one fragment of one call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call: dict[str, Any] = {"index": index, "function": function}
    if id is not None:
        call |= {"id": id, "type": "function"}
    return {"tool_calls": [call]}


class ChatServer:
    """`async with ChatServer() as server:` — replies are taken in order, the last one for ever.

    `requests` holds the bodies, `keys` the Authorization headers, `gone` is set when a client left before the end.
    """

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization", ""))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.asked.set()
        try:
            await asyncio.sleep(reply.delay_s)
            if reply.chunks is None:
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                return web.Response(
                    text=text, status=reply.status, headers=reply.headers, content_type="application/json"
                )
            return await self._stream(request, reply, reply.chunks)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise

    async def _stream(self, request: web.Request, reply: Reply, chunks: Sequence[Any]) -> web.StreamResponse:
        response = web.StreamResponse(
            status=reply.status, headers={"Content-Type": "text/event-stream", **reply.headers}
        )
        response.enable_chunked_encoding()
        await response.prepare(request)
        for data in chunks:
            await asyncio.sleep(reply.pause_s)
            text = data if isinstance(data, str) else json.dumps(data)
            await response.write(f"data: {text}\n\n".encode())
        if reply.cut:
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
