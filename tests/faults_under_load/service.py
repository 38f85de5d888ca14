"""A Service over loopback: each connection goes to one of the ready endpoints, and stays there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random


@dataclass
class Endpoint:
    """Where a guard listens, whether connections should go there, and how many there are."""

    name: str
    port: int = 0
    ready: bool = False
    connections: int = 0


@dataclass
class Service:
    """The connections, and the endpoints they go to.

    A connection that an endpoint refuses goes to another one; `refused` counts them.
    """

    endpoints: list[Endpoint]
    random: Random
    port: int = 0
    refused: int = 0
    cut: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Accept connections."""
        async with asyncio.TaskGroup() as connections:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connections.create_task(self._forward(reader, writer))

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield
            finally:
                server.close()
                self.cut_all()

    def cut_all(self) -> None:
        """Break every connection, in the middle of whatever it carries."""
        self.cut += len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await self._connection()
        if behind is None:
            writer.transport.abort()
            return
        endpoint, their_reader, their_writer = behind
        endpoint.connections += 1
        ends = {writer, their_writer}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(_copy(reader, their_writer))
                directions.create_task(_copy(their_reader, writer))
        finally:
            endpoint.connections -= 1
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _connection(self) -> tuple[Endpoint, asyncio.StreamReader, asyncio.StreamWriter] | None:
        ready = [endpoint for endpoint in self.endpoints if endpoint.ready]
        for endpoint in self.random.sample(ready, len(ready)):
            try:
                return endpoint, *await asyncio.open_connection("127.0.0.1", endpoint.port)
            except OSError:
                self.refused += 1
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one end is closed; then the other is, too."""
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()
