"""Does Kueue wait: the queues that TrainJobs are in, and the admission check that should be theirs.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from webhook.diagnosis.finding import Finding, Severity
from webhook.diagnosis.seen import Document, Seen, condition, moment, named, some
from webhook.rule.trainjob import KIND
from webhook.rule.workload import CONTROLLER
from webhook.telling.report import QUEUE_LABEL
from webhook.telling.waiting import duration

LONG = timedelta(minutes=2)
"""How long a check is Pending before somebody should know of it."""

_BLIND = "Kueue says Admitted while its un-suspend is denied, and retries ever more rarely"


def queues_without_the_check(seen: Seen) -> Iterator[Finding]:
    """ClusterQueues that TrainJobs are queued in and that do not name our AdmissionCheck for every flavor.

    The names stand in `admissionChecksStrategy`; v1beta1 of Kueue has them in `admissionChecks` as well.
    """
    if seen.cluster_queues is None or seen.checks is None:
        return
    used = _used(seen)
    ours = {str(one["metadata"]["name"]) for one in seen.checks if _is_ours(one)}
    for queue in seen.cluster_queues:
        name = str(queue["metadata"]["name"])
        if name not in used or ours & _of_every_flavor(queue):
            continue
        what = (
            f"ClusterQueue {name} queues TrainJobs ({some(used[name], most=3)}) without the check: {_BLIND}"
        )
        if ours:
            do = f"Name {min(ours)} in its admissionChecksStrategy (docs/kueue.md)"
        else:
            do = (
                "Install the check: make deploy OVERLAY=kueue with the guard's IMAGE, or helm upgrade with "
                "kueue.enabled=true (docs/kueue.md)"
            )
        yield Finding(Severity.WEAK, "queue-without-check", what, do)


def checks_that_do_not_work(seen: Seen) -> Iterator[Finding]:
    """AdmissionChecks of ours that nobody answers for: Kueue admits nothing through a queue that has one."""
    for check in seen.checks or ():
        if not _is_ours(check) or condition(check, "Active").get("status") == "True":
            continue
        queues = [
            str(one["metadata"]["name"])
            for one in seen.cluster_queues or ()
            if str(check["metadata"]["name"]) in _of_any_flavor(one)
        ]
        if queues:
            what = f"AdmissionCheck {named(check)} is not Active: Kueue admits nothing through {some(queues)}"
            do = "Is interlock kueue running? docs/operations.md, InterlockCheckDown"
            yield Finding(Severity.STUCK, "check-not-active", what, do)


def waits(seen: Seen) -> Iterator[Finding]:
    """Workloads whose check is Pending although no pod remains: its message says what for.

    It is Ready a moment after the last pod went; while pods remain the TrainJob is told of by itself.
    """
    ours = {str(one["metadata"]["name"]) for one in seen.checks or () if _is_ours(one)}
    told_of = {(one.namespace, one.name) for one in seen.waiting or ()}
    for workload in seen.workloads or ():
        namespace, name = str(workload["metadata"].get("namespace")), str(workload["metadata"]["name"])
        owners = [owner for owner in _owners(workload) if (namespace, owner) not in told_of]
        for check in (workload.get("status") or {}).get("admissionChecks") or ():
            since = moment(check.get("lastTransitionTime"))
            waits_long = since is not None and seen.now - since > LONG
            is_held = owners and check.get("name") in ours and check.get("state") == "Pending"
            if is_held and since is not None and waits_long and _has_quota(workload):
                waited = duration((seen.now - since).total_seconds())
                what = (
                    f"Workload {namespace}/{name} of TrainJob {some(owners)} waits for the check "
                    f"{check.get('name')} since {since:%Y-%m-%d %H:%MZ} ({waited}): "
                    f"{check.get('message') or 'it says nothing'}"
                )
                do = f"What ends it: interlock -n {namespace} inspect {owners[0]}"
                yield Finding(Severity.STUCK, "workload-waits", what, do)


def _has_quota(workload: Document) -> bool:
    """Kueue asks for the checks of what has its quota; before that a Workload waits for other reasons."""
    is_active = (workload.get("spec") or {}).get("active") is not False
    return is_active and condition(workload, "QuotaReserved").get("status") == "True"


def deactivated(seen: Seen) -> Iterator[Finding]:
    """Workloads of TrainJobs that Kueue gave up: not admitted before somebody makes them active again."""
    for workload in seen.workloads or ():
        if (workload.get("spec") or {}).get("active") is not False:
            continue
        owners = _owners(workload)
        finished = condition(workload, "Finished").get("status") == "True"
        if owners and not finished:
            namespace, name = workload["metadata"]["namespace"], workload["metadata"]["name"]
            what = (
                f"Workload {namespace}/{name} of TrainJob {some(owners)} is deactivated: it is never admitted"
            )
            do = (
                f"Once it is to run again: kubectl -n {namespace} patch workload {name} --type merge "
                '-p \'{"spec":{"active":true}}\''
            )
            yield Finding(Severity.STUCK, "workload-deactivated", what, do)


def _used(seen: Seen) -> dict[str, list[str]]:
    """The ClusterQueues by name, each with the TrainJobs that are in it."""
    cluster_queue_of = {
        (str(one["metadata"].get("namespace")), str(one["metadata"]["name"])): str(
            (one.get("spec") or {}).get("clusterQueue")
        )
        for one in seen.local_queues or ()
    }
    used: dict[str, list[str]] = {}
    for trainjob in seen.trainjobs or ():
        queue = (trainjob["metadata"].get("labels") or {}).get(QUEUE_LABEL)
        _use(used, cluster_queue_of, str(trainjob["metadata"].get("namespace")), queue, named(trainjob))
    for workload in seen.workloads or ():
        queue = (workload.get("spec") or {}).get("queueName")
        namespace = str(workload["metadata"].get("namespace"))
        for owner in _owners(workload):
            _use(used, cluster_queue_of, namespace, queue, f"{namespace}/{owner}")
    return used


def _use(
    used: dict[str, list[str]],
    cluster_queue_of: dict[tuple[str, str], str],
    namespace: str,
    queue: str | None,
    who: str,
) -> None:
    cluster_queue = cluster_queue_of.get((namespace, str(queue)))
    if cluster_queue is not None and who not in used.setdefault(cluster_queue, []):
        used[cluster_queue].append(who)


def _owners(workload: Document) -> list[str]:
    owners = workload["metadata"].get("ownerReferences") or ()
    return [str(owner.get("name")) for owner in owners if owner.get("kind") == KIND]


def _is_ours(check: Document) -> bool:
    return (check.get("spec") or {}).get("controllerName") == CONTROLLER


def _of_every_flavor(queue: Document) -> set[str]:
    spec = queue.get("spec") or {}
    rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return {str(rule.get("name")) for rule in rules if not rule.get("onFlavors")} | _listed(queue)


def _of_any_flavor(queue: Document) -> set[str]:
    spec = queue.get("spec") or {}
    rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return {str(rule.get("name")) for rule in rules} | _listed(queue)


def _listed(queue: Document) -> set[str]:
    return {str(name) for name in (queue.get("spec") or {}).get("admissionChecks") or ()}
