"""What ends the wait for remaining pods, and whether their processes have ceased.

Pure: from a verdict, the states of its nodes and the time.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from webhook.rule.verdict import (
    Clear,
    NodeState,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
    Unsettled,
    Verdict,
)
from webhook.telling import wording

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"

_SECONDS = (("d", 86400), ("h", 3600), ("m", 60))


@dataclass(frozen=True, slots=True)
class Cessation:
    """Whether the processes of the remaining pods are proven gone; `ceased` is None where nobody can tell."""

    ceased: bool | None
    why: str
    warnings: tuple[str, ...] = ()


def cessation(verdict: Verdict) -> Cessation:
    """Tell whether every node that a remaining pod is on is deleted, or tainted out of service.

    Both are an operator's or the cloud's word that the machine is down (Kubernetes: non-graceful node
    shutdown). A pod on no node has no process, but may get one, unless it is being deleted: the scheduler
    binds no pod that is.
    """
    match verdict:
        case Clear():
            return Cessation(True, "nothing remains")
        case NotSettled():
            order = wording.not_settled(verdict.unsettled, more=verdict.more_unsettled)
            return Cessation(True, "nothing remains", (f"{order}; it may start a pod yet",))
        case Unknown():
            return Cessation(None, wording.failures(verdict.failures))
        case PodsRemain():
            return _cessation_of(verdict)


def _cessation_of(verdict: PodsRemain) -> Cessation:
    states = {pod.node: pod.node_state for pod in verdict.pods if pod.node}
    warnings = tuple(
        f"node {node} is out of service and yet Ready=True: its kubelet is alive, so its processes may be too"
        for node, state in sorted(states.items())
        if state and state.out_of_service and state.ready == "True"
    )
    running = {node: state for node, state in states.items() if state and _may_run(state)}
    unscheduled = [pod.name for pod in verdict.pods if pod.node is None and pod.deletion is None]
    unread = [node for node, state in states.items() if state is None or state.ready == "not readable"]
    if running or unscheduled:
        reasons = []
        if running:
            told = listed(f"{node} ({wording.node_state(state)})" for node, state in sorted(running.items()))
            reasons.append(f"neither deleted nor out of service: {told}")
        if unscheduled:
            reasons.append(f"not scheduled yet: {listed(sorted(unscheduled))}")
        return Cessation(False, "; ".join(reasons), warnings)
    if unread:
        return Cessation(None, f"the nodes cannot be read: {listed(sorted(unread))}", warnings)
    if verdict.uncounted or verdict.failures:
        why = wording.failures(verdict.failures) or "not all pods were read"
        return Cessation(None, why, warnings)
    proven = listed(
        f"{node} ({wording.node_state(state)})" for node, state in sorted(states.items()) if state
    )
    why = f"every node is deleted or out of service: {proven}" if states else "no remaining pod is on a node"
    return Cessation(True, why, warnings)


def _may_run(state: NodeState) -> bool:
    return state.ready not in ("gone", "not readable") and not state.out_of_service


def what_ends_it(pod: RemainingPod, *, now: datetime) -> str:
    """What ends the wait for one pod, in a few words for a table."""
    state = pod.node_state
    if pod.node is None:
        return "its Job deletes it" if pod.deletion is None else "by itself"
    if state is None or state.ready == "not readable":
        return "not known"
    if state.ready == "gone":
        return "by itself, in a minute"
    if state.out_of_service:
        return "untaint, or power off" if state.ready == "True" else "by itself, in a minute"
    if state.ready != "True":
        return "the node, back or down"
    if pod.deletion is None:
        return "its Job deletes it"
    left = _seconds_left(pod, now)
    return f"at most {duration(left)}" if left > 0 else f"{duration(-left)} over its grace"


def confirm_and_taint(node: str) -> str:
    """What a person does about a node that is down for good."""
    return (
        f"confirm that {node} is down (power it off), and then: kubectl taint node {shlex.quote(node)} "
        f"{OUT_OF_SERVICE}"
    )


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


def _pod_steps(pods: Sequence[RemainingPod], *, namespace: str, now: datetime) -> list[str]:
    groups: dict[str, list[RemainingPod]] = {}
    for pod in pods:
        groups.setdefault(_group(pod, now), []).append(pod)
    return [_step(group, groups[group], namespace=namespace, now=now) for group in _GROUPS if group in groups]


_GROUPS = ("lost", "kept", "alive", "stopping", "late", "ordered", "unscheduled", "unread")


def _group(pod: RemainingPod, now: datetime) -> str:
    state = pod.node_state
    if pod.node is None:
        return "unscheduled"
    if state is None or state.ready == "not readable":
        return "unread"
    if state.out_of_service and state.ready == "True":
        return "alive"
    if state.ready == "gone" or state.out_of_service:
        return "kept"
    if state.ready != "True":
        return "lost"
    if pod.deletion is None:
        return "ordered"
    return "stopping" if _seconds_left(pod, now) > 0 else "late"


def _step(group: str, pods: Sequence[RemainingPod], *, namespace: str, now: datetime) -> str:
    nodes = sorted({pod.node for pod in pods if pod.node})
    count = _pods(len(pods))
    match group:
        case "lost":
            named = " ".join(map(shlex.quote, nodes[: wording.MOST_NAMED]))
            they = "it comes" if len(nodes) == 1 else "they come"
            return (
                f"{count} on {listed(nodes)}: wait until {they} back; or confirm that "
                f"{'it is' if len(nodes) == 1 else 'each is'} down (power it off), and then: "
                f"kubectl taint node {named} {OUT_OF_SERVICE}"
            )
        case "kept":
            return f"{count} on {listed(nodes)}: Kubernetes removes {_them(pods)} within about a minute"
        case "alive":
            return (
                f"{count} on {listed(nodes)}: out of service, yet the kubelet is alive; power the machine "
                f"off, or if it is well: kubectl taint node {' '.join(map(shlex.quote, nodes[:10]))} "
                "node.kubernetes.io/out-of-service-"
            )
        case "stopping":
            longest = max(_seconds_left(pod, now) for pod in pods)
            return f"{count} on {listed(nodes)}: wait at most {longest:.0f} s for the grace period"
        case "late":
            longest = max(-_seconds_left(pod, now) for pod in pods)
            first = pods[0].name
            return (
                f"{count} on {listed(nodes)}: over the grace period for {duration(longest)} on a node "
                f"that is Ready; a finalizer or the kubelet holds {_them(pods)}: "
                f"kubectl -n {shlex.quote(namespace)} describe pod {shlex.quote(first)}"
            )
        case "ordered":
            return (
                f"{count} on {listed(nodes)}: not being deleted; {_its(pods)} Job is to delete {_them(pods)}"
            )
        case "unscheduled":
            return f"{count} not scheduled: deleted with {_its(pods)} Job"
        case _:
            return f"{count} on {listed(nodes)}: the state of the node is not readable"


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


def since_deletion(pod: RemainingPod, *, now: datetime) -> float | None:
    """For how many seconds the pod has been Terminating; None where it is not, or the time is unreadable."""
    if pod.deletion is None or (ends := _moment(pod.deletion.ends)) is None:
        return None
    return max((now - ends).total_seconds() + pod.deletion.grace_seconds, 0)


def duration(seconds: float) -> str:
    """`45s`, `3m`, `2h`, `5d`: as kubectl shows ages, rounded down."""
    for unit, length in _SECONDS:
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def listed(names: Iterable[str]) -> str:
    """At most ten of them, and how many more."""
    everything = list(names)
    named = ", ".join(everything[: wording.MOST_NAMED])
    more = len(everything) - wording.MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _seconds_left(pod: RemainingPod, now: datetime) -> float:
    ends = _moment(pod.deletion.ends) if pod.deletion else None
    return 0.0 if ends is None else (ends - now).total_seconds()


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"


def _them(pods: Sequence[RemainingPod]) -> str:
    return "it" if len(pods) == 1 else "them"


def _its(pods: Sequence[RemainingPod]) -> str:
    return "its" if len(pods) == 1 else "their"
