"""The HTTP side: who asks, what for, and the answer in the media type that was accepted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from sandbox.applying import applied, applied_ownership
from sandbox.discovery import VERSION, discovery
from sandbox.errors import (
    ApiError,
    NotFoundError,
    PageNotFoundError,
    bad_request,
    method_not_allowed,
    too_large,
    unsupported_media_type,
)
from sandbox.faults import Faults
from sandbox.openapi import EMPTY_V2, V2_MEDIA_TYPE, openapi_v3
from sandbox.ownership import Manager
from sandbox.patching import json_patch, merge_patch, strategic_merge_patch
from sandbox.reading import View, list_encoded, one_encoded, watch_encoded
from sandbox.registry import timestamp
from sandbox.request import EVICTION, Request, decode, find_target, verb_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from sandbox.access import Access
    from sandbox.deletion import Deletion
    from sandbox.eviction import Evictions
    from sandbox.faults import Fault
    from sandbox.registry import Registry
    from sandbox.resources import Resource
    from sandbox.store import Store

    Obj = dict[str, Any]

__all__ = ["ApiServer", "Asked", "Writes"]

BODY_LIMIT = 3 * 1024 * 1024
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_APPLY = "application/apply-patch+yaml"
_PATCHES = {_JSON_PATCH: json_patch, _MERGE_PATCH: merge_patch, _STRATEGIC_PATCH: strategic_merge_patch}
_REASONS = {
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One API request as it arrived, for tests to look at."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    query: dict[str, str]
    user: str
    dry_run: bool
    user_agent: str


@dataclass(frozen=True, slots=True)
class Writes:
    """What writes go through."""

    registry: Registry
    deletion: Deletion
    evictions: Evictions


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _warning_headers(response: web.Response, warnings: Sequence[str]) -> web.Response:
    for warning in warnings:
        text = warning.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        response.headers.add("Warning", f'299 - "{text}"')
    return response


class ApiServer:
    """Answers requests out of a store; owns nothing that has to be closed."""

    def __init__(
        self,
        store: Store,
        writes: Writes,
        access: Access,
        resources: Sequence[Resource],
        bookmark_seconds: float,
    ) -> None:
        self._store = store
        self._registry = writes.registry
        self._deletion = writes.deletion
        self._evictions = writes.evictions
        self._access = access
        self.resources = resources
        self._bookmark_seconds = bookmark_seconds
        self.requests: list[Asked] = []
        self.faults = Faults()

    def application(self, stopping: asyncio.Event) -> web.Application:
        """Make the aiohttp application; watches end when ``stopping`` is set."""
        application = web.Application(client_max_size=BODY_LIMIT)

        async def handle(incoming: web.Request) -> web.StreamResponse:
            return await self._answer(incoming, stopping)

        application.router.add_route("*", "/{path:.*}", handle)
        return application

    async def _answer(self, incoming: web.Request, stopping: asyncio.Event) -> web.StreamResponse:
        warnings: list[str] = []
        try:
            if incoming.path in {"/healthz", "/readyz", "/livez"}:
                return web.Response(text="ok")
            user = self._access.impersonated(
                self._access.authenticate(incoming.headers.get("Authorization", "")), incoming.headers
            )
            if incoming.path == "/openapi/v2":
                return web.Response(body=EMPTY_V2, headers={"Content-Type": V2_MEDIA_TYPE})
            document = self._document(incoming)
            if document is not None:
                return _json(orjson.dumps(document))
            target = find_target(incoming.path, self.resources)
            verb = verb_of(incoming.method, target, incoming.query)
            agent = incoming.headers.get("User-Agent", "")
            request = Request(verb, target, incoming.query, user, agent, warnings)
            self._note(request)
            fault = self.faults.meeting(request)
            if fault is not None:
                return await self._fail(incoming, request, fault, stopping)
            self._access.authorize(request)
            return await self._serve(incoming, request, stopping)
        except PageNotFoundError as error:
            return web.Response(text=f"{error.message}\n", status=404)
        except ApiError as error:
            return _warning_headers(_json(orjson.dumps(error.status()), error.code), warnings)
        except web.HTTPRequestEntityTooLarge:
            return _json(orjson.dumps(too_large(BODY_LIMIT).status()), 413)

    def _document(self, incoming: web.Request) -> Obj | None:
        if incoming.method != "GET":
            return None
        if incoming.path == "/version":
            return VERSION
        return discovery(incoming.path, self.resources) or openapi_v3(incoming.path, self.resources)

    def _note(self, request: Request) -> None:
        target = request.target
        self.requests.append(
            Asked(
                verb=request.verb,
                group=target.resource.group,
                resource=target.resource.plural,
                subresource=target.subresource,
                namespace=target.namespace,
                name=target.name,
                query=dict(request.query),
                user=request.user.name,
                dry_run=request.dry_run,
                user_agent=request.user_agent,
            )
        )

    async def _fail(
        self, incoming: web.Request, request: Request, fault: Fault, stopping: asyncio.Event
    ) -> web.StreamResponse:
        fault.hit()
        if fault.disconnects:
            return _hang_up(incoming)
        if fault.status is not None:
            body = fault.body if isinstance(fault.body, bytes) else _failure(fault.status, fault.body)
            return _json(body, fault.status)
        if fault.hangs:
            await _first(fault.removed.wait(), stopping.wait())
        await asyncio.sleep(fault.delay_seconds)
        self._access.authorize(request)
        response = await self._serve(incoming, request, stopping)
        if fault.keep_bytes is not None and isinstance(response, web.Response):
            return await _cut(incoming, response, fault.keep_bytes)
        return response

    async def _serve(
        self, incoming: web.Request, request: Request, stopping: asyncio.Event
    ) -> web.StreamResponse:
        view = View.of(request, incoming.headers.get("Accept", ""))
        match request.verb:
            case "watch":
                return await self._watch(incoming, request, view, stopping)
            case "list":
                return _json(list_encoded(self._store, request, view))
            case "get":
                return _json(one_encoded(request, self._registry.current(request).object, view))
        body = await incoming.read()
        content_type = incoming.content_type
        status = 200
        if request.verb in {"delete", "deletecollection"}:
            options = _delete_options(request, body, content_type)
            request = replace(request, dry_run_in_body=options.get("dryRun") == ["All"])
            if request.verb == "deletecollection":
                return _json(await self._delete_collection(request, options, view))
            found = await self._deletion.delete(request, options)
            return _warning_headers(_json(one_encoded(request, found, view)), request.warnings)
        match request.verb:
            case "create" if request.target.subresource == EVICTION:
                return await self._evict(request, decode(body, content_type))
            case "create":
                found = await self._registry.create(request, decode(body, content_type))
                status = 201
            case "update":
                found = await self._registry.update(request, decode(body, content_type))
            case "patch":
                found, status = await self._patch(request, body, content_type)
            case _:
                raise method_not_allowed()
        return _warning_headers(_json(one_encoded(request, found, view), status), request.warnings)

    async def _patch(self, request: Request, body: bytes, content_type: str) -> tuple[Obj, int]:
        if content_type == _APPLY:
            return await self._apply(request, decode(body, content_type))
        change = _PATCHES.get(content_type)
        if change is None or (content_type == _STRATEGIC_PATCH and request.resource.custom):
            accepted = [_JSON_PATCH, _MERGE_PATCH, _APPLY]
            raise unsupported_media_type(
                accepted if request.resource.custom else [*accepted, _STRATEGIC_PATCH]
            )
        patch = decode(body, content_type)
        return await self._registry.rewrite(request, lambda current: change(current, patch)), 200

    async def _apply(self, request: Request, configuration: Any) -> tuple[Obj, int]:
        metadata = configuration.get("metadata") if isinstance(configuration, dict) else None
        if not isinstance(metadata, dict):
            raise bad_request("the object provided is unrecognized (must be of type Object)")
        if metadata.get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if "fieldManager" not in request.query:
            raise ApiError(
                422,
                "Invalid",
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: '
                "is required for apply patch",
                {"group": "meta.k8s.io", "kind": "PatchOptions"},
            )
        force = request.query.get("force") in {"1", "true"}
        target = request.target
        api_version = target.resource.api_version(target.version)
        manager = Manager(request.field_manager, "Apply", api_version, target.subresource)

        def own(live: Obj | None, new: Obj) -> list[Obj]:
            return applied_ownership(live, new, configuration, manager, timestamp())

        try:
            self._registry.current(request)
        except ApiError:
            if target.subresource:
                raise
            return await self._registry.create(request, configuration, own), 201
        found = await self._registry.rewrite(
            request, lambda live: applied(live, configuration, manager, force=force), own
        )
        return found, 200

    async def _evict(self, request: Request, eviction: Any) -> web.Response:
        options = eviction.get("deleteOptions") if isinstance(eviction, dict) else None
        wished = isinstance(options, dict) and options.get("dryRun") == ["All"]
        status = await self._evictions.create(replace(request, dry_run_in_body=wished), eviction)
        return _warning_headers(_json(orjson.dumps(status), status["code"]), request.warnings)

    async def _delete_collection(self, request: Request, options: Obj, view: View) -> bytes:
        listed = orjson.loads(list_encoded(self._store, request, View("", None, "Metadata")))
        for found in listed["items"]:
            # One that went meanwhile is gone: that was wanted.
            with suppress(NotFoundError):
                await self._deletion.delete(request.on(found["metadata"]), options)
        return orjson.dumps(listed) if not view.shape else list_encoded(self._store, request, view)

    async def _watch(
        self, incoming: web.Request, request: Request, view: View, stopping: asyncio.Event
    ) -> web.StreamResponse:
        lines = watch_encoded(self._store, request, view, self._bookmark_seconds)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(incoming)

        async def send() -> None:
            async for line in lines:
                await response.write(line)

        await _first(send(), stopping.wait())
        return response


async def _first(*waited: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them ends; cancel the others."""
    tasks = {asyncio.ensure_future(one) for one in waited}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failure(code: int, body: Obj | None) -> bytes:
    if body is not None:
        return orjson.dumps(body)
    phrase = HTTPStatus(code).phrase
    return orjson.dumps(ApiError(code, _REASONS.get(code, phrase.replace(" ", "")), phrase).status())


def _hang_up(incoming: web.Request) -> web.Response:
    if incoming.transport is not None:
        incoming.transport.abort()
    return web.Response()


async def _cut(incoming: web.Request, whole: web.Response, keep_bytes: int) -> web.StreamResponse:
    body = whole.body
    sent = web.StreamResponse(status=whole.status, headers={"Content-Type": "application/json"})
    sent.content_length = len(body) if isinstance(body, bytes) else keep_bytes + 1
    await sent.prepare(incoming)
    await sent.write(body[:keep_bytes] if isinstance(body, bytes) else b"")
    if incoming.transport is not None:
        incoming.transport.close()
    return sent


def _delete_options(request: Request, body: bytes, content_type: str) -> Obj:
    """Read the options of a deletion from its body, and what the query says beside it."""
    options = decode(body, content_type) if body else {}
    if not isinstance(options, dict) or not isinstance(options.get("preconditions") or {}, dict):
        raise bad_request("DeleteOptions expected")
    query = request.query
    if query.get("dryRun") == "All":
        options["dryRun"] = ["All"]
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = query["gracePeriodSeconds"]
    try:
        if options.get("gracePeriodSeconds") is not None:
            options["gracePeriodSeconds"] = int(options["gracePeriodSeconds"])
    except (TypeError, ValueError):
        raise bad_request("gracePeriodSeconds must be a whole number") from None
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if options.get("orphanDependents"):
        options["propagationPolicy"] = "Orphan"
    return options
