"""The kinds the stand-ins read and write, and where the API server serves them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
LOST = "sandbox.interlock.dispatch.phpboyscout.uk/lost"
UNREACHABLE = "node.kubernetes.io/unreachable"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_NAME = "batch.kubernetes.io/job-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Kind:
    """A kind in one version of one API group."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What an object of the kind carries as `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path; without a namespace that of all namespaces."""
        parts = ["apis" if self.group else "api", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/" + "/".join([*parts, self.plural, *filter(None, (name, subresource))])


PODS = Kind("", "v1", "Pod", "pods")
NODES = Kind("", "v1", "Node", "nodes", namespaced=False)
EVENTS = Kind("", "v1", "Event", "events")
JOBS = Kind("batch", "v1", "Job", "jobs")
JOBSETS = Kind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
TRAINJOBS = Kind("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
RUNTIMES = Kind(
    "trainer.kubeflow.org", "v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes", namespaced=False
)
WORKLOADS = Kind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
ADMISSION_CHECKS = Kind("kueue.x-k8s.io", "v1beta2", "AdmissionCheck", "admissionchecks", namespaced=False)
CLUSTER_QUEUES = Kind("kueue.x-k8s.io", "v1beta2", "ClusterQueue", "clusterqueues", namespaced=False)
LOCAL_QUEUES = Kind("kueue.x-k8s.io", "v1beta2", "LocalQueue", "localqueues")


def timestamp(moment: datetime) -> str:
    """Write a moment as metav1.Time does: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def owner_reference(owner: Object) -> Object:
    """Refer to the controller of an object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controlled_by(item: Object, owner: Object) -> bool:
    """Tell whether `owner` itself, not a namesake before it, is the controller of the object."""
    references = item["metadata"].get("ownerReferences") or ()
    return any(ref.get("controller") and ref["uid"] == owner["metadata"]["uid"] for ref in references)


def labels_and_annotations(*metadata: Object) -> Object:
    """Merge labels and annotations, the later over the earlier; an empty map is left out."""
    return {
        field: merged
        for field in ("labels", "annotations")
        if (merged := {key: value for each in metadata for key, value in (each.get(field) or {}).items()})
    }


def is_terminating(item: Object) -> bool:
    """Tell whether deletion has begun."""
    return bool(item["metadata"].get("deletionTimestamp"))


def is_terminal(pod: Object) -> bool:
    """Tell whether the pod's phase is Succeeded or Failed."""
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES


def condition_status(item: Object, condition: str) -> str:
    """Return the status of a condition, or an empty string where it is not set."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((str(c["status"]) for c in conditions if c["type"] == condition), "")


def with_condition(conditions: Iterable[Object], condition: Object, now: datetime) -> list[Object]:
    """Set a condition; one that already has that status is left as it is, its transition time too."""
    kept = list(conditions)
    for index, existing in enumerate(kept):
        if existing["type"] == condition["type"]:
            if existing["status"] != condition["status"]:
                kept[index] = {**condition, "lastTransitionTime": timestamp(now)}
            return kept
    return [*kept, {**condition, "lastTransitionTime": timestamp(now)}]


def with_suspension(item: Object, suspended: Object, resumed: Object, now: datetime) -> list[Object]:
    """Return the conditions of an object, `Suspended` following its spec; one that never was has none."""
    conditions = (item.get("status") or {}).get("conditions") or []
    if item["spec"].get("suspend"):
        return with_condition(conditions, suspended, now)
    return with_condition(conditions, resumed, now) if condition_status(item, "Suspended") else conditions


def is_finished_job(job: Object) -> bool:
    """Tell whether a Job is Complete or Failed."""
    return "True" in (condition_status(job, "Complete"), condition_status(job, "Failed"))


def is_annotated_lost(node: Object) -> bool:
    """Tell whether someone cut the node off with kubectl: the annotation `LOST` is `true`."""
    return (node["metadata"].get("annotations") or {}).get(LOST) == "true"


def has_taint(node: Object, key: str, effect: str | None = None) -> bool:
    """Tell whether a node has a taint of that key (and effect)."""
    return any(
        taint["key"] == key and effect in (None, taint.get("effect"))
        for taint in (node.get("spec") or {}).get("taints") or ()
    )
