"""Stand-in for Kueue's FailureRecoveryPolicy (its pkg/controller/failurerecovery), off unless it is wanted.

A pod that is annotated, Terminating and on a node tainted unreachable is declared Failed once its grace and a
time more have passed, and then its record is removed, whatever still runs there.
"""

from datetime import datetime, timedelta

from sandbox.controllers.kinds import (
    NODES,
    PODS,
    UNREACHABLE,
    Object,
    has_taint,
    is_terminal,
    is_terminating,
    timestamp,
)
from sandbox.controllers.planning import Chain, Plan, delete, plan, status_patch
from sandbox.controllers.world import World

WATCHED = (PODS, NODES)
ANNOTATION = "kueue.x-k8s.io/safe-to-forcefully-delete"
_RECOVERED = {"type": "KueueFailureRecovery", "status": "True", "reason": "KueueForcefullyDeleted"}


def reconcile(world: World, now: datetime, wait: timedelta) -> Plan:
    """Decide which pods are ended, `wait` after their deletion timestamps (a minute by default)."""
    chains: list[Chain] = []
    wakes: list[datetime] = []
    for pod in world.all(PODS):
        node = world.get(NODES, "", pod["spec"].get("nodeName") or "")
        if not _is_eligible(pod) or node is None or not has_taint(node, UNREACHABLE):
            continue
        ends = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) + wait
        if ends > now:
            wakes.append(ends)
        else:
            chains.append(_ended(pod, node["metadata"]["name"], now))
    return plan(chains, wakes)


def _is_eligible(pod: Object) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return is_terminating(pod) and annotations.get(ANNOTATION) == "true"


def _ended(pod: Object, node: str, now: datetime) -> Chain:
    message = (
        f"Pod forcefully terminated due to unreachable node `{node}` (triggered by `{ANNOTATION}` annotation)"
    )
    conditions = (pod.get("status") or {}).get("conditions") or []
    recovered = {**_RECOVERED, "message": message, "lastTransitionTime": timestamp(now)}
    status: Object = {"conditions": [*conditions, recovered]}
    if not is_terminal(pod):
        status["phase"] = "Failed"
    return [*status_patch(PODS, pod, status), delete(PODS, pod, grace_seconds=0)]
