"""Create, update and delete with the rules of the generic registry (apiserver/pkg/registry/generic).

Left out: pod spec immutability, `binding`, `eviction`, `scale` and `exec` subresources, field validation.
"""

from __future__ import annotations

import secrets
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from sandbox.defaults import default, validate, validate_update
from sandbox.errors import (
    already_exists,
    bad_request,
    conflict,
    deletion_precondition_failed,
    forbidden,
    invalid,
    not_found,
    precondition_failed,
    version_required,
)
from sandbox.ownership import Manager, updated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from sandbox.request import Request, Target
    from sandbox.resources import Resource
    from sandbox.store import Record, Store

    Obj = dict[str, Any]

    Ownership = Callable[[Obj | None, Obj], list[Obj]]

    class Admission(Protocol):
        """Asked before anything is stored; raises ``ApiError`` to refuse."""

        async def admit(
            self, request: Request, operation: str, new: Obj | None, old: Obj | None, options: Obj
        ) -> None: ...


__all__ = ["Registry", "copy_of", "timestamp"]

_ATTEMPTS = 5
_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_NAMESPACES = ("", "namespaces")
_PODS = ("", "pods")
_SET_BY_SERVER = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
_FINALIZER_OF_POLICY = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}


def copy_of(found: Obj) -> Obj:
    """Return a deep copy, by way of JSON."""
    copied: Obj = orjson.loads(orjson.dumps(found))
    return copied


def timestamp(moment: datetime | None = None) -> str:
    """Write a moment as metav1.Time: RFC 3339, UTC, whole seconds."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _generation_counts(found: Obj, resource: Resource) -> Obj:
    beside = ("metadata", "status") if resource.has_status else ("metadata",)
    return {name: value for name, value in found.items() if name not in beside}


def _own(request: Request, old: Obj | None, new: Obj, own: Ownership | None) -> None:
    if own is None:
        manager = Manager(
            request.field_manager,
            "Update",
            request.resource.api_version(request.target.version),
            request.target.subresource,
        )
        fields = updated(old, new, manager, timestamp())
    else:
        fields = own(old, new)
    new["metadata"].pop("managedFields", None)
    if fields:
        new["metadata"]["managedFields"] = fields


class Registry:
    """The writes of the API; what is stored is what ``admission`` was asked about."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self._store = store
        self._admission = admission

    def current(self, request: Request) -> Record:
        """Return the object that the request names. Raises NotFound."""
        target = request.target
        record = self._store.get(target.resource.key, target.namespace, target.name)
        if record is None:
            raise not_found(target.resource, target.name)
        return record

    async def create(self, request: Request, body: Any, own: Ownership | None = None) -> Obj:
        """Create an object; return it as stored, or as it would be on a dry run."""
        resource = request.resource
        new = _incoming(request, body)
        metadata = new["metadata"]
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))
            metadata["name"] = metadata["generateName"][:58] + suffix
        if not metadata.get("name"):
            raise invalid(
                resource,
                "",
                [("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")],
            )
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for name in _SET_BY_SERVER:
            metadata.pop(name, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        if resource.has_generation:
            metadata["generation"] = 1
        if resource.has_status:
            new.pop("status", None)
        new = default(resource, new)
        validate(resource, new)
        _own(request, None, new, own)
        self._check_namespace(request)
        await self._admission.admit(request, "CREATE", new, None, _options(request, "CreateOptions"))
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if self._store.get(resource.key, namespace, name):
            raise already_exists(resource, name)
        return new if request.dry_run else self._store.write(resource.key, new).object

    async def update(self, request: Request, body: Any) -> Obj:
        """Replace an object, or its status."""
        return await self.rewrite(request, lambda _: copy_of(body))

    async def rewrite(
        self, request: Request, change: Callable[[Obj], Obj], own: Ownership | None = None
    ) -> Obj:
        """Store what ``change`` makes of the current version; ``own`` makes its managedFields of old and new.

        Tried anew when the object changed while admission was asked, so that what is stored is what was
        reviewed against what it replaces (GuaranteedUpdate of etcd3/store.go does so). Raises Conflict when
        the change carries a resourceVersion that is not the current one.
        """
        resource = request.resource
        for _ in range(_ATTEMPTS):
            record = self.current(request)
            old = default(resource, record.object)
            shown = old | {"apiVersion": resource.api_version(request.target.version)}
            new = self._merged(request, change(shown), old)
            _own(request, old, new, own)
            await self._admission.admit(request, "UPDATE", new, old, _options(request, "UpdateOptions"))
            if self._store.get(resource.key, *record.place) is not record:
                continue
            if request.dry_run:
                return new
            if new == record.object:
                return record.object
            return self._put(resource, new)
        raise conflict(resource, request.target.name)

    def _put(self, resource: Resource, new: Obj) -> Obj:
        metadata = new["metadata"]
        waits = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not waits and resource.key != _NAMESPACES:
            return self._store.delete(resource.key, metadata.get("namespace", ""), metadata["name"]).object
        return self._store.write(resource.key, new).object

    async def delete(self, request: Request, options: Mapping[str, Any]) -> Obj:
        """Delete an object, or mark it where something has to happen first; return the object or a Status."""
        resource = request.resource
        for _ in range(_ATTEMPTS):
            record = self.current(request)
            _check_preconditions(resource, record, options.get("preconditions") or {})
            described = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"} | dict(options)
            await self._admission.admit(request, "DELETE", None, record.object, described)
            if self._store.get(resource.key, *record.place) is record:
                return self._remove(request, record, options)
        raise conflict(resource, request.target.name)

    def _remove(self, request: Request, record: Record, options: Mapping[str, Any]) -> Obj:
        resource = request.resource
        marked, goes = _marked(resource, record.object, options)
        if not request.dry_run:
            if marked is not record.object:
                marked = self._store.write(resource.key, marked).object
            if goes:
                marked = self._store.delete(resource.key, *record.place).object
        return _deleted(resource, record) if goes and not resource.returns_deleted else marked

    def _check_namespace(self, request: Request) -> None:
        target = request.target
        if not target.resource.namespaced:
            return
        namespace = self._store.get(_NAMESPACES, "", target.namespace)
        if namespace is None:
            details = {"name": target.namespace, "kind": "namespaces"}
            error = not_found(target.resource, target.namespace)
            error.message, error.details = f'namespaces "{target.namespace}" not found', details
            raise error
        if namespace.object["metadata"].get("deletionTimestamp"):
            why = (
                f"unable to create new content in namespace {target.namespace} because it is being terminated"
            )
            raise forbidden(target.resource, "", why)

    def _merged(self, request: Request, proposed: Obj, old: Obj) -> Obj:
        """Keep of ``proposed`` what this request may change, and count the generation."""
        target = request.target
        resource = target.resource
        new = _incoming(request, proposed)
        metadata, before = new["metadata"], old["metadata"]
        given = metadata.get("resourceVersion")
        if not given and resource.needs_version:
            raise version_required(resource, target.name)
        if given and given != before["resourceVersion"]:
            raise conflict(resource, target.name)
        if metadata.get("uid", before["uid"]) != before["uid"]:
            raise precondition_failed(resource, target.name, "UID", metadata["uid"], before["uid"])
        for name in _SET_BY_SERVER:
            metadata.pop(name, None)
        metadata |= {name: before[name] for name in (*_SET_BY_SERVER, "resourceVersion") if name in before}
        if target.subresource == "status":
            new = old | {"metadata": dict(before)}
            new.pop("status", None)
            if "status" in proposed:
                new["status"] = proposed["status"]
        elif resource.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        new = default(resource, new)
        validate(resource, new)
        validate_update(resource, new, old)
        if resource.has_generation and _generation_counts(new, resource) != _generation_counts(old, resource):
            new["metadata"]["generation"] = before.get("generation", 0) + 1
        return new


def _incoming(request: Request, body: Any) -> Obj:
    """Return what a request brings, in the stored version and placed where its path says. Raises 400."""
    target = request.target
    resource = target.resource
    if not isinstance(body, dict) or not isinstance(body.get("metadata") or {}, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    api_version = resource.api_version(target.version)
    for name, field, wanted in (("API version", "apiVersion", api_version), ("kind", "kind", resource.kind)):
        if body.get(field, wanted) != wanted:
            raise bad_request(
                f"the {name} in the data ({body[field]}) does not match the expected {name} ({wanted})"
            )
    metadata = dict(body.get("metadata") or {})
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        if not isinstance(metadata.get(name) or "", str):
            raise bad_request(f"json: cannot unmarshal ObjectMeta.metadata.{name}: it must be a string")
    _place(target, metadata)
    for name in ("labels", "annotations"):
        if metadata.get(name, "") is None:
            del metadata[name]
    head = {"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata}
    return head | {name: value for name, value in body.items() if name not in head}


def _place(target: Target, metadata: Obj) -> None:
    """Fill in namespace and name from the path, and refuse others."""
    if not target.resource.namespaced:
        if metadata.pop("namespace", None):
            raise bad_request("namespace is not allowed on this type")
    elif metadata.setdefault("namespace", target.namespace) != target.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request: "
            f"{metadata['namespace']} != {target.namespace}"
        )
    if target.name and metadata.setdefault("name", target.name) != target.name:
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )


def _options(request: Request, kind: str) -> Obj:
    options: Obj = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if request.dry_run:
        options["dryRun"] = ["All"]
    for name in ("fieldManager", "fieldValidation"):
        if name in request.query:
            options[name] = request.query[name]
    return options


def _check_preconditions(resource: Resource, record: Record, wanted: Mapping[str, str]) -> None:
    metadata = record.object["metadata"]
    for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field, metadata[field]) != metadata[field]:
            raise deletion_precondition_failed(
                resource, metadata["name"], name, wanted[field], metadata[field]
            )


def _deleted(resource: Resource, record: Record) -> Obj:
    metadata = record.object["metadata"]
    details = {
        "name": metadata["name"],
        "group": resource.group,
        "kind": resource.plural,
        "uid": metadata["uid"],
    }
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {name: value for name, value in details.items() if value},
    }


def _grace_seconds(resource: Resource, found: Obj, given: int | None) -> int:
    """How long the kubelet gets; registry/core/pod/strategy.go, CheckGracefulDelete."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    if resource.key != _PODS or not spec.get("nodeName"):
        return 0
    if status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    seconds: int = spec.get("terminationGracePeriodSeconds", 30) if given is None else given
    return seconds if seconds >= 0 else 1


def _marked(resource: Resource, found: Obj, options: Mapping[str, Any]) -> tuple[Obj, bool]:
    """Return the object as its deletion leaves it, itself if nothing changes, and whether it goes at once.

    A pod is marked even then: watchers see it Terminating with no grace left, and then deleted.
    """
    metadata = dict(found["metadata"])
    grace = _grace_seconds(resource, found, options.get("gracePeriodSeconds"))
    finalizers = list(metadata.get("finalizers") or ())
    wanted = _FINALIZER_OF_POLICY.get(options.get("propagationPolicy") or "")
    if wanted and wanted not in finalizers:
        finalizers.append(wanted)
    goes = not grace and not finalizers and resource.key != _NAMESPACES
    left = metadata.get("deletionGracePeriodSeconds")
    was_marked = metadata.get("deletionTimestamp")
    if (goes and resource.key != _PODS) or (was_marked and (left is None or grace >= left)):
        return found, goes
    start = (
        datetime.fromisoformat(was_marked) - timedelta(seconds=left or 0) if was_marked else datetime.now(UTC)
    )
    metadata |= {
        "deletionTimestamp": timestamp(start + timedelta(seconds=grace)),
        "deletionGracePeriodSeconds": grace,
    }
    if finalizers:
        metadata["finalizers"] = finalizers
    if "generation" in metadata:
        metadata["generation"] += 1
    marked = found | {"metadata": metadata}
    if resource.key == _NAMESPACES:
        marked["status"] = {"phase": "Terminating"}
        del metadata["deletionGracePeriodSeconds"]
    return marked, goes
