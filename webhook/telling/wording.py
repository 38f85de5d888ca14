"""Every sentence that a person reads in an answer of the guard.

Pure. Each says what happened, what was not done, and what ends it or what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from webhook.rule.numbering import Fall
from webhook.rule.readmission import BadAdmissionNumber
from webhook.rule.starts import LEAVE, POD_REPLACEMENT_ANNOTATION, REPLACED_ONCE_ENDED, OutOfDate
from webhook.rule.trainjob import GREATEST_A
from webhook.rule.verdict import Failure, NodeState, NotSettled, PodsRemain, RemainingPod, Unknown, Unsettled

MOST_NAMED = 10
"""How many pods, or Jobs, one message names."""

_OF_A_PERSON = (
    ("Give the guard the permission it lacks", "Have someone give you the permission that you lack"),
    ("the guard's ServiceAccount token or kubeconfig", "your kubeconfig"),
    ("look at the API server and at the guard's log", "look at the API server"),
)

_LONGEST_VALUE = 80
_LONGEST_CAUSE = 300


def denial(verdict: PodsRemain | NotSettled | Unknown) -> str:
    """The message of a denial."""
    match verdict:
        case PodsRemain():
            return pods_remain(verdict)
        case NotSettled():
            return not_settled(verdict.unsettled, more=verdict.more_unsettled)
        case Unknown():
            return could_not_verify(verdict.failures)


def distinct(verdict: PodsRemain | NotSettled | Unknown) -> str:
    """The denial without what differs at the next try: why a read failed has times and ports in it."""
    if isinstance(verdict, Unknown):
        return f"CheckFailed: {', '.join(failure.what for failure in verdict.failures)}"
    return denial(verdict)


def pods_remain(verdict: PodsRemain) -> str:
    """`waiting for pods of the previous execution to go: …`, then what else is in the way."""
    named = verdict.pods[:MOST_NAMED]
    sentence = f"waiting for pods of the previous execution to go: {', '.join(map(remaining_pod, named))}"
    if more := _and_more(len(verdict.pods) - len(named), uncounted=verdict.uncounted):
        sentence += f" {more}" if named else more.removeprefix("and ")
    if verdict.unsettled:
        sentence += f"; {not_settled(verdict.unsettled, more=verdict.more_unsettled)}"
    if verdict.failures:
        sentence += f"; and could not verify the rest ({failures(verdict.failures)})"
    return sentence


def remaining_pod(pod: RemainingPod) -> str:
    """`<pod> on <node>`, with the node's state where it is not plainly Ready."""
    if pod.node is None:
        return f"{pod.name} (not scheduled)"
    if pod.node_state is None or pod.node_state.plainly_ready:
        return f"{pod.name} on {pod.node}"
    return f"{pod.name} on {pod.node} ({node_state(pod.node_state)})"


def remaining_pod_in_full(pod: RemainingPod) -> str:
    """`<pod> on <node> (<node state>)`, whatever the state."""
    if pod.node is None or pod.node_state is None:
        return remaining_pod(pod)
    return f"{pod.name} on {pod.node} ({node_state(pod.node_state)})"


def node_state(state: NodeState) -> str:
    """`Ready=True`, `Ready=False`, `Ready=Unknown`, `gone` or `not readable`, `, out-of-service` added."""
    ready = state.ready if state.ready in {"gone", "not readable"} else f"Ready={state.ready}"
    return f"{ready}, out-of-service" if state.out_of_service else ready


def not_settled(unsettled: Sequence[Unsettled], *, more: bool = False) -> str:
    """`the previous execution is not stopped yet: Job llama-node-0 is not suspended`."""
    named = ", ".join(map(_unsettled, unsettled[:MOST_NAMED]))
    others = _and_more(len(unsettled) - MOST_NAMED, uncounted=more)
    return f"the previous execution is not stopped yet: {named}{f' {others}' if others else ''}"


def could_not_verify(failed: Sequence[Failure]) -> str:
    """What could not be verified and why, that nothing was admitted, and what to do."""
    remedies = "; ".join(dict.fromkeys(failure.remedy for failure in failed))
    return (
        f"could not verify that no pod of the previous execution remains ({failures(failed)}); "
        f"nothing was admitted. {remedies}"
    )


def failures(failed: Sequence[Failure]) -> str:
    """Each failed read and its reason; reads that failed for the same reason stand together."""
    reads_by_reason: dict[str, list[str]] = {}
    for failure in failed:
        reads_by_reason.setdefault(failure.why, []).append(failure.what)
    return "; ".join(
        f"{', '.join(dict.fromkeys(reads))}: {cut(why, _LONGEST_CAUSE)}"
        for why, reads in reads_by_reason.items()
    )


def bad_admission_number(bad: BadAdmissionNumber, *, a_key: str) -> str:
    """Which key, where, which value, what is expected."""
    return (
        f"{a_key} in {cut(bad.written.place, _LONGEST_CAUSE)} is "
        f"{cut(repr(bad.written.value), _LONGEST_VALUE)}: "
        f"the admission number is a whole number from 0 to {GREATEST_A}, in digits; nothing was changed"
    )


def unreadable_trainjob(reason: str) -> str:
    """The object is not a TrainJob as its CRD describes it."""
    return (
        f"cannot read this TrainJob: {cut(reason, _LONGEST_CAUSE)}; nothing was admitted. "
        "Correct the field, or check that the TrainJob CRD is the one of Kubeflow Trainer 2.x"
    )


def too_many_executions(count: int, most: int) -> Failure:
    """The TrainJob carries more label pairs than can be asked for in one question."""
    return Failure(
        what="reading the TrainJob's labels",
        why=f"it names {count} executions (job-id, submission), more than the {most} that are looked for",
        remedy="Remove the job-id and submission labels that are not its own",
    )


def internal_error(error: Exception, *, uid: str) -> Failure:
    """The guard itself failed; its log has the traceback."""
    return Failure(
        what="answering",
        why=f"internal error of the guard, {type(error).__name__}",
        remedy=f"Try again; if it goes on, report it with the guard's log of review {cut(uid, 40)}",
    )


def to_a_person(failure: Failure) -> Failure:
    """The same failure told to the one who asked, where the remedy speaks of the guard."""
    remedy = failure.remedy
    for of_the_guard, of_a_person in _OF_A_PERSON:
        remedy = remedy.replace(of_the_guard, of_a_person)
    return replace(failure, remedy=remedy)


def nothing_remains(*, a: int | None = None, elsewhere: str = "") -> str:
    """The admission check of an execution that may start, as number `a`; `elsewhere` is who runs its pods."""
    sentence = "no pod of the previous execution remains"
    if elsewhere:
        sentence += (
            f" in this cluster; its pods are in another one (managedBy: {elsewhere}), which cannot be seen "
            "from here and whose own check decides"
        )
    return sentence if a is None else f"{sentence}; this is admission {a}"


def in_another_cluster(namespace: str, name: str, managed_by: str) -> Failure:
    """The pods of a TrainJob are in another cluster, as MultiKueue's are: none of them is seen here."""
    return Failure(
        what="listing the pods",
        why=f"they are in another cluster (spec.managedBy is {managed_by}), which cannot be seen from here",
        remedy=(
            f"Ask there: interlock --context CONTEXT -n {namespace} inspect {name}, with the context of that "
            "cluster"
        ),
    )


def nothing_to_wait_for() -> str:
    """The admission check of a Workload that is not a TrainJob's."""
    return "not the Workload of a TrainJob: nothing to wait for"


def no_owner() -> str:
    """The admission check of a Workload that nothing owns yet."""
    return "waiting for Kueue to say whose Workload this is: it has no owner"


def owner_gone(kind: str, name: str) -> str:
    """The admission check of a Workload whose owner is deleted, or was made again since."""
    return f"{kind} {name} that this Workload was made for is gone; nothing was admitted"


def nothing_remains_of_the_jobset() -> str:
    """The admission check where Kueue lets the JobSet of a TrainJob start, and not the TrainJob."""
    return f"{nothing_remains()}; A is not raised, for Kueue starts the JobSet and not its TrainJob"


def nothing_of_another_start() -> str:
    """The admission check where Kueue lets a Job or a pod of a TrainJob start."""
    return "no pod of another start remains; A is not raised, for Kueue starts a part of the TrainJob alone"


def greatest_a(a_key: str) -> str:
    """A is as great as it can be."""
    return f"{a_key} is {GREATEST_A} already and cannot be raised; nothing was admitted. Write a lower one"


def could_not_raise_a(failure: Failure) -> str:
    """No pod remains, but the number of the next admission could not be written."""
    return (
        f"no pod of the previous execution remains, but A could not be raised ({failures([failure])}); "
        f"nothing was admitted. {failure.remedy}"
    )


_OUT_OF_DATE = MappingProxyType(
    {
        OutOfDate.JOBSET_GONE: "there is no JobSet {}",
        OutOfDate.NOT_ITS_OWN: "it carries the label of JobSet {} and does not belong to it, or belonged to "
        "one of that name that was deleted",
        OutOfDate.JOBSET_DELETED: "JobSet {} is being deleted",
        OutOfDate.JOBSET_SUSPENDED: "JobSet {} is suspended",
        OutOfDate.JOBSET_FINISHED: "JobSet {} is finished",
        OutOfDate.JOBSET_RESTARTED: "JobSet {} has restarted since",
    }
)


def out_of_date(order: OutOfDate, *, job: str, jobset: str) -> str:
    """A Job is to start pods and its JobSet does not order it, or no longer."""
    why = _OUT_OF_DATE[order].format(cut(jobset, _LONGEST_VALUE))
    return (
        f"no pods of Job {cut(job, _LONGEST_VALUE)} were started: {why}. What JobSet orders now it does by "
        "itself, in a second or so; a Job that is not JobSet's needs another label than "
        "jobset.sigs.k8s.io/jobset-name"
    )


def job_labels_kept(job: str, *, jobset: str) -> str:
    """The labels by which a Job is found cannot be changed."""
    return (
        f"Job {cut(job, _LONGEST_VALUE)} keeps the labels of JobSet {cut(jobset, _LONGEST_VALUE)}: by them "
        "it is found, and without them it would start pods unasked. Nothing was changed; delete the Job "
        "instead"
    )


def unreadable_job(reason: str) -> str:
    """The object is not a Job as batch/v1 describes it, or names no JobSet that there can be."""
    return f"cannot read this Job: {cut(reason, _LONGEST_CAUSE)}; nothing was started. Correct the field"


def unreadable_pod(reason: str) -> str:
    """The object is no pod, or no eviction of one, as Kubernetes describes it."""
    return f"cannot read this pod: {cut(reason, _LONGEST_CAUSE)}; nothing was done. Correct the field"


def pod_replacement_unknown(value: str) -> str:
    """The warning for an opt-out that is none."""
    return (
        f"{POD_REPLACEMENT_ANNOTATION} is {cut(repr(value), _LONGEST_VALUE)}, which means nothing: a rank "
        f"of this Job is replaced once its pod has ended. The one value there is, {LEAVE}, leaves "
        "podReplacementPolicy as it is"
    )


def pod_replacement_kept(job: str) -> str:
    """The warning to whoever would have ranks replaced while their processes may run."""
    return (
        f"Job {cut(job, _LONGEST_VALUE)} keeps podReplacementPolicy {REPLACED_ONCE_ENDED}, or a "
        "rank would start beside its old process. If a node is lost: power it off, then taint it "
        f"out-of-service. To have two at once, annotate the Job {POD_REPLACEMENT_ANNOTATION}={LEAVE}"
    )


def number_kept(fallen: Fall, *, a_key: str) -> str:
    """The warning to whoever would have let A fall."""
    return (
        f"the admission number stays {fallen.before}: this write would have taken it to {fallen.after}, and "
        f"each is used once. Leave {a_key} out of what you apply"
    )


def unguarded_kind(kind: str) -> str:
    """The warning for an object that this webhook has no business with."""
    return (
        f"TrainJob Interlock guards TrainJobs and was asked about {cut(kind, _LONGEST_VALUE)}: allowed "
        "unseen. The rules of its ValidatingWebhookConfiguration are wider than they should be"
    )


def unguarded_operation(operation: str) -> str:
    """The warning for an operation that admits nothing."""
    return (
        f"TrainJob Interlock guards CREATE and UPDATE and was asked about {operation}: allowed unseen. "
        "The rules of its ValidatingWebhookConfiguration are wider than they should be"
    )


def _unsettled(order: Unsettled) -> str:
    if order.left_over:
        owner = "JobSet" if order.kind == "Job" else "TrainJob"
        return f"{order.kind} {order.name} is left over from a {owner} that was deleted, and not deleted yet"
    if order.suspended:
        return f"{order.kind} {order.name} is suspended but its controller has not confirmed it"
    return f"{order.kind} {order.name} is not suspended"


def _and_more(count: int, *, uncounted: bool) -> str:
    if uncounted:
        return f"and at least {max(count, 1)} more"
    return f"and {count} more" if count > 0 else ""


def cut(text: str, longest: int) -> str:
    """The text, or its beginning where it is longer than `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
