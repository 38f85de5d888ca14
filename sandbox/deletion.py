"""Deletion with grace, finalizers and preconditions (apiserver/pkg/registry/generic/registry/store.go).

A record that is marked first is admitted twice: when it is marked and when it goes. One that is marked with
no less grace already is left as it is, and nobody is asked. What admission sees of a pod's options is the
grace that it gets, whoever chose it: 0 for one that has no node, is terminal or has no grace of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sandbox.errors import conflict, deletion_precondition_failed, not_found
from sandbox.registry import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox.registry import Admission
    from sandbox.request import Request
    from sandbox.resources import Resource
    from sandbox.store import Record, Store

    Obj = dict[str, Any]

__all__ = ["Deletion", "check_preconditions"]

_ATTEMPTS = 5
_NAMESPACES = ("", "namespaces")
_PODS = ("", "pods")
_COLLECTED = frozenset({"orphan", "foregroundDeletion"})
_FINALIZERS_OF_POLICY = {"Orphan": ["orphan"], "Foreground": ["foregroundDeletion"], "Background": []}


@dataclass(frozen=True, slots=True)
class _Step:
    """What a deletion does to a record: how it is marked (None: not at all), and whether it goes then."""

    options: Obj
    marked: Obj | None
    goes: bool

    @property
    def is_pending(self) -> bool:
        return self.marked is None and not self.goes


class Deletion:
    """Deletes objects out of a store."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self._store = store
        self._admission = admission

    async def delete(self, request: Request, options: Mapping[str, Any], *, admitted: bool = False) -> Obj:
        """Delete an object, or mark it where something has to happen first; return the object or a Status.

        ``admitted`` tells that admission was asked about something else: nobody is asked about the deletion.
        """
        resource = request.resource
        for _ in range(_ATTEMPTS):
            record = self._current(request)
            if record is None:
                raise not_found(resource, request.target.name)
            check_preconditions(resource, record, options.get("preconditions") or {})
            step = _step(resource, record.object, options)
            if step.is_pending:
                return record.object
            if step.marked is None:
                return await self._remove(request, record, step.options, admitted=admitted)
            if not admitted:
                await self._admit(request, record, step.options)
            if self._current(request) is not record:
                continue
            if request.dry_run:
                return step.marked
            is_new = step.marked != record.object
            marked = self._store.write(resource.key, step.marked) if is_new else record
            if not step.goes:
                return marked.object
            return await self._remove(request, marked, step.options, admitted=admitted, is_marked=True)
        raise conflict(resource, request.target.name)

    async def _remove(
        self, request: Request, record: Record, options: Obj, *, admitted: bool, is_marked: bool = False
    ) -> Obj:
        """Take a record away; one that was marked may go by someone else's hand meanwhile."""
        resource = request.resource
        uid = record.object["metadata"]["uid"]
        for _ in range(_ATTEMPTS):
            if not admitted:
                await self._admit(request, record, options)
            current = self._current(request)
            if current is None or current.object["metadata"]["uid"] != uid:
                if is_marked:
                    return record.object
                raise not_found(resource, request.target.name)
            if current is record:
                removed = record.object
                if not request.dry_run:
                    removed = self._store.delete(resource.key, *record.place).object
                return removed if resource.returns_deleted else _deleted(resource, record)
            if not is_marked:
                check_preconditions(resource, current, options.get("preconditions") or {})
            record = current
        raise conflict(resource, request.target.name)

    def _current(self, request: Request) -> Record | None:
        target = request.target
        return self._store.get(target.resource.key, target.namespace, target.name)

    async def _admit(self, request: Request, record: Record, options: Obj) -> None:
        described = options | {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        await self._admission.mutate(request, "DELETE", None, record.object, described)
        await self._admission.admit(request, "DELETE", None, record.object, described)


def check_preconditions(resource: Resource, record: Record, wanted: Mapping[str, str]) -> None:
    """Hold the uid and version that a deletion names against the record. Raises a Conflict."""
    metadata = record.object["metadata"]
    for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) not in {None, metadata[field]}:
            raise deletion_precondition_failed(
                resource, metadata["name"], name, wanted[field], metadata[field]
            )


def _step(resource: Resource, found: Obj, given: Mapping[str, Any]) -> _Step:
    options = dict(given)
    if options.get("gracePeriodSeconds", 0) is None:
        del options["gracePeriodSeconds"]
    if options.get("gracePeriodSeconds", 0) < 0:
        options["gracePeriodSeconds"] = 1
    if resource.key == _PODS:
        return _pod_step(found, options)
    metadata = found["metadata"]
    if resource.key == _NAMESPACES:
        return _Step(options, None if metadata.get("deletionTimestamp") else _terminating(found), goes=False)
    return _finalized(found, options)


def _finalizers(metadata: Obj, options: Obj) -> list[str]:
    """Return the finalizers that a deletion leaves: those of the garbage collector follow its policy."""
    present: list[str] = list(metadata.get("finalizers") or ())
    if (wanted := _FINALIZERS_OF_POLICY.get(options.get("propagationPolicy") or "")) is None:
        return present
    kept = [name for name in present if name not in _COLLECTED]
    return present if set(present) == {*kept, *wanted} else kept + wanted


def _with_finalizers(metadata: Obj, finalizers: list[str]) -> Obj:
    left = {name: value for name, value in metadata.items() if name != "finalizers"}
    return left | ({"finalizers": finalizers} if finalizers else {})


def _finalized(found: Obj, options: Obj) -> _Step:
    """Mark what finalizers hold (markAsDeleting); the rest goes."""
    metadata = found["metadata"]
    finalizers = _finalizers(metadata, options)
    if not finalizers:
        # One whose last finalizers this deletion takes away is asked about in both steps, and not marked.
        return _Step(options, found if metadata.get("finalizers") else None, goes=True)
    now = timestamp()
    changed = {"deletionGracePeriodSeconds": 0, "deletionTimestamp": metadata.get("deletionTimestamp") or now}
    if not metadata.get("deletionTimestamp") and metadata.get("generation"):
        changed["generation"] = metadata["generation"] + 1
    marked = found | {"metadata": _with_finalizers(metadata, finalizers) | changed}
    return _Step(options, marked, goes=False)


def _pod_step(found: Obj, options: Obj) -> _Step:
    """Shorten the grace of a marked pod, or mark it (rest.BeforeDelete)."""
    metadata = found["metadata"]
    was_marked, left = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    given = options.get("gracePeriodSeconds")
    if was_marked and not left:
        return _finalized(found, options)
    if was_marked:
        if given is None or given >= left:
            return _Step(options, None, goes=False)
        begun = datetime.fromisoformat(was_marked) - timedelta(seconds=left)
        grace, changed = _shortened(begun, given), {}
        ends = max(begun + timedelta(seconds=given), datetime.now(UTC))
    else:
        options["gracePeriodSeconds"] = grace = _grace_seconds(found, given)
        ends = datetime.now(UTC) + timedelta(seconds=grace)
        changed = {"generation": metadata["generation"] + 1} if metadata.get("generation") else {}
    changed |= {"deletionTimestamp": timestamp(ends), "deletionGracePeriodSeconds": grace}
    finalizers = _finalizers(metadata, options)
    marked = found | {"metadata": _with_finalizers(metadata, finalizers) | changed}
    return _Step(options, marked, goes=not grace and not finalizers)


def _shortened(begun: datetime, seconds: int) -> int:
    """Return the grace left of ``seconds``: at least one where there was any, for a kubelet to act on."""
    return seconds if not seconds or begun + timedelta(seconds=seconds) >= datetime.now(UTC) else 1


def _grace_seconds(pod: Obj, given: int | None) -> int:
    """How long the kubelet gets (registry/core/pod/strategy.go, CheckGracefulDelete)."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    seconds: int = spec.get("terminationGracePeriodSeconds", 30) if given is None else given
    return seconds if seconds >= 0 else 1


def _terminating(namespace: Obj) -> Obj:
    metadata = namespace["metadata"] | {"deletionTimestamp": timestamp()}
    return namespace | {"metadata": metadata, "status": {"phase": "Terminating"}}


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
