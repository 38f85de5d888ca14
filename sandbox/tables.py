"""What `kubectl get` shows: meta.k8s.io/v1 Tables (pkg/printers, additionalPrinterColumns)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sandbox.resources import Resource

    Obj = dict[str, Any]
    Column = tuple[str, str, int, Callable[[Obj], Any]]

__all__ = ["age", "partial", "table"]


def age(since: str | None) -> str:
    """Write how long ago a metav1.Time was, as kubectl does (duration.HumanDuration)."""
    if not since:
        return "<unknown>"
    seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{days}d"


def _path(*names: str, otherwise: Any = None) -> Callable[[Obj], Any]:
    def read(found: Obj) -> Any:
        at: Any = found
        for name in names:
            at = at.get(name) if isinstance(at, dict) else None
        return otherwise if at is None else at

    return read


def _condition(kind: str) -> Callable[[Obj], Any]:
    def read(found: Obj) -> Any:
        conditions = (found.get("status") or {}).get("conditions") or ()
        return next(
            (condition.get("status") for condition in conditions if condition.get("type") == kind), None
        )

    return read


def _last_condition(found: Obj) -> Any:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return conditions[-1].get("type") if conditions else None


def _age(found: Obj) -> str:
    return age(found["metadata"].get("creationTimestamp"))


def _containers(found: Obj) -> list[Obj]:
    return list((found.get("status") or {}).get("containerStatuses") or ())


def _pod_ready(found: Obj) -> str:
    ready = sum(bool(container.get("ready")) for container in _containers(found))
    return f"{ready}/{len((found.get('spec') or {}).get('containers') or ())}"


def _pod_status(found: Obj) -> str:
    status = found.get("status") or {}
    if found["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(status.get("reason") or status.get("phase") or "Unknown")


def _pod_restarts(found: Obj) -> str:
    return str(sum(container.get("restartCount", 0) for container in _containers(found)))


def _node_status(found: Obj) -> str:
    ready = {"True": "Ready", "False": "NotReady"}.get(_condition("Ready")(found), "NotReady")
    unschedulable = (found.get("spec") or {}).get("unschedulable")
    return f"{ready},SchedulingDisabled" if unschedulable else ready


def _node_roles(found: Obj) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = found["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _job_status(found: Obj) -> str:
    for kind, told in (("Complete", "Complete"), ("Failed", "Failed")):
        if _condition(kind)(found) == "True":
            return told
    if found["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return "Suspended" if _condition("Suspended")(found) == "True" else "Running"


def _job_completions(found: Obj) -> str:
    wanted = (found.get("spec") or {}).get("completions", 1)
    return f"{(found.get('status') or {}).get('succeeded', 0)}/{wanted}"


def _event_object(found: Obj) -> str:
    involved = found.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _event_age(found: Obj) -> str:
    return age(
        found.get("lastTimestamp") or found.get("eventTime") or found["metadata"].get("creationTimestamp")
    )


_NAME: Column = ("Name", "string", 0, _path("metadata", "name"))
_AGE: Column = ("Age", "string", 0, _age)


def _count(name: str) -> Callable[[Obj], int]:
    return lambda found: len(found.get(name) or ())


_COLUMNS: dict[tuple[str, str], tuple[Column, ...]] = {
    ("", "namespaces"): (("Status", "string", 0, _path("status", "phase")), _AGE),
    ("", "pods"): (
        ("Ready", "string", 0, _pod_ready),
        ("Status", "string", 0, _pod_status),
        ("Restarts", "string", 0, _pod_restarts),
        _AGE,
        ("IP", "string", 1, _path("status", "podIP", otherwise="<none>")),
        ("Node", "string", 1, _path("spec", "nodeName", otherwise="<none>")),
    ),
    ("", "nodes"): (
        ("Status", "string", 0, _node_status),
        ("Roles", "string", 0, _node_roles),
        _AGE,
        ("Version", "string", 0, _path("status", "nodeInfo", "kubeletVersion", otherwise="")),
    ),
    ("", "configmaps"): (("Data", "string", 0, _count("data")), _AGE),
    ("", "secrets"): (
        ("Type", "string", 0, _path("type", otherwise="Opaque")),
        ("Data", "string", 0, _count("data")),
        _AGE,
    ),
    ("", "events"): (
        ("Last Seen", "string", 0, _event_age),
        ("Type", "string", 0, _path("type")),
        ("Reason", "string", 0, _path("reason")),
        ("Object", "string", 0, _event_object),
        ("Message", "string", 0, _path("message")),
    ),
    ("batch", "jobs"): (
        ("Status", "string", 0, _job_status),
        ("Completions", "string", 0, _job_completions),
        _AGE,
    ),
    ("coordination.k8s.io", "leases"): (("Holder", "string", 0, _path("spec", "holderIdentity")), _AGE),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): (
        ("Webhooks", "integer", 0, _count("webhooks")),
        _AGE,
    ),
    ("trainer.kubeflow.org", "trainjobs"): (("State", "string", 0, _last_condition), _AGE),
    ("jobset.x-k8s.io", "jobsets"): (
        ("TerminalState", "string", 0, _path("status", "terminalState")),
        ("Restarts", "string", 0, _path("status", "restarts")),
        ("Completed", "string", 0, _condition("Completed")),
        ("Suspended", "string", 0, _path("spec", "suspend")),
        _AGE,
    ),
    ("kueue.x-k8s.io", "workloads"): (
        ("Queue", "string", 0, _path("spec", "queueName")),
        ("Reserved in", "string", 0, _path("status", "admission", "clusterQueue")),
        ("Admitted", "string", 0, _condition("Admitted")),
        ("Finished", "string", 0, _condition("Finished")),
        _AGE,
    ),
    ("kueue.x-k8s.io", "clusterqueues"): (
        ("Cohort", "string", 0, _path("spec", "cohortName")),
        ("Pending Workloads", "integer", 0, _path("status", "pendingWorkloads")),
    ),
    ("kueue.x-k8s.io", "localqueues"): (
        ("ClusterQueue", "string", 0, _path("spec", "clusterQueue")),
        ("Pending Workloads", "integer", 0, _path("status", "pendingWorkloads")),
        ("Admitted Workloads", "integer", 0, _path("status", "admittedWorkloads")),
    ),
}


def _told(cell: Any) -> Any:
    return str(cell).lower() if isinstance(cell, bool) else cell


def partial(found: Obj) -> Obj:
    """Reduce an object to its PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": found["metadata"]}


def table(
    resource: Resource,
    objects: Iterable[Obj],
    metadata: Obj,
    *,
    include: str = "Metadata",
    headers: bool = True,
) -> Obj:
    """Make the Table of some objects.

    ``include`` is the includeObject parameter; ``headers`` is False after the first event of a watch.
    """
    columns = (_NAME, *_COLUMNS.get(resource.key, (_AGE,)))
    rows: list[Obj] = []
    for found in objects:
        row: Obj = {"cells": [_told(read(found)) for *_, read in columns]}
        if include != "None":
            row["object"] = found if include == "Object" else partial(found)
        rows.append(row)
    definitions = [
        {
            "name": name,
            "type": "date" if resource.custom and name == "Age" else kind,
            "format": "name" if name == "Name" else "",
            "description": name,
            "priority": priority,
        }
        for name, kind, priority, _ in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions if headers else [],
        "rows": rows,
    }
