"""Stand-in for the JobSet controller: JobSet in, Jobs `<jobset>-<replicated job>-<index>` out.

Left out: failure policies (the first failed Job fails the JobSet), startup and dependency order, the
headless Service, and the TTL.
"""

import hashlib
from datetime import datetime

from sandbox.controllers.kinds import (
    JOBS,
    JOBSET_NAME,
    JOBSETS,
    Object,
    condition_status,
    controlled_by,
    is_finished_job,
    is_terminating,
    labels_and_annotations,
    owner_reference,
    with_condition,
    with_suspension,
)
from sandbox.controllers.planning import Chain, Create, Plan, patch, plan, status_patch
from sandbox.controllers.world import World

WATCHED = (JOBSETS, JOBS)
_SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "reason": "SuspendedJobs",
    "message": "jobset is suspended",
}
_RESUMED = {"type": "Suspended", "status": "False", "reason": "ResumeJobs", "message": "jobset is resumed"}
_FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "FailedJobs",
    "message": "jobset failed due to one or more job failures",
}
_COMPLETED = {
    "type": "Completed",
    "status": "True",
    "reason": "AllJobsCompleted",
    "message": "jobset completed successfully",
}


def reconcile(world: World, now: datetime) -> Plan:
    """Decide the writes for every JobSet."""
    return plan(_chain(jobset, world, now) for jobset in world.all(JOBSETS))


def _chain(jobset: Object, world: World, now: datetime) -> Chain:
    if is_terminating(jobset) or (jobset.get("status") or {}).get("terminalState"):
        return []
    chain: Chain = []
    for wanted in rendered(jobset):
        job = world.get(JOBS, jobset["metadata"]["namespace"], wanted["metadata"]["name"])
        if job is None:
            chain.append(Create(JOBS, wanted))
        elif controlled_by(job, jobset) and not is_terminating(job) and not is_finished_job(job):
            if reset := _reset_for_resumption(jobset, job):
                # What follows is decided on the version that this makes.
                return [*chain, *reset]
            chain += _follow_suspension(jobset, job, wanted)
    # The condition follows the writes to the Jobs: when one of those fails, it is not set.
    return [*chain, *_status(jobset, world, now)]


def _reset_for_resumption(jobset: Object, job: Object) -> Chain:
    """Take the start time of a suspended Job away: else the API server takes no new template labels."""
    if jobset["spec"].get("suspend") or not job["spec"].get("suspend"):
        return []
    return status_patch(JOBS, job, {"startTime": None})


def _follow_suspension(jobset: Object, job: Object, wanted: Object) -> Chain:
    suspend, suspended = bool(jobset["spec"].get("suspend")), bool(job["spec"].get("suspend"))
    if suspend == suspended:
        return []
    if suspend:
        return [patch(JOBS, job, {"spec": {"suspend": True}})]
    # The real one updates the whole Job: what would start pods is refused (409) when the Job changed since it
    # was seen. So would be a suspension, which is tried again then; here it needs no second try.
    seen = {"resourceVersion": job["metadata"]["resourceVersion"]}
    template = {"metadata": wanted["spec"]["template"]["metadata"]}
    return [patch(JOBS, job, {"metadata": seen, "spec": {"suspend": False, "template": template}})]


def rendered(jobset: Object) -> list[Object]:
    """Render the Jobs of a JobSet."""
    replicated = jobset["spec"]["replicatedJobs"]
    total = sum(r.get("replicas", 1) for r in replicated)
    indexed = [(r, index) for r in replicated for index in range(r.get("replicas", 1))]
    return [_job(jobset, r, index, position, total) for position, (r, index) in enumerate(indexed)]


def _job(jobset: Object, replicated: Object, index: int, position: int, total: int) -> Object:
    metadata, template = jobset["metadata"], replicated["template"]
    name = f"{metadata['name']}-{replicated['name']}-{index}"
    key = hashlib.sha1(f"{metadata['namespace']}/{name}".encode(), usedforsecurity=False).hexdigest()
    marks = {
        JOBSET_NAME: metadata["name"],
        "jobset.sigs.k8s.io/jobset-uid": metadata["uid"],
        "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
        "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicated.get("replicas", 1)),
        "jobset.sigs.k8s.io/global-replicas": str(total),
        "jobset.sigs.k8s.io/group-name": replicated.get("groupName") or "default",
        "jobset.sigs.k8s.io/job-index": str(index),
        "jobset.sigs.k8s.io/job-global-index": str(position),
        "jobset.sigs.k8s.io/job-key": key,
        "jobset.sigs.k8s.io/restart-attempt": "0",
    }
    pod = template["spec"]["template"]

    def marked(template: Object) -> Object:
        # Over those of the template, so that no template can take JobSet's away.
        return labels_and_annotations(template.get("metadata") or {}, {"labels": marks, "annotations": marks})

    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.name,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "ownerReferences": [owner_reference(jobset)],
            **marked(template),
        },
        "spec": {
            **template["spec"],
            "suspend": bool(jobset["spec"].get("suspend")),
            "template": {
                **pod,
                "metadata": marked(pod),
                "spec": {**pod["spec"], "subdomain": metadata["name"]},
            },
        },
    }


def _status(jobset: Object, world: World, now: datetime) -> Chain:
    jobs = [job for job in world.all(JOBS) if controlled_by(job, jobset)]
    conditions = with_suspension(jobset, _SUSPENDED, _RESUMED, now)
    terminal = None
    if any(condition_status(job, "Failed") == "True" for job in jobs):
        terminal, conditions = "Failed", with_condition(conditions, _FAILED, now)
    elif len(jobs) == len(rendered(jobset)) and all(condition_status(j, "Complete") == "True" for j in jobs):
        terminal, conditions = "Completed", with_condition(conditions, _COMPLETED, now)
    counts = [_counts(replicated, jobs) for replicated in jobset["spec"]["replicatedJobs"]]
    status = {
        "conditions": conditions or None,
        "terminalState": terminal,
        "restarts": 0,
        "replicatedJobsStatus": counts,
    }
    return status_patch(JOBSETS, jobset, status)


def _counts(replicated: Object, jobs: list[Object]) -> Object:
    counts = dict.fromkeys(("active", "failed", "ready", "succeeded", "suspended"), 0)
    for job in jobs:
        if job["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] != replicated["name"]:
            continue
        status = job.get("status") or {}
        if condition_status(job, "Complete") == "True":
            counts["succeeded"] += 1
        elif condition_status(job, "Failed") == "True":
            counts["failed"] += 1
        elif job["spec"].get("suspend"):
            counts["suspended"] += 1
        else:
            counts["active"] += bool(status.get("active"))
            counts["ready"] += status.get("ready", 0) >= job["spec"].get("parallelism", 1)
    return {"name": replicated["name"], **counts}
