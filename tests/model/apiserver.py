"""The API server of the model: objects, versions, every change; and whose order each version holds.

In memory and synchronous. It knows what the controllers' writes rely on: versions, generations, the status
subresource, graceful deletion of pods, and that a change of nothing is no write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sandbox.controllers.kinds import (
    JOBS,
    JOBSETS,
    NODES,
    PODS,
    TRAINJOBS,
    Kind,
    Object,
    is_terminal,
    is_terminating,
    timestamp,
)
from sandbox.controllers.world import Changed
from sandbox.defaults import default
from sandbox.patching import merge_patch
from sandbox.resources import RESOURCES
from tests.model.executions import Executions

_RESOURCES = {resource.kind: resource for resource in RESOURCES}
_CHAIN = frozenset({TRAINJOBS, JOBSETS, JOBS})
GRACE_SECONDS = 30


class RefusedError(Exception):
    """The API server does not take a write; `reason` is that of the metav1.Status."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Written:
    """One committed write: the object before and after it, None where there is none."""

    kind: Kind
    before: Object | None
    after: Object | None


class ApiServer:
    """Objects by kind, namespace and name. Nobody changes an object that is stored."""

    def __init__(self, now: datetime, job_defaults: Object) -> None:
        self.now = now
        self.revision = 1
        self.executions = Executions()
        self.log: dict[Kind, list[Changed]] = defaultdict(list)
        self._objects: dict[Kind, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._made = 0
        self._created: dict[tuple[Kind, str], int] = {}
        self._job_defaults = job_defaults

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._objects[kind].get((namespace, name))

    def all(self, kind: Kind) -> list[Object]:
        return list(self._objects[kind].values())

    def kinds(self) -> Iterable[Kind]:
        return [kind for kind, objects in self._objects.items() if objects]

    def holds_uid(self, kind: str, name: str, uid: str, namespace: str) -> bool:
        """Tell whether the object that an owner reference names exists."""
        for found, objects in self._objects.items():
            if found.name == kind:
                owner = objects.get((namespace, name))
                return owner is not None and owner["metadata"]["uid"] == uid
        return False

    def created_since(self, kind: Kind, name: str, revision: int) -> bool:
        """Tell whether an object of this name was made after a revision."""
        return self._created.get((kind, name), 0) > revision

    def as_of(self, kind: Kind, changes: int) -> list[Object]:
        """The objects of a kind as they were after its first so many changes."""
        items: dict[tuple[str, str], Object] = {}
        for change in self.log[kind][:changes]:
            if change.gone:
                items.pop(_key(change.item), None)
            else:
                items[_key(change.item)] = change.item
        return list(items.values())

    def prepared(self, kind: Kind, body: Object) -> Object:
        """What a creation would store, before its version."""
        self._made += 1
        metadata = {k: v for k, v in body["metadata"].items() if k != "generateName"}
        metadata.setdefault("name", f"{body['metadata'].get('generateName', '')}{self._made}")
        metadata |= {"uid": f"uid-{self._made}", "creationTimestamp": timestamp(self.now), "generation": 1}
        made = {**body, "apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
        if kind is JOBS:
            made["spec"] = {**self._job_defaults, **made["spec"]}
        if kind is not NODES:
            made.pop("status", None)
        return default(_RESOURCES[kind.name], made)

    def create(self, kind: Kind, body: Object) -> Written:
        """Create an object. Raises `RefusedError`."""
        return self.store_new(kind, self.prepared(kind, body))

    def store_new(self, kind: Kind, made: Object) -> Written:
        """Store what `prepared` made. Raises `RefusedError`."""
        if _key(made) in self._objects[kind]:
            raise RefusedError("AlreadyExists")
        written = self._commit(kind, None, made)
        self._created[kind, made["metadata"]["name"]] = self.revision
        return written

    def current(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return an object. Raises `RefusedError`."""
        found = self.get(kind, namespace, name)
        if found is None:
            raise RefusedError("NotFound")
        return found

    def patched(self, kind: Kind, found: Object, body: Object, subresource: str) -> Object:
        """What a merge patch would make of an object. Raises `RefusedError`."""
        given = (body.get("metadata") or {}).get("resourceVersion")
        if given and given != found["metadata"]["resourceVersion"]:
            raise RefusedError("Conflict")
        merged: Object = merge_patch(found, body)
        if subresource == "status":
            return {**found, "status": merged.get("status") or {}}
        made = {**merged, "status": found["status"]} if "status" in found else dict(merged)
        made["metadata"] = {
            **merged["metadata"],
            **{k: found["metadata"][k] for k in ("uid", "generation", "resourceVersion")},
        }
        made = default(_RESOURCES[kind.name], made)
        if made["spec"] != found.get("spec"):
            made["metadata"]["generation"] += 1
        return made

    def replace(self, kind: Kind, found: Object, made: Object) -> Written:
        """Store `made` in the place of the current version."""
        if made == found:
            return Written(kind, found, found)
        return self._commit(kind, found, made)

    def patch(self, kind: Kind, namespace: str, name: str, body: Object, subresource: str = "") -> Written:
        """Merge-patch an object. Raises `RefusedError`."""
        found = self.current(kind, namespace, name)
        return self.replace(kind, found, self.patched(kind, found, body, subresource))

    def bind(self, namespace: str, name: str, uid: str, node: str) -> Written:
        """Give a pod a node. Raises `RefusedError`."""
        found = self.current(PODS, namespace, name)
        if found["metadata"]["uid"] != uid or found["spec"].get("nodeName") or is_terminating(found):
            raise RefusedError("Conflict")
        return self._commit(PODS, found, {**found, "spec": {**found["spec"], "nodeName": node}})

    def delete(
        self, kind: Kind, namespace: str, name: str, uid: str | None = None, grace_seconds: int | None = None
    ) -> Written:
        """Delete an object, or mark a pod that a kubelet has to stop first. Raises `RefusedError`."""
        found = self.current(kind, namespace, name)
        if uid is not None and found["metadata"]["uid"] != uid:
            raise RefusedError("Conflict")
        waits = kind is PODS and found["spec"].get("nodeName") and not is_terminal(found)
        grace = (GRACE_SECONDS if grace_seconds is None else grace_seconds) if waits else 0
        if not grace:
            return self._remove(kind, found)
        if is_terminating(found):
            return Written(kind, found, found)
        ends = timestamp(self.now + timedelta(seconds=grace))
        metadata = {**found["metadata"], "deletionTimestamp": ends, "deletionGracePeriodSeconds": grace}
        return self._commit(kind, found, {**found, "metadata": metadata})

    def ownerless(self) -> Iterator[tuple[Kind, Object]]:
        """The objects whose owners are all gone, as the garbage collector finds them by live reads."""
        for kind, objects in self._objects.items():
            for item in objects.values():
                owners = item["metadata"].get("ownerReferences") or ()
                namespace = item["metadata"].get("namespace", "")
                if owners and not any(
                    self.holds_uid(owner["kind"], owner["name"], owner["uid"], namespace) for owner in owners
                ):
                    yield kind, item

    def _commit(self, kind: Kind, before: Object | None, after: Object) -> Written:
        self.revision += 1
        stored = {**after, "metadata": {**after["metadata"], "resourceVersion": str(self.revision)}}
        self._objects[kind][_key(stored)] = stored
        self.log[kind].append(Changed(kind, stored))
        if kind in _CHAIN:
            self.executions.carry_over(before, stored)
        return Written(kind, before, stored)

    def _remove(self, kind: Kind, found: Object) -> Written:
        del self._objects[kind][_key(found)]
        self.revision += 1
        last = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.revision)}}
        self.log[kind].append(Changed(kind, last, gone=True))
        return Written(kind, found, None)


def _key(item: Object) -> tuple[str, str]:
    metadata: dict[str, Any] = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
