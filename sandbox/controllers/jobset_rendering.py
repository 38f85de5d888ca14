"""The Jobs of a JobSet, with the labels by which everything else knows them (JobSet's constructJob)."""

import hashlib

from sandbox.controllers.kinds import JOBS, JOBSET_NAME, Object, owner_reference

RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"


def replicas(replicated: Object) -> int:
    """How many Jobs a replicated job has."""
    return int(replicated.get("replicas", 1))


def job_names(jobset: Object, replicated: Object) -> list[str]:
    """Name the Jobs of one replicated job, in the order of their indexes."""
    name = f"{jobset['metadata']['name']}-{replicated['name']}"
    return [f"{name}-{index}" for index in range(replicas(replicated))]


def _group(replicated: Object) -> str:
    return str(replicated.get("groupName") or "default")


def _before(jobset: Object, replicated: Object, *, group: str = "") -> int:
    """Count the Jobs of the replicated jobs before this one, of a group if one is named."""
    found = 0
    for one in jobset["spec"]["replicatedJobs"]:
        if one["name"] == replicated["name"]:
            break
        found += replicas(one) if not group or _group(one) == group else 0
    return found


def _marks(jobset: Object, replicated: Object, name: str, index: int) -> dict[str, str]:
    metadata, group = jobset["metadata"], _group(replicated)
    every = jobset["spec"]["replicatedJobs"]
    key = hashlib.sha1(f"{metadata['namespace']}/{name}".encode(), usedforsecurity=False).hexdigest()
    return {
        JOBSET_NAME: metadata["name"],
        JOBSET_UID: metadata["uid"],
        REPLICATED_JOB: replicated["name"],
        RESTART_ATTEMPT: str((jobset.get("status") or {}).get("restarts", 0)),
        "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicas(replicated)),
        "jobset.sigs.k8s.io/global-replicas": str(sum(map(replicas, every))),
        "jobset.sigs.k8s.io/job-index": str(index),
        "jobset.sigs.k8s.io/job-key": key,
        "jobset.sigs.k8s.io/job-global-index": str(_before(jobset, replicated) + index),
        "jobset.sigs.k8s.io/group-name": group,
        "jobset.sigs.k8s.io/group-replicas": str(sum(replicas(one) for one in every if _group(one) == group)),
        "jobset.sigs.k8s.io/job-group-index": str(_before(jobset, replicated, group=group) + index),
    }


def rendered(jobset: Object, replicated: Object, index: int) -> Object:
    """Render one Job of a replicated job, of the restart attempt that the JobSet's status counts."""
    metadata, template = jobset["metadata"], replicated["template"]
    name = f"{metadata['name']}-{replicated['name']}-{index}"
    marks = _marks(jobset, replicated, name, index)
    pod = template["spec"]["template"]
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.name,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "ownerReferences": [owner_reference(jobset)],
            **_marked(template, marks),
        },
        "spec": {
            **template["spec"],
            "suspend": bool(jobset["spec"].get("suspend")),
            "template": {
                **pod,
                "metadata": _marked(pod, marks),
                "spec": {**pod["spec"], "subdomain": metadata["name"]},
            },
        },
    }


def _marked(template: Object, marks: dict[str, str]) -> Object:
    """Merge JobSet's labels over those of the template, so that no template can take them away."""
    metadata = template.get("metadata") or {}
    return {field: {**(metadata.get(field) or {}), **marks} for field in ("labels", "annotations")}
