"""A line stands between a worker and a server, and may refuse, hold, delay or cut what goes through it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK = 64 * 1024


@dataclass
class Line:
    """A TCP port of our own that leads to a server's port or Unix socket.

    Attributes:
        target: host:port, or the path of a Unix socket.
        delay_s: what each piece waits on its way, in both directions.
    """

    target: str
    delay_s: float = 0.0
    port: int = 0
    _server: asyncio.Server | None = None
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _pairs: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Take connections, at the same port as before."""
        self._flowing.set()
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse connections, and reset those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Reset every connection there is; new ones are taken."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)

    def hold(self) -> None:
        """Let nothing through, and lose nothing: a network that repeats what was not acknowledged behaves so."""
        self._flowing.clear()

    def release(self) -> None:
        """Let through what was held, and all that follows."""
        self._flowing.set()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.current_task()
        assert pair is not None
        self._pairs.add(pair)
        far: asyncio.StreamWriter | None = None
        try:
            if self.target.startswith("/"):
                answers, far = await asyncio.open_unix_connection(self.target)
            else:
                host, _, port = self.target.rpartition(":")
                answers, far = await asyncio.open_connection(host, int(port))
            # Until one side has ended: a half-closed connection is of no use to either protocol.
            ways = [asyncio.create_task(self._pass(reader, far)), asyncio.create_task(self._pass(answers, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            _reset(writer)
        finally:
            self._pairs.discard(pair)
            for end in (writer, far):
                if end is not None:
                    end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Have closing a connection reset it, as a server that died does."""
    with suppress(OSError):
        found: socket.socket = writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


@asynccontextmanager
async def line_to(target: str | Path) -> AsyncIterator[Line]:
    """A line that is open as long as the block runs."""
    line = Line(str(target))
    await line.open()
    try:
        yield line
    finally:
        line.release()
        await line.close()
