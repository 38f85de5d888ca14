"""Stand-in for the node lifecycle controller and the taint manager.

Left out: heartbeats (it is told which kubelets are silent), and the eviction of pods from an unreachable node
after their 300 s of toleration.
"""

from collections.abc import Set as AbstractSet
from datetime import datetime

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
_EFFECTS = ("NoSchedule", "NoExecute")


def reconcile(world: World, now: datetime, silent: AbstractSet[str]) -> Plan:
    """Decide the conditions and taints of all nodes, given the names of those whose kubelet is silent."""
    nodes = world.all(NODES)
    chains = [_chain(node, now, silent=_is_silent(node, silent)) for node in nodes]
    evicting = {node["metadata"]["name"] for node in nodes if has_taint(node, OUT_OF_SERVICE, "NoExecute")}
    evicted: list[Chain] = [
        [delete(PODS, pod)]
        for pod in world.all(PODS)
        if pod["spec"].get("nodeName") in evicting and not is_terminal(pod) and not is_terminating(pod)
    ]
    return plan([*chains, *evicted])


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
        return _tainted(node, [taint for taint in _taints(node) if taint["key"] != UNREACHABLE])
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
