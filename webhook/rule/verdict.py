"""Pods and chain in, verdict out: clear, pods remain, not settled, or unknown.

Pure: takes what the API server answered, decoded; decides; reads nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from webhook.rule.objects import UnreadableAnswerError, conditions_of, name_of, part, text
from webhook.rule.starts import JOBSET_UID_LABEL, RESTART_ATTEMPT_LABEL
from webhook.rule.trainjob import FINISHED, TrainJob, whole_number

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Of a pod of an Indexed Job which one it is: an annotation, and since Kubernetes 1.28 a label, too."""

_CHAIN = ("TrainJob", "JobSet", "Job")
"""The objects through which an order to start pods goes, from the first to the last."""

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of a node: its Ready condition, or why there is none.

    `ready` is the status of its Ready condition (`True`, `False`, `Unknown`), `gone`, or
    `not readable`, and then `failure` says why.
    """

    ready: str
    out_of_service: bool = False
    failure: Failure | None = None

    @property
    def plainly_ready(self) -> bool:
        """Ready and not declared out of service: nothing to say about it in a denial."""
        return self.ready == "True" and not self.out_of_service


GONE = NodeState("gone")
NOT_READABLE = NodeState("not readable")


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion that has begun: `ends` is when its grace period does, as Kubernetes writes it."""

    ends: str
    grace_seconds: int = 0


@dataclass(frozen=True, slots=True)
class RemainingPod:
    """A pod that is neither Succeeded nor Failed; `node` is None while it is not scheduled.

    `owner` is its controller (`Job llama-node-0`), empty where it has none, None where that is not known.
    `rank` is its index in an Indexed Job, `start` the uid of its JobSet and the restart attempt; None where
    it does not say. Nothing is decided by these.
    """

    name: str
    node: str | None
    node_state: NodeState | None = None
    deletion: Deletion | None = None
    owner: str | None = None
    finalizers: tuple[str, ...] = ()
    rank: int | None = None
    start: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A controller's object that may still order pods of the previous execution.

    `left_over`: its owner is gone, or about to be, and it is not deleted yet.
    """

    kind: str
    name: str
    suspended: bool
    left_over: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A read that did not answer the question: what was read, why it failed, what to do."""

    what: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Every read answered; no pod remains and no controller holds an order to start one."""


@dataclass(frozen=True, slots=True)
class PodsRemain:
    """Pods remain. `uncounted` and `more_unsettled` tell that there may be more than are listed."""

    pods: tuple[RemainingPod, ...]
    uncounted: bool
    unsettled: tuple[Unsettled, ...] = ()
    more_unsettled: bool = False
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class NotSettled:
    """No pod remains, but a controller may still start one of the previous execution."""

    unsettled: tuple[Unsettled, ...]
    more_unsettled: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """A read failed and no pod is known to remain. Never a reason to admit."""

    failures: tuple[Failure, ...]


Verdict = Clear | PodsRemain | NotSettled | Unknown


def decide(
    *,
    pods: Iterable[RemainingPod],
    uncounted: bool,
    unsettled: Iterable[Unsettled],
    more_unsettled: bool = False,
    failures: Iterable[Failure],
) -> Verdict:
    """Weigh what was read.

    Pods known to remain come first, whatever else failed: that is true and can be waited for.
    Then a failed read, since what it would have told may be another pod. Then what is not
    settled.
    """
    remaining = tuple(sorted({pod.name: pod for pod in pods}.values(), key=lambda pod: pod.name))
    not_settled = tuple(sorted(unsettled, key=lambda order: (_CHAIN.index(order.kind), order.name)))
    failed = tuple(failures)
    if remaining or uncounted:
        return PodsRemain(remaining, uncounted, not_settled, more_unsettled, failed)
    if failed:
        return Unknown(failed)
    if not_settled:
        return NotSettled(not_settled, more_unsettled)
    return Clear()


def remaining_count(verdict: Verdict) -> int | None:
    """How many pods are known to remain, or None if that could not be told."""
    match verdict:
        case PodsRemain():
            return len(verdict.pods)
        case Unknown():
            return None
        case _:
            return 0


def with_node_states(verdict: PodsRemain, states: Mapping[str, NodeState]) -> PodsRemain:
    """The same verdict with the state of each pod's node, where one is given."""
    return replace(
        verdict,
        pods=tuple(
            replace(pod, node_state=states.get(pod.node)) if pod.node else pod for pod in verdict.pods
        ),
    )


def read_remaining_pods(items: Sequence[Any]) -> list[RemainingPod]:
    """The pods among `items` whose phase is neither Succeeded nor Failed.

    A pod without a phase remains: it was created and its kubelet has not reported yet.

    Raises:
        UnreadableAnswerError: an item is no pod.
    """
    remaining = []
    for item in items:
        name = name_of(item, "pod")
        status = part(item, "status", "pod")
        if text(status, "phase", "pod") in TERMINAL_PHASES:
            continue
        node = text(part(item, "spec", "pod"), "nodeName", "pod")
        metadata = part(item, "metadata", "pod")
        remaining.append(
            RemainingPod(
                name,
                node or None,
                deletion=deletion_of(item),
                owner=_controller(metadata.get("ownerReferences")),
                finalizers=_texts(metadata.get("finalizers")),
                rank=_rank(metadata),
                start=_start(metadata),
            )
        )
    return remaining


def _controller(owners: Any) -> str | None:
    """Nothing is decided by it: what cannot be read is not known."""
    if not owners:
        return ""
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        return None
    named = (
        f"{owner.get('kind')} {owner.get('name')}" for owner in owners if owner.get("controller") is True
    )
    return next(named, "")


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values)) if isinstance(values, list) else ()


def _rank(metadata: Mapping[str, Any]) -> int | None:
    for marks in (metadata.get("annotations"), metadata.get("labels")):
        if isinstance(marks, dict) and isinstance(index := marks.get(COMPLETION_INDEX), str):
            return whole_number(index)
    return None


def _start(metadata: Mapping[str, Any]) -> tuple[str, str] | None:
    labels = metadata.get("labels")
    if not isinstance(labels, dict) or JOBSET_UID_LABEL not in labels:
        return None
    return str(labels[JOBSET_UID_LABEL]), str(labels.get(RESTART_ATTEMPT_LABEL, ""))


def deletion_of(pod: Mapping[str, Any]) -> Deletion | None:
    """The pod's deletion. Its timestamp is when its grace period ends, not when it was asked for.

    Raises:
        UnreadableAnswerError: its metadata has another shape than a pod's.
    """
    metadata = part(pod, "metadata", "pod")
    ends = text(metadata, "deletionTimestamp", "pod")
    grace = metadata.get("deletionGracePeriodSeconds")
    return Deletion(ends, grace if type(grace) is int else 0) if ends else None


def unsettled_trainjob(before: TrainJob | None) -> list[Unsettled]:
    """The TrainJob as it was before the request, if Trainer may still start its execution.

    One that is not suspended is itself an order: its JobSet may not be there yet because Trainer is late.
    """
    if before is None or before.suspended or before.finished:
        return []
    return [Unsettled("TrainJob", before.name, suspended=False)]


def read_unsettled_jobset(document: Mapping[str, Any] | None, *, trainjob_uid: str) -> list[Unsettled]:
    """The JobSet, if its controller may still start Jobs or pods; `None` is an absent JobSet.

    Settled is a JobSet that is finished (`status.terminalState`), being deleted, or suspended as
    confirmed by its controller. The JobSet controller does nothing for the first two. A suspended one that
    another TrainJob owns than that of `trainjob_uid` (empty: one that is yet to be) is not: Trainer goes by
    the name, and resumes what is about to be collected.

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    if document is None:
        return []
    name = name_of(document, "JobSet")
    if text(part(document, "status", "JobSet"), "terminalState", "JobSet"):
        return []
    return _unsettled(document, "JobSet", name, owner_uid=trainjob_uid)


def lasting_jobset_uid(document: Mapping[str, Any] | None, *, trainjob_uid: str) -> str:
    """The uid of a JobSet that stays: there, not being deleted, not left over; else empty.

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    if document is None:
        return ""
    metadata = part(document, "metadata", "JobSet")
    if text(metadata, "deletionTimestamp", "JobSet") or _is_left_over(metadata, "JobSet", trainjob_uid):
        return ""
    return text(metadata, "uid", "JobSet")


def read_unsettled_jobs(items: Sequence[Any], *, jobset_uid: str | None) -> list[Unsettled]:
    """The Jobs among `items` whose controller may still start pods.

    Settled is a Job that is finished (condition `Complete` or `Failed` is True), being deleted,
    or suspended as confirmed by its controller. The Job controller starts no pod of the first two. A
    suspended one that another JobSet owns than that of `jobset_uid` (empty: there is none that stays;
    None: it could not be read) is not. The JobSet controller knows its Jobs by their owner's name
    (`SetupJobSetIndexes`): the next JobSet resumes what an earlier one left, and when that is collected
    starts its pods once more, beside those that go with it.

    Raises:
        UnreadableAnswerError: an item is no Job.
    """
    unsettled = []
    for item in items:
        name = name_of(item, "Job")
        conditions = conditions_of(item, "Job")
        if any(conditions.get(condition) == "True" for condition in FINISHED):
            continue
        unsettled += _unsettled(item, "Job", name, owner_uid=jobset_uid)
    return unsettled


def _unsettled(
    document: Mapping[str, Any], kind: str, name: str, *, owner_uid: str | None
) -> list[Unsettled]:
    metadata = part(document, "metadata", kind)
    if text(metadata, "deletionTimestamp", kind):
        return []
    suspended = part(document, "spec", kind).get("suspend") is True
    # Generation 1 is an object whose spec never changed: born suspended, it never ran, and its
    # controller has nothing to stop.
    generation = metadata.get("generation")
    born_suspended = type(generation) is int and generation == 1
    confirmed = born_suspended or conditions_of(document, kind).get("Suspended") == "True"
    left_over = _is_left_over(metadata, kind, owner_uid)
    if suspended and confirmed and not left_over:
        return []
    return [Unsettled(kind, name, suspended, left_over)]


def _is_left_over(metadata: Mapping[str, Any], kind: str, owner_uid: str | None) -> bool:
    """Whether it has owners and this is none of them: the garbage collector deletes what has lost all."""
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        raise UnreadableAnswerError(f"the ownerReferences of a {kind} are no list of objects")
    return owner_uid is not None and bool(owners) and all(owner.get("uid") != owner_uid for owner in owners)


def read_node_state(document: Mapping[str, Any] | None) -> NodeState:
    """The state of a node; `None` is a node that is gone.

    Raises:
        UnreadableAnswerError: the document is no Node.
    """
    if document is None:
        return GONE
    taints = part(document, "spec", "Node").get("taints") or []
    if not isinstance(taints, list) or not all(isinstance(taint, dict) for taint in taints):
        raise UnreadableAnswerError("the taints of the Node are no list of objects")
    return NodeState(
        # Kubernetes calls a Ready condition that nobody reported Unknown.
        ready=conditions_of(document, "Node").get("Ready", "Unknown"),
        out_of_service=any(taint.get("key") == OUT_OF_SERVICE_TAINT for taint in taints),
    )
