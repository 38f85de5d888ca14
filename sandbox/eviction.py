"""The subresource `eviction` of pods (registry/core/pod/storage/eviction.go).

To webhooks it is a creation of an Eviction, which carries the pod's name and nothing else of it; the deletion
that it makes is asked about no more. Left out: PodDisruptionBudgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.defaults import check_decodes
from sandbox.deletion import check_preconditions
from sandbox.errors import bad_request, not_found
from sandbox.registry import copy_of, timestamp

if TYPE_CHECKING:
    from sandbox.deletion import Deletion
    from sandbox.registry import Admission
    from sandbox.request import Request
    from sandbox.store import Store

    Obj = dict[str, Any]

__all__ = ["Evictions"]

_ACCEPTED = frozenset({"policy/v1", "policy/v1beta1"})
_DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


class Evictions:
    """Evicts pods."""

    def __init__(self, store: Store, admission: Admission, deletion: Deletion) -> None:
        self._store = store
        self._admission = admission
        self._deletion = deletion

    async def create(self, request: Request, body: Any) -> Obj:
        """Evict the pod that the request names; ``body`` is an Eviction. Return a Status."""
        eviction = _read(request, body)
        created: Obj = {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        if request.dry_run:
            created["dryRun"] = ["All"]
        eviction = await self._admission.mutate(request, "CREATE", eviction, None, created) or eviction
        await self._admission.admit(request, "CREATE", eviction, None, created)
        options = eviction.get("deleteOptions") or {}
        self._mark_disrupted(request, options)
        # Its condition changed the version that the options may name; it was held against them before.
        wanted = {name: v for name, v in (options.get("preconditions") or {}).items() if name == "uid"}
        await self._deletion.delete(request, options | {"preconditions": wanted}, admitted=True)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _mark_disrupted(self, request: Request, options: Obj) -> None:
        target = request.target
        record = self._store.get(target.resource.key, target.namespace, target.name)
        if record is None:
            raise not_found(target.resource, target.name)
        check_preconditions(target.resource, record, options.get("preconditions") or {})
        status = record.object.get("status") or {}
        conditions = status.get("conditions") or []
        if request.dry_run or any(
            (one["type"], one["status"]) == ("DisruptionTarget", "True") for one in conditions
        ):
            return
        kept = [one for one in conditions if one["type"] != "DisruptionTarget"]
        status = status | {"conditions": [*kept, _DISRUPTED | {"lastTransitionTime": timestamp()}]}
        disrupted: Obj = {**record.object, "status": status}
        self._store.write(target.resource.key, copy_of(disrupted))


def _read(request: Request, body: Any) -> Obj:
    target = request.target
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    eviction: Obj = {"apiVersion": target.api_version, "kind": "Eviction", **body}
    if eviction["apiVersion"] not in _ACCEPTED or eviction["kind"] != "Eviction":
        raise bad_request(f"not a Eviction object: {eviction['apiVersion']}, Kind={eviction['kind']}")
    check_decodes(target.resource, eviction)
    metadata = eviction["metadata"] | {"namespace": target.namespace}
    if metadata.get("name") != target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    if not isinstance(eviction.get("deleteOptions") or {}, dict):
        raise bad_request("json: cannot unmarshal Eviction.deleteOptions: it must be an object")
    return {**eviction, "metadata": metadata}
