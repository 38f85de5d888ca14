"""Stand-in for the scheduler: a pod goes to the Ready, untainted node with the fewest pods.

Left out: resources, selectors, affinity, tolerations, priorities.
"""

from collections import Counter
from datetime import datetime

from sandbox.controllers.kinds import (
    NODES,
    PODS,
    Object,
    condition_status,
    is_terminal,
    is_terminating,
)
from sandbox.controllers.planning import Bind, Chain, Plan, plan
from sandbox.controllers.world import World

WATCHED = (PODS, NODES)


def reconcile(world: World, _now: datetime) -> Plan:
    """Decide the bindings of all pods that have no node."""
    load = Counter({node["metadata"]["name"]: 0 for node in world.all(NODES) if _takes_pods(node)})
    waiting: list[Object] = []
    for pod in world.all(PODS):
        node = pod["spec"].get("nodeName")
        if not node and not is_terminating(pod) and not pod["spec"].get("schedulingGates"):
            waiting.append(pod)
        elif node in load and not is_terminal(pod):
            load[node] += 1
    chains: list[Chain] = []
    for pod in waiting if load else ():
        node = min(load, key=lambda name: (load[name], name))
        load[node] += 1
        chains.append([_binding(pod, node)])
    return plan(chains)


def _takes_pods(node: Object) -> bool:
    spec = node.get("spec") or {}
    tainted = any(taint.get("effect") in {"NoSchedule", "NoExecute"} for taint in spec.get("taints") or ())
    return condition_status(node, "Ready") == "True" and not tainted and not spec.get("unschedulable")


def _binding(pod: Object, node: str) -> Bind:
    metadata = pod["metadata"]
    return Bind(metadata["namespace"], metadata["name"], metadata["uid"], node)
