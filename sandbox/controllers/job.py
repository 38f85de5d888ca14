"""Stand-in for the Job controller: every Job is treated as Indexed.

Left out: pod tracking with finalizers, deadlines, per-index backoff, pod failure and success policies, the
TTL; the backoff is constant (the real one doubles from 10 s); a replaced Terminating pod doesn't count as
failed.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox.controllers.kinds import (
    COMPLETION_INDEX,
    JOB_NAME,
    JOBS,
    PODS,
    Object,
    condition_status,
    is_finished_job,
    is_terminal,
    is_terminating,
    owner_reference,
    timestamp,
    with_condition,
    with_suspension,
)
from sandbox.controllers.planning import Chain, Create, Plan, delete, plan, status_patch
from sandbox.controllers.world import World

WATCHED = (JOBS, PODS)
_SUSPENDED = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
_RESUMED = {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed"}
_LIMIT = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
_DONE = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}


Failures = dict[str, tuple[str, datetime | None]]
"""By pod uid, the uid of its Job and when it was first seen failed; None where that counts for nothing."""


def failed_since(world: World, now: datetime, before: Failures) -> Failures:
    """Remember which pods failed, and when they were first seen so, for as long as their Job is there.

    The backoff outlives the record of the pod, which the kubelet of a Terminating one deletes at once. Kept
    beside the API server because its timestamps are whole seconds and the backoff may be shorter.
    """
    jobs = {job["metadata"]["uid"]: job for job in world.all(JOBS)}
    failures = {uid: failure for uid, failure in before.items() if failure[0] in jobs}
    for pod in world.all(PODS):
        owner = next((ref["uid"] for ref in pod["metadata"].get("ownerReferences") or ()), "")
        if _phase(pod) == "Failed" and owner in jobs:
            counts = _counts(pod, jobs[owner])
            failures.setdefault(pod["metadata"]["uid"], (owner, now if counts else None))
    return failures


def _counts(pod: Object, job: Object) -> bool:
    """Whether a failure counts: not that of a pod that was deleted to suspend, or replaced as Terminating."""
    return not is_terminating(pod) or (_is_patient(job) and not job["spec"].get("suspend"))


def _is_patient(job: Object) -> bool:
    return bool(job["spec"].get("podReplacementPolicy") == "Failed")


def reconcile(world: World, now: datetime, failures: Failures, backoff: timedelta) -> Plan:
    """Decide the writes for every Job; `failures` is what `failed_since` remembers."""
    chains, wakes = [], []
    pods: dict[str, list[Object]] = defaultdict(list)
    for pod in world.all(PODS):
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner.get("controller"):
                pods[owner["uid"]].append(pod)
    failed: dict[str, list[datetime]] = defaultdict(list)
    for job_uid, moment in failures.values():
        if moment is not None:
            failed[job_uid].append(moment)
    for job in world.all(JOBS):
        if is_terminating(job) or is_finished_job(job):
            continue
        moments = failed[job["metadata"]["uid"]]
        own = _Own(job, pods[job["metadata"]["uid"]], len(moments))
        chain, wake_at = _chain(own, now, max(moments) + backoff if moments else None)
        chains.append(chain)
        wakes.append(wake_at)
    return plan(chains, wakes)


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _index(pod: Object) -> int:
    return int(pod["metadata"]["labels"][COMPLETION_INDEX])


@dataclass(frozen=True)
class _Own:
    job: Object
    pods: list[Object]
    seen_failed: int

    @property
    def active(self) -> list[Object]:
        return [pod for pod in self.pods if not is_terminal(pod) and not is_terminating(pod)]

    @property
    def terminating(self) -> list[Object]:
        return [pod for pod in self.pods if not is_terminal(pod) and is_terminating(pod)]

    @property
    def failures(self) -> int:
        # What is remembered goes with the memory; the count in the status only grows.
        return max(self.seen_failed, int((self.job.get("status") or {}).get("failed", 0)))

    @property
    def succeeded(self) -> set[int]:
        return {_index(pod) for pod in self.pods if _phase(pod) == "Succeeded"}

    @property
    def ready(self) -> int:
        return sum(condition_status(pod, "Ready") == "True" for pod in self.active)

    @property
    def completions(self) -> int:
        spec = self.job["spec"]
        return int(spec.get("completions") or spec.get("parallelism") or 1)

    def missing(self) -> list[int]:
        """Return the indexes to start a pod for.

        `podReplacementPolicy: Failed` waits until a Terminating pod is gone or terminal; the default,
        `TerminatingOrFailed`, replaces it beside the process that may still run.
        """
        spec = self.job["spec"]
        held = [*self.active, *(self.terminating if _is_patient(self.job) else [])]
        taken = self.succeeded | {_index(pod) for pod in held}
        room = max(int(spec.get("parallelism", 1)) - len(held), 0)
        return [index for index in range(self.completions) if index not in taken][:room]


def _chain(own: _Own, now: datetime, retry_at: datetime | None) -> tuple[Chain, datetime | None]:
    job = own.job
    if job["spec"].get("suspend"):
        return _stop(own, now), None
    if own.failures > job["spec"].get("backoffLimit", 6):
        return _finish(own, "Failed", "FailureTarget", _LIMIT, now), None
    if len(own.succeeded) >= own.completions:
        return _finish(own, "Complete", "SuccessCriteriaMet", _DONE, now), None
    missing = own.missing()
    if missing and retry_at is not None and retry_at > now:
        return _status(own, now, active=len(own.active)), retry_at
    created: Chain = [Create(PODS, pod_of(job, index)) for index in missing]
    return [*created, *_status(own, now, active=len(own.active) + len(created))], None


def _stop(own: _Own, now: datetime) -> Chain:
    status = _counted(own, active=0, terminating=len(own.terminating) + len(own.active))
    status["ready"] = 0
    status["startTime"] = None
    status["conditions"] = with_suspension(own.job, _SUSPENDED, _RESUMED, now)
    return [*(delete(PODS, pod) for pod in own.active), *status_patch(JOBS, own.job, status)]


def _finish(own: _Own, condition: str, interim: str, why: Object, now: datetime) -> Chain:
    """Finish in two steps, as the real one since 1.31: finished only when no pod is left that may run."""
    conditions = with_condition(_conditions(own.job), {**why, "type": interim, "status": "True"}, now)
    status = _counted(own, active=0, terminating=len(own.terminating) + len(own.active))
    status["ready"] = 0
    if not own.active and not own.terminating:
        conditions = with_condition(conditions, {**why, "type": condition, "status": "True"}, now)
        status["completionTime"] = timestamp(now) if condition == "Complete" else None
    status["conditions"] = conditions
    return [*(delete(PODS, pod) for pod in own.active), *status_patch(JOBS, own.job, status)]


def _status(own: _Own, now: datetime, *, active: int) -> Chain:
    status = _counted(own, active=active, terminating=len(own.terminating))
    status["conditions"] = with_suspension(own.job, _SUSPENDED, _RESUMED, now) or None
    status["startTime"] = (own.job.get("status") or {}).get("startTime") or timestamp(now)
    return status_patch(JOBS, own.job, status)


def _conditions(job: Object) -> list[Object]:
    return (job.get("status") or {}).get("conditions") or []


def _counted(own: _Own, *, active: int, terminating: int) -> Object:
    return {
        "active": active or None,
        "ready": own.ready,
        "terminating": terminating,
        "failed": own.failures or None,
        "succeeded": len(own.succeeded) or None,
    }


def pod_of(job: Object, index: int) -> Object:
    """Build the pod of one completion index: everything of the template, and the Job's own labels."""
    metadata, template = job["metadata"], job["spec"]["template"]
    given = template.get("metadata") or {}
    host = f"{metadata['name']}-{index}"
    labels = {
        "batch.kubernetes.io/controller-uid": metadata["uid"],
        JOB_NAME: metadata["name"],
        "controller-uid": metadata["uid"],
        "job-name": metadata["name"],
        COMPLETION_INDEX: str(index),
    }
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.name,
        "metadata": {
            "generateName": f"{host}-",
            "namespace": metadata["namespace"],
            "labels": {**(given.get("labels") or {}), **labels},
            "annotations": {**(given.get("annotations") or {}), COMPLETION_INDEX: str(index)},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {**template["spec"], "hostname": host},
    }
