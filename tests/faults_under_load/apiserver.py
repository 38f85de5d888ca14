"""The API server of the run: the sandbox in a process of its own, which fails as it is told to, line by line.

What it stores survives its restart, as etcd's content does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox import Sandbox
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, webhook_configuration

SECRET = "trainjob-interlock/trainjob-interlock-certificate"
CONFIGURATION = "trainjob-interlock"
CALLED = "trainjob-interlock.trainjob-interlock.svc"
"""The name that the configuration calls the guards by; the clients of the test call them by address."""
GUARD = "guard"

COMMAND_SECONDS = 20
FORGOTTEN_EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class ApiServer:
    """The process, from outside: each call returns when it is done there."""

    process: Process
    kubeconfig: Path

    async def stop(self) -> None:
        """Close the port and all connections; everything stays stored."""
        await self._tell(do="stop")

    async def start(self) -> None:
        """Listen again, on the same port."""
        await self._tell(do="start")

    async def answer_late(self, seconds: float, resource: str) -> None:
        """Answer the guards' reads of a resource so much later."""
        await self._tell(do="delay", seconds=seconds, resource=resource)

    async def drop_connections(self, resource: str) -> None:
        """Close the connection on each read of a resource by a guard."""
        await self._tell(do="disconnect", resource=resource)

    async def recover(self) -> None:
        """Fail no more."""
        await self._tell(do="clear")

    async def _tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        async with asyncio.timeout(COMMAND_SECONDS):
            assert await self.process.stdout.readline() == b"done\n", "the API server's process has ended"


@asynccontextmanager
async def api_server(directory: Path) -> AsyncIterator[ApiServer]:
    """Start it; `directory` gets the kubeconfigs of an administrator and of the guards."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults_under_load.apiserver", str(directory)), stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            assert await process.stdout.readline() == b"done\n", "the API server did not start"
        yield ApiServer(process, directory / "kubeconfig")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _serve(directory: Path) -> None:
    async with Sandbox() as sandbox:
        service = Service("trainjob-interlock", "trainjob-interlock")
        sandbox.put(webhook_configuration(service=service, a_key=DEFAULT_A_KEY, name=CONFIGURATION))
        for name in (SECRET.split("/", maxsplit=1)[0], "team"):
            sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        sandbox.write_kubeconfig(directory / "kubeconfig")
        sandbox.write_kubeconfig(directory / GUARD, user=GUARD)
        forgetting = asyncio.create_task(_forget(sandbox))
        _done()
        commands = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
        )
        async for line in commands:
            await _obey(sandbox, json.loads(line))
            _done()
        forgetting.cancel()
        with suppress(asyncio.CancelledError):
            await forgetting


async def _obey(sandbox: Sandbox, command: dict[str, Any]) -> None:
    match command:
        case {"do": "stop"}:
            await sandbox.stop()
        case {"do": "start"}:
            await sandbox.start()
        case {"do": "delay", "seconds": seconds, "resource": resource}:
            sandbox.faults.delay(seconds, resource=resource, user=GUARD)
        case {"do": "disconnect", "resource": resource}:
            sandbox.faults.disconnect(resource=resource, user=GUARD)
        case {"do": "clear"}:
            sandbox.faults.clear()


async def _forget(sandbox: Sandbox) -> None:
    """Nobody looks at the requests here, and there are many."""
    while True:
        sandbox.requests.clear()
        await asyncio.sleep(FORGOTTEN_EVERY_SECONDS)


def _done() -> None:
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    asyncio.run(_serve(parser.parse_args().directory))
