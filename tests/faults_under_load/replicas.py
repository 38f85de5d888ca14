"""The guards: processes that are started, probed, killed and stopped as Kubernetes and fate do it."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults_under_load.apiserver import CALLED, CONFIGURATION, SECRET
from tests.faults_under_load.service import Endpoint
from tests.fuzz.wire import Connection, NoReplyError
from tests.guard.test_serve import Served, served

PROBE_EVERY_SECONDS = 2.0
PROBE_TIMEOUT_SECONDS = 2.0
PROBE_FAILURES = 2
"""As the readiness probe of `manifests/base` has them."""

NOTICED_AFTER_SECONDS = 1.0
"""How long an endpoint stays after its process has gone: the kubelet looks once a second."""

OK = 200


@dataclass
class Replica:
    """One guard and its endpoint. `restarts` has how long each start took until it was ready."""

    endpoint: Endpoint
    kubeconfig: Path
    restarts: list[float] = field(default_factory=list)
    trust: ssl.SSLContext | None = None
    _served: Served | None = None
    _lifetime: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Start the process, and wait until it says that it is ready."""
        started = time.monotonic()
        environment = {
            "INTERLOCK_CERTIFICATE_SECRET": SECRET,
            "INTERLOCK_WEBHOOK_CONFIGURATION": CONFIGURATION,
            "INTERLOCK_DNS_NAMES": f"127.0.0.1,{CALLED}",
        }
        self._served = await self._lifetime.enter_async_context(served(self.kubeconfig, **environment))
        await self._served.told("ready")
        self.restarts.append(time.monotonic() - started)
        self.endpoint.port = (await self._served.told("listening"))["port"]
        self.endpoint.ready = True

    async def kill(self) -> None:
        """SIGKILL; the endpoint goes when that is noticed."""
        self._process.kill()
        await asyncio.sleep(NOTICED_AFTER_SECONDS)
        self.endpoint.ready = False
        await self.end()

    async def end(self) -> None:
        """End the process and forget it."""
        await self._lifetime.aclose()

    def stop(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def log(self) -> list[str]:
        """What the process that runs now has logged."""
        assert self._served is not None
        return self._served.raw

    @property
    def _process(self) -> asyncio.subprocess.Process:
        assert self._served is not None
        return self._served.process

    async def keep_probing(self) -> None:
        """Set the endpoint ready, or not, as the readiness probe finds it; until cancelled."""
        failures = 0
        while True:
            started = time.monotonic()
            if await self._is_ready():
                failures, self.endpoint.ready = 0, True
            else:
                failures += 1
                self.endpoint.ready &= failures < PROBE_FAILURES
            await asyncio.sleep(max(0.0, started + PROBE_EVERY_SECONDS - time.monotonic()))

    async def _is_ready(self) -> bool:
        assert self.trust is not None
        connection = Connection(self.endpoint.port, self.trust)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                await connection.send(b"GET /readyz HTTP/1.1\r\nHost: guard\r\n\r\n")
                return (await connection.reply()).status == OK
        except (NoReplyError, OSError, TimeoutError):
            return False
        finally:
            connection.close()


@asynccontextmanager
async def replicas(count: int, kubeconfig: Path) -> AsyncIterator[list[Replica]]:
    """So many guards, all ready."""
    guards = [Replica(Endpoint(f"guard-{number}"), kubeconfig) for number in range(count)]
    try:
        async with asyncio.TaskGroup() as starting:
            for guard in guards:
                starting.create_task(guard.start())
        yield guards
    finally:
        for guard in guards:
            await guard.end()
