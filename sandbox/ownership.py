"""Field ownership: which manager set which field, as metadata.managedFields tells it (FieldsV1).

Leaves are owned, and items of lists that have keys; a map is not owned beside its leaves unless it is
empty. The lists with keys are known by the name of their field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    Obj = dict[str, Any]
    Path = tuple[str, ...]

__all__ = ["LIST_KEYS", "SETS", "Manager", "item_step", "leaves", "owners", "told", "updated"]

LIST_KEYS: dict[str, tuple[str, ...]] = {
    "admissionChecks": ("name",),
    "conditions": ("type",),
    "containers": ("name",),
    "dependsOn": ("name",),
    "env": ("name",),
    "flavors": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "jobsStatus": ("name",),
    "matchConditions": ("name",),
    "ownerReferences": ("uid",),
    "podSetAssignments": ("name",),
    "podSets": ("name",),
    "ports": ("containerPort", "protocol"),
    "reclaimablePods": ("name",),
    "replicatedJobs": ("name",),
    "replicatedJobsStatus": ("name",),
    "resourceRequests": ("name",),
    "runtimePatches": ("manager",),
    "schedulingGates": ("name",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
    "webhooks": ("name",),
}
SETS = frozenset({"finalizers"})
_OF_THE_SERVER = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    }
)


@dataclass(frozen=True, slots=True)
class Manager:
    """Who owns, and by which kind of write."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


def item_step(field: str, item: Any) -> str | None:
    """Return the step of an item with a key (``k:{"name":"a"}``) or that is one (``v:"a"``), else None."""
    if field in SETS:
        return f"v:{orjson.dumps(item).decode()}"
    keys = LIST_KEYS.get(field)
    if keys is None or not isinstance(item, dict) or keys[0] not in item:
        return None
    return f"k:{orjson.dumps({key: item[key] for key in keys if key in item}).decode()}"


def _walk(value: Any, field: str, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _walk(inner, name, (*path, f"f:{name}"))
        return
    if isinstance(value, list) and value:
        steps = [item_step(field, item) for item in value]
        if all(steps):
            for step, item in zip(steps, value, strict=True):
                if step is not None:
                    yield (*path, step, "."), True
                    if isinstance(item, dict):
                        yield from _walk(item, "", (*path, step))
            return
    yield path, value


def leaves(found: Obj) -> dict[Path, Any]:
    """Return the fields of an object that can be owned, with their values."""
    metadata = {
        name: value for name, value in found.get("metadata", {}).items() if name not in _OF_THE_SERVER
    }
    body = {name: value for name, value in found.items() if name not in {"apiVersion", "kind", "metadata"}}
    if metadata:
        body["metadata"] = metadata
    return dict(_walk(body, "", ())) if body else {}


def _paths(fields: Obj, path: Path = ()) -> Iterator[Path]:
    for step, inner in fields.items():
        if inner:
            yield from _paths(inner, (*path, step))
        else:
            yield (*path, step)


def _nested(paths: set[Path]) -> Obj:
    fields: Obj = {}
    for path in sorted(paths):
        at = fields
        for step in path:
            at = at.setdefault(step, {})
    return fields


def owners(found: Obj) -> dict[Manager, tuple[set[Path], str]]:
    """Read managedFields: the fields of each manager and when it last wrote."""
    return {
        Manager(
            entry.get("manager", ""),
            entry.get("operation", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        ): (set(_paths(entry.get("fieldsV1") or {})), entry.get("time", ""))
        for entry in found["metadata"].get("managedFields") or ()
    }


def told(owned: dict[Manager, tuple[set[Path], str]]) -> list[Obj]:
    """Write managedFields; a manager that owns nothing any more is dropped."""
    entries: list[Obj] = []
    for manager, (paths, time) in owned.items():
        if not paths:
            continue
        entry = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _nested(paths),
        }
        entries.append(entry | ({"subresource": manager.subresource} if manager.subresource else {}))
    return entries


def updated(old: Obj | None, new: Obj, manager: Manager, now: str) -> list[Obj]:
    """Return managedFields after a create or an update: who changes a field owns it, alone."""
    before = leaves(old) if old else {}
    after = leaves(new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    kept = {path for path in after if path not in changed}
    owned = {other: (paths & kept, time) for other, (paths, time) in (owners(old) if old else {}).items()}
    if changed:
        owned[manager] = (owned.get(manager, (set(), ""))[0] | changed, now)
    return told(owned)
