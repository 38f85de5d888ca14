"""Stand-in for the node lifecycle controller and the taint manager.

Left out: heartbeats (it is told which kubelets are silent), and that it marks the pods of a silent node as
not ready. A pod without tolerations of its own gets those that admission gives it on a real cluster, of 300
s.
"""

from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta

from sandbox.controllers.kinds import (
    NODES,
    OUT_OF_SERVICE,
    PODS,
    UNREACHABLE,
    Object,
    condition_status,
    has_taint,
    is_annotated_lost,
    is_terminal,
    is_terminating,
    timestamp,
    with_condition,
)
from sandbox.controllers.planning import Chain, Plan, delete, patch, plan, status_patch
from sandbox.controllers.world import World

WATCHED = (NODES, PODS)
_SILENT = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "NodeStatusUnknown",
    "message": "Kubelet stopped posting node status.",
}
_DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByTaintManager",
    "message": "Taint manager: deleting due to NoExecute taint",
}
_EVER = datetime.min.replace(tzinfo=UTC)
_NOT_READY = "node.kubernetes.io/not-ready"
_EFFECTS = ("NoSchedule", "NoExecute")


def reconcile(
    world: World, now: datetime, silent: AbstractSet[str], toleration: timedelta | None = None
) -> Plan:
    """Decide the conditions and taints of all nodes, given the names of those whose kubelet is silent.

    Pods that tolerate a lost node no longer are deleted, after `toleration` where they say nothing; without
    it they stay there.
    """
    nodes = world.all(NODES)
    chains = [_chain(node, now, silent=_is_silent(node, silent)) for node in nodes]
    by_name = {node["metadata"]["name"]: node for node in nodes}
    wakes: list[datetime] = []
    for pod in world.all(PODS):
        node = by_name.get(pod["spec"].get("nodeName") or "")
        if node is None or is_terminal(pod) or is_terminating(pod):
            continue
        evicted_at = _evicted_at(pod, node, toleration)
        if evicted_at is not None and evicted_at <= now:
            chains.append(_evicted(pod, now))
        elif evicted_at is not None:
            wakes.append(evicted_at)
    return plan(chains, wakes)


def _evicted_at(pod: Object, node: Object, toleration: timedelta | None) -> datetime | None:
    """When the taints of a node end a pod's stay there; None while they do not."""
    moments: list[datetime] = []
    for taint in _taints(node):
        if taint.get("effect") != "NoExecute":
            continue
        stay = _tolerated(pod, taint["key"], toleration)
        if stay is not None:
            since = taint.get("timeAdded")
            moments.append((datetime.fromisoformat(since) if since else _EVER) + stay)
    return min(moments, default=None)


def _tolerated(pod: Object, key: str, toleration: timedelta | None) -> timedelta | None:
    """How long a pod tolerates a taint, None for ever."""
    for one in pod["spec"].get("tolerations") or ():
        if one.get("key") in {None, "", key} and one.get("effect") in {None, "", "NoExecute"}:
            seconds = one.get("tolerationSeconds")
            return None if seconds is None else timedelta(seconds=max(seconds, 0))
    if key == UNREACHABLE:
        return toleration
    return timedelta() if key == OUT_OF_SERVICE else None


def _evicted(pod: Object, now: datetime) -> Chain:
    """Say why, then delete with the pod's own grace (pkg/controller/tainteviction)."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    status = {"conditions": with_condition(conditions, _DISRUPTED, now)}
    return [*status_patch(PODS, pod, status), delete(PODS, pod)]


def _is_silent(node: Object, silent: AbstractSet[str]) -> bool:
    return node["metadata"]["name"] in silent or is_annotated_lost(node)


def _chain(node: Object, now: datetime, *, silent: bool) -> Chain:
    conditions = (node.get("status") or {}).get("conditions") or []
    if silent:
        status = status_patch(NODES, node, {"conditions": with_condition(conditions, _SILENT, now)})
        missing = [effect for effect in _EFFECTS if not has_taint(node, UNREACHABLE, effect)]
        taints = [
            *_taints(node),
            *({**_unreachable(effect), "timeAdded": timestamp(now)} for effect in missing),
        ]
        return [*status, *_tainted(node, taints)]
    if condition_status(node, "Ready") == "True":
        # An API server gives a node that registers the one of not being ready.
        return _tainted(node, [one for one in _taints(node) if one["key"] not in {UNREACHABLE, _NOT_READY}])
    return []


def _unreachable(effect: str) -> Object:
    return {"key": UNREACHABLE, "effect": effect}


def _taints(node: Object) -> list[Object]:
    return (node.get("spec") or {}).get("taints") or []


def _tainted(node: Object, taints: list[Object]) -> Chain:
    if taints == _taints(node):
        return []
    # A merge patch replaces the whole list: conditional, or a taint that someone adds meanwhile is lost.
    version = node["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints or None}}
    return [patch(NODES, node, body)]
