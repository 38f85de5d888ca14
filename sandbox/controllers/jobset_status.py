"""What a JobSet's status says, and what its policies make of Jobs that failed or succeeded."""

from dataclasses import dataclass, field
from datetime import datetime

from sandbox.controllers.jobset_rendering import REPLICATED_JOB, replicas
from sandbox.controllers.kinds import (
    JOBSETS,
    Object,
    condition_status,
    with_condition,
    with_suspension,
)
from sandbox.controllers.planning import Chain, status_patch

_SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "reason": "SuspendedJobs",
    "message": "jobset is suspended",
}
_RESUMED = {"type": "Suspended", "status": "False", "reason": "ResumeJobs", "message": "jobset is resumed"}
_COMPLETED = {
    "type": "Completed",
    "status": "True",
    "reason": "AllJobsCompleted",
    "message": "jobset completed successfully",
}
_STARTING = {
    "type": "StartupPolicyInProgress",
    "status": "True",
    "reason": "InOrderStartupPolicyInProgress",
    "message": "in order startup policy is in progress",
}
_STARTED = {
    "type": "StartupPolicyCompleted",
    "status": "True",
    "reason": "InOrderStartupPolicyCompleted",
    "message": "in order startup policy has completed",
}
_RESTARTING = "RestartingJobSet"


@dataclass
class Jobs:
    """The Jobs of a JobSet; `previous` are those of earlier restart attempts, whatever became of them."""

    active: list[Object] = field(default_factory=list)
    successful: list[Object] = field(default_factory=list)
    failed: list[Object] = field(default_factory=list)
    previous: list[Object] = field(default_factory=list)


def is_in_order(jobset: Object) -> bool:
    """Tell whether one replicated job has to be ready before the next one starts."""
    return (jobset["spec"].get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"


def counted(jobset: Object, jobs: Jobs) -> list[Object]:
    """Count the Jobs of every replicated job."""
    return [_counts(replicated, jobs) for replicated in jobset["spec"]["replicatedJobs"]]


def _counts(replicated: Object, jobs: Jobs) -> Object:
    def own(found: list[Object]) -> list[Object]:
        return [one for one in found if one["metadata"]["labels"].get(REPLICATED_JOB) == replicated["name"]]

    counts = dict.fromkeys(("active", "failed", "ready", "succeeded", "suspended"), 0)
    counts["succeeded"], counts["failed"] = len(own(jobs.successful)), len(own(jobs.failed))
    for job in own(jobs.active):
        status, spec = job.get("status") or {}, job["spec"]
        pods = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
        counts["active"] += bool(status.get("active"))
        counts["suspended"] += bool(spec.get("suspend"))
        counts["ready"] += (status.get("succeeded") or 0) + (status.get("ready") or 0) >= pods
    return {"name": replicated["name"], **counts}


def has_started(replicated: Object, counts: list[Object]) -> bool:
    """Tell whether every Job of a replicated job is ready or has ended (allReplicasStarted)."""
    found = next(one for one in counts if one["name"] == replicated["name"])
    return bool(found["failed"] + found["ready"] + found["succeeded"] == replicas(replicated))


def may_start(jobset: Object, replicated: Object, counts: list[Object]) -> bool:
    """Tell whether what a replicated job depends on has come as far as it says (dependencyReachedStatus)."""
    by_name = {one["name"]: one for one in jobset["spec"]["replicatedJobs"]}
    for needed in replicated.get("dependsOn") or ():
        other = by_name[needed["name"]]
        found = next(one for one in counts if one["name"] == needed["name"])
        if needed["status"] == "Complete" and found["succeeded"] != replicas(other):
            return False
        if needed["status"] == "Ready" and not has_started(other, counts):
            return False
    return True


def has_succeeded(jobset: Object, jobs: Jobs) -> bool:
    """Tell whether the Jobs that the success policy names have completed."""
    policy = jobset["spec"].get("successPolicy") or {}
    targets = policy.get("targetReplicatedJobs") or [one["name"] for one in jobset["spec"]["replicatedJobs"]]
    done = sum(job["metadata"]["labels"].get(REPLICATED_JOB) in targets for job in jobs.successful)
    if policy.get("operator") == "Any":
        return done > 0
    wanted = sum(replicas(one) for one in jobset["spec"]["replicatedJobs"] if one["name"] in targets)
    return 0 < wanted <= done


def running(jobset: Object, counts: list[Object], now: datetime, *, is_starting: bool) -> Chain:
    """Say what a JobSet that goes on does: it is suspended, starts in order, or runs."""
    conditions = _conditions(jobset)
    if jobset["spec"].get("suspend"):
        conditions = with_suspension(jobset, _SUSPENDED, _RESUMED, now)
        conditions = _restarted(conditions, "JobSetSuspended", "jobset is suspended", now)
    else:
        if all(has_started(one, counts) for one in jobset["spec"]["replicatedJobs"]):
            conditions = _restarted(conditions, "JobsReady", "all jobs are ready", now)
        if is_starting:
            conditions = _instead(conditions, _STARTING, _STARTED, now)
        else:
            conditions = _set_if_there(conditions, _RESUMED, now)
            if is_in_order(jobset):
                conditions = _instead(conditions, _STARTED, _STARTING, now)
    return _patched(jobset, counts, {"conditions": conditions or None})


def completed(jobset: Object, counts: list[Object], now: datetime) -> Chain:
    """Say that it completed."""
    conditions = with_condition(_conditions(jobset), _COMPLETED, now)
    conditions = _restarted(conditions, "JobSetCompleted", _COMPLETED["message"], now)
    return _patched(jobset, counts, {"conditions": conditions, "terminalState": "Completed"})


def finished(jobset: Object, counts: list[Object]) -> Chain:
    """Count on after the end."""
    return _patched(jobset, counts, {})


def failed(jobset: Object, jobs: Jobs, counts: list[Object], now: datetime) -> Chain:
    """Follow the failure policy: the JobSet fails, or its Jobs are made again as one restart attempt more."""
    policy = jobset["spec"].get("failurePolicy")
    first = min(jobs.failed, key=_failed_at)
    if policy is None:
        return _fail(
            jobset, counts, "FailedJobs", "jobset failed due to one or more job failures", first, now
        )
    rule, matching = _rule(policy, jobs.failed)
    action = rule.get("action", "RestartJobSet")
    first = matching or first
    if action == "FailJobSet":
        told = "applying FailJobSet failure policy action"
        return _fail(jobset, counts, "FailJobSetFailurePolicyAction", told, first, now)
    status = jobset.get("status") or {}
    counts_towards = action == "RestartJobSet"
    spent = status.get("restartsCountTowardsMax", 0)
    if counts_towards and spent >= policy.get("maxRestarts", 0):
        told = "jobset failed due to reaching max number of restarts"
        return _fail(jobset, counts, "ReachedMaxRestarts", told, first, now)
    restarting = {
        "type": _RESTARTING,
        "status": "True",
        "reason": f"FailurePolicy_{rule['name']}" if rule else "DefaultFailurePolicy",
        "message": _with_first(f"applying {action} failure policy action", first),
    }
    changes = {
        "conditions": with_condition(_conditions(jobset), restarting, now),
        "restarts": status.get("restarts", 0) + 1,
        "restartsCountTowardsMax": spent + counts_towards,
    }
    return _patched(jobset, counts, changes)


def _rule(policy: Object, found: list[Object]) -> tuple[Object, Object | None]:
    """Return the first rule that matches a failed Job, and the first Job that it matches."""
    for rule in policy.get("rules") or ():
        matching = [job for job in found if _matches(rule, job)]
        if matching:
            return rule, min(matching, key=_failed_at)
    return {}, None


def _matches(rule: Object, job: Object) -> bool:
    reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
    return (not reasons or _failure(job)["reason"] in reasons) and (
        not targets or job["metadata"]["labels"].get(REPLICATED_JOB) in targets
    )


def _failure(job: Object) -> Object:
    conditions = (job.get("status") or {}).get("conditions") or ()
    found: Object = next(one for one in conditions if (one["type"], one["status"]) == ("Failed", "True"))
    return found


def _failed_at(job: Object) -> tuple[str, str]:
    return _failure(job).get("lastTransitionTime", ""), job["metadata"]["name"]


def _with_first(message: str, job: Object) -> str:
    return f"{message} (first failed job: {job['metadata']['name']})"


def _fail(
    jobset: Object, counts: list[Object], reason: str, message: str, first: Object, now: datetime
) -> Chain:
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": _with_first(message, first)}
    conditions = with_condition(_conditions(jobset), condition, now)
    conditions = _restarted(conditions, "JobSetFailed", "jobset failed", now)
    return _patched(jobset, counts, {"conditions": conditions, "terminalState": "Failed"})


def _conditions(jobset: Object) -> list[Object]:
    return list((jobset.get("status") or {}).get("conditions") or [])


def _set_if_there(conditions: list[Object], condition: Object, now: datetime) -> list[Object]:
    there = any(one["type"] == condition["type"] for one in conditions)
    return with_condition(conditions, condition, now) if there else conditions


def _instead(conditions: list[Object], condition: Object, other: Object, now: datetime) -> list[Object]:
    """Set a condition, and take back the one that excludes it."""
    return with_condition(_set_if_there(conditions, {**other, "status": "False"}, now), condition, now)


def _restarted(conditions: list[Object], reason: str, message: str, now: datetime) -> list[Object]:
    told = {"type": _RESTARTING, "status": "False", "reason": reason, "message": message}
    return _set_if_there(conditions, told, now)


def _patched(jobset: Object, counts: list[Object], changes: Object) -> Chain:
    status = jobset.get("status") or {}
    kept = {"restarts": status.get("restarts", 0), "replicatedJobsStatus": counts}
    return status_patch(JOBSETS, jobset, {**kept, **changes})


def is_finished(jobset: Object) -> bool:
    """Tell whether a JobSet completed or failed."""
    return "True" in (condition_status(jobset, "Completed"), condition_status(jobset, "Failed"))
