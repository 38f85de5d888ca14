"""What to do, or to wait for, so that nothing remains: a sentence for each kind of thing in the way.

Pure: from a verdict, the states of its nodes and the time.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from webhook.rule.verdict import (
    Clear,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
    Verdict,
)
from webhook.telling import wording
from webhook.telling.waiting import OUT_OF_SERVICE, duration, is_of_a_job, listed, seconds_left

Pods = Sequence[RemainingPod]


def next_steps(verdict: Verdict, *, namespace: str, now: datetime) -> list[str]:
    """What to do or to wait for, one sentence for each kind of pod that remains and for what is not settled.

    None advises to delete a pod by force: that removes the record of a process, not the process.
    """
    match verdict:
        case Clear() | Unknown():
            return []
        case NotSettled():
            return [_order_step(verdict.unsettled)]
        case PodsRemain():
            steps = _pod_steps(verdict.pods, namespace=namespace, now=now)
            return [*steps, _order_step(verdict.unsettled)] if verdict.unsettled else steps


def _pod_steps(pods: Pods, *, namespace: str, now: datetime) -> list[str]:
    groups: dict[str, list[RemainingPod]] = {}
    for pod in pods:
        groups.setdefault(_group(pod, now), []).append(pod)
    return [
        f"{_count(groups[group])} {_where(groups[group])}: {step(groups[group], namespace, now)}"
        for group, step in _STEPS.items()
        if group in groups
    ]


def _group(pod: RemainingPod, now: datetime) -> str:
    state = pod.node_state
    if pod.node is None:
        return _group_of_unscheduled(pod)
    if state is None or state.ready == "not readable":
        return "unread"
    if state.out_of_service and state.ready == "True":
        return "alive"
    if state.ready == "gone" or state.out_of_service:
        return "kept"
    if state.ready != "True":
        return "lost"
    if pod.deletion is None:
        return _group_of_undeleted(pod, "ordered")
    return "stopping" if seconds_left(pod, now) > 0 else "late"


def _group_of_unscheduled(pod: RemainingPod) -> str:
    if pod.deletion is None:
        return _group_of_undeleted(pod, "unscheduled")
    return "held" if pod.finalizers else "going"


def _group_of_undeleted(pod: RemainingPod, of_a_job: str) -> str:
    if is_of_a_job(pod):
        return of_a_job
    return "owned" if pod.owner else "unowned"


def _lost(pods: Pods, _namespace: str, _now: datetime) -> str:
    nodes = _nodes(pods)
    named = " ".join(map(shlex.quote, nodes[: wording.MOST_NAMED]))
    they = "it comes" if len(nodes) == 1 else "they come"
    return (
        f"wait until {they} back; or confirm that {'it is' if len(nodes) == 1 else 'each is'} down (power it "
        f"off), and then: kubectl taint node {named} {OUT_OF_SERVICE}"
    )


def _kept(pods: Pods, _namespace: str, _now: datetime) -> str:
    return f"Kubernetes removes {_them(pods)} within about a minute"


def _alive(pods: Pods, _namespace: str, _now: datetime) -> str:
    named = " ".join(map(shlex.quote, _nodes(pods)[: wording.MOST_NAMED]))
    return (
        "out of service, yet the kubelet is alive; power the machine off, or if it is well: "
        f"kubectl taint node {named} node.kubernetes.io/out-of-service-"
    )


def _stopping(pods: Pods, _namespace: str, now: datetime) -> str:
    longest = max(seconds_left(pod, now) for pod in pods)
    return f"wait at most {longest:.0f} s for the grace period"


def _late(pods: Pods, namespace: str, now: datetime) -> str:
    longest = max(-seconds_left(pod, now) for pod in pods)
    return (
        f"over the grace period for {duration(longest)} on a node that is Ready; "
        f"{_holder(pods)} {_them(pods)}: "
        f"{_kubectl(namespace, 'describe', pods[:1])}"
    )


def _ordered(pods: Pods, _namespace: str, _now: datetime) -> str:
    return f"not being deleted; {_its(pods)} Job is to delete {_them(pods)}"


def _unowned(pods: Pods, namespace: str, _now: datetime) -> str:
    return (
        f"no Job owns {_them(pods)}, so nobody deletes {_them(pods)}: {_kubectl(namespace, 'delete', pods)} "
        "(never with --force: that removes the record of a process, not the process)"
    )


def _owned(pods: Pods, namespace: str, _now: datetime) -> str:
    owners = listed(sorted({pod.owner for pod in pods if pod.owner}))
    return (
        f"of {owners} and not of a Job, so that suspending deletes nothing; stop what made {_them(pods)}: "
        f"{_kubectl(namespace, 'describe', pods[:1])}"
    )


def _unscheduled(pods: Pods, _namespace: str, _now: datetime) -> str:
    return f"deleted with {_its(pods)} Job"


def _going(pods: Pods, _namespace: str, _now: datetime) -> str:
    return f"being deleted, {'it is' if len(pods) == 1 else 'they are'} gone in a moment"


def _held(pods: Pods, namespace: str, _now: datetime) -> str:
    return (
        f"being deleted, and held by {_finalizers(pods)}; whoever set it is to remove it, nobody else will: "
        f"{_kubectl(namespace, 'describe', pods[:1])}"
    )


def _unread(_pods: Pods, _namespace: str, _now: datetime) -> str:
    return "the state of the node is not readable"


_STEPS: Mapping[str, Callable[[Pods, str, datetime], str]] = {
    "lost": _lost,
    "kept": _kept,
    "alive": _alive,
    "stopping": _stopping,
    "late": _late,
    "ordered": _ordered,
    "unowned": _unowned,
    "owned": _owned,
    "unscheduled": _unscheduled,
    "going": _going,
    "held": _held,
    "unread": _unread,
}
"""What to do about each group of pods, what takes somebody to do it first."""


def _order_step(unsettled: Sequence[Unsettled]) -> str:
    named = listed(f"{order.kind} {order.name}" for order in unsettled)
    if all(order.left_over for order in unsettled):
        return (
            f"{named}: the garbage collector is to delete what a deleted TrainJob left; if it does not: is "
            "kube-controller-manager running, and does a finalizer or another webhook hold it?"
        )
    kinds = {order.kind for order in unsettled}
    controller = "Trainer" if kinds == {"TrainJob"} else "the JobSet controller"
    return (
        f"{named}: {controller} is to stop it; if it does not: is it running, and does another webhook "
        "refuse its writes?"
    )


def _nodes(pods: Pods) -> list[str]:
    return sorted({pod.node for pod in pods if pod.node})


def _where(pods: Pods) -> str:
    """`on node-1`, `not scheduled`, or both."""
    nodes = _nodes(pods)
    unscheduled = "not scheduled" if any(pod.node is None for pod in pods) else ""
    return " or ".join(filter(None, (f"on {listed(nodes)}" if nodes else "", unscheduled)))


def _kubectl(namespace: str, verb: str, pods: Pods) -> str:
    names = " ".join(shlex.quote(pod.name) for pod in pods[: wording.MOST_NAMED])
    return f"kubectl -n {shlex.quote(namespace)} {verb} pod {names}"


def _finalizers(pods: Pods) -> str:
    """`finalizer example.com/a`, of all of them; empty where none has one."""
    names = sorted({name for pod in pods for name in pod.finalizers})
    return f"finalizer{'s' if len(names) > 1 else ''} {listed(names)}" if names else ""


def _holder(pods: Pods) -> str:
    finalizers = _finalizers(pods)
    if not finalizers:
        return "a finalizer or the kubelet holds"
    return f"{finalizers} {'hold' if finalizers.startswith('finalizers') else 'holds'}"


def _count(pods: Pods) -> str:
    return "1 pod" if len(pods) == 1 else f"{len(pods)} pods"


def _them(pods: Pods) -> str:
    return "it" if len(pods) == 1 else "them"


def _its(pods: Pods) -> str:
    return "its" if len(pods) == 1 else "their"
