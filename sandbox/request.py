"""What a request asks for, read from its path and query (apiserver/pkg/endpoints/request, RequestInfo)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
import yaml

from sandbox.errors import PageNotFoundError, bad_request, method_not_allowed, resource_not_found
from sandbox.protobuf import MEDIA_TYPE, decode_protobuf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandbox.resources import Resource

__all__ = ["EVICTION", "Request", "Target", "User", "decode", "find_target", "verb_of"]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
EVICTION = "eviction"
_VERBS_ON_ONE = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VERBS_ON_MANY = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The part of a request that its path tells."""

    resource: Resource
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def kind(self) -> dict[str, str]:
        """What is sent there, as group, version and kind: an eviction is no pod."""
        if self.subresource == EVICTION:
            return {"group": "policy", "version": "v1", "kind": "Eviction"}
        return {"group": self.resource.group, "version": self.version, "kind": self.resource.kind}

    @property
    def api_version(self) -> str:
        """The apiVersion of what is sent there."""
        kind = self.kind
        return f"{kind['group']}/{kind['version']}" if kind["group"] else kind["version"]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the API. ``warnings`` collects what goes back as Warning headers.

    ``dry_run_in_body`` is the wish that the options in its body carry, as those of a deletion do.
    """

    verb: str
    target: Target
    query: Mapping[str, str]
    user: User
    user_agent: str = ""
    warnings: list[str] = field(default_factory=list)
    dry_run_in_body: bool = False

    @property
    def resource(self) -> Resource:
        """The kind asked about."""
        return self.target.resource

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be stored."""
        return self.dry_run_in_body or self.query.get("dryRun") == "All"

    def on(self, metadata: Mapping[str, Any]) -> Request:
        """Return the same request about the one object of this metadata."""
        target = replace(self.target, namespace=metadata.get("namespace", ""), name=metadata["name"])
        return replace(self, target=target)

    @property
    def field_manager(self) -> str:
        """The manager that owns the fields written: the one named, else the program's name."""
        return self.query.get("fieldManager") or self.user_agent.split("/", 1)[0] or "unknown"


def _split_group(parts: list[str]) -> tuple[str, str, list[str]]:
    match parts:
        case ["api", version, *rest]:
            return "", version, rest
        case ["apis", group, version, *rest]:
            return group, version, rest
    raise PageNotFoundError


def find_target(path: str, resources: Iterable[Resource]) -> Target:
    """Read a resource path. Raises the 404 of the API server where nothing is served under it.

    That is plain text for groups that are not there and for custom ones, a Status for built-in ones.
    """
    group, version, rest = _split_group([part for part in path.split("/") if part])
    served = [resource for resource in resources if resource.group == group and version in resource.versions]
    target = _target(version, rest, served)
    if target is not None:
        return target
    if served and not served[0].custom:
        raise resource_not_found()
    raise PageNotFoundError


def _target(version: str, rest: list[str], served: list[Resource]) -> Target | None:
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    resource = next((one for one in served if one.plural == plural), None)
    if resource is None or (subresource and subresource not in resource.subresources):
        return None
    if resource.namespaced is not bool(namespace) and (namespace or name):
        return None
    return Target(resource, version, namespace, name, subresource)


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """Name the verb that RBAC and the tests know. Raises 405."""
    verb = (_VERBS_ON_ONE if target.name else _VERBS_ON_MANY).get(method)
    if target.subresource == EVICTION:
        verb = "create" if method == "POST" else None
    if verb is None or (target.subresource and verb == "delete"):
        raise method_not_allowed()
    if not target.name and target.resource.namespaced and not target.namespace and verb != "list":
        raise method_not_allowed()
    if verb == "list" and query.get("watch", "") in {"1", "true"}:
        return "watch"
    return verb


def decode(body: bytes, content_type: str) -> Any:
    """Decode a body by its media type: JSON, YAML if the type says so, some protobuf. Raises 400 or 415."""
    if content_type == MEDIA_TYPE:
        return decode_protobuf(body)
    try:
        return orjson.loads(body)
    except ValueError as error:
        if content_type.endswith("yaml"):
            return _decode_yaml(body)
        raise bad_request(f"the object provided is unrecognized (must be of type Object): {error}") from None


def _decode_yaml(body: bytes) -> Any:
    """Decode YAML into what JSON can say: a time becomes text again."""
    try:
        return orjson.loads(orjson.dumps(yaml.load(body, Loader=_LOADER)))  # noqa: S506  -- a safe loader
    except (yaml.YAMLError, TypeError) as error:
        raise bad_request(f"error decoding YAML: {error}") from None
