"""Stand-in for Kubeflow Trainer: TrainJob in, JobSet of the same name out.

Where no ClusterTrainingRuntime has the name that a TrainJob refers to, it gets one replicated job `node` of
`spec.trainer.numNodes` pods, 2 by default. Left out: namespaced runtimes, machine learning policies, and of
the runtime patches everything but labels and annotations.
"""

from datetime import datetime
from typing import Any

from sandbox.controllers.kinds import (
    JOBSETS,
    RUNTIMES,
    TRAINJOBS,
    Object,
    condition_status,
    controlled_by,
    is_terminating,
    labels_and_annotations,
    owner_reference,
    with_condition,
    with_suspension,
)
from sandbox.controllers.planning import Chain, Create, Plan, patch, plan, status_patch
from sandbox.controllers.world import World

WATCHED = (TRAINJOBS, JOBSETS, RUNTIMES)
_MANAGER = "trainer.kubeflow.org/trainjob-controller"
_ANCESTOR_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "reason": "Suspended",
    "message": "TrainJob is suspended",
}
_RESUMED = {"type": "Suspended", "status": "False", "reason": "Resumed", "message": "TrainJob is resumed"}
_OF_THE_JOBSET = {"Completed": "Complete", "Failed": "Failed"}
"""The JobSet's conditions that finish a TrainJob, and what each is called there."""


def reconcile(world: World, now: datetime) -> Plan:
    """Decide the writes for every TrainJob."""
    return plan(_chain(trainjob, world, now) for trainjob in world.all(TRAINJOBS))


def _chain(trainjob: Object, world: World, now: datetime) -> Chain:
    metadata, spec = trainjob["metadata"], trainjob["spec"]
    if (
        is_terminating(trainjob)
        or spec.get("managedBy", _MANAGER) != _MANAGER
        or any(condition_status(trainjob, one) == "True" for one in _OF_THE_JOBSET.values())
    ):
        return []
    jobset = world.get(JOBSETS, metadata["namespace"], metadata["name"])
    wanted = rendered(trainjob, world.get(RUNTIMES, "", (spec.get("runtimeRef") or {}).get("name", "")))
    if jobset is None:
        return [Create(JOBSETS, wanted), *_status(trainjob, None, now)]
    if not controlled_by(jobset, trainjob) or is_terminating(jobset):
        return []
    return [*_update(trainjob, jobset, wanted), *_status(trainjob, jobset, now)]


def _suspended(trainjob: Object) -> bool:
    return bool(trainjob["spec"].get("suspend"))


def rendered(trainjob: Object, runtime: Object | None = None) -> Object:
    """Render the JobSet of a TrainJob: the runtime's, with what its runtime patches add."""
    name, namespace = trainjob["metadata"]["name"], trainjob["metadata"]["namespace"]
    trainer = trainjob["spec"].get("trainer") or {}
    template = _dig(runtime, "spec", "template") if runtime else _torch(trainer)
    replicated = [_replicated(one, trainer) for one in _dig(template, "spec").get("replicatedJobs") or ()]
    metadata = {field: dict(_dig(template, "metadata", field)) for field in ("labels", "annotations")}
    jobset: Object = {
        "apiVersion": JOBSETS.api_version,
        "kind": JOBSETS.name,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "ownerReferences": [owner_reference(trainjob)],
            **{field: values for field, values in metadata.items() if values},
        },
        "spec": {
            "suspend": _suspended(trainjob),
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "successPolicy": {"operator": "All"},
            **_dig(template, "spec"),
            "replicatedJobs": replicated,
        },
    }
    for runtime_patch in trainjob["spec"].get("runtimePatches") or ():
        patched = _dig(runtime_patch, "trainingRuntimeSpec", "template")
        _merge(jobset, patched)
        for added in _dig(patched, "spec").get("replicatedJobs") or ():
            for job in (one["template"] for one in replicated if one["name"] == added["name"]):
                _merge(job, _dig(added, "template"))
                _merge(job["spec"]["template"], _dig(added, "template", "spec", "template"))
    return jobset


def _torch(trainer: Object) -> Object:
    """Return the template of a runtime with one replicated job."""
    pod = {"spec": {"containers": [{"name": "node", "image": trainer.get("image") or "busybox"}]}}
    job = {
        "metadata": {"labels": {_ANCESTOR_STEP: "trainer"}},
        "spec": {"completions": 2, "parallelism": 2, "template": pod},
    }
    return {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}


def _replicated(given: Object, trainer: Object) -> Object:
    """Fill in what JobSet's webhook defaults, and how many nodes the trainer has."""
    template = given["template"]
    metadata, spec = dict(template.get("metadata") or {}), dict(template["spec"])
    pod = spec["template"]
    nodes = trainer.get("numNodes")
    if nodes and _dig(template, "metadata", "labels").get(_ANCESTOR_STEP) == "trainer":
        spec |= {"completions": nodes, "parallelism": nodes}
    spec["template"] = {
        "metadata": dict(pod.get("metadata") or {}),
        "spec": {"restartPolicy": "OnFailure", **pod["spec"]},
    }
    job = {"metadata": metadata, "spec": {"completionMode": "Indexed", **spec}}
    return {"groupName": "default", "replicas": 1, **given, "template": job}


def _dig(item: Object, *keys: str) -> Object:
    for key in keys:
        item = item.get(key) or {}
    return item


def _merge(target: Object, source: Object) -> None:
    target["metadata"] |= labels_and_annotations(target["metadata"], _dig(source, "metadata"))


def _update(trainjob: Object, jobset: Object, wanted: Object) -> Chain:
    suspend = _suspended(trainjob)
    if not jobset["spec"].get("suspend"):
        # A running JobSet takes no change of its templates; Trainer only passes the suspension on.
        return [patch(JOBSETS, jobset, {"spec": {"suspend": True}})] if suspend else []
    body: dict[str, Any] = {}
    for field in ("labels", "annotations"):
        current = jobset["metadata"].get(field) or {}
        if missing := {k: v for k, v in wanted["metadata"].get(field, {}).items() if current.get(k) != v}:
            body.setdefault("metadata", {})[field] = missing
    templates = [
        _with_metadata(r, wanted["spec"]["replicatedJobs"]) for r in jobset["spec"]["replicatedJobs"]
    ]
    if templates != jobset["spec"]["replicatedJobs"]:
        body.setdefault("spec", {})["replicatedJobs"] = templates
    if not suspend:
        body.setdefault("spec", {})["suspend"] = False
    return [patch(JOBSETS, jobset, body)] if body else []


def _with_metadata(replicated: Object, wanted: list[Object]) -> Object:
    """Put the rendered labels and annotations in, and leave alone what the API server defaulted."""
    job = next((r["template"] for r in wanted if r["name"] == replicated["name"]), None)
    if job is None:
        return replicated
    template = replicated["template"]
    pod = {**template["spec"]["template"], "metadata": job["spec"]["template"]["metadata"]}
    spec = {**template["spec"], "template": pod}
    return {**replicated, "template": {**template, "metadata": job["metadata"], "spec": spec}}


def _status(trainjob: Object, jobset: Object | None, now: datetime) -> Chain:
    conditions = with_suspension(trainjob, _SUSPENDED, _RESUMED, now)
    status = (jobset or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in _OF_THE_JOBSET:
            finished = {**condition, "type": _OF_THE_JOBSET[condition["type"]]}
            conditions = with_condition(conditions, finished, now)
    return status_patch(
        TRAINJOBS,
        trainjob,
        {"conditions": conditions or None, "jobsStatus": status.get("replicatedJobsStatus")},
    )
