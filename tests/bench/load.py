"""`python -m tests.bench.load`: clients of a webhook, each on a connection of its own, in their own process.

Leaner than any HTTP library, so that it is the webhook that is measured.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import ssl
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.bench.worker import Round, obey

_ALLOWED = re.compile(rb'"allowed": ?(true|false)')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"^connection: *close", re.IGNORECASE | re.MULTILINE)
_CODE = re.compile(rb'"code": ?(\d+)')


class Caller(asyncio.Protocol):
    """Sends the next request whenever the answer to the one before is whole, until it has done its share."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._round = Round()
        self._until = 0.0
        self._calls = 0
        self._started = 0.0
        self._received = bytearray()
        self._missing = 0
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def call(self, into: Round, *, until: float = math.inf, calls: int = sys.maxsize) -> None:
        """Call until then (perf_counter), or so often, but once at least.

        Raises:
            ConnectionError: the webhook closed the connection.
        """
        self._round, self._until, self._calls = into, until, calls
        self._done = asyncio.get_running_loop().create_future()
        self._send()
        await self._done

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(f"the webhook closed the connection: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._missing == 0:
            end_of_head = self._received.find(b"\r\n\r\n")
            if end_of_head < 0:
                return
            length = _LENGTH.search(self._received)
            assert length is not None, self._received
            self._missing = end_of_head + 4 + int(length[1])
        if len(self._received) < self._missing:
            return
        self._round.ended(_ending(bytes(self._received)), self._started)
        self._calls -= 1
        told_to_close = _CLOSE.search(self._received) is not None
        if self._calls > 0 and time.perf_counter() < self._until and not told_to_close:
            self._send()
        else:
            self._done.set_result(None)

    def _send(self) -> None:
        self._received.clear()
        self._missing = 0
        self._started = time.perf_counter()
        assert self._transport is not None
        self._transport.write(next(self._requests))


def _ending(answer: bytes) -> str:
    status = answer[9:12].decode()
    allowed = _ALLOWED.search(answer)
    if allowed is None:
        return f"HTTP {status}"
    if allowed[1] == b"true":
        return "allowed"
    code = _CODE.search(answer)
    return f"denied {code[1].decode()}" if code else "denied"


async def load(command: dict[str, Any]) -> Round:
    """Call the webhook at `port` over `connections`, after a call of each to warm up.

    With `body` (base64), or with all `bodies` in turn. For `seconds`, or where there are `calls` until as
    many were made.
    """
    port, connections = int(command["port"]), int(command["connections"])
    requests = cycle(
        _request(port, base64.b64decode(body)) for body in command.get("bodies") or [command["body"]]
    )
    trust = ssl.create_default_context(cafile=Path(command["authority"]))
    loop = asyncio.get_running_loop()
    callers: list[Caller] = []
    try:
        for _ in range(connections):
            _, caller = await loop.create_connection(lambda: Caller(requests), "127.0.0.1", port, ssl=trust)
            callers.append(caller)
        if command.get("warm", True):
            await asyncio.gather(*(caller.call(Round(), calls=1) for caller in callers))
        told = Round()

        async def all_of_them(until: float) -> None:
            if calls := command.get("calls"):
                await asyncio.gather(*(caller.call(told, calls=calls // connections) for caller in callers))
            else:
                await asyncio.gather(*(caller.call(told, until=until) for caller in callers))

        await told.timed(all_of_them, float(command["seconds"]))
    finally:
        for caller in callers:
            caller.close()
    return told


def _request(port: int, body: bytes) -> bytes:
    head = (
        f"POST /validate?timeout=5s HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    asyncio.run(obey(load))
