"""Discovery documents (meta.k8s.io/v1 APIVersions, APIGroupList, APIResourceList) and the version.

Aggregated discovery is left out: kubectl falls back to these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.errors import PageNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sandbox.resources import Resource

    Obj = dict[str, Any]

__all__ = ["VERSION", "discovery", "versions_of"]

VERSION: Obj = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_IN_ALL = frozenset({"pods", "jobs"})


def versions_of(resources: Iterable[Resource], group: str) -> list[str]:
    """Return the served versions of a group, the preferred one first."""
    versions = [version for resource in resources if resource.group == group for version in resource.versions]
    return list(dict.fromkeys(versions))


def _group(resources: Sequence[Resource], group: str) -> Obj:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version}
        for version in versions_of(resources, group)
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _api_resources(resource: Resource, version: str) -> list[Obj]:
    told: Obj = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(_VERBS),
        "storageVersionHash": "",
    }
    if resource.custom:
        told |= {"group": resource.group, "version": version}
    if resource.short_names:
        told["shortNames"] = list(resource.short_names)
    if resource.plural in _IN_ALL:
        told["categories"] = ["all"]
    if not resource.has_status:
        return [told]
    status = {"name": f"{resource.plural}/status", "singularName": "", "namespaced": resource.namespaced}
    eviction = {"name": "pods/eviction", "singularName": "", "namespaced": True, "kind": "Eviction"}
    return [
        told,
        status | {"kind": resource.kind, "verbs": ["get", "patch", "update"]},
        *(
            [eviction | {"group": "policy", "version": "v1", "verbs": ["create"]}]
            if "eviction" in resource.subresources
            else []
        ),
    ]


def _resource_list(resources: Sequence[Resource], group: str, version: str) -> Obj:
    found = [resource for resource in resources if resource.group == group and version in resource.versions]
    if not found:
        raise PageNotFoundError
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].api_version(version),
        "resources": [told for resource in found for told in _api_resources(resource, version)],
    }


def discovery(path: str, resources: Sequence[Resource]) -> Obj | None:
    """Return the discovery document at ``path``, None if it is no such path; 404 for what is not served."""
    groups = list(dict.fromkeys(resource.group for resource in resources if resource.group))
    match [part for part in path.split("/") if part]:
        case ["api"]:
            return {"kind": "APIVersions", "versions": versions_of(resources, "")}
        case ["apis"]:
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(resources, group) for group in groups],
            }
        case ["apis", group]:
            if group not in groups:
                raise PageNotFoundError
            return {"kind": "APIGroup", "apiVersion": "v1"} | _group(resources, group)
        case ["api", version]:
            return _resource_list(resources, "", version)
        case ["apis", group, version]:
            return _resource_list(resources, group, version)
    return None
