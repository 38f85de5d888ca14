"""What is asked about, as an AdmissionReview tells it, and which webhooks it concerns."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sandbox.selectors import matches_label_selector

if TYPE_CHECKING:
    from sandbox.request import Request
    from sandbox.store import Store

    Obj = dict[str, Any]

__all__ = ["Attributes"]


@dataclass(frozen=True, slots=True)
class Attributes:
    """One write that is asked about: ``new`` is None for a deletion, ``old`` for a creation."""

    request: Request
    operation: str
    new: Obj | None
    old: Obj | None
    options: Obj

    def about(self, new: Obj) -> Attributes:
        """Return the same write of another object."""
        return replace(self, new=new)

    @property
    def name(self) -> str:
        """The name that the review carries: as the path has it, so none where a collection is deleted."""
        if self.request.verb == "deletecollection":
            return ""
        name: str = self.request.target.name or (self.new or {}).get("metadata", {}).get("name", "")
        return name

    def shown(self, found: Obj) -> Obj:
        """Return an object in the version of the request, as the webhook gets it."""
        return found | {"apiVersion": self.request.target.api_version}

    def review(self) -> Obj:
        """Return a new AdmissionReview of it."""
        request = self.request
        target = request.target
        resource = target.resource
        kind = target.kind
        named = {"group": resource.group, "version": target.version, "resource": resource.plural}
        asked: Obj = {"uid": str(uuid.uuid4()), "kind": kind, "resource": named}
        if target.subresource:
            asked["subResource"] = target.subresource
        asked |= {"requestKind": kind, "requestResource": named}
        if target.subresource:
            asked["requestSubResource"] = target.subresource
        if self.name:
            asked["name"] = self.name
        if target.namespace:
            asked["namespace"] = target.namespace
        asked |= {
            "operation": self.operation,
            "userInfo": {"username": request.user.name, "groups": list(request.user.groups)},
            "object": self.new and self.shown(self.new),
            "oldObject": self.old and self.shown(self.old),
            "dryRun": request.dry_run,
            "options": self.options,
        }
        return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked}

    def concerns(self, webhook: Obj, store: Store) -> bool:
        """Tell whether the rules and selectors of a webhook match."""
        selector = webhook.get("objectSelector")
        return (
            any(self._is_ruled_by(rule) for rule in webhook.get("rules") or ())
            and self._is_in_namespace(webhook, store)
            and any(
                found is not None and matches_label_selector(selector, found)
                for found in (self.new, self.old)
            )
        )

    def _is_in_namespace(self, webhook: Obj, store: Store) -> bool:
        target = self.request.target
        found = self.new or self.old
        if target.resource.kind != "Namespace":
            if not target.namespace:
                return True
            record = store.get(("", "namespaces"), "", target.namespace)
            found = record.object if record else None
        return found is not None and matches_label_selector(webhook.get("namespaceSelector"), found)

    def _is_ruled_by(self, rule: Obj) -> bool:
        target = self.request.target

        def among(name: str, value: str) -> bool:
            return not {"*", value}.isdisjoint(rule.get(name) or ())

        scope = "Namespaced" if target.resource.namespaced else "Cluster"
        return (
            rule.get("scope", "*") in {"*", scope}
            and among("operations", self.operation)
            and among("apiGroups", target.resource.group)
            and among("apiVersions", target.version)
            and any(self._is_resource(wanted) for wanted in rule.get("resources") or ())
        )

    def _is_resource(self, wanted: str) -> bool:
        resource, _, subresource = wanted.partition("/")
        target = self.request.target
        return resource in {"*", target.resource.plural} and subresource in {"*", target.subresource}
