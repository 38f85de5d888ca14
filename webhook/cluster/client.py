"""What can be done with any resource of the API server: read, write, list and watch it.

Every read either returns what the API server answered, decoded, or raises `ReadFailedError` with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

import orjson

from webhook.cluster.answers import (
    Target,
    WriteConflictedError,
    document_of,
    items_of,
    reason,
    says_that_the_object_is_absent,
)
from webhook.cluster.observer import NOBODY, Observer
from webhook.cluster.resource import Resource
from webhook.cluster.transport import JSON, Request, Transport
from webhook.rule.verdict import Failure

_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"

_METADATA = f"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{JSON}"
_METADATA_LIST = f"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
"""What the API server does not know as metadata alone, it may answer whole."""

_METADATA_LIST_KIND = "PartialObjectMetadataList"


@dataclass(frozen=True, slots=True)
class Page:
    """Some items of a list; `more` tells that the API server holds back others. `version` is the list's."""

    items: list[Any]
    more: bool
    version: str = ""


class Client:
    """What can be done with any `Resource` of one API server. `observer` is told what fails."""

    def __init__(self, transport: Transport, observer: Observer = NOBODY) -> None:
        self.observer = observer
        self.transport = transport

    @property
    def url(self) -> str:
        """Where the API server is."""
        return self.transport.url

    @property
    def namespace(self) -> str:
        """The namespace that the credentials name, as for kubectl; else `default`."""
        return self.transport.credentials.namespace or "default"

    @property
    def namespace_of_this_pod(self) -> str | None:
        """The namespace that this process runs in; None where it is not there by a pod's ServiceAccount."""
        return self.transport.credentials.namespace_of_this_pod

    @property
    def warning(self) -> str | None:
        """What a person has to know of where the credentials come from."""
        return self.transport.credentials.warning

    def when_asking(self, told: Callable[[bool], None]) -> None:
        """Have it told before an exec plugin may ask at the terminal, and (False) when that is over."""
        self.transport.credentials.when_asking = told

    @property
    def time_of_day(self) -> datetime | None:
        """The API server's, UTC, by the `Date` of its last answer; None while none had one."""
        return self.transport.time_of_day

    def unanswered(self, what: str, *, seconds: float) -> Failure:
        """Why a read that its caller gave up on after so many seconds had no answer; the observer is told."""
        self.observer.call_failed("timeout")
        within = f"within {max(seconds, 0):.2g} s"
        credentials = self.transport.credentials
        if credentials.are_awaited:
            why = f"waiting for the credentials of {credentials.source}, which did not come {within}"
            return Failure(what, why, "Run the exec plugin of that kubeconfig by hand to see why it is slow")
        why = f"no answer from the API server {within}"
        return Failure(what, why, "Try again; if it goes on, look at the load of the API server")

    async def reach(self) -> str:
        """Ask the API server for its version, and for its API groups: every client may, but no anonymous one.

        Since Kubernetes 1.14 `system:discovery` is bound to `system:authenticated` alone, while
        `/version` still answers anybody.

        Raises:
            ReadFailedError: it does not answer, or does not accept the credentials.
        """
        target = self._target("reading the API server's version", "get /version")
        document = document_of(*await self.transport.exchange(Request(target, "/version")), target)
        await self._groups(self._discovery())
        return str(document.get("gitVersion", "unknown"))

    async def preferred_version(self, group: str) -> str | None:
        """The version of an API group that the API server prefers, or None when it does not serve the group.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        return (await self.preferred_versions()).get(group)

    async def preferred_versions(self) -> dict[str, str]:
        """The version of each API group that the API server prefers.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        return await self._preferred_versions(self._discovery())

    async def served_versions(self, group: str) -> frozenset[str]:
        """The versions of an API group that the API server serves; none when it does not serve the group.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        return frozenset(
            str(version.get("version"))
            for found in await self._groups(self._discovery())
            if isinstance(found, dict) and found.get("name") == group
            for version in found.get("versions") or ()
        )

    async def fetch(self, one: Resource) -> Mapping[str, Any] | None:
        """The object, or None when there is none.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(f"reading {one.what}", one.permission("get"))
        status, body = await self.transport.exchange(Request(target, one.path))
        if says_that_the_object_is_absent(status, body, one.name):
            return None
        return document_of(status, body, target, one.kind)

    async def create(self, one: Resource, document: Mapping[str, Any]) -> None:
        """Create the object.

        Raises:
            WriteConflictedError: there is one already.
            ReadFailedError: the API server did not take it.
        """
        target = self._target(f"creating {one.what}", one.permission("create"))
        request = Request(target, one.collection, method="POST", body=orjson.dumps(document))
        status, body = await self.transport.exchange(request)
        if status == HTTPStatus.CONFLICT:
            raise WriteConflictedError(reason(status, body))
        document_of(status, body, target, one.kind)

    async def replace(self, one: Resource, document: Mapping[str, Any]) -> None:
        """Replace the object, if it is still at the `resourceVersion` of `document`.

        Raises:
            WriteConflictedError: it is not, or it is gone.
            ReadFailedError: the API server did not take it.
        """
        target = self._target(f"replacing {one.what}", one.permission("update"))
        request = Request(target, one.path, method="PUT", body=orjson.dumps(document))
        status, body = await self.transport.exchange(request)
        if status == HTTPStatus.CONFLICT or says_that_the_object_is_absent(status, body, one.name):
            raise WriteConflictedError(reason(status, body))
        document_of(status, body, target, one.kind)

    async def patch(
        self, one: Resource, document: Mapping[str, Any], *, manager: str = "", what: str = ""
    ) -> Mapping[str, Any] | None:
        """Merge into the object (RFC 7386) and return it, or None when there is none.

        `manager` is who owns the fields; `what` says what is done, where that is more than patching.

        Raises:
            WriteConflictedError: `document` has a `resourceVersion` that is no longer the object's.
            ReadFailedError: the API server did not take it.
        """
        query = {"fieldManager": manager} if manager else {}
        target = self._target(what or f"patching {one.what}", one.permission("patch"))
        return await self._patched(one, document, target, query, _MERGE)

    async def apply(
        self, one: Resource, document: Mapping[str, Any], *, manager: str
    ) -> Mapping[str, Any] | None:
        """Apply to the object, server-side and with force, and return it, or None when there is none.

        Raises:
            WriteConflictedError: `document` has a `resourceVersion` that is no longer the object's.
            ReadFailedError: the API server did not take it.
        """
        query = {"fieldManager": manager, "force": "true"}
        target = self._target(f"writing {one.what}", one.permission("patch"))
        return await self._patched(one, document, target, query, _APPLY)

    async def listed(
        self,
        collection: Resource,
        *,
        labels: str = "",
        fields: str = "",
        at_most: int,
        metadata_only: bool = False,
    ) -> AsyncGenerator[Page, None]:
        """All objects of a collection, in pages of `at_most`.

        `resourceVersion` is left unset: a read from etcd, or a cache proven to be as fresh. With `0` the API
        server would answer from a cache of any age.

        With `metadata_only` objects come without spec and status, where the API server can do that.

        Raises:
            ReadFailedError: there is no readable answer.
        """
        target = self._target(f"listing {collection.what}", collection.permission("list"))
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        query = {"limit": str(at_most)} | {name: value for name, value in selectors.items() if value}
        accept = _METADATA_LIST if metadata_only else JSON
        kinds = (collection.list_kind, *((_METADATA_LIST_KIND,) if metadata_only else ()))
        token = ""
        while True:
            asked = {**query, "continue": token} if token else query
            request = Request(target, collection.collection, asked, accept=accept)
            document = document_of(*await self.transport.exchange(request), target, *kinds)
            metadata = document.get("metadata")
            if not isinstance(metadata, dict):
                raise target.failed("the answer does not tell whether it is the whole list")
            following = metadata.get("continue", "")
            if not isinstance(following, str):
                raise target.failed("the answer's continue token is no string")
            version = str(metadata.get("resourceVersion", ""))
            # Go's empty list: response.go of the API server fills in `[]` for every other kind of list alone.
            is_none = document.get("kind") == _METADATA_LIST_KIND and document.get("items", "") is None
            items = [] if is_none else items_of(document, "items", target)
            yield Page(items, more=bool(following), version=version)
            if not following:
                return
            if following == token:
                raise target.failed("the list does not go on where it says it does")
            token = following

    async def watch(
        self,
        collection: Resource,
        *,
        labels: str = "",
        version: str = "",
        lasts: int | None = None,
        seconds: float | None = None,
        metadata_only: bool = False,
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """The events of a collection, bookmarks among them, until the API server or the network ends them.

        It goes on from `version`; without one it tells first of what there is. The API server is asked to end
        it after `lasts` seconds; after `seconds` it is given up.

        Raises:
            ReadFailedError: there is no watch, it broke off, or it told of an error, such as a version that
                is too old (410).
        """
        given = {
            "labelSelector": labels,
            "resourceVersion": version,
            "timeoutSeconds": "" if lasts is None else str(lasts),
        }
        query = {"watch": "true", "allowWatchBookmarks": "true"}
        query |= {name: value for name, value in given.items() if value}
        target = self._target(f"watching {collection.what}", collection.permission("watch"))
        accept = _METADATA if metadata_only else JSON
        request = Request(target, collection.collection, query, accept=accept)
        async with aclosing(self.transport.stream(request, seconds=seconds)) as events:
            async for event in events:
                yield event

    async def _patched(
        self,
        one: Resource,
        document: Mapping[str, Any],
        target: Target,
        query: Mapping[str, str],
        media_type: str,
    ) -> Mapping[str, Any] | None:
        body = orjson.dumps(document)
        request = Request(target, one.path, query, method="PATCH", body=body, content_type=media_type)
        status, answer = await self.transport.exchange(request)
        if says_that_the_object_is_absent(status, answer, one.name):
            return None
        if status == HTTPStatus.CONFLICT:
            raise WriteConflictedError(reason(status, answer))
        return document_of(status, answer, target, one.kind)

    async def _preferred_versions(self, target: Target) -> dict[str, str]:
        versions: dict[str, str] = {}
        for group in await self._groups(target):
            preferred = group.get("preferredVersion") if isinstance(group, dict) else None
            if isinstance(preferred, dict):
                versions[str(group.get("name"))] = str(preferred.get("version"))
        return versions

    async def _groups(self, target: Target) -> list[Any]:
        answer = await self.transport.exchange(Request(target, "/apis"))
        return items_of(document_of(*answer, target), "groups", target)

    def _discovery(self) -> Target:
        return self._target("reading the API groups", "get /apis")

    def _target(self, what: str, permission: str) -> Target:
        return Target(what, permission, self.observer)
