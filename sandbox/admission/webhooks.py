"""Calling a webhook over TLS, and reading its answer; what goes wrong is said in the API server's words."""

from __future__ import annotations

import base64
import binascii
import io
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    Obj = dict[str, Any]
    Services = Mapping[tuple[str, str, int], tuple[str, int]]
else:
    Services = Any

__all__ = ["CallError", "Response", "Services", "Webhooks"]

_IDLE_SECONDS = 90
_WRONG = "received invalid webhook response: "


class CallError(Exception):
    """The webhook gave no usable answer."""


@dataclass(frozen=True, slots=True)
class Response:
    """A usable answer; ``patch`` is what it holds before anybody has read it as a list of operations."""

    allowed: bool
    warnings: list[str]
    annotations: dict[str, str]
    status: Obj
    patch: bytes


class _ServiceResolver(AbstractResolver):
    """Resolves ``<service>.<namespace>.svc`` to where the service really listens, port included."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._names = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        parts = host.split(".")
        if len(parts) != 3 or parts[2] != "svc":
            return await self._names.resolve(host, port, family)
        found = self._services.get((parts[1], parts[0], port))
        if found is None:
            raise OSError(f"lookup {host}: no such host")
        return [
            ResolveResult(
                hostname=host, host=found[0], port=found[1], family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        await self._names.close()


class Webhooks:
    """The connections to all webhooks, kept alive; an async context manager."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._session: aiohttp.ClientSession | None = None
        self._trusted: dict[str, ssl.SSLContext] = {}

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            resolver=_ServiceResolver(self._services),
            use_dns_cache=False,
            keepalive_timeout=_IDLE_SECONDS,
            limit=0,
        )
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, webhook: Obj, review: Obj, *, mutating: bool) -> Response:
        """Send a review and read what comes back. Raises ``CallError``."""
        return _checked(await self._call(webhook, review), review["request"]["uid"], mutating=mutating)

    async def _call(self, webhook: Obj, review: Obj) -> bytes:
        client = webhook["clientConfig"]
        seconds = webhook.get("timeoutSeconds", 10)
        url = f"{_url(client)}?timeout={seconds}s"
        if self._session is None:
            raise CallError("failed to call webhook: the API server is shut down")
        try:
            async with self._session.post(
                url,
                data=io.BytesIO(orjson.dumps(review)),
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
                ssl=self._trust(client.get("caBundle", "")),
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise CallError(f'failed to call webhook: Post "{url}": {_why(error)}') from None
        if response.status != 200:
            raise CallError(f"failed to call webhook: {_refusal(response.status, body)}")
        return body

    def _trust(self, bundle: str) -> ssl.SSLContext:
        if bundle not in self._trusted:
            roots = base64.b64decode(bundle).decode() or None
            self._trusted[bundle] = ssl.create_default_context(cadata=roots)
        return self._trusted[bundle]


def _url(client: Obj) -> str:
    if client.get("url"):
        return str(client["url"])
    service = client["service"]
    path = str(service.get("path") or "/").lstrip("/")
    return f"https://{service['name']}.{service['namespace']}.svc:{service.get('port', 443)}/{path}"


def _why(error: BaseException) -> str:
    """Say what went wrong in Go's words, which is what people search for."""
    match error:
        case TimeoutError():
            return "context deadline exceeded"
        case aiohttp.ClientConnectorCertificateError():
            return f"tls: failed to verify certificate: x509: {error.certificate_error}"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return f"dial tcp {error.host}:{error.port}: connect: connection refused"
        case aiohttp.ServerDisconnectedError():
            return "EOF"
        case aiohttp.ClientPayloadError():
            return "unexpected EOF"
        case ConnectionResetError() | aiohttp.ClientOSError(errno=104):
            return "read: connection reset by peer"
    return str(error)


def _refusal(status: int, body: bytes) -> str:
    """What client-go makes of an HTTP status that is not 200 (NewGenericServerResponse)."""
    texts = {
        400: "the server rejected our request for an unknown reason",
        401: "the server has asked for the client to provide credentials",
        404: "the server could not find the requested resource",
        405: "the server does not allow this method on the requested resource",
        429: "the server has received too many requests and has asked us to try again later",
        503: "the server is currently unable to handle the request",
    }
    if status in texts:
        return texts[status]
    if status >= 500:
        said = body[:2048].decode(errors="replace")
        return f'an error on the server ("{said}") has prevented the request from succeeding'
    return f"the server responded with the status code {status} but did not return more information"


def _checked(body: bytes, uid: str, *, mutating: bool) -> Response:
    """Read a review that answers the request ``uid`` (webhook/request, VerifyAdmissionResponse)."""
    try:
        review = orjson.loads(body)
        version, kind = review.get("apiVersion", ""), review.get("kind", "")
        response = review.get("response")
    except (ValueError, AttributeError) as error:
        raise CallError(
            f"failed to call webhook: couldn't get version/kind; json parse error: {error}"
        ) from None
    if kind not in {"", "AdmissionReview"}:
        raise CallError(f'failed to call webhook: no kind "{kind}" is registered for version "{version}"')
    if not isinstance(response, dict):
        raise CallError(f"{_WRONG}webhook response was absent")
    if response.get("uid") != uid:
        raise CallError(f'{_WRONG}expected response.uid="{uid}", got "{response.get("uid", "")}"')
    wanted, got = "admission.k8s.io/v1, Kind=AdmissionReview", f"{version}, Kind={kind}"
    if got != wanted:
        raise CallError(f"{_WRONG}expected webhook response of {wanted}, got {got}")
    return Response(
        allowed=response.get("allowed") is True,
        warnings=response.get("warnings") or [],
        annotations=response.get("auditAnnotations") or {},
        status=response.get("status") or {},
        patch=_patch(response, mutating=mutating),
    )


def _patch(response: Obj, *, mutating: bool) -> bytes:
    patch, patch_type = response.get("patch"), response.get("patchType")
    if not mutating:
        for name in ("patch", "patchType"):
            if response.get(name):
                raise CallError(f"{_WRONG}validating webhook may not return response.{name}")
        return b""
    if patch and patch_type is None:
        raise CallError(f"{_WRONG}webhook returned response.patch but not response.patchType")
    if not patch:
        if patch_type is not None:
            raise CallError(f"{_WRONG}webhook returned response.patchType but not response.patch")
        return b""
    if not patch_type:
        raise CallError(f'{_WRONG}webhook returned invalid response.patchType of "{patch_type}"')
    if patch_type != "JSONPatch":
        raise CallError(f'unsupported patch type "{patch_type}"')
    try:
        return base64.b64decode(patch, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise CallError(f"failed to call webhook: illegal base64 data: {error}") from None
