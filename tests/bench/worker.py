"""A process that does what it is told, one JSON line in, one out: the load and the reads have one each."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import orjson
import psutil

LONGEST_LINE = 64 * 2**20
PATIENCE_SECONDS = 120.0


@dataclass
class Round:
    """What one side did for a while: how long each call took (ms), and how many ended how.

    `wall` and `cpu` are seconds, `cpu` of the process that made the calls.
    """

    wall: float = 0.0
    cpu: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    endings: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        return cls(**document)

    @property
    def a_second(self) -> float:
        """Calls that ended, a second."""
        return len(self.milliseconds) / self.wall

    def ended(self, how: str, started: float) -> None:
        """Note a call that began at `started` (perf_counter) and ends now."""
        self.milliseconds.append((time.perf_counter() - started) * 1000)
        self.endings[how] = self.endings.get(how, 0) + 1

    async def timed(self, calling: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Have it call until `seconds` are over, and wait for the calls that began before that."""
        cpu, started = time.process_time(), time.perf_counter()
        await calling(started + seconds)
        self.wall, self.cpu = time.perf_counter() - started, time.process_time() - cpu


@dataclass
class Worker:
    """The process, seen from the bench."""

    process: asyncio.subprocess.Process

    async def tell(self, **command: Any) -> Round:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(orjson.dumps(command) + b"\n")
        async with asyncio.timeout(PATIENCE_SECONDS + command.get("seconds", 0)):
            line = await self.process.stdout.readline()
        assert line, f"{command} ended the process; what it says is on stderr"
        return Round.of(orjson.loads(line))


@asynccontextmanager
async def working(module: str, *arguments: str) -> AsyncIterator[Worker]:
    """The worker `python -m module`, stopped at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdin=PIPE, stdout=PIPE, limit=LONGEST_LINE
    )
    try:
        yield Worker(process)
    finally:
        await ended(process)


async def ended(process: asyncio.subprocess.Process, seconds: float = 10.0) -> None:
    """Stop a process, kindly at first."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def obey(do: Callable[[dict[str, Any]], Awaitable[Round]]) -> None:
    """Do what the lines of stdin say until there are no more."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        told = await do(orjson.loads(line))
        sys.stdout.buffer.write(orjson.dumps(told) + b"\n")
        sys.stdout.buffer.flush()


def cpu_seconds(*processes: psutil.Process) -> float:
    """The processor time that they took so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)
