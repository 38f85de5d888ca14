"""May a Job of a TrainJob start pods, beside those that are there? And what is set on it when it is made.

An order to start pods goes from the TrainJob to its JobSet, and from there to its Jobs: whoever sends it,
every start of pods is a Job that is made not suspended, or is un-suspended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from webhook.rule.objects import UnreadableAnswerError, name_of, part, text
from webhook.rule.readmission import Operation
from webhook.rule.trainjob import (
    GROUP,
    JOB_ID_LABEL,
    JOBSET_NAME_LABEL,
    KIND,
    SUBMISSION_LABEL,
    Execution,
    is_label_value,
    whole_number,
)

JOBSET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
RESTART_ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
"""How often JobSet restarted all its Jobs; of a single Job that is another label, `job-restart-attempt`."""

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"

ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
"""What a Job template of Trainer's runtimes stands for (Trainer's `pkg/constants`); a JobSet keeps it."""

JOBSET_GROUP, JOBSET_KIND = "jobset.x-k8s.io", "JobSet"

POD_REPLACEMENT_ANNOTATION = "interlock.dispatch.phpboyscout.uk/pod-replacement"
LEAVE = "leave"
"""The value with which a Job keeps its `podReplacementPolicy`."""

REPLACED_ONCE_ENDED = "Failed"
"""The `podReplacementPolicy` with which a pod is replaced when it has ended, not when it is told to."""

SHORTEST_GRACE_SECONDS = 1

LABELS_OF_A_JOB = (JOBSET_NAME_LABEL, JOBSET_UID_LABEL, RESTART_ATTEMPT_LABEL)
"""The labels by which a Job is found, and told to be of one start or another. JobSet sets them once."""

JsonPatch = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Start:
    """What the pods of one start have in common, by the labels that JobSet and the Job controller set.

    `job_uid` is empty for a Job that is yet to be made: what has its name then is of an earlier one.
    """

    jobset_uid: str
    restart_attempt: str
    job_name: str
    job_uid: str


@dataclass(frozen=True, slots=True)
class Job:
    """The part of a Job that its start depends on.

    `jobset_name` is what its label says, `pods_jobset_name` what that of its pods will, `controlling_jobset`
    what its owner is called: of a Job that JobSet made they are the same.
    """

    name: str
    namespace: str
    suspended: bool
    jobset_name: str
    pods_jobset_name: str
    controlling_jobset: str
    owner_uids: frozenset[str]
    start: Start
    replacement: str
    pods_without_grace: bool
    execution: Execution | None
    replacement_wish: str

    @property
    def leaves_replacement(self) -> bool:
        """Whether the Job says that its `podReplacementPolicy` is to stay."""
        return self.replacement_wish == LEAVE


class OutOfDate(Enum):
    """Why an order to start pods is not the JobSet's any more."""

    JOBSET_GONE = auto()
    NOT_ITS_OWN = auto()
    JOBSET_DELETED = auto()
    JOBSET_SUSPENDED = auto()
    JOBSET_FINISHED = auto()
    JOBSET_RESTARTED = auto()


@dataclass(frozen=True, slots=True)
class TrainJobReference:
    """The TrainJob that owns a JobSet."""

    api_version: str
    name: str
    uid: str


def read_job(document: Mapping[str, Any]) -> Job:
    """Read a Job as the API server sends it.

    Raises:
        UnreadableAnswerError: a field has another type than batch/v1 gives it.
    """
    metadata, spec = part(document, "metadata", "Job"), part(document, "spec", "Job")
    template = part(spec, "template", "Job")
    pod_labels = part(part(template, "metadata", "Job"), "labels", "Job")
    grace = part(template, "spec", "Job").get("terminationGracePeriodSeconds")
    name, uid = text(metadata, "name", "Job"), text(metadata, "uid", "Job")
    return Job(
        name=name,
        namespace=text(metadata, "namespace", "Job"),
        suspended=spec.get("suspend") is True,
        jobset_name=text(part(metadata, "labels", "Job"), JOBSET_NAME_LABEL, "Job"),
        pods_jobset_name=text(pod_labels, JOBSET_NAME_LABEL, "Job"),
        controlling_jobset=_controlling_jobset(metadata),
        owner_uids=frozenset(text(owner, "uid", "Job") for owner in owners_of(metadata, "Job")) - {""},
        start=Start(
            jobset_uid=text(pod_labels, JOBSET_UID_LABEL, "Job"),
            restart_attempt=text(pod_labels, RESTART_ATTEMPT_LABEL, "Job"),
            job_name=name,
            job_uid=uid,
        ),
        replacement=text(spec, "podReplacementPolicy", "Job"),
        pods_without_grace=type(grace) is int and grace <= 0,
        execution=_execution(pod_labels),
        replacement_wish=text(part(metadata, "annotations", "Job"), POD_REPLACEMENT_ANNOTATION, "Job"),
    )


def _execution(pod_labels: Mapping[str, Any]) -> Execution | None:
    job_id, submission = (text(pod_labels, label, "Job") for label in (JOB_ID_LABEL, SUBMISSION_LABEL))
    return Execution(job_id, submission) if job_id and submission else None


def starts_pods(operation: Operation, old: Job | None, new: Job) -> bool:
    """Whether the request has pods started: it makes the Job not suspended, or un-suspends it.

    Raises:
        ValueError: an UPDATE without its old object.
    """
    if new.suspended:
        return False
    if operation is Operation.CREATE:
        return True
    if old is None:
        raise ValueError("an UPDATE has an old object")
    return old.suspended


def hides_a_job(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether an UPDATE changes the labels by which a Job of a JobSet is found.

    Without them it is no order that an admission has to wait for, and the API server, whose objectSelector
    goes by them, does not ask about its start. The JobSet controller would start it all the same: it knows
    its Jobs by their owner (`getChildJobs` in its jobset_controller.go). A write of the Job's status can
    change them, too (`jobStatusStrategy` of pkg/registry/batch/job/strategy.go resets nothing but the spec).

    Raises:
        UnreadableAnswerError: a field has another type than batch/v1 gives it.
    """
    before, after = (part(part(document, "metadata", "Job"), "labels", "Job") for document in (old, new))
    if not text(before, JOBSET_NAME_LABEL, "Job"):
        return False
    return any(text(before, label, "Job") != text(after, label, "Job") for label in LABELS_OF_A_JOB)


def replaces_sooner(old: Job, new: Job) -> bool:
    """Whether an UPDATE has the ranks of a Job replaced when their pods are told to end, and does not say so.

    `podReplacementPolicy` may be changed while a Job runs (it is none of what `ValidateJobSpecUpdate` holds),
    and the Job controller then starts the ranks anew whose pods are Terminating. Where a request takes it
    away the API server makes it the default, `TerminatingOrFailed`. Who says `leave`, in this request or
    before, has what the request asks for.
    """
    hastened = old.replacement == REPLACED_ONCE_ENDED and new.replacement != REPLACED_ONCE_ENDED
    return hastened and not new.leaves_replacement


def patch(operation: Operation, job: Job) -> JsonPatch:
    """What is set on a Job of a TrainJob: empty where it has all of it.

    `podReplacementPolicy` is `Failed`, so that a rank is started anew when its pod has ended and not already
    when it is told to (batch/v1 defaults to `TerminatingOrFailed`), unless the Job says `leave`. A grace
    period of 0 is 1: with 0 a deletion removes the pod's record at once, process or no process. That is set
    when the Job is made: the pod template of a Job that is there cannot be changed.
    """
    operations: JsonPatch = []
    if not job.leaves_replacement and job.replacement != REPLACED_ONCE_ENDED:
        operations.append({"op": "add", "path": "/spec/podReplacementPolicy", "value": REPLACED_ONCE_ENDED})
    if job.pods_without_grace and operation is Operation.CREATE:
        path = "/spec/template/spec/terminationGracePeriodSeconds"
        operations.append({"op": "replace", "path": path, "value": SHORTEST_GRACE_SECONDS})
    return operations


def owning_trainjob(jobset: Mapping[str, Any]) -> TrainJobReference | None:
    """The TrainJob that the JobSet belongs to; None for a JobSet that somebody else made.

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    name_of(jobset, "JobSet")
    for owner in owners_of(part(jobset, "metadata", "JobSet"), "JobSet"):
        api_version = text(owner, "apiVersion", "JobSet")
        if api_version.partition("/")[0] == GROUP and text(owner, "kind", "JobSet") == KIND:
            return TrainJobReference(api_version, text(owner, "name", "JobSet"), text(owner, "uid", "JobSet"))
    return None


def is_made_by_trainer(jobset: Mapping[str, Any]) -> bool:
    """Whether a Job template of the JobSet has Trainer's mark: it stays when the owner is lost.

    An owner is lost when a TrainJob is deleted with `--cascade=orphan`, and to a hand. What JobSet makes Jobs
    from cannot be changed (its webhook holds `replicatedJobs` immutable).

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    replicated = part(jobset, "spec", "JobSet").get("replicatedJobs") or []
    if not isinstance(replicated, list) or not all(isinstance(one, dict) for one in replicated):
        raise UnreadableAnswerError("the replicatedJobs of a JobSet are no list of objects")
    templates = (part(part(one, "template", "JobSet"), "metadata", "JobSet") for one in replicated)
    return any(ANCESTOR_LABEL in part(template, "labels", "JobSet") for template in templates)


def out_of_date(jobset: Mapping[str, Any] | None, job: Job) -> OutOfDate | None:
    """Why this order to start pods is not the JobSet's any more; None where it is.

    The JobSet controller starts Jobs of a JobSet that is there to stay, is neither suspended nor finished,
    and numbers them with its restarts (`jobset_controller.go`, reconcile). One that is stalled, or whose
    cache is late, sends orders that were right a while ago. The start of a Job that carries the label of a
    JobSet and does not belong to it is none of its orders either, nor is that of one whose pods would carry
    the label of another: by it they are found.

    Raises:
        UnreadableAnswerError: the document is no JobSet.
    """
    if jobset is None:
        return OutOfDate.JOBSET_GONE
    metadata, status = part(jobset, "metadata", "JobSet"), part(jobset, "status", "JobSet")
    uid = text(metadata, "uid", "JobSet")
    if uid not in job.owner_uids or job.pods_jobset_name != job.jobset_name:
        return OutOfDate.NOT_ITS_OWN
    # The template of a suspended Job can be relabelled: given the uid of a JobSet before, that one's pods
    # would be of this start.
    if job.start.jobset_uid not in ("", uid):
        return OutOfDate.NOT_ITS_OWN
    if text(metadata, "deletionTimestamp", "JobSet"):
        return OutOfDate.JOBSET_DELETED
    if part(jobset, "spec", "JobSet").get("suspend") is True:
        return OutOfDate.JOBSET_SUSPENDED
    if text(status, "terminalState", "JobSet"):
        return OutOfDate.JOBSET_FINISHED
    attempt, restarts = whole_number(job.start.restart_attempt), status.get("restarts")
    if attempt is not None and type(restarts) is int and attempt < restarts:
        return OutOfDate.JOBSET_RESTARTED
    return None


def pods_of_another_start(items: Sequence[Any], start: Start) -> list[str]:
    """The names of those among `items`, pods of one JobSet name and none terminal, that are of another start.

    Of another start is a pod that is Terminating, that is of another JobSet of this name or another restart
    of it, or of an earlier Job of this name. What lacks a label that the pods of this start have is of
    another, too. Pods of the same start are no reason to wait: JobSet starts its Jobs one after the other
    (`dependsOn`, `startupPolicy: InOrder`).

    Raises:
        UnreadableAnswerError: an item is no pod.
    """
    return [name_of(item, "pod") for item in items if _is_of_another_start(item, start)]


def _is_of_another_start(item: Any, start: Start) -> bool:
    name_of(item, "pod")
    metadata = part(item, "metadata", "pod")
    labels = part(metadata, "labels", "pod")
    if text(metadata, "deletionTimestamp", "pod"):
        return True
    if text(labels, JOBSET_UID_LABEL, "pod") != start.jobset_uid:
        return True
    if text(labels, RESTART_ATTEMPT_LABEL, "pod") != start.restart_attempt:
        return True
    name, uid = text(labels, JOB_NAME_LABEL, "pod"), text(labels, JOB_UID_LABEL, "pod")
    if not name:
        # With `manualSelector` the API server gives a Job's pods no label of it (`generateSelector`).
        name, uid = _controlling_job(metadata)
    # A Job that is yet to be made has none: what has its name is of an earlier one.
    return name == start.job_name and not (start.job_uid and uid == start.job_uid)


def _controlling_job(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """The name and the uid of the Job that controls a pod; both empty where none does."""
    for owner in controllers_of(metadata, "pod"):
        if text(owner, "kind", "pod") == "Job":
            return text(owner, "name", "pod"), text(owner, "uid", "pod")
    return "", ""


def jobs_of_other_starts(jobset_name: str, start: Start) -> list[str]:
    """The label selectors of all Jobs of this JobSet name that are of another start.

    What can be no label value is on no Job, and must not reach a selector: then all are of another.
    """
    selectors = []
    for label, value in (
        (JOBSET_UID_LABEL, start.jobset_uid),
        (RESTART_ATTEMPT_LABEL, start.restart_attempt),
    ):
        if not is_label_value(value):
            return [f"{JOBSET_NAME_LABEL}={jobset_name}"]
        # `!=` also selects what lacks the label; of a start without it, those that have it are another.
        other = f"{label}!={value}" if value else label
        selectors.append(f"{JOBSET_NAME_LABEL}={jobset_name},{other}")
    return selectors


def _controlling_jobset(metadata: Mapping[str, Any]) -> str:
    for owner in owners_of(metadata, "Job"):
        group = text(owner, "apiVersion", "Job").partition("/")[0]
        if owner.get("controller") is True and (group, owner.get("kind")) == (JOBSET_GROUP, JOBSET_KIND):
            return text(owner, "name", "Job")
    return ""


def pods_of_other_jobsets(job: Job) -> str | None:
    """The label selector of the pods of its submission that another JobSet made; None where it names none.

    They are of another start, all of them: TrainJobs of one job-id and submission write one checkpoint.
    """
    execution = job.execution
    if execution is None or not execution.can_be_on_a_pod:
        return None
    submission = f"{JOB_ID_LABEL}={execution.job_id},{SUBMISSION_LABEL}={execution.submission}"
    return f"{submission},{JOBSET_NAME_LABEL}!={job.jobset_name}"


def owners_of(metadata: Mapping[str, Any], kind: str) -> Iterable[Mapping[str, Any]]:
    """The `ownerReferences`.

    Raises:
        UnreadableAnswerError: they are no list of objects.
    """
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        raise UnreadableAnswerError(f"the ownerReferences of a {kind} are no list of objects")
    return owners


def controllers_of(metadata: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """The owners that control it: one at most, as the API server stores it.

    Raises:
        UnreadableAnswerError: the `ownerReferences` are no list of objects.
    """
    return [owner for owner in owners_of(metadata, kind) if owner.get("controller") is True]
