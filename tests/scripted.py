"""An API server that answers as a test tells it to, also in ways that no real one does.

It knows the paths of the guard's reads and nothing else. Without a script every read answers that
nothing is there, so that the guard would say yes: what a test scripts is what makes it say no.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import orjson
import yaml
from aiohttp import web

from certs.authority import new_authority

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

NOT_FOUND = 404


@dataclass(frozen=True)
class Asked:
    """One request: what it read, by which query, with which credentials, and what it accepts."""

    resource: str
    path: str
    query: Mapping[str, str]
    authorization: str | None
    accept: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    client: str | None = None
    """The common name of the client certificate that was shown."""

    def header(self, name: str) -> list[str]:
        """Its values, in the order they came in."""
        return [value for given, value in self.headers if given.lower() == name.lower()]


def answer(document: object, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")

    return handler


def raw(body: bytes, status: int = 200, content_type: str = "application/json") -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, content_type=content_type)

    return handler


def refusal(status: int, reason: str, message: str, **details: Any) -> Handler:
    return answer(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": status,
        },
        status,
    )


INITIALIZING = "storage is (re)initializing"


class Overloaded:
    """Answers 429 so many times, with this Retry-After; then what the handler does."""

    def __init__(self, then: Handler, *, times: int, retry_after: str | None) -> None:
        self._then = then
        self._times = times
        self._headers = {} if retry_after is None else {"Retry-After": retry_after}
        self.asked: list[tuple[str, bytes]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, await request.read()))
        if len(self.asked) > self._times:
            return await self._then(request)
        status: dict[str, Any] = {"kind": "Status", "message": INITIALIZING, "reason": "TooManyRequests"}
        return web.json_response(status, status=429, headers=self._headers)


def hang() -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return handler


def after(seconds: float, handler: Handler) -> Handler:
    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await handler(request)

    return late


def truncated(document: object) -> Handler:
    """Promise the whole body, send half of it and close the connection."""

    async def handler(request: web.Request) -> web.StreamResponse:
        body = orjson.dumps(document)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    return handler


def listed(kind: str, items: Sequence[object], *, following: str = "") -> dict[str, Any]:
    version = "v1" if kind == "PodList" else "batch/v1"
    metadata = {"resourceVersion": "1", **({"continue": following} if following else {})}
    return {"kind": kind, "apiVersion": version, "metadata": metadata, "items": list(items)}


def metadata_list(items: Sequence[Mapping[str, Any]], *, following: str = "") -> dict[str, Any]:
    """What an API server answers whom metadata is enough."""
    metadata = {"resourceVersion": "1", **({"continue": following} if following else {})}
    one = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    listed = [{**one, "metadata": item["metadata"]} for item in items]
    kind = "PartialObjectMetadataList"
    return {"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": listed}


def pods(*documents: Mapping[str, Any], one: Handler | None = None) -> Handler:
    """These pods: their metadata in a list, and each whole by its name, or as `one` answers."""
    by_name = {document["metadata"]["name"]: document for document in documents}

    async def handler(request: web.Request) -> web.StreamResponse:
        name = request.path.rsplit("/", 1)[-1]
        if name == "pods":
            return await answer(metadata_list(documents))(request)
        if one is not None:
            return await one(request)
        found = by_name.get(name)
        return await (absent(request) if found is None else answer({"kind": "Pod", **found})(request))

    return handler


def absent(request: web.Request) -> Awaitable[web.StreamResponse]:
    name = request.path.rsplit("/", 1)[-1]
    kind = request.path.rsplit("/", 2)[-2]
    return refusal(NOT_FOUND, "NotFound", f'{kind} "{name}" not found', name=name, kind=kind)(request)


@dataclass
class ScriptedApiServer:
    """Answers by resource: pods, jobs, jobsets, nodes, version, groups."""

    script: dict[str, Handler] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    host: str = "127.0.0.1"

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._news = asyncio.Condition()
        authority = new_authority(now=datetime.now(UTC))
        serving = authority.issue(ip_addresses=[self.host], now=datetime.now(UTC))
        self.authority_pem, self._tls = serving.authority_pem, serving.server_context()
        self._defaults: dict[str, Handler] = {
            "pods": answer(listed("PodList", [])),
            "jobs": answer(listed("JobList", [])),
            "jobsets": absent,
            "nodes": absent,
            "version": answer({"gitVersion": "v1.36.0"}),
            "apis": answer({"kind": "APIGroupList", "groups": [_group(name) for name in _GROUPS]}),
        }
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        tls: ssl.SSLContext = self._tls
        await web.TCPSite(runner, self.host, self.port, ssl_context=tls, reuse_address=True).start()
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        await self._stack.aclose()

    def otherwise(self, resource: str) -> Handler:
        """What it answers of a resource without a script."""
        return self._defaults[resource]

    def write_kubeconfig(self, path: Path, token: str = "valid") -> Path:
        ca = base64.b64encode(self.authority_pem).decode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        cluster = {"server": f"https://{host}:{self.port}", "certificate-authority-data": ca}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "scripted", "cluster": cluster}],
            "users": [{"name": "guard", "user": {"token": token}}],
            "contexts": [{"name": "scripted", "context": {"cluster": "scripted", "user": "guard"}}],
            "current-context": "scripted",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def ask_for_client_certificates(self, authority_pem: bytes) -> None:
        """Those of this authority; who shows none is answered too."""
        self._tls.load_verify_locations(cadata=authority_pem.decode())
        self._tls.verify_mode = ssl.CERT_OPTIONAL

    async def was_asked(self, resource: str, times: int = 1) -> None:
        """Wait until a resource was read so many times."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: len(self.reads_of(resource)) >= times)

    def reads_of(self, resource: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.resource == resource]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        resource = _resource(request.path)
        self.asked.append(
            Asked(
                resource,
                request.path,
                dict(request.query),
                request.headers.get("Authorization"),
                request.headers.get("Accept"),
                tuple(request.headers.items()),
                _common_name(request),
            )
        )
        async with self._news:
            self._news.notify_all()
        handler = self.script.get(resource) or self._defaults.get(resource)
        if handler is None:
            return web.Response(status=NOT_FOUND, text="404 page not found\n")
        return await handler(request)


def _common_name(request: web.Request) -> str | None:
    assert request.transport is not None
    certificate = request.transport.get_extra_info("peercert") or {}
    names = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return names.get("commonName")


_GROUPS = {"trainer.kubeflow.org": "v1alpha1", "jobset.x-k8s.io": "v1alpha2"}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/{_GROUPS[name]}", "version": _GROUPS[name]}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resource(path: str) -> str:
    if path in {"/version", "/apis"}:
        return path.strip("/")
    for resource in ("jobsets", "jobs", "pods", "nodes"):
        if f"/{resource}/" in f"{path}/":
            return resource
    return path
