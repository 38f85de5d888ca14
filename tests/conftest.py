"""The benches: a sandbox API server, and a guard that listens for real."""

from __future__ import annotations

import io
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from webhook.cluster import Cluster
from webhook.sandbox import Sandbox
from webhook.server import Lifecycle, listening
from webhook.settings import Settings


@dataclass(frozen=True)
class Reply:
    """What came back, as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.body)
        return document

    @property
    def response(self) -> dict[str, Any]:
        response: dict[str, Any] = self.document["response"]
        return response

    @property
    def message(self) -> str:
        message: str = self.response["status"]["message"]
        return message


@dataclass(frozen=True)
class Guard:
    """A listening guard and a client that trusts its certificate."""

    port: int
    authority_pem: bytes
    lifecycle: Lifecycle
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def post(
        self,
        body: bytes | dict[str, Any],
        *,
        timeout: str = "5s",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(
            f"{self.url}/validate",
            params={"timeout": timeout},
            data=io.BytesIO(content),
            headers={"Content-Type": "application/json", **(headers or {})},
        ) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str) -> Reply:
        async with self.session.get(f"{self.url}{path}") as response:
            return Reply(response.status, response.headers, await response.read())


@asynccontextmanager
async def guard_against(kubeconfig: Path, **settings: Any) -> AsyncIterator[Guard]:
    """A guard in this process that asks the API server of `kubeconfig`."""
    chosen = Settings(host="127.0.0.1", port=0, kubeconfig=str(kubeconfig), **settings)
    async with (
        Cluster.connect(kubeconfig=str(kubeconfig)) as cluster,
        listening(chosen, cluster) as guard,
    ):
        trust = ssl.create_default_context(cadata=guard.authority_pem.decode())
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            yield Guard(guard.port, guard.authority_pem, guard.lifecycle, session)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    sandbox.write_kubeconfig(path, user="system:serviceaccount:trainjob-interlock:trainjob-interlock")
    return path


@pytest.fixture
async def guard(kubeconfig: Path) -> AsyncIterator[Guard]:
    async with guard_against(kubeconfig) as guard:
        yield guard
