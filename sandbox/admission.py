"""Validating webhooks, called and believed as the API server does (apiserver/pkg/admission/plugin/webhook).

Left out: mutating webhooks and matchPolicy (a rule meets the version of the request as it is). Without celpy,
matchConditions are stored and not evaluated, as by an API server before 1.27.
"""

from __future__ import annotations

import asyncio
import base64
import io
import socket
import ssl
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult

from sandbox.errors import ApiError, bad_request, forbidden, internal_error
from sandbox.match_conditions import ConditionError, MatchConditions
from sandbox.selectors import matches_label_selector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox.request import Request
    from sandbox.store import Store

    Obj = dict[str, Any]
    Services = Mapping[tuple[str, str, int], tuple[str, int]]

__all__ = ["Admission", "Reviewed"]

_CONFIGURATIONS = ("admissionregistration.k8s.io", "validatingwebhookconfigurations")
_IDLE_SECONDS = 90
_FREE_OF_SIDE_EFFECTS_ON_DRY_RUN = frozenset({"None", "NoneOnDryRun"})


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One answer of a webhook, as in the audit log: annotation keys are prefixed with the webhook's name."""

    webhook: str
    operation: str
    resource: str
    namespace: str
    name: str
    user: str
    dry_run: bool
    allowed: bool
    annotations: dict[str, str]


class _CallError(Exception):
    """The webhook gave no usable answer."""


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


class Admission:
    """Asks the webhooks whose rules match; use it as a context manager, for it keeps connections alive."""

    def __init__(self, store: Store, services: Services) -> None:
        self._store = store
        self._services = services
        self._session: aiohttp.ClientSession | None = None
        self._trusted: dict[str, ssl.SSLContext] = {}
        self._conditions = MatchConditions()
        self.audit: list[Reviewed] = []

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

    async def admit(
        self, request: Request, operation: str, new: Obj | None, old: Obj | None, options: Obj
    ) -> None:
        """Ask all matching webhooks at once. Raises the ``ApiError`` of the first, in order, that refuses."""
        if request.resource.key == _CONFIGURATIONS:
            return
        asked = [
            self._ask(webhook, request, _review(request, operation, new, old, options))
            for webhook in self._matching(request, operation, new, old)
        ]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def _matching(self, request: Request, operation: str, new: Obj | None, old: Obj | None) -> list[Obj]:
        records = sorted(self._store.records(_CONFIGURATIONS), key=lambda record: record.place)
        return [
            webhook
            for record in records
            for webhook in record.object.get("webhooks") or ()
            if any(_rule_matches(rule, request, operation) for rule in webhook.get("rules") or ())
            and self._in_namespace(webhook, request, new or old)
            and any(
                found is not None and matches_label_selector(webhook.get("objectSelector"), found)
                for found in (new, old)
            )
        ]

    def _in_namespace(self, webhook: Obj, request: Request, found: Obj | None) -> bool:
        target = request.target
        if target.resource.kind != "Namespace":
            if not target.namespace:
                return True
            record = self._store.get(("", "namespaces"), "", target.namespace)
            found = record.object if record else None
        return found is not None and matches_label_selector(webhook.get("namespaceSelector"), found)

    async def _is_to_be_called(self, webhook: Obj, request: Request, review: Obj) -> bool:
        """Whether the matchConditions hold; one that errs follows the failurePolicy (ShouldCallHook)."""
        try:
            return await self._conditions.hold(webhook.get("matchConditions") or (), review["request"])
        except ConditionError as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return False
            raise forbidden(request.resource, review["request"]["name"], str(error)) from None

    async def _ask(self, webhook: Obj, request: Request, review: Obj) -> None:
        if not await self._is_to_be_called(webhook, request, review):
            return
        name = webhook["name"]
        if request.dry_run and webhook.get("sideEffects") not in _FREE_OF_SIDE_EFFECTS_ON_DRY_RUN:
            raise bad_request(f'admission webhook "{name}" does not support dry run')
        try:
            response = _checked(await self._call(webhook, review), review["request"]["uid"])
        except _CallError as error:
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return
            raise internal_error(f'failed calling webhook "{name}": {error}') from None
        request.warnings.extend(response.get("warnings") or ())
        annotations: dict[str, str] = response.get("auditAnnotations") or {}
        allowed = response.get("allowed") is True
        self.audit.append(
            Reviewed(
                webhook=name,
                operation=review["request"]["operation"],
                resource=request.resource.qualified,
                namespace=request.target.namespace,
                name=review["request"]["name"],
                user=request.user.name,
                dry_run=request.dry_run,
                allowed=allowed,
                annotations={f"{name}/{key}": value for key, value in annotations.items()},
            )
        )
        if not allowed:
            raise _denial(name, response.get("status") or {})

    async def _call(self, webhook: Obj, review: Obj) -> bytes:
        client = webhook["clientConfig"]
        seconds = webhook.get("timeoutSeconds", 10)
        url = f"{_url(client)}?timeout={seconds}s"
        if self._session is None:
            raise _CallError("failed to call webhook: the API server is shut down")
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
            raise _CallError(f'failed to call webhook: Post "{url}": {_why(error)}') from None
        if response.status != 200:
            raise _CallError(f"failed to call webhook: {_refusal(response.status, body)}")
        return body

    def _trust(self, bundle: str) -> ssl.SSLContext:
        if bundle not in self._trusted:
            roots = base64.b64decode(bundle).decode() or None
            self._trusted[bundle] = ssl.create_default_context(cadata=roots)
        return self._trusted[bundle]


def _denial(name: str, status: Obj) -> ApiError:
    """Make the refusal of a webhook into the answer of the API server (webhook/errors, ToStatusErr)."""
    denied = f'admission webhook "{name}" denied the request'
    message, reason = status.get("message", ""), status.get("reason", "")
    explained = f"{denied}: {message or reason}" if message or reason else f"{denied} without explanation"
    return ApiError(max(400, status.get("code", 0)), reason, explained, status.get("details"))


def _review(request: Request, operation: str, new: Obj | None, old: Obj | None, options: Obj) -> Obj:
    target = request.target
    resource = target.resource
    kind = {"group": resource.group, "version": target.version, "kind": resource.kind}
    named = {"group": resource.group, "version": target.version, "resource": resource.plural}
    version = resource.api_version(target.version)
    asked: Obj = {"uid": str(uuid.uuid4()), "kind": kind, "resource": named}
    if target.subresource:
        asked["subResource"] = target.subresource
    asked |= {"requestKind": kind, "requestResource": named}
    if target.subresource:
        asked["requestSubResource"] = target.subresource
    asked["name"] = target.name or (new or {}).get("metadata", {}).get("name", "")
    if target.namespace:
        asked["namespace"] = target.namespace
    asked |= {
        "operation": operation,
        "userInfo": {"username": request.user.name, "groups": list(request.user.groups)},
        "object": new and new | {"apiVersion": version},
        "oldObject": old and old | {"apiVersion": version},
        "dryRun": request.dry_run,
        "options": options,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked}


def _rule_matches(rule: Obj, request: Request, operation: str) -> bool:
    target = request.target

    def among(name: str, value: str) -> bool:
        return not {"*", value}.isdisjoint(rule.get(name) or ())

    scope = "Namespaced" if target.resource.namespaced else "Cluster"
    return (
        rule.get("scope", "*") in {"*", scope}
        and among("operations", operation)
        and among("apiGroups", target.resource.group)
        and among("apiVersions", target.version)
        and any(_resource_matches(wanted, request) for wanted in rule.get("resources") or ())
    )


def _resource_matches(wanted: str, request: Request) -> bool:
    resource, _, subresource = wanted.partition("/")
    target = request.target
    return resource in {"*", target.resource.plural} and subresource in {"*", target.subresource}


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


def _checked(body: bytes, uid: str) -> Obj:
    """Return the response of a review that answers the request ``uid`` (request.VerifyAdmissionResponse)."""
    try:
        review = orjson.loads(body)
        version, kind = review.get("apiVersion", ""), review.get("kind", "")
        response = review.get("response")
    except (ValueError, AttributeError) as error:
        raise _CallError(
            f"failed to call webhook: couldn't get version/kind; json parse error: {error}"
        ) from None
    if kind not in {"", "AdmissionReview"}:
        raise _CallError(f'failed to call webhook: no kind "{kind}" is registered for version "{version}"')
    wrong = "received invalid webhook response: "
    if not isinstance(response, dict):
        raise _CallError(f"{wrong}webhook response was absent")
    if response.get("uid") != uid:
        raise _CallError(f'{wrong}expected response.uid="{uid}", got "{response.get("uid", "")}"')
    wanted, got = "admission.k8s.io/v1, Kind=AdmissionReview", f"{version}, Kind={kind}"
    if got != wanted:
        raise _CallError(f"{wrong}expected webhook response of {wanted}, got {got}")
    if response.get("patch"):
        raise _CallError(f"{wrong}validating webhook may not return response.patch")
    return response
