"""Builders of the objects that the tests speak of: only the fields that a decision depends on."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from webhook.rule.starts import (
    ANCESTOR_LABEL,
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    JOBSET_UID_LABEL,
    POD_REPLACEMENT_ANNOTATION,
    RESTART_ATTEMPT_LABEL,
)
from webhook.rule.trainjob import DEFAULT_A_KEY, JOB_ID_LABEL, JOBSET_NAME_LABEL, SUBMISSION_LABEL

Document = dict[str, Any]

NAMESPACE = "team"
NAME = "llama"
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
ADAPTER = "dispatch.phpboyscout.uk/adapter"
KUEUE = "kueue.x-k8s.io/manager"
DELETED_AT = "2026-01-05T10:00:00Z"
CREATED_AT = "2026-01-05T09:00:00Z"
JOBSET_UID = "jobset-uid-0"
TRAINJOB_UID = "trainjob-uid"

JOBSET_CONTROLLER = "system:serviceaccount:jobset-system:jobset-controller-manager"

A_PLACES = tuple(
    f"{holder}.{field}"
    for holder in ("metadata", "jobset", "job", "pods")
    for field in ("annotations", "labels")
)
"""Wherever A can be written: the TrainJob itself, and what a runtime patch gives JobSet, Jobs and pods."""


def a(number: object) -> dict[str, str]:
    """The annotation or label that holds the admission number."""
    return {DEFAULT_A_KEY: str(number)}


def a_in(place: str, value: object) -> Document:
    """The arguments that make `trainjob` write A in one of `A_PLACES`."""
    holder, field = place.split(".")
    if holder == "metadata":
        return {field: a(value)}
    metadata: Document = {holder: {field: a(value)}}
    return {"patches": [patch(**metadata)]}


def execution_labels(job_id: str = "j-1", submission: str = "s-1") -> dict[str, str]:
    return {JOB_ID_LABEL: job_id, SUBMISSION_LABEL: submission}


def trainjob(
    name: str = NAME,
    *,
    namespace: str = NAMESPACE,
    suspend: bool | None = True,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    patches: Iterable[Document] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Document:
    """A TrainJob; `suspend=None` leaves the field out."""
    spec: Document = {"runtimeRef": {"name": "torch-distributed"}}
    if suspend is not None:
        spec["suspend"] = suspend
    if listed := list(patches):
        spec["runtimePatches"] = listed
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(name, namespace, labels, annotations, metadata),
        "spec": spec,
    }


def patch(
    manager: str = ADAPTER,
    *,
    jobset: Document | None = None,
    job: Document | None = None,
    pods: Document | None = None,
    replicated_job: str = "node",
) -> Document:
    """An entry of `spec.runtimePatches` with the metadata it gives the JobSet, the Jobs and the pods."""
    pod_template: Document = {} if pods is None else {"metadata": pods}
    job_template: Document = {"spec": {"template": pod_template}}
    if job is not None:
        job_template["metadata"] = job
    template: Document = {"spec": {"replicatedJobs": [{"name": replicated_job, "template": job_template}]}}
    if jobset is not None:
        template["metadata"] = jobset
    return {"manager": manager, "trainingRuntimeSpec": {"template": template}}


def pod(
    name: str = "llama-node-0-0-x7k2p",
    *,
    trainjob: str | None = NAME,
    namespace: str = NAMESPACE,
    phase: str | None = "Running",
    node: str | None = "gpu-1",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
) -> Document:
    """A pod that JobSet made for `trainjob`; `phase=None` is one that no kubelet has reported on."""
    document: Document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(
            name, namespace, _of(trainjob) | dict(labels or {}), annotations, _deletion(deleting=deleting)
        ),
        "spec": {"containers": [{"name": "node", "image": "trainer"}]},
        "status": {},
    }
    if node is not None:
        document["spec"]["nodeName"] = node
    if phase is not None:
        document["status"]["phase"] = phase
    return document


def job(
    name: str = "llama-node-0",
    *,
    trainjob: str | None = NAME,
    namespace: str = NAMESPACE,
    suspend: bool | None = True,
    conditions: Mapping[str, str] | None = None,
    generation: int = 2,
    deleting: bool = False,
    owner: Document | None = None,
) -> Document:
    """A Job that JobSet made for `trainjob`; `conditions` maps type to status, `owner` is its JobSet."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(
            name,
            namespace,
            _of(trainjob),
            None,
            _deletion(deleting=deleting) | {"generation": generation} | _owned_by(owner),
        ),
        "spec": {"parallelism": 1, "completions": 1} | _suspend(suspend),
        "status": _conditions(conditions),
    }


_JOB_TEMPLATE: Document = {
    "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "trainer"}]}}}
}


def jobset(
    name: str = NAME,
    *,
    namespace: str = NAMESPACE,
    suspend: bool | None = True,
    conditions: Mapping[str, str] | None = None,
    generation: int = 2,
    terminal_state: str | None = None,
    deleting: bool = False,
    owner: Document | None = None,
) -> Document:
    """The JobSet that Trainer made for the TrainJob of the same name, which is its `owner`."""
    status = _conditions(conditions)
    if terminal_state is not None:
        status["terminalState"] = terminal_state
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(
            name,
            namespace,
            None,
            None,
            _deletion(deleting=deleting) | {"generation": generation} | _owned_by(owner),
        ),
        "spec": {"replicatedJobs": [{"name": "node", "replicas": 1, "template": _JOB_TEMPLATE}]}
        | _suspend(suspend),
        "status": status,
    }


def made_by_trainer(jobset: Document) -> Document:
    """A JobSet whose Job templates have the mark of Trainer's runtimes."""
    (replicated,) = jobset["spec"]["replicatedJobs"]
    marked = replicated["template"] | {"metadata": {"labels": {ANCESTOR_LABEL: "trainer"}}}
    return jobset | {"spec": jobset["spec"] | {"replicatedJobs": [replicated | {"template": marked}]}}


def jobset_of_trainjob(
    name: str = NAME,
    *,
    uid: str = JOBSET_UID,
    restarts: int | None = 0,
    suspend: bool = False,
    **changes: Any,
) -> Document:
    """A JobSet that runs, as a TrainJob has it."""
    owner: Document = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
    owner["metadata"] = {"name": name, "uid": TRAINJOB_UID}
    document = jobset(name, suspend=suspend, owner=owner, **changes)
    document["metadata"]["uid"] = uid
    if restarts is not None:
        document["status"]["restarts"] = restarts
    return document


def bare_jobset(name: str = NAME) -> Document:
    """A JobSet that runs, and that no TrainJob owns."""
    document = jobset_of_trainjob(name)
    del document["metadata"]["ownerReferences"]
    return document


def job_of_jobset(
    name: str = "llama-node-0",
    *,
    jobset_name: str = NAME,
    uid: str = "job-uid-0",
    owner_uid: str | None = JOBSET_UID,
    pods_jobset_name: str | None = None,
    attempt: str = "0",
    policy: str | None = None,
    grace: int | None = None,
    wish: str | None = None,
    **changes: Any,
) -> Document:
    """A Job with all by which a start of it is told; `wish` is its annotation on how pods are replaced."""
    document = job(name, trainjob=jobset_name, **changes)
    metadata, spec = document["metadata"], document["spec"]
    metadata["uid"] = uid
    if owner_uid is not None:
        owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": jobset_name}
        metadata["ownerReferences"] = [owner | {"uid": owner_uid, "controller": True}]
    if wish is not None:
        metadata["annotations"] = {POD_REPLACEMENT_ANNOTATION: wish}
    if policy is not None:
        spec["podReplacementPolicy"] = policy
    pods: Document = {"containers": [{"name": "node", "image": "trainer"}], "restartPolicy": "Never"}
    if grace is not None:
        pods["terminationGracePeriodSeconds"] = grace
    name_of_pods = jobset_name if pods_jobset_name is None else pods_jobset_name
    labels = {JOBSET_NAME_LABEL: name_of_pods, JOBSET_UID_LABEL: JOBSET_UID, RESTART_ATTEMPT_LABEL: attempt}
    spec["template"] = {"metadata": {"labels": labels}, "spec": pods}
    return document


def pod_of_job(
    job_name: str = "llama-node-0",
    *,
    name: str | None = None,
    uid: str = "job-uid-0",
    jobset_uid: str = JOBSET_UID,
    attempt: str = "0",
    without: Iterable[str] | Literal["JobSet's"] = (),
    **changes: Any,
) -> Document:
    """A pod of a Job, with the labels that JobSet and the Job controller give it but `without`."""
    labels = {
        JOBSET_UID_LABEL: jobset_uid,
        RESTART_ATTEMPT_LABEL: attempt,
        JOB_NAME_LABEL: job_name,
        JOB_UID_LABEL: uid,
    }
    taken = (JOBSET_UID_LABEL, RESTART_ATTEMPT_LABEL) if without == "JobSet's" else tuple(without)
    left = {key: value for key, value in labels.items() if key not in taken}
    return pod(name or f"{job_name}-0-x7k2p", labels=left, **changes)


def job_review(
    new: Document | None, *, old: Document | None = None, sub_resource: str = "", **changes: Any
) -> Document:
    """The AdmissionReview of a Job request."""
    document = review(new, old=old, sub_resource=sub_resource, username=JOBSET_CONTROLLER, **changes)
    document["request"]["kind"] = {"group": "batch", "version": "v1", "kind": "Job"}
    document["request"]["resource"] = {"group": "batch", "version": "v1", "resource": "jobs"}
    return document


def node(name: str = "gpu-1", *, ready: str | None = "True", taints: Iterable[str] = ()) -> Document:
    """A node; `ready` is the status of its Ready condition, `taints` are the keys."""
    spec: Document = {}
    if keys := list(taints):
        spec["taints"] = [{"key": key, "value": "nodeshutdown", "effect": "NoExecute"} for key in keys]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": spec,
        "status": _conditions(None if ready is None else {"MemoryPressure": "False", "Ready": ready}),
    }


def review(
    new: Document | None,
    *,
    old: Document | None = None,
    operation: str | None = None,
    uid: str = UID,
    name: str | None = None,
    namespace: str | None = None,
    dry_run: bool = False,
    sub_resource: str = "",
    username: str = "system:serviceaccount:kueue-system:kueue-controller-manager",
) -> Document:
    """The AdmissionReview of a TrainJob request; CREATE without an old object, else UPDATE.

    `name` and `namespace` are those of the object unless given.
    """
    metadata = (new or old or {}).get("metadata", {})
    request: Document = {
        "uid": uid,
        "kind": {"group": "trainer.kubeflow.org", "version": "v1alpha1", "kind": "TrainJob"},
        "resource": {"group": "trainer.kubeflow.org", "version": "v1alpha1", "resource": "trainjobs"},
        "operation": operation or ("CREATE" if old is None else "UPDATE"),
        "name": metadata.get("name", "") if name is None else name,
        "namespace": metadata.get("namespace", "") if namespace is None else namespace,
        "userInfo": {"username": username, "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
        "dryRun": dry_run,
    }
    if sub_resource:
        request["subResource"] = sub_resource
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _metadata(
    name: str,
    namespace: str,
    labels: Mapping[str, str] | None,
    annotations: Mapping[str, str] | None,
    more: Mapping[str, Any] | None,
) -> Document:
    metadata: Document = {"name": name, "namespace": namespace, "creationTimestamp": CREATED_AT}
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    return metadata | dict(more or {})


def _of(trainjob: str | None) -> dict[str, str]:
    return {} if trainjob is None else {JOBSET_NAME_LABEL: trainjob}


def _owned_by(owner: Document | None) -> Document:
    if owner is None:
        return {}
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    identity = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"ownerReferences": [reference | identity]}


def _suspend(suspend: bool | None) -> Document:
    return {} if suspend is None else {"suspend": suspend}


def _deletion(*, deleting: bool) -> Document:
    return {"deletionTimestamp": DELETED_AT} if deleting else {}


def _conditions(conditions: Mapping[str, str] | None) -> Document:
    if not conditions:
        return {}
    told = {"reason": "Told", "message": "", "lastTransitionTime": CREATED_AT}
    return {"conditions": [{"type": kind, "status": status} | told for kind, status in conditions.items()]}
