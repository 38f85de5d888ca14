"""Stand-in for the pod garbage collector of the controller manager.

It force-deletes the pods of a Node that does not exist, and the Terminating pods of a node that is not Ready
and tainted out-of-service, whatever still runs there. Left out: the 40 s it waits before it believes that a
Node is gone, and its limit of terminated pods.
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
        return []
    node = nodes.get(name)
    if node is None:
        return _collect(pod, "PodGC: node no longer exists", now)
    shut_down = has_taint(node, OUT_OF_SERVICE) and condition_status(node, "Ready") != "True"
    if is_terminating(pod) and shut_down:
        return _collect(pod, "PodGC: node out-of-service", now)
    return []


def _collect(pod: Object, message: str, now: datetime) -> Chain:
    """Set phase Failed first, as the real one does: no kubelet is left to report it."""
    chain: Chain = []
    if not is_terminal(pod):
        conditions = (pod.get("status") or {}).get("conditions") or []
        disrupted = with_condition(conditions, {**_DISRUPTED, "message": message}, now)
        chain += status_patch(PODS, pod, {"phase": "Failed", "conditions": disrupted})
    return [*chain, delete(PODS, pod, grace_seconds=0)]
