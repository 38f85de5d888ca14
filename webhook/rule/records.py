"""Does this request end the record of a pod before its process is known to have ended, and may it?

The rule goes by the records of pods, so whoever removes one early takes the rule away. Three may say that a
process is gone: the kubelet of its node; pod-GC, for a node that is gone or out of service; and a person who
has looked, in an annotation of the pod.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from webhook.rule.objects import UnreadableAnswerError, conditions_of, name_of, part, text
from webhook.rule.readmission import Operation
from webhook.rule.starts import (
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    JOBSET_UID_LABEL,
    RESTART_ATTEMPT_LABEL,
    TrainJobReference,
    controllers_of,
    is_made_by_trainer,
    owning_trainjob,
)
from webhook.rule.trainjob import JOB_ID_LABEL, JOBSET_NAME_LABEL, SUBMISSION_LABEL
from webhook.rule.verdict import (
    COMPLETION_INDEX,
    OUT_OF_SERVICE_TAINT,
    TERMINAL_PHASES,
    Failure,
    NodeState,
    read_node_state,
)

RECORD_MAY_END_ANNOTATION = "interlock.dispatch.phpboyscout.uk/record-may-end"
"""Why the record of this pod may end: what a person says who has looked, naming the pod's node."""

KUBELETS = "system:nodes"
"""The group of those who may end the record of any pod: each ends those of its own node (NodeRestriction)."""

LABELS_OF_A_START = (JOBSET_UID_LABEL, RESTART_ATTEMPT_LABEL, JOB_NAME_LABEL, JOB_UID_LABEL)
"""The labels by which pods are told to be of one start or another.

What lacks one is of another start, so that giving it one hides it as taking one away does.
"""

LABELS_THAT_FIND = (JOBSET_NAME_LABEL, JOB_ID_LABEL, SUBMISSION_LABEL)
"""The labels by which pods are found. Who gives a pod one it had not has it found: that is no loss."""


class Way(StrEnum):
    """How a request ends a record."""

    DELETION = "deletion"
    EVICTION = "eviction"
    STATUS = "status"
    LABELS = "labels"
    INDEX = "index"
    OWNER = "owner"


LOSING = frozenset({Way.LABELS, Way.INDEX, Way.OWNER})
"""The ways that leave the record where it is, and have it found no more by whom it holds back."""


@dataclass(frozen=True, slots=True)
class Record:
    """The part of a pod that the end of its record depends on."""

    name: str
    uid: str
    node: str
    terminal: bool
    jobset_name: str
    jobset_uid: str
    of_an_execution: bool
    may_end_because: str
    graceless: bool
    marked_without_grace: bool

    @property
    def reason_given(self) -> str:
        """Why a person says that the record may end; empty unless it names the node.

        A pod's template can have no such reason ready: it does not know the node. The name stands there for
        itself: `gpu-12 is off` says nothing of `gpu-1`.
        """
        if not self.node:
            return ""
        name = rf"(?<![a-z0-9.-]){re.escape(self.node)}(?![a-z0-9-]|\.[a-z0-9])"
        return self.may_end_because if re.search(name, self.may_end_because, re.IGNORECASE) else ""


@dataclass(frozen=True, slots=True)
class OfNoTrainJob:
    """The pod is of a JobSet that somebody made without Trainer: nothing of ours."""


@dataclass(frozen=True, slots=True)
class OfATrainJob:
    """The pod is a TrainJob's; of which, is not told where its JobSet is gone, or was orphaned.

    `presumed`: nothing but the want of its JobSet says so.
    """

    trainjob: TrainJobReference | None
    presumed: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is gone: its node is, or is declared to be down; or the pod never had one."""

    why: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The process may still run. `node_state` is that of its node; None for a pod that has none yet."""

    node_state: NodeState | None

    @property
    def answers(self) -> bool:
        """Whether the kubelet of its node does."""
        return self.node_state is not None and self.node_state.ready == "True"


@dataclass(frozen=True, slots=True)
class Untold:
    """Whether the process is gone could not be told. Never a reason to end its record."""

    failures: tuple[Failure, ...]


RecordVerdict = Ended | Kept | Untold


def read_record(pod: Mapping[str, Any]) -> Record:
    """Read a pod as the API server sends it.

    Raises:
        UnreadableAnswerError: a field has another type than v1 gives it, or there is no name.
    """
    metadata, spec = part(pod, "metadata", "pod"), part(pod, "spec", "pod")
    grace = spec.get("terminationGracePeriodSeconds")
    marked = metadata.get("deletionGracePeriodSeconds")
    labels = part(metadata, "labels", "pod")
    return Record(
        name=name_of(pod, "pod"),
        uid=text(metadata, "uid", "pod"),
        node=text(spec, "nodeName", "pod"),
        terminal=_phase(pod) in TERMINAL_PHASES,
        jobset_name=text(labels, JOBSET_NAME_LABEL, "pod"),
        jobset_uid=text(labels, JOBSET_UID_LABEL, "pod"),
        of_an_execution=JOB_ID_LABEL in labels and SUBMISSION_LABEL in labels,
        may_end_because=text(part(metadata, "annotations", "pod"), RECORD_MAY_END_ANNOTATION, "pod"),
        graceless=type(grace) is int and grace <= 0,
        marked_without_grace=type(marked) is int and marked <= 0,
    )


def ways_of_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Way]:
    """How an update of a pod, or of its status, ends the record: a phase that says so, or marks that lose it.

    The marks are the labels; the index, by whose annotation alone the Job controller knows which rank a pod
    is (`getCompletionIndex` in its indexed_job_utils.go: it removes a pod without one, and starts a rank that
    none has); and the controlling owner, by which it knows its pods (`FilterPodsByOwner`). A pod whose owner
    is taken away is adopted again, and so orphans and their adoption are none of this. The status of a pod
    can be written with other marks: `pods/status` takes them too.

    Raises:
        UnreadableAnswerError: one of them is no pod.
    """
    if _phase(old) in TERMINAL_PHASES:
        return []
    before, now = part(old, "metadata", "pod"), part(new, "metadata", "pod")
    labels, after = part(before, "labels", "pod"), part(now, "labels", "pod")
    ways = []
    lost = any(label in labels and after.get(label) != labels[label] for label in LABELS_THAT_FIND)
    if lost or any(after.get(label) != labels.get(label) for label in LABELS_OF_A_START):
        ways.append(Way.LABELS)
    if _index(before) != _index(now):
        ways.append(Way.INDEX)
    if any(owner != other for owner in _controllers(before) for other in _controllers(now)):
        ways.append(Way.OWNER)
    if _phase(new) in TERMINAL_PHASES:
        ways.append(Way.STATUS)
    return ways


def deletes_at_once(record: Record, options: Mapping[str, Any]) -> bool:
    """Whether a deletion with these DeleteOptions removes the record before a kubelet could say anything.

    Grace 0 does, given or the pod's own (`CheckGracefulDelete` of the pod's strategy), of a pod that has a
    node and is not terminal; and any deletion of one that was marked with it before, and that a finalizer
    held (`BeforeDelete`). So does less than 0 where the API server does not make a second of it (1.20).

    Raises:
        UnreadableAnswerError: the grace period is no whole number.
    """
    grace = options.get("gracePeriodSeconds")
    if grace is not None and type(grace) is not int:
        raise UnreadableAnswerError("the gracePeriodSeconds of the DeleteOptions is no whole number")
    at_once = record.marked_without_grace or (record.graceless if grace is None else grace <= 0)
    return at_once and bool(record.node) and not record.terminal


def whose(record: Record, jobset: Mapping[str, Any] | None) -> OfATrainJob | OfNoTrainJob:
    """Whose pod this is, by the JobSet that has the name now; None where there is none.

    Unless that JobSet shows that it is nobody's of ours the pod is a TrainJob's. A JobSet that is gone, or
    that another one has taken the name of, cannot be asked any more. One that lost its owner (`kubectl delete
    trainjob --cascade=orphan`, or a hand) runs on all the same, and shows what Trainer made it from.

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    presumed = OfATrainJob(None, presumed=not record.of_an_execution)
    if jobset is None:
        return presumed
    uid = text(part(jobset, "metadata", "JobSet"), "uid", "JobSet")
    trainjob = owning_trainjob(jobset)
    if record.jobset_uid not in ("", uid):
        return presumed
    if trainjob is None and not is_made_by_trainer(jobset) and not record.of_an_execution:
        return OfNoTrainJob()
    return OfATrainJob(trainjob)


def goes_with_its_jobset(record: Record, ways: list[Way], owner: OfATrainJob, node: object) -> bool:
    """Whether a pod whose own grace period is 0 may be deleted although its JobSet is gone.

    Else the garbage collector, which deletes the pods of a JobSet when that is gone, would be denied for
    ever: what it sends, and whoever else deletes, looks like a deletion by force (`BeforeDelete` writes the
    pod's own grace period into the options before the webhook is asked). The guard gives the pods of
    TrainJobs a second as their Jobs are made: one without, and that nothing else shows to be a TrainJob's, is
    of a bare JobSet, or from before there was a guard. On a node whose kubelet answers its process is killed
    at once.
    """
    is_deleted = {Way.DELETION, Way.EVICTION}.issuperset(ways)
    return record.graceless and is_deleted and owner.presumed and isinstance(node, Kept) and node.answers


def judge(record: Record, ways: list[Way], node: Mapping[str, Any] | None) -> Ended | Kept:
    """Whether the record may end, by its node as it is now; None is one that is gone.

    Only where the pod has a node: a pod without one has no process. Its marks must stay all the same, for it
    may get a node. A node that is tainted out of service and yet Ready is not down: its kubelet answers, and
    ends what is deleted in the ordinary way; pod-GC, too, does nothing there (`gcTerminating`).

    Raises:
        UnreadableAnswerError: the document is no Node.
    """
    if not record.node:
        return Ended("it is on no node") if LOSING.isdisjoint(ways) else Kept(None)
    state = read_node_state(node)
    if state.ready == "gone":
        return Ended(f"node {record.node} is gone")
    if state.out_of_service and state.ready != "True":
        return Ended(f"node {record.node} is out of service")
    return Kept(state)


def removes_records_of_a_running_node(
    operation: Operation, old: Mapping[str, Any], new: Mapping[str, Any] | None
) -> bool:
    """Whether the request deletes a node, or taints it out of service, whose kubelet answers.

    Either has pod-GC end the records of its pods, and their processes run.

    Raises:
        UnreadableAnswerError: one of them is no Node.
    """
    if conditions_of(old, "Node").get("Ready") != "True":
        return False
    if operation is Operation.DELETE:
        return True
    return new is not None and _is_out_of_service(new) and not _is_out_of_service(old)


def _is_out_of_service(node: Mapping[str, Any]) -> bool:
    taints = part(node, "spec", "Node").get("taints") or []
    return any(isinstance(taint, dict) and taint.get("key") == OUT_OF_SERVICE_TAINT for taint in taints)


def _index(metadata: Mapping[str, Any]) -> str | None:
    annotations = part(metadata, "annotations", "pod")
    return text(annotations, COMPLETION_INDEX, "pod") if COMPLETION_INDEX in annotations else None


def _controllers(metadata: Mapping[str, Any]) -> list[str]:
    return [text(owner, "uid", "pod") for owner in controllers_of(metadata, "pod")]


def _phase(pod: Mapping[str, Any]) -> str:
    return text(part(pod, "status", "pod"), "phase", "pod")
