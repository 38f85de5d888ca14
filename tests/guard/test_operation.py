"""What an operator does to a running guard, and what its clients notice: nothing."""

from __future__ import annotations

import asyncio
import random
import ssl
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from sandbox import Sandbox
from tests import objects
from tests.benches import until
from tests.guard.test_serve import Served, served
from webhook.rule.trainjob import DEFAULT_A_KEY
from webhook.telling.registration import Service, webhook_configuration

REVIEW = orjson.dumps(objects.review(objects.trainjob(suspend=False), old=objects.trainjob(suspend=True)))
CLIENTS = 8
OFTEN = 100
SECRET = "trainjob-interlock/trainjob-interlock-certificates"
NAMES = "127.0.0.1,trainjob-interlock.trainjob-interlock.svc"
"""By which the clients call the guards, and by which the configuration does."""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """An API server with the webhook configuration of the manifests, and a kubeconfig for the guards."""
    async with Sandbox() as sandbox:
        service = Service("trainjob-interlock", "trainjob-interlock")
        sandbox.put(webhook_configuration(service=service, a_key=DEFAULT_A_KEY))
        sandbox.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trainjob-interlock"}})
        sandbox.write_kubeconfig(tmp_path / "kubeconfig")
        yield sandbox


def published(sandbox: Sandbox) -> str:
    configuration = sandbox.get("validatingwebhookconfigurations", "trainjob-interlock")
    return b64decode(configuration["webhooks"][0]["clientConfig"].get("caBundle", "")).decode()


@dataclass
class Endpoints:
    """The ready replicas, as kube-proxy knows them; a connection once made stays with its replica."""

    ports: set[int] = field(default_factory=set)

    @asynccontextmanager
    async def replica(self, kubeconfig: Path, **environment: str) -> AsyncIterator[Served]:
        """A guard that is among the endpoints while it is ready, and is stopped as Kubernetes does it."""
        async with served(kubeconfig, "--drain-seconds", "2", **environment) as guard:
            await guard.told("ready")
            port = (await guard.told("listening"))["port"]
            self.ports.add(port)
            yield guard
            guard.process.terminate()
            await guard.told("draining")
            # The endpoint goes a moment after the signal: some connections are still made meanwhile.
            await asyncio.sleep(0.5)
            self.ports.discard(port)
            assert await guard.process.wait() == 0


@dataclass
class Clients:
    """API servers, so to speak: they keep their connections until they are told to close them."""

    endpoints: Endpoints
    sandbox: Sandbox
    heard: Counter[str] = field(default_factory=Counter)
    handshakes: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def at_work(self, *, requests_per_connection: int) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._client(requests_per_connection))
            yield
            self.stop.set()

    async def connected_often(self) -> bool:
        return self.handshakes > OFTEN

    async def _client(self, requests_per_connection: int) -> None:
        while not self.stop.is_set():
            trust = ssl.create_default_context(cadata=published(self.sandbox))
            port = random.choice(sorted(self.endpoints.ports))  # noqa: S311
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            self.handshakes += 1
            for _ in range(requests_per_connection):
                head = await self._review(reader, writer)
                if b"connection: close" in head.lower() or self.stop.is_set():
                    break
            writer.close()

    async def _review(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(
            b"POST /validate?timeout=5s HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(REVIEW) + REVIEW
        )
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (
            int(line.split(b":")[1])
            for line in head.splitlines()
            if line.lower().startswith(b"content-length")
        )
        answer: dict[str, Any] = orjson.loads(await reader.readexactly(length))
        self.heard[answer["response"]["auditAnnotations"]["decision"]] += 1
        return head


@pytest.mark.prove
async def test_a_rolling_restart_under_load_fails_no_request(sandbox: Sandbox, tmp_path: Path) -> None:
    endpoints = Endpoints()
    clients = Clients(endpoints, sandbox)
    environment = {"INTERLOCK_CERTIFICATE_SECRET": SECRET, "INTERLOCK_DNS_NAMES": NAMES}
    kubeconfig = tmp_path / "kubeconfig"
    async with AsyncExitStack() as stack:
        old = [AsyncExitStack() for _ in range(3)]
        for replica in old:
            await replica.enter_async_context(endpoints.replica(kubeconfig, **environment))
        async with clients.at_work(requests_per_connection=1_000_000):
            for replica in old:
                await stack.enter_async_context(endpoints.replica(kubeconfig, **environment))
                await replica.aclose()
    # Every answer was read to its end: a failed request would have raised.
    assert set(clients.heard) == {"Clear"}
    assert clients.heard["Clear"] > 100
    assert clients.handshakes > CLIENTS, "no client had to move"


@pytest.mark.prove
@pytest.mark.parametrize("seconds", [30])
async def test_rotation_under_load_fails_no_handshake_and_no_request(
    sandbox: Sandbox, tmp_path: Path, seconds: float
) -> None:
    endpoints = Endpoints()
    clients = Clients(endpoints, sandbox)
    environment = {
        "INTERLOCK_CERTIFICATE_SECRET": SECRET,
        "INTERLOCK_DNS_NAMES": NAMES,
        "INTERLOCK_AUTHORITY_LIFETIME_SECONDS": "12",
        "INTERLOCK_SERVING_LIFETIME_SECONDS": "9",
        "INTERLOCK_PROPAGATION_SECONDS": "2",
    }
    async with endpoints.replica(tmp_path / "kubeconfig", **environment) as guard:
        async with clients.at_work(requests_per_connection=20):
            await asyncio.sleep(seconds)
            # The certificates rotate by the clock; how fast clients connect is the machine's.
            await until(clients.connected_often, seconds=60)
        rotated = Counter(line["event"] for line in guard.log)
    assert set(clients.heard) == {"Clear"}
    assert rotated["certificate authority made"] >= 3
    assert rotated["serving certificate in use"] >= 3
