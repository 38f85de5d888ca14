"""What runs and what waits: nodes, TrainJobs, their Jobs and pods, and the runtimes they are made of.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from webhook.diagnosis.finding import Finding, Severity
from webhook.diagnosis.seen import Document, Seen, annotation, is_ready, label, moment, named, numbers, some
from webhook.diagnosis.versions import REPLACES_WHAT_HAS_ENDED_SINCE
from webhook.rule.ranks import HeldRank, held_ranks
from webhook.rule.starts import LEAVE, POD_REPLACEMENT_ANNOTATION, REPLACED_ONCE_ENDED
from webhook.rule.trainjob import FINISHED, JOBSET_NAME_LABEL, UnreadableTrainJobError, read_trainjob
from webhook.rule.verdict import (
    NOT_READABLE,
    OUT_OF_SERVICE_TAINT,
    RemainingPod,
    read_node_state,
    read_remaining_pods,
)
from webhook.telling import wording
from webhook.telling.report import Found, State, state_of
from webhook.telling.waiting import duration

FORCEFULLY_DELETED = "kueue.x-k8s.io/safe-to-forcefully-delete"
"""By which a pod opts in to Kueue's FailureRecoveryPolicy (Kueue, pkg/controller/constants)."""

_WAITS_FOR_ALL = "BlockingRecreate"
_RESTARTS_WITHOUT_END = frozenset({"RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts"})


def nodes_declared_down(seen: Seen) -> Iterator[Finding]:
    """Nodes that are out of service and Ready: pod-GC removes the records of what runs there.

    The taint promises that the node is shut down (Kubernetes, Non-graceful node shutdown).
    """
    for node in seen.nodes or ():
        taints = (node.get("spec") or {}).get("taints") or ()
        if is_ready(node) and any(taint.get("key") == OUT_OF_SERVICE_TAINT for taint in taints):
            name = named(node)
            what = (
                f"node {name} is tainted out of service and Ready: its kubelet answers, so its processes "
                "run, and the records of its pods are removed"
            )
            do = f"Power it off, or take the taint off: kubectl taint node {name} {OUT_OF_SERVICE_TAINT}-"
            yield Finding(Severity.UNSAFE, "out-of-service-and-ready", what, do)


def waits(seen: Seen) -> Iterator[Finding]:
    """TrainJobs that do not run and of which pods remain longer than their grace period: since when, and why.

    A wait that a grace period ends is none of an operator's business.
    """
    for found in seen.waiting or ():
        overdue = [pod for pod in found.pods if _is_overdue(pod, seen)]
        if overdue and found.state is not State.RUNNING:
            yield _wait(found, overdue, seen)


def ranks(seen: Seen) -> Iterator[Finding]:
    """TrainJobs that run and of which a pod is to end and does not: as when its node is lost.

    Its rank is started again once that pod has ended (batch/v1, podReplacementPolicy Failed), and no event
    says that the Job controller waits; of a Job of another policy it was started again beside that pod.
    """
    pods: dict[tuple[str, str], list[RemainingPod]] = {}
    for item in seen.pods or ():
        key = (str(item["metadata"].get("namespace")), str(label(item, JOBSET_NAME_LABEL)))
        pods.setdefault(key, []).extend(_with_its_node(pod, seen) for pod in read_remaining_pods([item]))
    for trainjob in seen.trainjobs or ():
        if _runs(trainjob, seen):
            held = held_ranks(pods.get(_key(trainjob), ()))
            yield from _twice(trainjob, [one for one in held if one.may_run_twice])
            yield from _held(trainjob, [one.pod for one in held if not one.again_as], seen)


def _twice(trainjob: Document, held: list[HeldRank]) -> Iterator[Finding]:
    if held:
        beside = (f"{one.again_as} beside {wording.remaining_pod_in_full(one.pod)}" for one in held)
        yield Finding(
            Severity.UNSAFE,
            "rank-runs-twice",
            f"two processes of a rank of TrainJob {named(trainjob)} may run: {some(beside, most=3)}",
            f"Suspend it, and look at its checkpoint before you trust it. {_what_ends_it(*_key(trainjob))}",
        )


def _held(trainjob: Document, pods: list[RemainingPod], seen: Seen) -> Iterator[Finding]:
    overdue = [pod for pod in pods if _is_overdue(pod, seen)]
    if overdue:
        yield Finding(
            Severity.STUCK,
            "rank-waits",
            f"TrainJob {named(trainjob)} runs, and waits{_since(overdue, seen)} for {_named(overdue)}, in "
            "whose place none is started before it has ended",
            _what_ends_it(*_key(trainjob)),
        )


def _runs(trainjob: Document, seen: Seen) -> bool:
    try:
        return state_of(trainjob, read_trainjob(trainjob, a_key=seen.a_key)) is State.RUNNING
    except UnreadableTrainJobError:
        return False


def _with_its_node(pod: RemainingPod, seen: Seen) -> RemainingPod:
    if pod.node is None:
        return pod
    node = next((one for one in seen.nodes or () if named(one) == pod.node), None)
    return replace(pod, node_state=NOT_READABLE if seen.nodes is None else read_node_state(node))


def _wait(found: Found, overdue: list[RemainingPod], seen: Seen) -> Finding:
    return Finding(
        Severity.STUCK,
        "trainjob-waits",
        f"TrainJob {found.namespace}/{found.name} waits{_since(overdue, seen)} for {_named(overdue)}",
        _what_ends_it(found.namespace, found.name),
    )


def _since(overdue: list[RemainingPod], seen: Seen) -> str:
    since = [began for pod in overdue if (began := _began(pod)) is not None]
    if not since:
        return ""
    waited = duration((seen.now - min(since)).total_seconds())
    return f" since {min(since):%Y-%m-%d %H:%MZ} ({waited})"


def _named(pods: list[RemainingPod]) -> str:
    return some(map(wording.remaining_pod_in_full, pods), most=3)


def _what_ends_it(namespace: str, trainjob: str) -> str:
    return f"What ends it: interlock -n {namespace} inspect {trainjob}"


def _is_overdue(pod: RemainingPod, seen: Seen) -> bool:
    ends = moment(pod.deletion.ends) if pod.deletion else None
    return ends is None or ends < seen.now


def _began(pod: RemainingPod) -> datetime | None:
    """When the pod was told to end: its deletionTimestamp is when its grace is over.

    None where that is no moment: a deletion may give any int64 of seconds, and the API server keeps it.
    """
    ends = moment(pod.deletion.ends) if pod.deletion else None
    if ends is None or pod.deletion is None:
        return None
    try:
        return ends - timedelta(seconds=pod.deletion.grace_seconds)
    except OverflowError:
        return None


def replaced_at_once(seen: Seen) -> Iterator[Finding]:
    """Jobs of TrainJobs that replace a pod which is only told to end: made before the guard was installed.

    `podReplacementPolicy` defaults to TerminatingOrFailed, and no controller changes it while a Job runs. Of
    a Kubernetes that does not honour it that is told once, and not of each.
    """
    version = numbers(seen.kubernetes or "")
    if version is not None and version < REPLACES_WHAT_HAS_ENDED_SINCE:
        return
    trainjobs = _trainjobs(seen)
    kept: dict[tuple[str, str], list[str]] = {}
    for job in seen.jobs or ():
        spec = job.get("spec") or {}
        conditions = (job.get("status") or {}).get("conditions") or ()
        ended = any(one.get("type") in FINISHED and one.get("status") == "True" for one in conditions)
        replaces = spec.get("podReplacementPolicy") != REPLACED_ONCE_ENDED
        key = (str(job["metadata"].get("namespace")), str(label(job, JOBSET_NAME_LABEL)))
        left = annotation(job, POD_REPLACEMENT_ANNOTATION) == LEAVE
        if key in trainjobs and replaces and not (ended or left or spec.get("suspend")):
            kept.setdefault(key, []).append(str(job["metadata"]["name"]))
    for (namespace, trainjob), jobs in sorted(kept.items()):
        what = (
            f"Jobs of TrainJob {namespace}/{trainjob} run with a podReplacementPolicy that is not Failed "
            f"({some(jobs, most=3)}): a rank of a lost node is started again beside its old process"
        )
        do = "They were made before the guard was asked about Jobs: suspend that TrainJob and resume it, once"
        yield Finding(Severity.UNSAFE, "pods-replaced-at-once", what, do)


def forcefully_deleted(seen: Seen) -> Iterator[Finding]:
    """TrainJobs whose pods let Kueue end their records: only the guard's webhook on pods is in between."""
    trainjobs = _trainjobs(seen)
    found = {
        (str(pod["metadata"].get("namespace")), str(label(pod, JOBSET_NAME_LABEL)))
        for pod in seen.pods or ()
        if annotation(pod, FORCEFULLY_DELETED) == "true"
    }
    for namespace, trainjob in sorted(found & trainjobs):
        yield Finding(
            Severity.WEAK,
            "forcefully-deleted",
            f"pods of TrainJob {namespace}/{trainjob} carry {FORCEFULLY_DELETED}: Kueue's "
            "FailureRecoveryPolicy would end their records while their processes may run, and the guard "
            "alone denies it",
            "Take the annotation out of the runtime, or the runtime patch, that gives it to the pods",
        )


def runtimes(seen: Seen) -> Iterator[Finding]:
    """What a runtime asks for that the guard has to hold back, or that it is told to let be."""
    for runtime in seen.runtimes or ():
        which = f"{runtime.get('kind', 'runtime')} {named(runtime)}"
        template = ((runtime.get("spec") or {}).get("template") or {}).get("spec") or {}
        jobs = template.get("replicatedJobs") or ()
        yield from _grace(which, jobs)
        yield from _failure_policy(which, template.get("failurePolicy") or {})
        yield from _annotations(which, jobs)


def _grace(which: str, jobs: Any) -> Iterator[Finding]:
    """With grace 0 a deletion removes the record at once, process or no process (pod registry, strategy)."""
    at_once = [str(one["name"]) for one in jobs if _pod(one).get("terminationGracePeriodSeconds") == 0]
    if at_once:
        what = (
            f"{which} gives the pods of {some(at_once)} no grace period: a deletion removes their record at "
            "once, and the guard alone makes it a second"
        )
        yield Finding(
            Severity.WEAK, "no-grace", what, "Set terminationGracePeriodSeconds to what saving takes"
        )


def _failure_policy(which: str, policy: Mapping[str, Any]) -> Iterator[Finding]:
    """Recreate makes each Job anew as soon as its predecessor went, beside others that have not (JobSet)."""
    actions = {str(rule.get("action")) for rule in policy.get("rules") or ()}
    restarts = int(policy.get("maxRestarts") or 0) > 0 or not actions.isdisjoint(_RESTARTS_WITHOUT_END)
    strategy = policy.get("restartStrategy") or "Recreate"
    if restarts and strategy != _WAITS_FOR_ALL:
        what = (
            f"{which} restarts with restartStrategy {strategy}, which starts Jobs beside pods that still "
            "end, and the guard alone holds them back"
        )
        do = f"Set restartStrategy: {_WAITS_FOR_ALL} in its failurePolicy"
        yield Finding(Severity.WEAK, "restarts-without-waiting", what, do)


def _annotations(which: str, jobs: Any) -> Iterator[Finding]:
    for one in jobs:
        job = one.get("template") or {}
        if _annotated(job, POD_REPLACEMENT_ANNOTATION) == LEAVE:
            what = (
                f"{which} has {POD_REPLACEMENT_ANNOTATION}: {LEAVE} at {one['name']}: a rank of a lost node "
                "is started again beside its old process, as somebody wished"
            )
            do = "Take it out where the training writes a checkpoint that two processes must not share"
            yield Finding(Severity.UNSAFE, "replacement-left", what, do)
        pods = (job.get("spec") or {}).get("template") or {}
        if _annotated(pods, FORCEFULLY_DELETED) == "true":
            what = (
                f"{which} gives its pods {FORCEFULLY_DELETED}: Kueue's FailureRecoveryPolicy would end their "
                "records while their processes may run, and the guard alone denies it"
            )
            yield Finding(Severity.WEAK, "forcefully-deleted", what, f"Take it out of {one['name']}")


def _annotated(template: Mapping[str, Any], key: str) -> Any:
    return ((template.get("metadata") or {}).get("annotations") or {}).get(key)


def _pod(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod's spec of a replicated Job."""
    template = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
    spec: Mapping[str, Any] = template.get("spec") or {}
    return spec


def _trainjobs(seen: Seen) -> set[tuple[str, str]]:
    """The TrainJobs; a JobSet has the name of its own, and bare JobSets are none of ours."""
    return {_key(one) for one in seen.trainjobs or ()}


def _key(document: Document) -> tuple[str, str]:
    return str(document["metadata"].get("namespace")), str(document["metadata"]["name"])
