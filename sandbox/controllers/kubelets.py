"""Stand-in for the kubelets, and the machines they run on: what really runs, whatever the API server lists.

Left out: images, probes, container statuses, restarts in place (under `restartPolicy: OnFailure` a failing
container doesn't fail its pod; a pod that is told to fail fails as an evicted one does).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sandbox.controllers.kinds import (
    COMPLETION_INDEX,
    JOB_NAME,
    JOBSET_NAME,
    NODES,
    PODS,
    Object,
    is_annotated_lost,
    is_terminal,
    is_terminating,
    timestamp,
    with_condition,
)
from sandbox.controllers.planning import Chain, Plan, delete, plan, status_patch, written_by
from sandbox.controllers.users import kubelet
from sandbox.controllers.world import World

WATCHED = (PODS, NODES)
A_KEY = "dispatch.phpboyscout.uk/a"
_READY = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "message": "kubelet is posting ready status",
}
_EVICTED = {"reason": "Evicted", "message": "The node was low on resource: memory."}


@dataclass(frozen=True)
class Process:
    """The containers of one pod, running on a machine; `a` is the admission number that the pod carries.

    `index` is the pod's completion index within its Job: the rank, where one Job has all ranks.
    """

    pod_uid: str
    namespace: str
    pod: str
    trainjob: str
    a: str | None
    node: str
    job: str = ""
    index: str = ""

    @property
    def rank(self) -> tuple[str, str, str]:
        """What at most one process may be at a time."""
        return self.namespace, self.job, self.index


@dataclass(frozen=True)
class Machines:
    """The machines' own state, which no API server knows."""

    names: tuple[str, ...]
    silent: frozenset[str] = frozenset()
    """Machines whose kubelet reaches no API server: cut off, or powered off."""
    processes: Mapping[str, Process] = field(default_factory=dict)
    """What runs, by pod uid."""
    stop_at: Mapping[str, datetime] = field(default_factory=dict)
    """When the processes that were told to stop are killed, by pod uid."""
    exits: Mapping[str, str] = field(default_factory=dict)
    """Phases of pods whose processes ended by themselves, by pod uid."""

    def cut_off(self, node: str) -> "Machines":
        """Lose the connection; the processes go on."""
        return replace(self, silent=self.silent | {node})

    def reconnected(self, node: str) -> "Machines":
        """Get the connection back, or boot."""
        return replace(self, silent=self.silent - {node})

    def powered_off(self, node: str) -> "Machines":
        """End every process of a machine at once."""
        left = {uid: process for uid, process in self.processes.items() if process.node != node}
        return replace(self.cut_off(node), processes=left)

    def exited(self, pod_uid: str, phase: str) -> "Machines":
        """End a pod's processes by themselves, for the kubelet to report."""
        left = {uid: process for uid, process in self.processes.items() if uid != pod_uid}
        return replace(self, processes=left, exits={**self.exits, pod_uid: phase})


def reconcile(world: World, now: datetime, machines: Machines, grace: timedelta) -> tuple[Machines, Plan]:
    """Decide what the kubelets start, stop and report; a silent one does nothing."""
    chains: list[Chain] = []
    processes, stop_at = dict(machines.processes), dict(machines.stop_at)
    lost = {node["metadata"]["name"] for node in world.all(NODES) if is_annotated_lost(node)}
    connected = [name for name in machines.names if name not in machines.silent | lost]
    pods = {pod["metadata"]["uid"]: pod for pod in world.all(PODS)}
    for node in filter(None, (world.get(NODES, "", name) for name in connected)):
        conditions = (node.get("status") or {}).get("conditions") or []
        written = status_patch(NODES, node, {"conditions": with_condition(conditions, _READY, now)})
        chains.append(written_by(written, kubelet(node["metadata"]["name"])))
    for uid, process in machines.processes.items():
        must_stop = process.node in connected and _must_stop(pods.get(uid))
        if must_stop and now >= stop_at.setdefault(uid, now + grace):
            del processes[uid]
    for uid, pod in pods.items():
        stopping = uid in stop_at and uid in processes
        if stopping or pod["spec"].get("nodeName") not in connected:
            continue
        if (
            uid not in processes
            and uid not in machines.exits
            and not is_terminal(pod)
            and not is_terminating(pod)
        ):
            processes[uid] = _process(pod)
        report = _report(pod, now, runs=uid in processes, exit_phase=machines.exits.get(uid))
        chains.append(written_by(report, kubelet(pod["spec"]["nodeName"])))
    after = replace(
        machines,
        processes=processes,
        stop_at={uid: moment for uid, moment in stop_at.items() if uid in processes},
        exits={uid: phase for uid, phase in machines.exits.items() if uid in pods},
    )
    reachable = (after.stop_at[uid] for uid in after.stop_at if processes[uid].node in connected)
    return after, plan(chains, reachable)


def _must_stop(pod: Object | None) -> bool:
    """Tell whether the kubelet stops a pod: Terminating, declared terminal, or its record force-deleted."""
    return pod is None or is_terminating(pod) or is_terminal(pod)


def _process(pod: Object) -> Process:
    metadata = pod["metadata"]
    marks = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    return Process(
        pod_uid=metadata["uid"],
        namespace=metadata["namespace"],
        pod=metadata["name"],
        trainjob=marks.get(JOBSET_NAME, ""),
        a=marks.get(A_KEY),
        node=pod["spec"]["nodeName"],
        job=marks.get(JOB_NAME, ""),
        index=marks.get(COMPLETION_INDEX, ""),
    )


def _report(pod: Object, now: datetime, *, runs: bool, exit_phase: str | None) -> Chain:
    if runs:
        return [] if (pod.get("status") or {}).get("phase") == "Running" else _running(pod, now)
    # One that was told to stop ends as Failed before its record goes (TerminatePod of pkg/kubelet/status).
    phase = exit_phase or ("Failed" if is_terminating(pod) else None)
    ended = _ended(pod, phase, now, evicted=exit_phase == "Failed") if phase and not is_terminal(pod) else []
    # The record goes only after the process: what the rule relies on.
    return [*ended, delete(PODS, pod, grace_seconds=0)] if is_terminating(pod) else ended


def _running(pod: Object, now: datetime) -> Chain:
    conditions = (pod.get("status") or {}).get("conditions") or []
    for condition in ("Initialized", "Ready", "ContainersReady"):
        conditions = with_condition(conditions, {"type": condition, "status": "True"}, now)
    started = timestamp(now)
    status = {
        "phase": "Running",
        "startTime": started,
        "conditions": conditions,
        "containerStatuses": _containers(pod, {"running": {"startedAt": started}}, ready=True),
    }
    return status_patch(PODS, pod, status)


def _ended(pod: Object, phase: str, now: datetime, *, evicted: bool) -> Chain:
    conditions = (pod.get("status") or {}).get("conditions") or []
    for condition in ("Ready", "ContainersReady"):
        conditions = with_condition(conditions, {"type": condition, "status": "False"}, now)
    failed = phase == "Failed"
    terminated = {
        "exitCode": 137 if failed else 0,
        "reason": "Error" if failed else "Completed",
        "finishedAt": timestamp(now),
    }
    status = {
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": _containers(pod, {"terminated": terminated}, ready=False),
        **(_EVICTED if evicted else {}),
    }
    return status_patch(PODS, pod, status)


def _containers(pod: Object, state: Object, *, ready: bool) -> list[Object]:
    facts = {"ready": ready, "started": ready, "restartCount": 0, "imageID": "", "state": state}
    return [
        {"name": container["name"], "image": container.get("image", ""), **facts}
        for container in pod["spec"].get("containers") or ()
    ]
