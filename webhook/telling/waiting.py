"""What ends the wait for a pod that remains, and whether the processes of all of them have ceased.

Pure: from a verdict, the states of its nodes and the time.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from webhook.rule.verdict import (
    Clear,
    NodeState,
    NotSettled,
    PodsRemain,
    RemainingPod,
    Unknown,
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
        if pod.deletion is None:
            return _who_deletes(pod)
        return "its finalizer" if pod.finalizers else "by itself"
    if state is None or state.ready == "not readable":
        return "not known"
    if state.ready == "gone":
        return "by itself, in a minute"
    if state.out_of_service:
        return "untaint, or power off" if state.ready == "True" else "by itself, in a minute"
    if state.ready != "True":
        return "the node, back or down"
    if pod.deletion is None:
        return _who_deletes(pod)
    left = seconds_left(pod, now)
    return f"at most {duration(left)}" if left > 0 else f"{duration(-left)} over its grace"


def _who_deletes(pod: RemainingPod) -> str:
    if is_of_a_job(pod):
        return "its Job deletes it"
    return f"not a Job: {pod.owner}" if pod.owner else "you: no Job owns it"


def is_of_a_job(pod: RemainingPod) -> bool:
    """Whether a Job is to delete it; so it is taken where its owner is not known."""
    return pod.owner is None or pod.owner.startswith("Job ")


def confirm_and_taint(node: str) -> str:
    """What a person does about a node that is down for good."""
    return (
        f"confirm that {node} is down (power it off), and then: kubectl taint node {shlex.quote(node)} "
        f"{OUT_OF_SERVICE}"
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


def seconds_left(pod: RemainingPod, now: datetime) -> float:
    """How much of its grace period is left, below 0 where it is over it; 0 where that is not known."""
    ends = _moment(pod.deletion.ends) if pod.deletion else None
    return 0.0 if ends is None else (ends - now).total_seconds()


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
