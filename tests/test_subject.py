"""Which pods a question is about: the two selections."""

import pytest
from hypothesis import given, strategies as st

from tests.objects import Document, execution_labels, patch, trainjob
from tests.test_trainjob import HOSTILE_VALUES
from webhook.question import Subject
from webhook.trainjob import (
    DEFAULT_A_KEY,
    JOB_ID_LABEL,
    SUBMISSION_LABEL,
    Execution,
    is_label_value,
    read_trainjob,
)

BY_JOBSET = "jobset.sigs.k8s.io/jobset-name=llama"


def subject(*documents: Document, name: str = "llama") -> Subject:
    readings = [read_trainjob(document, a_key=DEFAULT_A_KEY) for document in documents]
    return Subject.of(readings, namespace="team", name=name)


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
