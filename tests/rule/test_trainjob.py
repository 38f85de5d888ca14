"""What is read from a TrainJob."""

from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from tests.objects import A_PLACES, KUEUE, Document, a, a_in, execution_labels, patch, trainjob
from webhook.rule.trainjob import (
    DEFAULT_A_KEY,
    GREATEST_A,
    JOB_ID_LABEL,
    SUBMISSION_LABEL,
    Execution,
    TrainJob,
    UnreadableTrainJobError,
    WrittenA,
    is_label_value,
    is_object_name,
    is_qualified_name,
    read_trainjob,
    whole_number,
)

JOBSET_TEMPLATE = "spec.runtimePatches[dispatch.phpboyscout.uk/adapter].trainingRuntimeSpec.template"
JOB_TEMPLATE = f"{JOBSET_TEMPLATE}.spec.replicatedJobs[node].template"
POD_TEMPLATE = f"{JOB_TEMPLATE}.spec.template"


def read(document: Document) -> TrainJob:
    return read_trainjob(document, a_key=DEFAULT_A_KEY)


def with_spec(**spec: Any) -> Document:
    document = trainjob()
    return document | {"spec": document["spec"] | spec}


@pytest.mark.parametrize(
    ("document", "suspended"),
    [
        pytest.param(trainjob(suspend=True), True, id="true"),
        pytest.param(trainjob(suspend=False), False, id="false"),
        pytest.param(trainjob(suspend=None), False, id="absent"),
        pytest.param(with_spec(suspend=None), False, id="null"),
        pytest.param(trainjob() | {"spec": None}, False, id="spec null"),
        pytest.param({"metadata": {"name": "llama"}}, False, id="spec absent"),
    ],
)
def test_only_suspend_true_is_suspended(document: Document, suspended: bool) -> None:
    assert read(document).suspended is suspended


def test_the_name_and_namespace_are_read() -> None:
    assert (read(trainjob("llama")).name, read(trainjob(namespace="research")).namespace) == (
        "llama",
        "research",
    )


def test_an_object_that_is_still_without_a_name_reads_as_nameless() -> None:
    document = trainjob() | {"metadata": {"generateName": "llama-"}}
    assert (read(document).name, read(document).namespace) == ("", "")


@pytest.mark.parametrize("place", A_PLACES)
def test_a_is_read_wherever_it_can_be_written(place: str) -> None:
    assert read(trainjob(**a_in(place, 7))).a == 7


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("metadata.annotations", "metadata.annotations"),
        ("metadata.labels", "metadata.labels"),
        ("jobset.annotations", f"{JOBSET_TEMPLATE}.metadata.annotations"),
        ("jobset.labels", f"{JOBSET_TEMPLATE}.metadata.labels"),
        ("job.annotations", f"{JOB_TEMPLATE}.metadata.annotations"),
        ("job.labels", f"{JOB_TEMPLATE}.metadata.labels"),
        ("pods.annotations", f"{POD_TEMPLATE}.metadata.annotations"),
        ("pods.labels", f"{POD_TEMPLATE}.metadata.labels"),
    ],
)
def test_the_place_of_a_is_named_as_a_person_would_look_it_up(place: str, path: str) -> None:
    assert read(trainjob(**a_in(place, 7))).written_a == (WrittenA(path, "7"),)


def test_a_is_the_greatest_that_is_written_anywhere() -> None:
    patches = [patch(job={"labels": a(9)}), patch(KUEUE, pods={"annotations": a(11)})]
    assert read(trainjob(annotations=a(2), labels=a(10), patches=patches)).a == 11


def test_a_is_compared_as_a_number_and_not_as_text() -> None:
    assert read(trainjob(annotations=a(9), labels=a(10))).a == 10


def test_a_is_0_where_none_is_written() -> None:
    assert read(trainjob(labels={"team": "x"}, patches=[patch()])).a == 0


def test_an_a_that_is_not_a_number_counts_for_nothing() -> None:
    assert read(trainjob(annotations=a("x"), labels=a(3))).a == 3


def test_a_null_a_is_not_written() -> None:
    document = trainjob() | {"metadata": {"name": "llama", "annotations": {DEFAULT_A_KEY: None}}}
    assert read(document).written_a == ()


def test_a_is_read_under_the_configured_key_only() -> None:
    document = trainjob(annotations={"example.com/tries": "5"} | a(9))
    assert read_trainjob(document, a_key="example.com/tries").a == 5


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("007", 7), ("10", 10), (str(GREATEST_A), 9223372036854775807)],
)
def test_digits_are_a_whole_number(text: str, number: int) -> None:
    assert whole_number(text) == number


NO_WHOLE_NUMBERS = {
    "a word": "x",
    "empty": "",
    "negative": "-1",
    "signed": "+1",
    "fraction": "1.5",
    "leading space": " 1",
    "trailing newline": "1\n",
    "underscore": "1_000",
    "hexadecimal": "0x1",
    "exponent": "1e3",
    "an Arabic digit, which int() takes": "\N{ARABIC-INDIC DIGIT ONE}",
    "5000 digits": "9" * 5000,
    "2**63": str(2**63),
}


@pytest.mark.parametrize("text", NO_WHOLE_NUMBERS.values(), ids=NO_WHOLE_NUMBERS)
def test_what_is_not_an_int64_in_ascii_digits_is_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("value", [1, 1.0, True, None, ["1"], {"1": 1}])
def test_what_is_not_text_is_no_whole_number(value: object) -> None:
    assert whole_number(value) is None


@pytest.mark.parametrize("value", ["", "a", "A1", "a.b_c-d", "0", "a" * 63])
def test_what_kubernetes_takes_as_a_label_value(value: str) -> None:
    assert is_label_value(value)


HOSTILE_VALUES = {
    "a comma": "j-1,team=x",
    "a set": "in (a,b)",
    "an exclamation mark": "!j",
    "a space": "j 1",
    "only a space": " ",
    "a newline": "j-1\n",
    "an equals sign": "j=1",
    "a slash": "team/j-1",
    "64 characters": "a" * 64,
    "a leading dash": "-j",
    "a trailing dot": "j.",
    "unicode": "jöb",
    "an Arabic digit": "j-\N{ARABIC-INDIC DIGIT ONE}",
    "nul": "j\0",
}


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
def test_what_kubernetes_refuses_as_a_label_value(value: str) -> None:
    assert not is_label_value(value)


@pytest.mark.parametrize("name", ["a", "0", "llama-3", "llama.v2", "a" * 253])
def test_what_kubernetes_takes_as_a_name(name: str) -> None:
    assert is_object_name(name)


@pytest.mark.parametrize(
    "name", ["", "A", "a_b", "-a", "a-", "a.", "a..b", ".a", "a/b", "a b", "ä", "a\n", "a" * 254]
)
def test_what_kubernetes_refuses_as_a_name(name: str) -> None:
    assert not is_object_name(name)


@pytest.mark.parametrize("key", ["a", "A_1", DEFAULT_A_KEY, f"x.y/{'n' * 63}"])
def test_what_kubernetes_takes_as_a_label_key(key: str) -> None:
    assert is_qualified_name(key)


@pytest.mark.parametrize("key", ["", "/", "/a", "x.y/", "x.y/a/b", "X.Y/a", "a b", f"x.y/{'n' * 64}"])
def test_what_kubernetes_refuses_as_a_label_key(key: str) -> None:
    assert not is_qualified_name(key)


def test_an_execution_is_read_from_the_labels_of_the_trainjob() -> None:
    assert set(read(trainjob(labels=execution_labels("j-1", "s-1"))).executions) == {Execution("j-1", "s-1")}


def test_an_execution_is_read_from_the_pod_labels_of_each_patch() -> None:
    patches = [
        patch(pods={"labels": execution_labels("j-1", "s-1")}),
        patch(KUEUE, pods={"labels": execution_labels("j-1", "s-2")}),
    ]
    assert set(read(trainjob(patches=patches)).executions) == {
        Execution("j-1", "s-1"),
        Execution("j-1", "s-2"),
    }


def test_an_execution_is_read_from_each_replicated_job_of_a_patch() -> None:
    labelled = patch(pods={"labels": execution_labels("j-1", "s-1")}, replicated_job="initializer")
    jobset = labelled["trainingRuntimeSpec"]["template"]["spec"]
    jobset["replicatedJobs"] += patch(pods={"labels": execution_labels("j-2", "s-2")})["trainingRuntimeSpec"][
        "template"
    ]["spec"]["replicatedJobs"]
    assert {Execution("j-1", "s-1"), Execution("j-2", "s-2")} <= set(
        read(trainjob(patches=[labelled])).executions
    )


def test_the_halves_of_an_execution_may_stand_in_different_places() -> None:
    document = trainjob(
        labels={JOB_ID_LABEL: "j-1"}, patches=[patch(pods={"labels": {SUBMISSION_LABEL: "s-1"}})]
    )
    assert set(read(document).executions) == {Execution("j-1", "s-1")}


def test_the_halves_of_an_execution_may_stand_in_different_patches() -> None:
    patches = [
        patch(pods={"labels": {JOB_ID_LABEL: "j-1"}}),
        patch(KUEUE, pods={"labels": {SUBMISSION_LABEL: "s-1"}}),
    ]
    assert set(read(trainjob(patches=patches)).executions) == {Execution("j-1", "s-1")}


def test_a_patch_that_overrides_one_half_makes_an_execution_with_each() -> None:
    document = trainjob(
        labels=execution_labels("j-1", "s-1"), patches=[patch(pods={"labels": {SUBMISSION_LABEL: "s-2"}})]
    )
    assert set(read(document).executions) == {Execution("j-1", "s-1"), Execution("j-1", "s-2")}


@pytest.mark.parametrize("label", [JOB_ID_LABEL, SUBMISSION_LABEL])
def test_one_half_alone_is_no_execution(label: str) -> None:
    assert set(read(trainjob(labels={label: "1"})).executions) == set()


@pytest.mark.parametrize("holder", ["jobset", "job"])
def test_labels_that_no_pod_takes_over_are_no_execution(holder: str) -> None:
    metadata: Document = {holder: {"labels": execution_labels()}}
    assert set(read(trainjob(patches=[patch(**metadata)])).executions) == set()


def test_annotations_are_no_execution() -> None:
    assert set(read(trainjob(annotations=execution_labels())).executions) == set()


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
@pytest.mark.parametrize("label", [JOB_ID_LABEL, SUBMISSION_LABEL])
def test_an_execution_with_a_value_that_kubernetes_refuses_is_on_no_pod(label: str, value: str) -> None:
    document = trainjob(patches=[patch(pods={"labels": execution_labels() | {label: value}})])
    (execution,) = read(document).executions
    assert not execution.can_be_on_a_pod


def test_an_execution_with_an_empty_value_can_be_on_a_pod() -> None:
    assert Execution("", "s-1").can_be_on_a_pod


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (trainjob() | {"metadata": "x"}, "metadata is 'x', expected an object"),
        (trainjob() | {"spec": []}, "spec is a list, expected an object"),
        (with_spec(suspend="false"), "spec.suspend is 'false', expected true or false"),
        (with_spec(suspend=0), "spec.suspend is 0, expected true or false"),
        (with_spec(suspend="y" * 100), f"spec.suspend is '{'y' * 78}…, expected true or false"),
        (with_spec(runtimePatches={}), "spec.runtimePatches is not a list of objects"),
        (with_spec(runtimePatches=["x"]), "spec.runtimePatches is not a list of objects"),
        (
            with_spec(runtimePatches=[{"manager": "x", "trainingRuntimeSpec": {"template": 1}}]),
            "spec.runtimePatches[x].trainingRuntimeSpec.template is 1, expected an object",
        ),
        (
            trainjob(patches=[patch(pods={"labels": "x"})]),
            f"{POD_TEMPLATE}.metadata.labels is 'x', expected an object",
        ),
        (trainjob(metadata={"labels": ["x"]}), "metadata.labels is a list, expected an object"),
        (trainjob(metadata={"annotations": 1}), "metadata.annotations is 1, expected an object"),
        (trainjob(metadata={"name": 1}), "metadata.name is 1, expected a string"),
        (trainjob(metadata={"namespace": []}), "metadata.namespace is a list, expected a string"),
        (
            trainjob(metadata={"labels": {JOB_ID_LABEL: 1}}),
            "metadata.labels.dispatch.phpboyscout.uk/job-id is 1, expected a string",
        ),
    ],
)
def test_a_field_of_another_type_is_named(document: Document, message: str) -> None:
    with pytest.raises(UnreadableTrainJobError) as raised:
        read(document)
    assert str(raised.value) == message


def with_replicated_job(replicated_job: Document) -> Document:
    template = {"spec": {"replicatedJobs": [replicated_job]}}
    return with_spec(runtimePatches=[{"trainingRuntimeSpec": {"template": template}}])


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (
            with_spec(runtimePatches=[{"trainingRuntimeSpec": 1}]),
            "spec.runtimePatches[0].trainingRuntimeSpec",
        ),
        (
            with_replicated_job({"template": 1}),
            "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template",
        ),
        (
            with_replicated_job({"name": "node", "template": {"spec": {"template": 1}}}),
            (
                "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[node].template"
                ".spec.template"
            ),
        ),
    ],
)
def test_a_template_of_another_type_is_named(document: Document, path: str) -> None:
    with pytest.raises(UnreadableTrainJobError) as raised:
        read(document)
    assert str(raised.value) == f"{path} is 1, expected an object"


def test_a_value_as_deep_as_json_gets_is_called_unreadable() -> None:
    with pytest.raises(UnreadableTrainJobError):
        read(with_spec(suspend=orjson.loads("[" * 1000 + "]" * 1000)))


KEYS = [
    "metadata",
    "spec",
    "name",
    "labels",
    "annotations",
    "suspend",
    "runtimePatches",
    "manager",
    "trainingRuntimeSpec",
    "template",
    "replicatedJobs",
    DEFAULT_A_KEY,
    JOB_ID_LABEL,
    SUBMISSION_LABEL,
]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
        | st.dictionaries(st.text(), inner, max_size=2)
    ),
    max_leaves=40,
)


@given(metadata=ANY_JSON, spec=ANY_JSON)
def test_whatever_json_is_sent_is_read_or_called_unreadable(metadata: Any, spec: Any) -> None:
    try:
        trainjob = read({"metadata": metadata, "spec": spec})
    except UnreadableTrainJobError:
        return
    assert 0 <= trainjob.a <= GREATEST_A


@given(template=ANY_JSON)
def test_whatever_json_a_patch_holds_is_read_or_called_unreadable(template: Any) -> None:
    try:
        trainjob = read(with_spec(runtimePatches=[{"trainingRuntimeSpec": {"template": template}}]))
    except UnreadableTrainJobError:
        return
    assert 0 <= trainjob.a <= GREATEST_A


@given(value=st.integers(min_value=0, max_value=GREATEST_A))
def test_every_int64_from_0_is_read_back(value: int) -> None:
    assert whole_number(str(value)) == value


@given(value=st.text())
def test_nothing_but_ascii_digits_is_a_whole_number(value: str) -> None:
    assert whole_number(value) is None or (value.isascii() and value.isdigit())
