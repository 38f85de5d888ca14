"""Bytes out, answers in: an HTTP/1.1 client that sends whatever it is told to."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

CONTINUE = 100


@dataclass(frozen=True)
class Reply:
    """One answer, as it came."""

    status: int
    closes: bool
    body: bytes


class NoReplyError(Exception):
    """The connection was closed, or carried something that is no answer."""


class Connection:
    """One TLS connection to the guard, opened again when it was closed."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self._port = port
        self._trust = trust
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> None:
        """Send, on a new connection if the other end has closed the last one; raises `OSError` without any.

        One that is closed while it is sent on is no error here, but on reading.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._trust, limit=2**24
            )
        _, writer = self._streams
        writer.write(data)
        try:
            await writer.drain()
        except OSError:
            # It may have answered before it closed.
            return

    async def reply(self) -> Reply:
        """Read an answer; raises `NoReplyError` where there is none."""
        if self._streams is None:
            raise NoReplyError("nothing was sent")
        reader, _ = self._streams
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = int(head.split(" ", 2)[1])
            if status == CONTINUE:
                return await self.reply()
            lengths = [line for line in head.split("\r\n") if line.startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            raise NoReplyError(f"{type(error).__name__}: {error}") from error
        closes = "connection: close" in head
        if closes:
            self.close()
        return Reply(status, closes, body)

    def _is_closed(self) -> bool:
        assert self._streams is not None
        reader, writer = self._streams
        return reader.at_eof() or reader.exception() is not None or writer.is_closing()

    def close(self) -> None:
        """Close it at once; the next `send` opens another."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
