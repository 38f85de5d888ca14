"""A webhook server for tests of what the sandbox asks, and of what it makes of the answers."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web

from certs.authority import new_authority

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

NAME = "readmission.example.com"


def review(request: dict[str, Any], *, allowed: bool, **response: Any) -> web.Response:
    return web.json_response(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": request["uid"], "allowed": allowed} | response,
        }
    )


async def allow(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return review(request, allowed=True)


@dataclass
class Webhook:
    """A webhook server that answers as it is told and remembers what it was asked."""

    port: int
    bundle: str
    services: dict[tuple[str, str, int], tuple[str, int]]
    answer: Answer = allow
    asked: list[dict[str, Any]] = field(default_factory=list)
    peers: set[Any] = field(default_factory=set)
    queries: list[str] = field(default_factory=list)

    def configuration(
        self, kind: str = "ValidatingWebhookConfiguration", *, named: str = "guard", **changes: Any
    ) -> dict[str, Any]:
        client = {"url": f"https://127.0.0.1:{self.port}/validate", "caBundle": self.bundle}
        rule = {
            "apiGroups": ["trainer.kubeflow.org"],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["trainjobs"],
        }
        webhook = {
            "name": NAME,
            "clientConfig": client,
            "rules": [rule],
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": named},
            "webhooks": [webhook | changes],
        }

    async def handle(self, incoming: web.Request) -> web.StreamResponse:
        request = (await incoming.json())["request"]
        self.asked.append(request)
        self.queries.append(incoming.query_string)
        self.peers.add(incoming.transport and incoming.transport.get_extra_info("peername"))
        return await self.answer(incoming, request)


@asynccontextmanager
async def serving() -> AsyncIterator[Webhook]:
    now = datetime.now(UTC)
    authority = new_authority(now=now)
    serving = authority.issue(dns_names=["guard.system.svc"], ip_addresses=["127.0.0.1"], now=now)
    application = web.Application(client_max_size=8 * 1024 * 1024)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    found = Webhook(0, base64.b64encode(authority.certificate_pem).decode(), {})
    application.router.add_post("/{path:.*}", found.handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving.server_context()).start()
    found.port = runner.addresses[0][1]
    found.services["system", "guard", 443] = ("127.0.0.1", found.port)
    yield found
    await runner.cleanup()


def patching(*operations: dict[str, Any], **response: Any) -> Answer:
    """Allow every request with a JSON patch."""
    encoded = base64.b64encode(orjson.dumps(operations)).decode()

    async def answer(_: web.Request, request: dict[str, Any]) -> web.StreamResponse:
        return review(request, allowed=True, patch=encoded, patchType="JSONPatch", **response)

    return answer
