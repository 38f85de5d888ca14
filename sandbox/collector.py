"""The garbage collector and the namespace controller: what goes because something else went.

Background deletion follows ownerReferences; foreground and orphan deletion go by their finalizers
(pkg/controller/garbagecollector). Both delete as their own users, so that admission, grace and finalizers
hold; a namespace is emptied as collections are, whose reviews carry no name (pkg/controller/namespace).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sandbox.errors import ApiError
from sandbox.request import Request, Target, User

if TYPE_CHECKING:
    from sandbox.deletion import Deletion
    from sandbox.registry import Registry
    from sandbox.resources import Resource
    from sandbox.store import Record, Store

    Obj = dict[str, Any]
    Key = tuple[str, str]

__all__ = ["Collector"]

_GROUPS = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
_COLLECTOR = User("system:serviceaccount:kube-system:generic-garbage-collector", _GROUPS)
_EMPTIER = User("system:serviceaccount:kube-system:namespace-controller", _GROUPS)
_NAMESPACES = ("", "namespaces")


class Collector:
    """A loop over all changes; ``stall`` makes it lag, ``resume`` lets it catch up."""

    def __init__(
        self, store: Store, registry: Registry, deletion: Deletion, resources: tuple[Resource, ...]
    ) -> None:
        self._store = store
        self._registry = registry
        self._deletion = deletion
        self._resources: dict[tuple[str, str], Resource] = {}
        self._running = asyncio.Event()
        self._running.set()
        self.serve(resources)

    def serve(self, resources: tuple[Resource, ...]) -> None:
        """Collect what is of these from now on."""
        self._resources = {resource.key: resource for resource in resources}

    def stall(self) -> None:
        """Stop collecting, as a collector without a leader does."""
        self._running.clear()

    def resume(self) -> None:
        """Go on, with all that happened since."""
        self._running.set()

    async def run(self) -> None:
        """Collect until cancelled."""
        with self._store.subscribe(None) as subscription:
            while True:
                change = await subscription.next()
                await self._running.wait()
                if change.type == "DELETED":
                    await self._owner_gone(change.record)
                else:
                    await self._written(change.key, change.record)

    async def _owner_gone(self, record: Record) -> None:
        for key, dependent in self._store.dependents(record.object["metadata"]["uid"]):
            await self._collect_if_ownerless(key, dependent)
        await self._owners_of_deleted(record)
        await self._finish_namespace(record.place[0])

    async def _written(self, key: Key, record: Record) -> None:
        metadata = record.object["metadata"]
        if metadata.get("ownerReferences"):
            await self._collect_if_ownerless(key, record)
        if metadata.get("deletionTimestamp"):
            finalizers = metadata.get("finalizers") or ()
            if "orphan" in finalizers:
                await self._orphan(key, record)
            if "foregroundDeletion" in finalizers:
                await self._delete_in_foreground(key, record)
            if key == _NAMESPACES:
                await self._empty_namespace(metadata["name"])

    async def _collect_if_ownerless(self, key: Key, record: Record) -> None:
        owners = record.object["metadata"].get("ownerReferences") or ()
        if owners and not any(self._store.holds_uid(owner["uid"]) for owner in owners):
            await self._delete(key, record, "Background")

    async def _owners_of_deleted(self, record: Record) -> None:
        for owner in record.object["metadata"].get("ownerReferences") or ():
            found = self._store.by_uid(owner["uid"])
            if found and "foregroundDeletion" in (found[1].object["metadata"].get("finalizers") or ()):
                await self._delete_in_foreground(*found)

    async def _delete_in_foreground(self, key: Key, record: Record) -> None:
        uid = record.object["metadata"]["uid"]
        dependents = self._store.dependents(uid)
        for dependent_key, dependent in dependents:
            if not dependent.object["metadata"].get("deletionTimestamp"):
                has_dependents = self._store.dependents(dependent.object["metadata"]["uid"])
                await self._delete(dependent_key, dependent, "Foreground" if has_dependents else "Background")
        if not any(_blocks(dependent, uid) for _, dependent in self._store.dependents(uid)):
            await self._drop_finalizer(key, record, "foregroundDeletion")

    async def _orphan(self, key: Key, record: Record) -> None:
        uid = record.object["metadata"]["uid"]
        for dependent_key, dependent in self._store.dependents(uid):
            request = self._request("patch", dependent_key, dependent)
            with suppress(ApiError):
                await self._registry.rewrite(request, lambda current: _without_owner(current, uid))
        await self._drop_finalizer(key, record, "orphan")

    async def _drop_finalizer(self, key: Key, record: Record, finalizer: str) -> None:
        def drop(current: Obj) -> Obj:
            finalizers = [name for name in current["metadata"].get("finalizers") or () if name != finalizer]
            return current | {"metadata": current["metadata"] | {"finalizers": finalizers}}

        with suppress(ApiError):
            await self._registry.rewrite(self._request("patch", key, record), drop)

    async def _empty_namespace(self, name: str) -> None:
        for key in self._store.resources():
            for record in self._store.records(key, name) if key in self._resources else ():
                if not record.object["metadata"].get("deletionTimestamp"):
                    request = self._request("deletecollection", key, record, _EMPTIER)
                    with suppress(ApiError):
                        await self._deletion.delete(request, {"propagationPolicy": "Background"})
        await self._finish_namespace(name)

    async def _finish_namespace(self, name: str) -> None:
        namespace = self._store.get(_NAMESPACES, "", name) if name else None
        if namespace is None or not namespace.object["metadata"].get("deletionTimestamp"):
            return
        if not any(self._store.records(key, name) for key in self._store.resources()):
            self._store.delete(_NAMESPACES, "", name)

    async def _delete(self, key: Key, record: Record, policy: str) -> None:
        options = {"propagationPolicy": policy, "preconditions": {"uid": record.object["metadata"]["uid"]}}
        with suppress(ApiError):
            await self._deletion.delete(self._request("delete", key, record), options)

    def _request(self, verb: str, key: Key, record: Record, user: User = _COLLECTOR) -> Request:
        resource = self._resources[key]
        namespace, name = record.place
        return Request(verb, Target(resource, resource.versions[0], namespace, name), {}, user)


def _blocks(dependent: Record, uid: str) -> bool:
    owners = dependent.object["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)


def _without_owner(found: Obj, uid: str) -> Obj:
    owners = [owner for owner in found["metadata"].get("ownerReferences") or () if owner["uid"] != uid]
    return found | {"metadata": found["metadata"] | {"ownerReferences": owners}}
