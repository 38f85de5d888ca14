"""Which pods a question is about: the two selections."""

import pytest
from hypothesis import given, strategies as st

from tests.objects import Document, execution_labels, patch, trainjob
from tests.rule.test_trainjob import HOSTILE_VALUES
from webhook.questions.admission import MOST_EXECUTIONS, Subject
from webhook.rule.trainjob import (
    DEFAULT_A_KEY,
    JOB_ID_LABEL,
    SUBMISSION_LABEL,
    Execution,
    is_label_value,
    read_trainjob,
)

BY_JOBSET = "jobset.sigs.k8s.io/jobset-name=llama"


def subject(new: Document, old: Document | None = None, *, name: str = "llama") -> Subject:
    before = None if old is None else read_trainjob(old, a_key=DEFAULT_A_KEY)
    return Subject.of(read_trainjob(new, a_key=DEFAULT_A_KEY), before, namespace="team", name=name)


def by_execution(job_id: str, submission: str) -> str:
    return f"dispatch.phpboyscout.uk/job-id={job_id},dispatch.phpboyscout.uk/submission={submission}"


def test_pods_are_selected_by_what_jobset_sets_and_by_job_id_and_submission() -> None:
    document = trainjob(labels=execution_labels("j-1", "s-1"))
    assert subject(document).selectors == [BY_JOBSET, by_execution("j-1", "s-1")]


def test_a_trainjob_without_job_id_is_selected_by_what_jobset_sets() -> None:
    assert subject(trainjob()).selectors == [BY_JOBSET]


def test_rewriting_the_labels_in_the_request_that_readmits_hides_nothing() -> None:
    old = trainjob(labels=execution_labels("j-1", "s-1"))
    new = trainjob(labels=execution_labels("j-9", "s-9"), suspend=False)
    assert subject(new, old).selectors == [BY_JOBSET, by_execution("j-1", "s-1"), by_execution("j-9", "s-9")]


def test_rewriting_the_patch_in_the_request_that_readmits_hides_nothing() -> None:
    old = trainjob(patches=[patch(pods={"labels": execution_labels("j-1", "s-1")})])
    new = trainjob(patches=[patch(pods={"labels": execution_labels("j-9", "s-9")})], suspend=False)
    assert subject(new, old).selectors == [BY_JOBSET, by_execution("j-1", "s-1"), by_execution("j-9", "s-9")]


def test_the_same_execution_in_old_and_new_is_asked_for_once() -> None:
    document = trainjob(labels=execution_labels("j-1", "s-1"))
    assert subject(document, document).selectors == [BY_JOBSET, by_execution("j-1", "s-1")]


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
@pytest.mark.parametrize("label", [JOB_ID_LABEL, SUBMISSION_LABEL])
def test_a_value_that_kubernetes_refuses_never_reaches_a_selector(label: str, value: str) -> None:
    honest = trainjob(labels=execution_labels("j-1", "s-1"))
    hostile = trainjob(patches=[patch(pods={"labels": execution_labels("j-1", "s-1") | {label: value}})])
    assert subject(hostile, honest).selectors == [BY_JOBSET, by_execution("j-1", "s-1")]


def test_an_empty_value_is_selected_as_such() -> None:
    document = trainjob(labels=execution_labels("", "s-1"))
    assert subject(document).selectors == [BY_JOBSET, by_execution("", "s-1")]


@pytest.mark.parametrize("length", [1, 63])
def test_a_name_that_can_be_a_label_value_is_selected_by(length: int) -> None:
    name = "n" * length
    assert subject(trainjob(name), name=name).selectors == [f"jobset.sigs.k8s.io/jobset-name={name}"]


@pytest.mark.parametrize("length", [64, 70, 253])
def test_a_name_that_can_be_no_label_value_is_on_no_pod_and_is_not_selected_by(length: int) -> None:
    name = "n" * length
    document = trainjob(name, labels=execution_labels("j-1", "s-1"))
    assert subject(document, name=name).selectors == [by_execution("j-1", "s-1")]


def test_a_name_with_dots_is_selected_by() -> None:
    assert subject(trainjob("llama.v2"), name="llama.v2").selectors == [
        "jobset.sigs.k8s.io/jobset-name=llama.v2"
    ]


def many_executions(job_ids: int, submissions: int) -> Document:
    """A TrainJob whose patches name so many job-ids and submissions, each in a replicated Job of its own."""
    labels = [{JOB_ID_LABEL: f"j-{number}"} for number in range(job_ids)]
    labels += [{SUBMISSION_LABEL: f"s-{number}"} for number in range(submissions)]
    replicated_jobs = [
        {"name": f"node-{number}", "template": {"spec": {"template": {"metadata": {"labels": each}}}}}
        for number, each in enumerate(labels)
    ]
    entry = patch()
    entry["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"] = replicated_jobs
    return trainjob(patches=[entry])


def test_as_many_executions_as_can_be_looked_for_are_all_looked_for() -> None:
    asked = subject(many_executions(4, 4))
    assert (len(asked.executions), asked.too_many) == (MOST_EXECUTIONS, 0)


def test_one_execution_more_than_can_be_looked_for_is_told() -> None:
    assert subject(many_executions(1, 17)).too_many == 17


def test_old_and_new_together_may_be_too_many() -> None:
    assert subject(many_executions(1, 9), many_executions(2, 4)).too_many == 17


def test_an_object_that_stays_the_same_counts_once() -> None:
    assert subject(many_executions(4, 4), many_executions(4, 4)).too_many == 0


def test_the_pairs_of_a_hostile_object_are_counted_and_never_combined() -> None:
    # 16 patches of 100 replicated Jobs are what the CRD lets through.
    asked = subject(many_executions(800, 800))
    assert (asked.too_many, asked.executions) == (640_000, frozenset())


@given(
    name=st.text(),
    executions=st.frozensets(st.builds(Execution, st.text(max_size=70), st.text(max_size=70)), max_size=4),
)
def test_every_selector_is_one_or_two_requirements_of_equality(
    name: str, executions: frozenset[Execution]
) -> None:
    for selector in Subject("team", name, executions).selectors:
        requirements = [requirement.partition("=") for requirement in selector.split(",")]
        assert [key for key, _, _ in requirements] in (
            ["jobset.sigs.k8s.io/jobset-name"],
            ["dispatch.phpboyscout.uk/job-id", "dispatch.phpboyscout.uk/submission"],
        )
        assert all(is_label_value(value) for _, _, value in requirements)
