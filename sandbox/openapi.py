"""The OpenAPI v3 that kubectl reads before a write: which kinds take the fieldValidation parameter.

Schemas are open objects, so kubectl's own validation passes everything and its merges use the types built
into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.discovery import versions_of
from sandbox.errors import PageNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.resources import Resource

    Obj = dict[str, Any]

__all__ = ["EMPTY_V2", "V2_MEDIA_TYPE", "openapi_v3"]

V2_MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
EMPTY_V2 = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.0"
"""An OpenAPI v2 document that describes nothing, so that kubectl before 1.29 validates nothing by it."""

_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def _root(resources: Sequence[Resource]) -> Obj:
    paths: Obj = {f"api/{version}": {} for version in versions_of(resources, "")}
    for group in dict.fromkeys(resource.group for resource in resources if resource.group):
        paths |= {f"apis/{group}/{version}": {} for version in versions_of(resources, group)}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def _operation(resource: Resource, version: str, action: str) -> Obj:
    kind = {"group": resource.group, "version": version, "kind": resource.kind}
    return {
        "parameters": _PARAMETERS,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
    }


def _document(resources: Sequence[Resource], base: str, version: str) -> Obj:
    paths: Obj = {}
    schemas: Obj = {}
    for resource in resources:
        scope = "namespaces/{namespace}/" if resource.namespaced else ""
        many = f"/{base}/{scope}{resource.plural}"
        paths[many] = {"post": _operation(resource, version, "post")}
        paths[f"{many}/{{name}}"] = {
            "put": _operation(resource, version, "put"),
            "patch": _operation(resource, version, "patch"),
        }
        kind = {"group": resource.group, "version": version, "kind": resource.kind}
        schemas[f"{resource.group or 'core'}.{version}.{resource.kind}"] = {
            "type": "object",
            "x-kubernetes-group-version-kind": [kind],
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def openapi_v3(path: str, resources: Sequence[Resource]) -> Obj | None:
    """Return the document at ``path``, None where it is no such path; 404 for a group that is not served."""
    match [part for part in path.split("/") if part]:
        case ["openapi", "v3"]:
            return _root(resources)
        case ["openapi", "v3", *base]:
            group, version = (base[1], base[2]) if len(base) == 3 else ("", base[-1])
            found = [
                resource for resource in resources if resource.group == group and version in resource.versions
            ]
            if not found:
                raise PageNotFoundError
            return _document(found, "/".join(base), version)
    return None
