"""A run: the processes, the load, the faults, and what is found wrong at the end."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import yaml

from sandbox.controllers.client import Client
from tests.benches import WEBHOOKS
from tests.faults_under_load.apiserver import CONFIGURATION, GUARD, api_server
from tests.faults_under_load.clients import Call, Clients
from tests.faults_under_load.figures import Figures, recoveries
from tests.faults_under_load.plan import Bench, carry_out, plan
from tests.faults_under_load.replicas import replicas
from tests.faults_under_load.service import Service
from tests.faults_under_load.trainjobs import keep_changing, trainjobs

GUARDS = 2
CLIENTS = 64
TRAINJOBS = 48
CHANGERS = 4


async def run(seed: int, only: str | None = None) -> Figures:
    """Have every fault happen under load, some 60 s; or only those whose name has `only` in it."""
    faults = plan(Random(f"{seed}:plan"), only)  # noqa: S311
    jobs, calls = trainjobs(TRAINJOBS), list[Call]()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interlock-faults-")))
        server = await stack.enter_async_context(api_server(directory))
        admin = await stack.enter_async_context(Client(yaml.safe_load(server.kubeconfig.read_text())))
        guards = await stack.enter_async_context(replicas(GUARDS, directory / GUARD))
        trust = await _published_trust(admin)
        for guard in guards:
            guard.trust = trust
        service = Service([guard.endpoint for guard in guards], Random(f"{seed}:service"))  # noqa: S311
        await stack.enter_async_context(service.listening())
        clients = Clients(service.port, trust, jobs, calls)
        slices = [jobs[number::CHANGERS] for number in range(CHANGERS)]
        started = time.monotonic()
        async with _in_the_background(
            (guard.keep_probing() for guard in guards),
            (
                keep_changing(share, admin, Random(f"{seed}:changer:{number}"))  # noqa: S311
                for number, share in enumerate(slices)
            ),
            (
                clients.keep_calling(Random(f"{seed}:client:{number}"))  # noqa: S311
                for number in range(CLIENTS)
            ),
        ):
            happened = await carry_out(faults, Bench(guards, service, server), Random(f"{seed}:faults"))  # noqa: S311
        return Figures(
            calls,
            recoveries(calls, happened),
            service.refused,
            service.cut,
            [seconds for guard in guards for seconds in guard.restarts],
            time.monotonic() - started,
        )


async def _published_trust(admin: Client) -> ssl.SSLContext:
    configuration = await admin.get(WEBHOOKS, "", CONFIGURATION)
    bundle = b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"])
    return ssl.create_default_context(cadata=bundle.decode())


@asynccontextmanager
async def _in_the_background(*groups: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run all of them beside the block. One that fails ends the block; at its end all are cancelled."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one) for group in groups for one in group]
        yield
        for task in running:
            task.cancel()
