"""The real `interlock`, run beside the sandbox as processes of its own."""

import asyncio
import contextlib
import os
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import orjson

from sandbox.kubectl import Answer
from sandbox.telling import NotAsToldError

__all__ = ["checking", "guarding", "interlock"]

_SECONDS_TO_READY = 30.0
_LONGEST_SECONDS = 30.0


async def interlock(kubeconfig: Path, *arguments: str) -> Answer:
    """What a verb prints. Raises `TimeoutError` when it takes over 30 s, `OSError` when it can't start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "webhook.cli", *arguments, "--kubeconfig", str(kubeconfig)),
        env=_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Answer(output.decode(errors="replace").rstrip("\n"), process.returncode == 0)


@asynccontextmanager
async def guarding(kubeconfig: Path) -> AsyncIterator[str]:
    """Run the guard, registered with the API server; yield its URL once it is ready.

    Raises `NotAsToldError` with the end of its log when it does not become ready.
    """
    url = f"https://127.0.0.1:{_free_port()}"
    options = ("--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--url", url, "--drain-seconds", "0")
    async with _running("the guard", "ready", "serve", *options, "--kubeconfig", str(kubeconfig)):
        yield url


@asynccontextmanager
async def checking(kubeconfig: Path) -> AsyncIterator[None]:
    """Run Kueue's admission check; go on once it leads.

    Raises `NotAsToldError` with the end of its log when it does not become ready.
    """
    options = ("--port", "0", "--kubeconfig", str(kubeconfig))
    async with _running("the admission check", "leading", "kueue", *options):
        yield


@asynccontextmanager
async def _running(what: str, event: str, *arguments: str) -> AsyncIterator[None]:
    """Run a command of `interlock`; go on once its log has told of an event."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "webhook.cli", *arguments),
        env=_environment() | {"INTERLOCK_HOST": "127.0.0.1", "INTERLOCK_LEASE_NAMESPACE": "default"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    log = cast("asyncio.StreamReader", process.stderr)
    reading: asyncio.Task[None] | None = None
    try:
        await _told(log, event, what)
        # The pipe is read on, or a full one would stop the process.
        reading = asyncio.create_task(_drain(log))
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if reading is not None:
            await reading


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def _told(log: asyncio.StreamReader, wanted: str, what: str) -> None:
    last: deque[str] = deque(maxlen=10)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS_TO_READY):
            async for line in log:
                last.append(line.decode(errors="replace").rstrip())
                with contextlib.suppress(orjson.JSONDecodeError):
                    event = orjson.loads(line)
                    if isinstance(event, dict) and event.get("event") == wanted:
                        return
    raise NotAsToldError(f"{what} did not become ready; the end of its log:\n" + "\n".join(last))


async def _drain(log: asyncio.StreamReader) -> None:
    while await log.read(2**16):
        pass
