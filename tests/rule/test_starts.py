"""Which pods and Jobs are of another start, which orders are out of date, and what is set on a Job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.objects import (
    DELETED_AT,
    JOBSET_UID,
    Document,
    execution_labels,
    job_of_jobset,
    jobset_of_trainjob,
    pod_of_job,
)
from webhook.rule.objects import UnreadableAnswerError
from webhook.rule.readmission import Operation
from webhook.rule.starts import (
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    JOBSET_UID_LABEL,
    POD_REPLACEMENT_ANNOTATION,
    RESTART_ATTEMPT_LABEL,
    Job,
    OutOfDate,
    Start,
    TrainJobReference,
    jobs_of_other_starts,
    out_of_date,
    owning_trainjob,
    patch,
    pods_of_another_start,
    pods_of_other_jobsets,
    read_job,
    replaces_sooner,
    starts_pods,
)
from webhook.rule.trainjob import JOBSET_NAME_LABEL

START = Start(JOBSET_UID, "0", "llama-node-0", "job-uid-0")
CREATED = Start(JOBSET_UID, "0", "llama-node-0", "")

SET_POLICY = {"op": "add", "path": "/spec/podReplacementPolicy", "value": "Failed"}
SET_GRACE = {"op": "replace", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 1}


def by_its_owner(uid: str, job: str = "llama-node-0") -> dict[str, Any]:
    """A pod of a Job with `manualSelector`: by no label, but by its owner."""
    pod = pod_of_job(without=[JOB_NAME_LABEL, JOB_UID_LABEL])
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    return pod


@pytest.mark.parametrize("start", [START, CREATED], ids=["un-suspended", "created"])
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod_of_job(deleting=True), id="Terminating"),
        pytest.param(pod_of_job("llama-node-1", uid="job-uid-1", deleting=True), id="of another Job, ends"),
        pytest.param(pod_of_job(jobset_uid="uid-of-yesterday"), id="of another JobSet of this name"),
        pytest.param(pod_of_job("llama-node-1", jobset_uid="uid-of-yesterday"), id="its other Job, too"),
        pytest.param(pod_of_job(attempt="1"), id="of a later restart"),
        pytest.param(pod_of_job("llama-node-1", attempt="1"), id="of another Job and another restart"),
        pytest.param(pod_of_job(attempt="00"), id="of a restart that is written otherwise"),
        pytest.param(pod_of_job(uid="job-uid-of-yesterday"), id="of an earlier Job of this name"),
        pytest.param(pod_of_job(without=[JOBSET_UID_LABEL]), id="without the uid of a JobSet"),
        pytest.param(pod_of_job(without=[RESTART_ATTEMPT_LABEL]), id="without a restart"),
        pytest.param(pod_of_job(without=[JOB_UID_LABEL]), id="of this Job's name, without its uid"),
        pytest.param(by_its_owner("of-yesterday"), id="of an earlier Job that chooses its pods itself"),
        pytest.param({"metadata": {"name": "p"}}, id="without any label"),
        pytest.param({"metadata": {"name": "p", "labels": None}}, id="labels null"),
    ],
)
def test_a_pod_of_another_start_is_told(other: Document, start: Start) -> None:
    assert pods_of_another_start([other], start) == [other["metadata"]["name"]]


@pytest.mark.parametrize(
    ("start", "same"),
    [
        pytest.param(START, pod_of_job(), id="its own pod"),
        pytest.param(START, pod_of_job("llama-launcher-0", uid="job-uid-9"), id="dependsOn, InOrder, MPI"),
        pytest.param(CREATED, pod_of_job("llama-launcher-0", uid="job-uid-9"), id="while the next is made"),
        pytest.param(START, pod_of_job("llama-node-1", uid=""), id="another Job's, without its uid"),
        pytest.param(START, by_its_owner("job-uid-0"), id="its own pod, which it chooses itself"),
        pytest.param(CREATED, by_its_owner("u", job="llama-node-1"), id="another Job's that does"),
        pytest.param(
            Start("", "", "bare", "u"), pod_of_job("bare", uid="u", without="JobSet's"), id="no labels"
        ),
    ],
)
def test_a_pod_of_the_same_start_is_none_to_wait_for(start: Start, same: Document) -> None:
    assert pods_of_another_start([same], start) == []


def test_a_job_that_is_made_has_no_pods_yet_whatever_has_its_name_is_of_an_earlier_one() -> None:
    assert pods_of_another_start([pod_of_job()], CREATED) == ["llama-node-0-0-x7k2p"]


def test_only_those_of_another_start_are_named() -> None:
    items = [pod_of_job(), pod_of_job(name="old", deleting=True), pod_of_job("llama-node-1", uid="other")]
    assert pods_of_another_start(items, START) == ["old"]


@pytest.mark.parametrize(
    "item",
    [
        None,
        "pod",
        {},
        {"metadata": None},
        {"metadata": {"name": ""}},
        {"metadata": {"name": 1}},
        {"metadata": {"name": "p", "labels": []}},
        {"metadata": {"name": "p", "labels": {JOBSET_UID_LABEL: 1}}},
        {"metadata": {"name": "p", "deletionTimestamp": True}},
    ],
)
def test_an_item_that_is_no_pod_is_unreadable_and_never_skipped(item: Any) -> None:
    with pytest.raises(UnreadableAnswerError):
        pods_of_another_start([pod_of_job(), item], START)


HOSTILE = ["a,b", "a b", "x" * 64, "-a", "a!=b", "ä", "a\n", "a)"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("field", ["jobset_uid", "restart_attempt"])
def test_a_label_value_that_can_be_on_no_job_reaches_no_selector(field: str, value: str) -> None:
    start = Start(
        **{"jobset_uid": "u", "restart_attempt": "0", "job_name": "j", "job_uid": ""} | {field: value}
    )
    assert jobs_of_other_starts("llama", start)[-1] == f"{JOBSET_NAME_LABEL}=llama"
    assert all(value not in selector for selector in jobs_of_other_starts("llama", start))
    assert pods_of_another_start([pod_of_job(jobset_uid="u")], start), "its pods are of another start"


def test_the_jobs_of_other_starts_are_those_of_another_jobset_and_those_of_another_restart() -> None:
    assert jobs_of_other_starts("llama", START) == [
        f"{JOBSET_NAME_LABEL}=llama,{JOBSET_UID_LABEL}!={JOBSET_UID}",
        f"{JOBSET_NAME_LABEL}=llama,{RESTART_ATTEMPT_LABEL}!=0",
    ]


def test_of_a_start_without_the_labels_the_jobs_that_have_them_are_of_another() -> None:
    assert jobs_of_other_starts("llama", Start("", "", "j", "")) == [
        f"{JOBSET_NAME_LABEL}=llama,{JOBSET_UID_LABEL}",
        f"{JOBSET_NAME_LABEL}=llama,{RESTART_ATTEMPT_LABEL}",
    ]


@pytest.mark.parametrize(
    ("operation", "old", "new", "starts"),
    [
        (Operation.CREATE, None, False, True),
        (Operation.CREATE, None, None, True),
        (Operation.CREATE, None, True, False),
        (Operation.UPDATE, True, False, True),
        (Operation.UPDATE, True, None, True),
        (Operation.UPDATE, False, False, False),
        (Operation.UPDATE, None, False, False),
        (Operation.UPDATE, False, True, False),
        (Operation.UPDATE, True, True, False),
    ],
)
def test_pods_start_where_a_job_is_made_or_un_suspended(
    operation: Operation, old: bool | None, new: bool | None, starts: bool
) -> None:
    before = None if operation is Operation.CREATE else read_job(job_of_jobset(suspend=old))
    assert starts_pods(operation, before, read_job(job_of_jobset(suspend=new))) is starts


def test_an_update_without_its_old_object_is_no_answer() -> None:
    with pytest.raises(ValueError, match="an UPDATE has an old object"):
        starts_pods(Operation.UPDATE, None, read_job(job_of_jobset(suspend=False)))


@pytest.mark.parametrize(
    ("changes", "created", "resumed"),
    [
        pytest.param({}, [SET_POLICY], [SET_POLICY], id="as JobSet makes it"),
        pytest.param({"policy": "TerminatingOrFailed"}, [SET_POLICY], [SET_POLICY], id="the default"),
        pytest.param({"policy": "Failed"}, [], [], id="right already"),
        pytest.param({"policy": "Failed", "grace": 30}, [], [], id="right already, with a grace"),
        pytest.param({"grace": 0}, [SET_POLICY, SET_GRACE], [SET_POLICY], id="no grace"),
        pytest.param({"policy": "Failed", "grace": 0}, [SET_GRACE], [], id="only no grace"),
        pytest.param({"grace": False}, [SET_POLICY], [SET_POLICY], id="a grace that is no number"),
        pytest.param({"wish": "leave"}, [], [], id="leave"),
        pytest.param({"wish": "leave", "grace": 0}, [SET_GRACE], [], id="leave, and no grace"),
        pytest.param({"wish": "Leave"}, [SET_POLICY], [SET_POLICY], id="a wish that means nothing"),
        pytest.param({"wish": ""}, [SET_POLICY], [SET_POLICY], id="an empty wish"),
    ],
)
def test_what_is_set_on_a_job(changes: Document, created: list[Document], resumed: list[Document]) -> None:
    job = read_job(job_of_jobset(**changes))
    assert patch(Operation.CREATE, job) == created
    assert patch(Operation.UPDATE, job) == resumed


@pytest.mark.parametrize(
    ("old", "new", "sooner"),
    [
        pytest.param({"policy": "Failed"}, {"policy": "TerminatingOrFailed"}, True, id="changed"),
        pytest.param({"policy": "Failed"}, {"policy": None}, True, id="taken away"),
        pytest.param({"policy": "Failed"}, {"policy": "of tomorrow"}, True, id="a policy nobody knows"),
        pytest.param({"policy": "Failed"}, {"policy": "Failed"}, False, id="as it was"),
        pytest.param({"policy": "TerminatingOrFailed"}, {"policy": "Failed"}, False, id="set right"),
        pytest.param({"policy": "TerminatingOrFailed"}, {"policy": None}, False, id="never was set"),
        pytest.param({"policy": None}, {"policy": "TerminatingOrFailed"}, False, id="the default, said"),
        pytest.param(
            {"policy": "Failed", "wish": "leave"},
            {"policy": "TerminatingOrFailed", "wish": "leave"},
            False,
            id="it says leave",
        ),
        pytest.param(
            {"policy": "Failed"}, {"policy": "TerminatingOrFailed", "wish": "leave"}, False, id="says it now"
        ),
        pytest.param(
            {"policy": "Failed", "wish": "leave"},
            {"policy": "TerminatingOrFailed"},
            True,
            id="and no longer",
        ),
        pytest.param(
            {"policy": "Failed"},
            {"policy": "TerminatingOrFailed", "wish": "Leave"},
            True,
            id="a wish of none",
        ),
    ],
)
def test_a_policy_that_is_taken_back_has_ranks_replaced_sooner(
    old: Document, new: Document, sooner: bool
) -> None:
    assert replaces_sooner(read_job(job_of_jobset(**old)), read_job(job_of_jobset(**new))) is sooner


def some_json() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner))


FIELDS = ["podReplacementPolicy", "suspend", "template", "metadata", "spec", "labels", "annotations", "name"]


@given(
    st.recursive(
        some_json(),
        lambda inner: st.dictionaries(
            st.sampled_from([*FIELDS, "terminationGracePeriodSeconds", POD_REPLACEMENT_ANNOTATION]), inner
        ),
    )
)
def test_whatever_a_job_says_it_is_read_or_refused_and_only_the_two_fields_are_set(document: Any) -> None:
    if not isinstance(document, dict):
        return
    try:
        job = read_job(document)
    except UnreadableAnswerError:
        return
    for operation in (Operation.CREATE, Operation.UPDATE):
        assert all(one in (SET_POLICY, SET_GRACE) for one in patch(operation, job))


@pytest.mark.parametrize(
    "document",
    [
        {"metadata": []},
        {"spec": "suspended"},
        {"spec": {"template": []}},
        {"spec": {"template": {"metadata": 1}}},
        {"spec": {"template": {"spec": 1}}},
        {"spec": {"podReplacementPolicy": 1}},
        {"metadata": {"labels": {JOBSET_NAME_LABEL: ["llama"]}}},
        {"metadata": {"annotations": {POD_REPLACEMENT_ANNOTATION: True}}},
        {"metadata": {"ownerReferences": {"uid": "u"}}},
        {"metadata": {"ownerReferences": ["llama"]}},
        {"metadata": {"ownerReferences": [{"uid": 1}]}},
    ],
)
def test_a_job_of_another_shape_is_unreadable(document: Document) -> None:
    with pytest.raises(UnreadableAnswerError):
        read_job(document)


def test_a_jobset_of_a_trainjob_is_told_by_its_owner() -> None:
    reference = TrainJobReference("trainer.kubeflow.org/v1alpha1", "llama", "trainjob-uid")
    assert owning_trainjob(jobset_of_trainjob()) == reference


@pytest.mark.parametrize(
    "owners",
    [
        None,
        [],
        [{"apiVersion": "v1", "kind": "TrainJob", "name": "llama", "uid": "u"}],
        [{"apiVersion": "trainer.kubeflow.org.evil/v1", "kind": "TrainJob", "name": "llama", "uid": "u"}],
        [{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "name": "l", "uid": "u"}],
    ],
)
def test_a_jobset_that_no_trainjob_owns_is_nobodys(owners: Any) -> None:
    jobset = jobset_of_trainjob()
    jobset["metadata"]["ownerReferences"] = owners
    assert owning_trainjob(jobset) is None


def test_the_trainjob_is_found_among_other_owners_and_in_another_version() -> None:
    jobset = jobset_of_trainjob()
    owner = {"apiVersion": "trainer.kubeflow.org/v1", "kind": "TrainJob", "name": "llama", "uid": "u"}
    jobset["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "uid": "x"}, owner]
    assert owning_trainjob(jobset) == TrainJobReference("trainer.kubeflow.org/v1", "llama", "u")


@pytest.mark.parametrize("jobset", [{}, {"metadata": {}}, {"metadata": {"name": "x", "ownerReferences": 1}}])
def test_what_is_no_jobset_has_no_owner_that_could_be_told(jobset: Document) -> None:
    with pytest.raises(UnreadableAnswerError):
        owning_trainjob(jobset)


def test_a_template_that_was_given_the_uid_of_a_jobset_before_is_no_order_of_this() -> None:
    """Else that one's pods would be of this start: the template of a suspended Job can be relabelled."""
    job = job_of_jobset()
    labels = job["spec"]["template"]["metadata"]["labels"]
    labels[JOBSET_UID_LABEL] = "of-yesterday"
    assert out_of_date(jobset_of_trainjob(), read_job(job)) is OutOfDate.NOT_ITS_OWN
    del labels[JOBSET_UID_LABEL]
    assert out_of_date(jobset_of_trainjob(), read_job(job)) is None


def test_the_order_of_a_jobset_that_runs_is_up_to_date() -> None:
    assert out_of_date(jobset_of_trainjob(), read_job(job_of_jobset())) is None


@pytest.mark.parametrize(
    ("jobset", "job", "why"),
    [
        pytest.param(None, {}, OutOfDate.JOBSET_GONE, id="gone"),
        pytest.param(jobset_of_trainjob(uid="another"), {}, OutOfDate.NOT_ITS_OWN, id="made again since"),
        pytest.param(jobset_of_trainjob(), {"owner_uid": None}, OutOfDate.NOT_ITS_OWN, id="no owner"),
        pytest.param(
            jobset_of_trainjob(), {"owner_uid": ""}, OutOfDate.NOT_ITS_OWN, id="an owner without uid"
        ),
        pytest.param(
            jobset_of_trainjob(), {"pods_jobset_name": "other"}, OutOfDate.NOT_ITS_OWN, id="pods of another"
        ),
        pytest.param(jobset_of_trainjob(), {"pods_jobset_name": ""}, OutOfDate.NOT_ITS_OWN, id="of none"),
        pytest.param(jobset_of_trainjob(deleting=True), {}, OutOfDate.JOBSET_DELETED, id="being deleted"),
        pytest.param(jobset_of_trainjob(suspend=True), {}, OutOfDate.JOBSET_SUSPENDED, id="suspended"),
        pytest.param(
            jobset_of_trainjob(terminal_state="Failed"), {}, OutOfDate.JOBSET_FINISHED, id="finished"
        ),
        pytest.param(jobset_of_trainjob(restarts=1), {}, OutOfDate.JOBSET_RESTARTED, id="restarted since"),
    ],
)
def test_an_order_that_the_jobset_no_longer_gives_is_out_of_date(
    jobset: Document | None, job: Document, why: OutOfDate
) -> None:
    assert out_of_date(jobset, read_job(job_of_jobset(**job))) is why


@pytest.mark.parametrize(("attempt", "restarts"), [("1", 1), ("2", 1), ("0", None), ("one", 1), ("", 3)])
def test_an_attempt_that_is_not_known_to_be_over_is_no_reason(attempt: str, restarts: int | None) -> None:
    """Its pods and Jobs are then of another start, and that is asked next."""
    jobset = jobset_of_trainjob(restarts=restarts)
    assert out_of_date(jobset, read_job(job_of_jobset(attempt=attempt))) is None


def test_a_jobset_without_a_uid_is_no_jobs_owner() -> None:
    """Neither has one: an empty uid would otherwise be the uid of an owner that has none."""
    jobset = jobset_of_trainjob(uid="")
    assert out_of_date(jobset, read_job(job_of_jobset(owner_uid=""))) is OutOfDate.NOT_ITS_OWN


@pytest.mark.parametrize("timestamp", [DELETED_AT])
def test_one_that_is_being_deleted_is_out_of_date_also_when_it_is_suspended(timestamp: str) -> None:
    jobset = jobset_of_trainjob(suspend=True, deleting=True)
    assert jobset["metadata"]["deletionTimestamp"] == timestamp
    assert out_of_date(jobset, read_job(job_of_jobset())) is OutOfDate.JOBSET_DELETED


def test_labels_of_the_start_are_those_of_its_pods() -> None:
    assert read_job(job_of_jobset()).start == START
    assert read_job(job_of_jobset()).start.job_name == pod_of_job()["metadata"]["labels"][JOB_NAME_LABEL]


def of_a_submission(job_id: str = "j-1", submission: str = "s-1") -> Job:
    document = job_of_jobset()
    document["spec"]["template"]["metadata"]["labels"] |= execution_labels(job_id, submission)
    return read_job(document)


def test_the_pods_of_its_submission_that_another_jobset_made_are_of_another_start() -> None:
    assert pods_of_other_jobsets(of_a_submission()) == (
        "dispatch.phpboyscout.uk/job-id=j-1,dispatch.phpboyscout.uk/submission=s-1,"
        "jobset.sigs.k8s.io/jobset-name!=llama"
    )


@pytest.mark.parametrize(
    ("job_id", "submission"), [("", "s-1"), ("j-1", ""), ("j-1,x", "s-1"), ("j-1", "s" * 64)]
)
def test_a_submission_that_is_none_selects_nothing(job_id: str, submission: str) -> None:
    assert pods_of_other_jobsets(of_a_submission(job_id, submission)) is None
    assert pods_of_other_jobsets(read_job(job_of_jobset())) is None
