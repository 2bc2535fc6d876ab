"""A front for a server without TLS: it ends TLS as a gateway would, and keeps the headers of what went through."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme
from hpack import Decoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, PADDED, PRIORITY = 1, 0x8, 0x20


class Front:
    """`async with Front(address, folder) as front:` — TLS with HTTP/2 at `front.address`, plain bytes behind it.

    Args:
        behind: host:port of the server.
        folder: where the certificates' files are written.
        name: the name in the server's certificate.
        wants_client: whether a client needs a certificate of the same authority.
    """

    def __init__(self, behind: str, folder: Path, *, name: str = "127.0.0.1", wants_client: bool = False) -> None:
        self.headers: list[dict[str, str]] = []
        self.address = ""
        self._behind = behind.rsplit(":", 1)
        authority, client = trustme.CA(), trustme.CA()
        own, theirs = authority.issue_cert(name), authority.issue_cert("client@example.com")
        self.ca = _write(folder / "ca.pem", authority.cert_pem)
        self.other_ca = _write(folder / "other.pem", client.cert_pem)
        self.cert = _write(folder / "client.pem", *theirs.cert_chain_pems)
        self.key = _write(folder / "client.key", theirs.private_key_pem)
        stranger = client.issue_cert("stranger@example.com")
        self.stranger_cert = _write(folder / "stranger.pem", *stranger.cert_chain_pems)
        self.stranger_key = _write(folder / "stranger.key", stranger.private_key_pem)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(["h2"])
        own.configure_cert(self._context)
        if wants_client:
            authority.configure_trust(self._context)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0, ssl=self._context)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            inner_reader, inner_writer = await asyncio.open_connection(self._behind[0], int(self._behind[1]))
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(inner_reader, writer))
                group.create_task(self._forward(reader, inner_writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        except* asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._open.discard(task)
            with suppress(OSError, RuntimeError):
                writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on frame by frame, as HTTP/2 has them, and read each request's headers."""
        decoder = Decoder()
        writer.write(await reader.readexactly(len(PREFACE)))
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(9)
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == HEADERS:
                    self.headers.append(_headers(decoder, head[4], body))
                writer.write(head + body)
                await writer.drain()
        writer.close()


def _headers(decoder: Decoder, flags: int, body: bytes) -> dict[str, str]:
    padding = body[0] if flags & PADDED else 0
    start = (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0)
    return {str(name): str(value) for name, value in decoder.decode(body[start : len(body) - padding])}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def _write(path: Path, *blobs: trustme.Blob) -> str:
    path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return str(path)
