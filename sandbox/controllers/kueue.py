"""Stand-in for Kueue: TrainJobs with a queue name get a Workload, quota, their checks, and are let run.

What it does for one TrainJob, in Kueue's order and words:

- A TrainJob that runs without being admitted is suspended.
- A ClusterQueue is used while every AdmissionCheck of its `admissionChecksStrategy` is Active.
- Quota is reserved (all that is asked for); the checks of the queue come up Pending.
- Once all are Ready the Workload is Admitted; its runtime patch is written into the TrainJob, with what the
  checks' `podSetUpdates` add, and then the TrainJob un-suspended.
- `spec.active: false`, or a condition Evicted, suspends the TrainJob, resets every check to Pending and, once
  the TrainJob counts no active job, takes the runtime patch and the quota back. Active again it is queued
  again.

Left out: its webhook (who creates a TrainJob suspends it), priorities, preemption, fair sharing, topologies,
what a quota holds, MultiKueue, and the backoff before it retries a denied un-suspend.
"""

import hashlib
from datetime import datetime

from sandbox.controllers.kinds import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    TRAINJOBS,
    WORKLOADS,
    Object,
    condition_status,
    controlled_by,
    is_terminating,
    owner_reference,
    timestamp,
    with_condition,
)
from sandbox.controllers.planning import Chain, Create, Patch, Plan, patch, plan
from sandbox.controllers.world import World

WATCHED = (TRAINJOBS, WORKLOADS, ADMISSION_CHECKS, CLUSTER_QUEUES, LOCAL_QUEUES)

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
_MANAGER = "kueue.x-k8s.io/manager"
_FIELD_MANAGER = "kueue-admission"
_PODS_OF_A_TRAINJOB = 2


def reconcile(world: World, now: datetime) -> Plan:
    """Decide the writes for every TrainJob that has a queue name."""
    return plan(_chain(trainjob, world, now) for trainjob in world.all(TRAINJOBS))


def workload_name(trainjob: Object) -> str:
    """Name the Workload of a TrainJob: as Kueue does, with a hash of what it is made for."""
    metadata = trainjob["metadata"]
    text = f"trainjob/{metadata['name']}/{metadata['uid']}"
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return f"trainjob-{metadata['name']}-{digest[:5]}"


def evicted(workload: Object, now: datetime, *, reason: str = "Preempted", message: str = "") -> Object:
    """Return the status of a Workload that is evicted now: checks are Pending, quota is still reserved."""
    status = workload.get("status") or {}
    condition = {"type": "Evicted", "status": "True", "reason": reason, "message": message}
    return {
        "conditions": with_condition(status.get("conditions") or (), condition, now),
        "admissionChecks": [_reset(check, now) for check in status.get("admissionChecks") or ()],
    }


def applied(workload: Object, status: Object) -> Chain:
    """Return the write that makes the status fields as given (None: absent), or nothing where they are.

    Kueue applies what it has read of its own and of every check with what it changes, on the version that it
    read: it comes to own what others wrote before.
    """
    current = workload.get("status") or {}
    whole = {field: current.get(field) for field in ("conditions", "admission", "admissionChecks")} | status
    if all(current.get(field) == value for field, value in whole.items()):
        return []
    metadata = {name: workload["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
    body = {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.name,
        "metadata": metadata,
        "status": whole,
    }
    return [Patch(WORKLOADS, metadata["namespace"], metadata["name"], body, "status", _FIELD_MANAGER)]


def _reset(check: Object, now: datetime) -> Object:
    if check["state"] == "Pending":
        return check
    return {
        "name": check["name"],
        "state": "Pending",
        "message": f"Reset to Pending after eviction. Previously: {check['state']}",
        "lastTransitionTime": timestamp(now),
    }


def _chain(trainjob: Object, world: World, now: datetime) -> Chain:
    metadata = trainjob["metadata"]
    queue = (metadata.get("labels") or {}).get(QUEUE_NAME)
    if not queue or is_terminating(trainjob):
        return []
    workload = world.get(WORKLOADS, metadata["namespace"], workload_name(trainjob))
    if workload is None:
        return [Create(WORKLOADS, _workload(trainjob, queue))]
    if not controlled_by(workload, trainjob) or is_terminating(workload) or _is(workload, "Finished"):
        return []
    return _of(trainjob, workload, queue, world, now)


def _of(trainjob: Object, workload: Object, queue: str, world: World, now: datetime) -> Chain:
    for condition in ("Complete", "Failed"):
        if condition_status(trainjob, condition) == "True":
            return _with(
                workload, now, Finished=("True", "Succeeded" if condition == "Complete" else "Failed")
            )
    if workload["spec"].get("active") is False and not _is(workload, "Evicted"):
        return applied(
            workload,
            evicted(workload, now, reason="Deactivated", message="The workload is deactivated"),
        )
    if _is(workload, "Evicted"):
        return _stopped(trainjob, workload, now) or _reserved(workload, world, now)
    if not _is(workload, "Admitted") and not trainjob["spec"].get("suspend"):
        return [patch(TRAINJOBS, trainjob, {"spec": {"suspend": True}})]
    return (
        _reserved(workload, world, now)
        or _admitted(workload, now)
        or _running(trainjob, workload, queue, world)
    )


def _workload(trainjob: Object, queue: str) -> Object:
    metadata, spec = trainjob["metadata"], trainjob["spec"]
    trainer = spec.get("trainer") or {}
    container = {"name": "node", "image": trainer.get("image") or "busybox"}
    pods = {"spec": {"containers": [container], "restartPolicy": "OnFailure"}}
    count = trainer.get("numNodes") or _PODS_OF_A_TRAINJOB
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.name,
        "metadata": {
            "name": workload_name(trainjob),
            "namespace": metadata["namespace"],
            "ownerReferences": [owner_reference(trainjob)],
        },
        "spec": {
            "active": True,
            "queueName": queue,
            "podSets": [{"name": "node", "count": count, "template": pods}],
        },
    }


def _is(item: Object, condition: str) -> bool:
    return condition_status(item, condition) == "True"


def _with(workload: Object, now: datetime, **conditions: tuple[str, str]) -> Chain:
    """Set conditions to (status, message)."""
    found = (workload.get("status") or {}).get("conditions") or []
    for kind, (status, message) in conditions.items():
        condition = {"type": kind, "status": status, "reason": kind, "message": message}
        found = with_condition(found, condition, now)
    return applied(workload, {"conditions": found})


def _stopped(trainjob: Object, workload: Object, now: datetime) -> Chain:
    """Stop an evicted Workload's TrainJob, and take the quota back once that counts no active job."""
    if not trainjob["spec"].get("suspend"):
        return [patch(TRAINJOBS, trainjob, {"spec": {"suspend": True}})]
    if not _is(workload, "QuotaReserved"):
        return []
    if any(job.get("active") for job in (trainjob.get("status") or {}).get("jobsStatus") or ()):
        return []
    restored = _patched(trainjob, None)
    conditions = workload["status"]["conditions"]
    for kind in ("QuotaReserved", "Admitted"):
        condition = {"type": kind, "status": "False", "reason": "Pending", "message": "Evicted"}
        conditions = with_condition(conditions, condition, now)
    return [*restored, *applied(workload, {"conditions": conditions, "admission": None})]


def _reserved(workload: Object, world: World, now: datetime) -> Chain:
    """Reserve quota in the queue's ClusterQueue, if all its checks are Active."""
    if _is(workload, "QuotaReserved") or workload["spec"].get("active") is False:
        return []
    queue = world.get(LOCAL_QUEUES, workload["metadata"]["namespace"], workload["spec"]["queueName"])
    cluster_queue = queue and world.get(CLUSTER_QUEUES, "", queue["spec"]["clusterQueue"])
    if not cluster_queue:
        return []
    strategy = cluster_queue["spec"].get("admissionChecksStrategy") or {}
    names = [rule["name"] for rule in strategy.get("admissionChecks") or ()]
    checks = [world.get(ADMISSION_CHECKS, "", name) for name in names]
    if not all(check and _is(check, "Active") for check in checks):
        return []
    name = cluster_queue["metadata"]["name"]
    status = workload.get("status") or {}
    reserved = {
        "type": "QuotaReserved",
        "status": "True",
        "reason": "QuotaReserved",
        "message": f"Quota reserved in ClusterQueue {name}",
    }
    conditions = with_condition(status.get("conditions") or (), reserved, now)
    if _is(workload, "Evicted"):
        over = {
            "type": "Evicted",
            "status": "False",
            "reason": "QuotaReserved",
            "message": "Previously: evicted",
        }
        conditions = with_condition(conditions, over, now)
    known = {check["name"]: check for check in status.get("admissionChecks") or ()}
    pending = {"state": "Pending", "message": "", "lastTransitionTime": timestamp(now)}
    assigned = [
        {"name": pods["name"], "count": pods["count"], "flavors": {}} for pods in workload["spec"]["podSets"]
    ]
    return applied(
        workload,
        {
            "conditions": conditions,
            "admission": {"clusterQueue": name, "podSetAssignments": assigned},
            "admissionChecks": [known.get(name) or {"name": name, **pending} for name in names] or None,
        },
    )


def _admitted(workload: Object, now: datetime) -> Chain:
    if _is(workload, "Admitted") or not _is(workload, "QuotaReserved"):
        return []
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    if any(check["state"] != "Ready" for check in checks):
        return []
    return _with(workload, now, Admitted=("True", "The workload is admitted"))


def _running(trainjob: Object, workload: Object, queue: str, world: World) -> Chain:
    """Write the runtime patch, then un-suspend: two writes, since a running TrainJob's patches are fixed."""
    if not _is(workload, "Admitted") or not trainjob["spec"].get("suspend"):
        return []
    local = world.get(LOCAL_QUEUES, workload["metadata"]["namespace"], queue)
    labels = {
        "kueue.x-k8s.io/cluster-queue-name": local["spec"]["clusterQueue"] if local else "",
        "kueue.x-k8s.io/local-queue-name": queue,
    }
    jobs = []
    for pods in workload["spec"]["podSets"]:
        annotations = {"kueue.x-k8s.io/workload": workload["metadata"]["name"]}
        for check in (workload.get("status") or {}).get("admissionChecks") or ():
            for update in check.get("podSetUpdates") or ():
                if update["name"] == pods["name"]:
                    annotations |= update.get("annotations") or {}
        metadata = {"annotations": annotations, "labels": labels | {"kueue.x-k8s.io/podset": pods["name"]}}
        pod_template = {"spec": {"template": {"metadata": metadata, "spec": {}}}}
        jobs.append({"name": pods["name"], "template": pod_template})
    return [*_patched(trainjob, jobs), patch(TRAINJOBS, trainjob, {"spec": {"suspend": False}})]


def _patched(trainjob: Object, jobs: list[Object] | None) -> Chain:
    """Write our runtime patch with these replicated jobs, beside those of others; nothing where it is so."""
    patches = trainjob["spec"].get("runtimePatches") or []
    spec = {"replicatedJobs": jobs} if jobs else {}
    ours = {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": spec}}}
    current = next((one for one in patches if one["manager"] == _MANAGER), None)
    if current is not None and current.get("trainingRuntimeSpec") == ours["trainingRuntimeSpec"]:
        return []
    others = [one for one in patches if one["manager"] != _MANAGER]
    return [patch(TRAINJOBS, trainjob, {"spec": {"runtimePatches": [*others, ours]}})]
