"""Create and update with the rules of the generic registry (apiserver/pkg/registry/generic).

Left out: pod spec immutability, `binding`, `scale` and `exec` subresources, field validation. A mutating
webhook does not see the status that a creation brings, nor what an update brings that its resource may not
change.
"""

from __future__ import annotations

import secrets
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from sandbox.defaults import check_decodes, default, validate, validate_update
from sandbox.errors import (
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    precondition_failed,
    version_required,
)
from sandbox.ownership import Manager, updated

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from sandbox.request import Request, Target
    from sandbox.resources import Resource
    from sandbox.store import Record, Store

    Obj = dict[str, Any]

    Ownership = Callable[[Obj | None, Obj], list[Obj]]

    class Admission(Protocol):
        """Asked before anything is stored: `mutate`, then `admit`; each raises ``ApiError`` to refuse."""

        async def mutate(
            self, request: Request, operation: str, new: Obj | None, old: Obj | None, options: Obj
        ) -> Obj | None: ...

        async def admit(
            self, request: Request, operation: str, new: Obj | None, old: Obj | None, options: Obj
        ) -> None: ...


__all__ = ["Registry", "copy_of", "timestamp"]

_ATTEMPTS = 5
_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_NAMESPACES = ("", "namespaces")
_PODS = ("", "pods")
_SET_BY_SERVER = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


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
        if new["metadata"].get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for name in _SET_BY_SERVER:
            new["metadata"].pop(name, None)
        if resource.has_status:
            new.pop("status", None)
        new = default(resource, new)
        self._check_namespace(request)
        _own(request, None, new, own)
        options = _options(request, "CreateOptions")
        new = _begun(request, await self._admission.mutate(request, "CREATE", new, None, options) or new)
        await self._admission.admit(request, "CREATE", new, None, options)
        namespace, name = new["metadata"].get("namespace", ""), new["metadata"]["name"]
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
            new = _merged(request, change(shown), old)
            _own(request, old, new, own)
            options = _options(request, "UpdateOptions")
            mutated = await self._admission.mutate(request, "UPDATE", new, old, options) or new
            new = _changed(request, mutated, old)
            await self._admission.admit(request, "UPDATE", new, old, options)
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


def _begun(request: Request, found: Obj) -> Obj:
    """Make what is stored of what the mutating webhooks leave of a creation (rest.BeforeCreate)."""
    resource = request.resource
    new = _incoming(request, found | {"apiVersion": request.target.api_version})
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
    for name in _SET_BY_SERVER:
        metadata.pop(name, None)
    metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
    if resource.has_generation:
        metadata["generation"] = 1
    new = default(resource, new)
    validate(resource, new)
    return new


def _merged(request: Request, proposed: Obj, old: Obj) -> Obj:
    """Keep of ``proposed`` what this request may change; the generation is not counted yet."""
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
        new = old | {"metadata": _metadata_beside_status(resource, metadata, before)}
        new.pop("status", None)
        if "status" in proposed:
            new["status"] = proposed["status"]
    elif resource.has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    return default(resource, new)


def _metadata_beside_status(resource: Resource, metadata: Obj, before: Obj) -> Obj:
    """Return the metadata that a write of the status leaves.

    That of a custom kind stays as it was. A built-in kind's labels, annotations and finalizers go with its
    status; only the owners of a pod are protected (podStatusStrategy of pkg/registry/core/pod/strategy.go).
    """
    if resource.custom:
        return dict(before)
    if resource.key != _PODS:
        return metadata
    owners = {name: before[name] for name in ("ownerReferences",) if name in before}
    return {name: value for name, value in metadata.items() if name != "ownerReferences"} | owners


def _changed(request: Request, found: Obj, old: Obj) -> Obj:
    """Make what is stored of what the mutating webhooks leave of an update (rest.BeforeUpdate)."""
    resource = request.resource
    new = _merged(request, found | {"apiVersion": request.target.api_version}, old)
    if "managedFields" in found["metadata"]:
        new["metadata"]["managedFields"] = found["metadata"]["managedFields"]
    validate(resource, new)
    validate_update(resource, new, old)
    if resource.has_generation and _generation_counts(new, resource) != _generation_counts(old, resource):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    return new


def _incoming(request: Request, body: Any) -> Obj:
    """Return what a request brings, in the stored version and placed where its path says. Raises 400."""
    target = request.target
    resource = target.resource
    if not isinstance(body, dict) or not isinstance(body.get("metadata") or {}, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    check_decodes(resource, body if body.get("metadata") else body | {"metadata": {}})
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
