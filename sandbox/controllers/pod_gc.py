"""Stand-in for the pod garbage collector of the controller manager.

It force-deletes the pods of a Node that does not exist, the Terminating pods of a node that is not Ready and
tainted out-of-service, whatever still runs there, and Terminating pods that no node ever had. Left out: the
40 s it waits before it believes that a Node is gone, and its limit of terminated pods.
"""

from datetime import datetime

from sandbox.controllers.kinds import (
    NODES,
    OUT_OF_SERVICE,
    PODS,
    Object,
    condition_status,
    has_taint,
    is_terminal,
    is_terminating,
    with_condition,
)
from sandbox.controllers.planning import Chain, Plan, delete, plan, status_patch
from sandbox.controllers.world import World

WATCHED = (PODS, NODES)
_DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}


def reconcile(world: World, now: datetime) -> Plan:
    """Decide which pods of all nodes are collected."""
    nodes = {node["metadata"]["name"]: node for node in world.all(NODES)}
    return plan(_chain(pod, nodes, now) for pod in world.all(PODS))


def _chain(pod: Object, nodes: dict[str, Object], now: datetime) -> Chain:
    name = pod["spec"].get("nodeName")
    if not name:
        return _collect(pod, now) if is_terminating(pod) else []
    node = nodes.get(name)
    if node is None:
        return _collect(pod, now, because="PodGC: node no longer exists")
    shut_down = has_taint(node, OUT_OF_SERVICE) and condition_status(node, "Ready") != "True"
    return _collect(pod, now) if is_terminating(pod) and shut_down else []


def _collect(pod: Object, now: datetime, *, because: str = "") -> Chain:
    """Set phase Failed first, as the real one does: no kubelet is left to report it."""
    chain: Chain = []
    if not is_terminal(pod):
        status: Object = {"phase": "Failed"}
        if because:
            conditions = (pod.get("status") or {}).get("conditions") or []
            status["conditions"] = with_condition(conditions, {**_DISRUPTED, "message": because}, now)
        chain += status_patch(PODS, pod, status)
    return [*chain, delete(PODS, pod, grace_seconds=0)]
