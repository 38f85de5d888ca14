"""A plain HTTP client of the sandbox, for tests of what goes over the wire."""

from __future__ import annotations

import io
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest

from tests.sandbox.webhooks import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandbox import Sandbox
    from tests.sandbox.webhooks import Webhook

TRAINJOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.body)
        return document

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.json["items"]]


class Watch:
    """The events of one watch, one after the other."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> tuple[str, dict[str, Any]]:
        event = orjson.loads(await self._response.content.readline())
        return event["type"], event["object"]

    async def ended(self) -> bool:
        return await self._response.content.readline() == b""


class Api:
    """One user of the API server at ``url``."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "User-Agent": "wire-test/1"}

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        encoded = body if isinstance(body, bytes | None) else orjson.dumps(body)
        data = None if encoded is None else io.BytesIO(encoded)
        sent = self._headers | {"Content-Type": "application/json"} | dict(headers or {})
        async with self._session.request(
            method, self._url + path, data=data, headers=sent, params=query
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **query: str) -> Answer:
        return await self.call("GET", path, query=query)

    async def create(self, path: str, body: Any, **query: str) -> Answer:
        return await self.call("POST", path, body, query=query)

    async def patch(self, path: str, body: Any, media_type: str = MERGE, **query: str) -> Answer:
        return await self.call("PATCH", path, body, {"Content-Type": media_type}, query)

    async def replace(self, path: str, body: Any, **query: str) -> Answer:
        return await self.call("PUT", path, body, query=query)

    async def delete(self, path: str, body: Any = None, **query: str) -> Answer:
        return await self.call("DELETE", path, body, query=query)

    @asynccontextmanager
    async def watch(
        self, path: str, headers: Mapping[str, str] | None = None, **query: str
    ) -> AsyncIterator[Watch]:
        async with self._session.get(
            self._url + path, params={"watch": "true", **query}, headers=self._headers | dict(headers or {})
        ) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)


@asynccontextmanager
async def connected(sandbox: Sandbox, user: str = "admin") -> AsyncIterator[Api]:
    trust = ssl.create_default_context(cadata=sandbox.ca_pem.decode())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        token = sandbox.kubeconfig(user)["users"][0]["user"]["token"]
        yield Api(session, sandbox.url, token)


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    async with serving() as webhook:
        yield webhook


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[Api]:
    async with connected(sandbox) as api:
        yield api


def trainjob(name: str = "llama", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"suspend": True, "runtimeRef": {"name": "torch"}} | spec,
    }


def pod(
    name: str, *, node: str = "", phase: str = "Pending", labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "busybox"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec | ({"nodeName": node} if node else {}),
        "status": {"phase": phase},
    }
