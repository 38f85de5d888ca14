"""Stand-in for the JobSet controller: JobSet in, Jobs `<jobset>-<replicated job>-<index>` out.

It does the steps of the real reconcile function in its order, the failure policy among them, for restarts of
the whole JobSet. Left out: the headless Service, volumes, exclusive placement, the TTL, restarts of single
Jobs and in place. A Job that is being deleted is neither suspended nor resumed.
"""

from datetime import datetime

from sandbox.controllers import jobset_status
from sandbox.controllers.jobset_rendering import REPLICATED_JOB, RESTART_ATTEMPT, job_names, rendered
from sandbox.controllers.jobset_status import Jobs
from sandbox.controllers.kinds import (
    JOBS,
    JOBSETS,
    Object,
    condition_status,
    controlled_by,
    is_terminating,
)
from sandbox.controllers.planning import Chain, Create, Patch, Plan, delete, patch, plan, status_patch
from sandbox.controllers.world import World

WATCHED = (JOBSETS, JOBS)
_MANAGER = "jobset.sigs.k8s.io/jobset-controller"


def reconcile(world: World, now: datetime) -> Plan:
    """Decide the writes for every JobSet."""
    return plan(_chain(jobset, world, now) for jobset in world.all(JOBSETS))


def _chain(jobset: Object, world: World, now: datetime) -> Chain:
    if is_terminating(jobset) or (jobset["spec"].get("managedBy") or _MANAGER) != _MANAGER:
        return []
    jobs = _owned(jobset, world)
    counts = jobset_status.counted(jobset, jobs)
    if jobset_status.is_finished(jobset):
        return [*_deleted(jobs.active), *jobset_status.finished(jobset, counts)]
    chain = _deleted(jobs.previous)
    if jobs.failed:
        return [*chain, *jobset_status.failed(jobset, jobs, counts, now)]
    if jobs.successful and jobset_status.has_succeeded(jobset, jobs):
        return [*chain, *jobset_status.completed(jobset, counts, now)]
    created, is_starting = _created(jobset, jobs, counts, world)
    chain += created
    resuming = not jobset["spec"].get("suspend")
    followed, is_resuming = _resumed(jobset, jobs, counts) if resuming else (_suspended(jobs), False)
    chain += followed
    if any(isinstance(write, Patch) and write.subresource for write in followed):
        # What follows is decided on the version that this makes.
        return chain
    # The condition follows the writes to the Jobs: when one of those fails, it is not set.
    is_starting = is_starting or is_resuming
    return [*chain, *jobset_status.running(jobset, counts, now, is_starting=is_starting)]


def _owned(jobset: Object, world: World) -> Jobs:
    restarts = (jobset.get("status") or {}).get("restarts", 0)
    jobs = Jobs()
    for job in world.all(JOBS):
        if not controlled_by(job, jobset):
            continue
        if int(job["metadata"]["labels"].get(RESTART_ATTEMPT, "0")) < restarts:
            jobs.previous.append(job)
        elif condition_status(job, "Failed") == "True":
            jobs.failed.append(job)
        elif condition_status(job, "Complete") == "True":
            jobs.successful.append(job)
        else:
            jobs.active.append(job)
    return jobs


def _deleted(jobs: list[Object]) -> Chain:
    """Delete Jobs in the foreground: each stays until the records of its pods are gone."""
    return [delete(JOBS, job, foreground=True) for job in jobs if not is_terminating(job)]


def _created(jobset: Object, jobs: Jobs, counts: list[Object], world: World) -> tuple[Chain, bool]:
    """Make the Jobs that are missing and may start; tell whether the next replicated job waits for them.

    A name that a Job still has, of an attempt or a JobSet before, is waited for.
    """
    spec = jobset["spec"]
    is_blocked = (spec.get("failurePolicy") or {}).get("restartStrategy") == "BlockingRecreate"
    in_order = jobset_status.is_in_order(jobset) and not spec.get("suspend")
    chain: Chain = []
    for replicated in spec["replicatedJobs"]:
        if not jobset_status.may_start(jobset, replicated, counts):
            continue
        if in_order and jobset_status.has_started(replicated, counts):
            continue
        chain += [
            Create(JOBS, rendered(jobset, replicated, index), together=True, refusal="JobCreationFailed")
            for index, name in enumerate(job_names(jobset, replicated))
            if world.get(JOBS, jobset["metadata"]["namespace"], name) is None
            and not (is_blocked and jobs.previous)
        ]
        if in_order:
            return chain, True
    return chain, False


def _suspended(jobs: Jobs) -> Chain:
    return [
        patch(JOBS, job, {"spec": {"suspend": True}})
        for job in jobs.active
        if not job["spec"].get("suspend") and not is_terminating(job)
    ]


def _resumed(jobset: Object, jobs: Jobs, counts: list[Object]) -> tuple[Chain, bool]:
    """Resume the Jobs that may start; tell whether the next replicated job has to wait for them."""
    in_order = jobset_status.is_in_order(jobset)
    chain: Chain = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        if not jobset_status.may_start(jobset, replicated, counts):
            continue
        if in_order and jobset_status.has_started(replicated, counts):
            continue
        indexes = {name: index for index, name in enumerate(job_names(jobset, replicated))}
        for job in jobs.active:
            labels = job["metadata"]["labels"]
            if (
                labels.get(REPLICATED_JOB) != replicated["name"]
                or not job["spec"].get("suspend")
                or is_terminating(job)
            ):
                continue
            # The start time goes first: else the API server takes no new template labels.
            if reset := status_patch(JOBS, job, {"startTime": None}):
                return [*chain, *reset], in_order
            index = indexes[job["metadata"]["name"]]
            chain.append(_resume(job, rendered(jobset, replicated, index)))
        if in_order:
            return chain, True
    return chain, False


def _resume(job: Object, wanted: Object) -> Patch:
    # The real one updates the whole Job: what would start pods is refused (409) when the Job changed since it
    # was seen. So would be a suspension, which is tried again then; here it needs no second try.
    seen = {"resourceVersion": job["metadata"]["resourceVersion"]}
    template = {"metadata": wanted["spec"]["template"]["metadata"]}
    return patch(JOBS, job, {"metadata": seen, "spec": {"suspend": False, "template": template}})
