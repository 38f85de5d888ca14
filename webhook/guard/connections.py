"""What connections may take of the guard: how much memory, how long in silence, how long while it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

SILENCE_SECONDS = 10.0
"""How long a connection may stay open without a first request."""


class Budget:
    """Bytes that may be held at once: who wants more waits until others have let go."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Hold `count` bytes of it, which must not be more than the total."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            async with self._changed:
                self._free += count
                self._changed.notify_all()


@dataclass
class Heard:
    """The connections on which a request came."""

    connections: set[web.RequestHandler] = field(default_factory=set)


HEARD = web.AppKey("HEARD", Heard)


@web.middleware
async def note_that_a_connection_speaks(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Middleware: a request came on this connection."""
    request.app[HEARD].connections.add(request.protocol)
    return await handler(request)


async def close_silent_connections(server: web.Server, heard: Heard) -> None:
    """Close what says nothing: aiohttp's keep-alive time only begins with the first answer."""
    waiting: set[web.RequestHandler] = set()
    while True:
        await asyncio.sleep(SILENCE_SECONDS)
        open_connections = set(server.connections)
        heard.connections &= open_connections
        silent = open_connections - heard.connections
        for connection in silent & waiting:
            connection.force_close()
        waiting = silent
