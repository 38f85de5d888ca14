"""Builders of Kueue's objects: only the fields that the admission check depends on."""

from collections.abc import Iterable, Mapping
from typing import Any

from webhook.rule.workload import CONTROLLER

Document = dict[str, Any]

SINCE = "2026-01-05T09:00:00Z"
CHECK = "remaining-pods"


def admission_check(
    name: str = CHECK, *, controller: str = CONTROLLER, version: str = "v1beta2", **status: Any
) -> Document:
    document: Document = {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {"controllerName": controller},
    }
    return document | ({"status": status} if status else {})


def check_state(name: str = CHECK, state: str = "Pending", message: str = "", **more: Any) -> Document:
    return {"name": name, "state": state, "message": message, "lastTransitionTime": SINCE, **more}


def conditions(**status: str) -> list[Document]:
    """`conditions(QuotaReserved="True")`."""
    return [
        {"type": kind, "status": value, "reason": kind, "message": "", "lastTransitionTime": SINCE}
        for kind, value in status.items()
    ]


def workload(
    name: str = "trainjob-llama-0abe3",
    *,
    namespace: str = "default",
    owner: Mapping[str, Any] | None = None,
    pod_sets: Iterable[str] = ("node",),
    checks: Iterable[Document] | None = None,
    version: str = "v1beta2",
    active: bool | None = None,
    metadata: Mapping[str, Any] | None = None,
    **condition: str,
) -> Document:
    """A Workload; without conditions its quota is reserved and its check Pending."""
    spec: Document = {
        "podSets": [
            {"name": pod_set, "count": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
            for pod_set in pod_sets
        ]
    }
    if active is not None:
        spec["active"] = active
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **({"ownerReferences": [dict(owner)]} if owner else {}),
            **(metadata or {}),
        },
        "spec": spec,
        "status": {
            "conditions": conditions(**(condition or {"QuotaReserved": "True"})),
            "admissionChecks": list(checks) if checks is not None else [check_state()],
        },
    }


def owned_by(trainjob: Mapping[str, Any]) -> Document:
    """The reference to a TrainJob that was created."""
    return {
        "apiVersion": trainjob["apiVersion"],
        "kind": trainjob["kind"],
        "name": trainjob["metadata"]["name"],
        "uid": trainjob["metadata"]["uid"],
        "controller": True,
    }
